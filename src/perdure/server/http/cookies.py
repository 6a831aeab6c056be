"""The cookie that holds the login of a person who uses the dashboard."""

from __future__ import annotations

from typing import Final

NAME: Final = "perdure"


def cookie_name(host: str | None) -> str:
    """The name of the cookie: browsers share cookies between the ports of a host, and servers must not."""
    port = (host or "").rpartition(":")[2]
    return f"{NAME}_{port}" if port.isdecimal() else NAME


def secret_in_cookie(cookies: str | None, host: str | None) -> str | None:
    """The secret in a Cookie header, or None."""
    name = cookie_name(host)
    for part in (cookies or "").split(";"):
        key, equals, value = part.strip().partition("=")
        if equals and key == name and value:
            return value
    return None
