"""TLS of the server for HTTP and gRPC: a certificate, its key, and the authority of clients.

The files are read at the start and at each reload. New connections use the files that were read last. If a
file is unusable, nothing changes.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, NamedTuple

from perdure.kernel.config import Settings
from perdure.kernel.errors import InvalidInput, StartRefused

SETTINGS = ("tls_cert_file", "tls_key_file", "tls_client_ca_file")
HTTP = ["http/1.1"]


class Pem(NamedTuple):
    """The content of the files."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None
    """If set, only clients with a certificate of this authority can connect."""


class TlsFiles(NamedTuple):
    """Paths of the certificate, its key and the authority of clients."""

    certificate: Path
    key: Path
    client_ca: Path | None

    def read(self) -> Pem:
        """Read the files. Raise InvalidInput if they are unusable."""
        pem = Pem(
            _read(self.certificate, "tls_cert_file"),
            _read(self.key, "tls_key_file"),
            None if self.client_ca is None else _read(self.client_ca, "tls_client_ca_file"),
        )
        self.context()
        return pem

    def context(self) -> ssl.SSLContext:
        """Build a context of these files. Raise InvalidInput if they do not match."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(HTTP)
        try:
            # Without a password function, OpenSSL would prompt for a password at the terminal.
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
        except (ssl.SSLError, OSError) as error:
            raise InvalidInput(
                f"tls_cert_file {self.certificate} and tls_key_file {self.key} cannot be used: {error}"
            ) from None
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except (ssl.SSLError, OSError) as error:
                raise InvalidInput(f"tls_client_ca_file {self.client_ca} cannot be used: {error}") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def find_tls_files(settings: Settings) -> TlsFiles | None:
    """Return the files that the settings name; None without TLS."""
    if settings.tls_cert_file is None:
        for name in ("tls_key_file", "tls_client_ca_file"):
            if getattr(settings, name) is not None:
                raise InvalidInput(f"{name} needs tls_cert_file")
        return None
    client_ca = settings.tls_client_ca_file
    return TlsFiles(
        Path(settings.tls_cert_file),
        Path(settings.tls_key_file or settings.tls_cert_file),
        None if client_ca is None else Path(client_ca),
    )


class Tls:
    """The TLS of a server; its files can be reloaded."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self.pem = files.read()
        self.context = _ReloadableContext(files.context())

    @classmethod
    def of(cls, settings: Settings) -> Tls | None:
        """Build the TLS of the settings; None without it. Refuse the start if the files are unusable."""
        try:
            files = find_tls_files(settings)
            return None if files is None else cls(files)
        except InvalidInput as error:
            raise StartRefused(error.message) from error

    async def reload(self, settings: Settings) -> str | None:
        """Read the files that the settings name now, and return a description of the change."""
        files = find_tls_files(settings)
        if files is None:
            raise InvalidInput("TLS cannot be switched off without a restart")
        if (files.client_ca is None) != (self.files.client_ca is None):
            raise InvalidInput("tls_client_ca_file cannot be set or removed without a restart")
        pem = files.read()
        if pem == self.pem:
            return None
        self.files, self.pem = files, pem
        self.context.current = files.context()
        return f"new connections use {files.certificate}"


class _ReloadableContext(ssl.SSLContext):
    """A context that delegates to another one, which can be replaced while a server listens."""

    current: ssl.SSLContext

    def __new__(cls, current: ssl.SSLContext) -> _ReloadableContext:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, current: ssl.SSLContext) -> None:
        self.current = current

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return self.current.wrap_bio(*args, **options)


def _read(path: Path, setting: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{setting}: cannot read {path}: {error.strerror}") from None
