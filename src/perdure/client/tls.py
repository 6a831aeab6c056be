"""TLS of a client: whom it trusts, and the certificate that it shows."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

from perdure.kernel.errors import InvalidInput

CA_VARIABLE = "PERDURE_TLS_CA_FILE"
CERT_VARIABLE = "PERDURE_TLS_CLIENT_CERT_FILE"
KEY_VARIABLE = "PERDURE_TLS_CLIENT_KEY_FILE"


class ClientTls(NamedTuple):
    """The files of a client. Without an authority it trusts those of the system."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    """The key of the certificate, unless it is in the same file."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """The files that the environment names."""
        found = [environment.get(name) for name in (CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE)]
        return cls(*(Path(path) if path else None for path in found))

    def context(self) -> ssl.SSLContext:
        """What an HTTPS client uses."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file, password=lambda: "")
        except (ssl.SSLError, OSError) as error:
            raise InvalidInput(f"the TLS files of the client cannot be used: {error}") from None
        return context

    def pem(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Authority, key and certificate, as a gRPC client takes them."""
        key_file = self.key_file or self.cert_file
        try:
            ca, key, cert = (
                None if path is None else path.read_bytes()
                for path in (self.ca_file, key_file, self.cert_file)
            )
        except OSError as error:
            raise InvalidInput(f"the TLS files of the client cannot be read: {error}") from None
        return ca, key, cert
