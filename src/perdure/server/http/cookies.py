"""The login cookie of the dashboard."""

from __future__ import annotations

from typing import Final

NAME: Final = "perdure"


def cookie_name(host: str | None) -> str:
    """Return the cookie's name with the port, because browsers share cookies between the ports of a host."""
    port = (host or "").rpartition(":")[2]
    return f"{NAME}_{port}" if port.isdecimal() else NAME


def secret_in_cookie(cookies: str | None, host: str | None) -> str | None:
    """Return the secret in a Cookie header, or None."""
    name = cookie_name(host)
    for part in (cookies or "").split(";"):
        key, equals, value = part.strip().partition("=")
        if equals and key == name and value:
            return value
    return None
