"""TLS of a client: trusted authorities and the client's certificate."""

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
    """The TLS files of a client. Without an authority file, the client trusts those of the system."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    """The key of the certificate, if it is in a separate file."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the files that the environment names."""
        paths = [environment.get(name) for name in (CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE)]
        return cls(*(Path(path) if path else None for path in paths))

    def context(self) -> ssl.SSLContext:
        """Build the context of an HTTPS client."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file, password=lambda: "")
        except (ssl.SSLError, OSError) as error:
            raise InvalidInput(f"the TLS files of the client cannot be used: {error}") from None
        return context

    def pem(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Read authority, key and certificate, as a gRPC client needs them."""
        key_file = self.key_file or self.cert_file
        try:
            ca, key, cert = (
                None if path is None else path.read_bytes()
                for path in (self.ca_file, key_file, self.cert_file)
            )
        except OSError as error:
            raise InvalidInput(f"the TLS files of the client cannot be read: {error}") from None
        return ca, key, cert
