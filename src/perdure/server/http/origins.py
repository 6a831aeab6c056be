"""The origins of web pages that may send requests."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perdure.kernel.errors import StartRefused

ANY = "*"
ANY_PORT = ":*"
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
LOCAL_ORIGINS = tuple(f"{scheme}://{name}{ANY_PORT}" for scheme in ("http", "https") for name in LOCAL_NAMES)
"""Every page that this machine serves."""


class Origins:
    """The allowed origins; `http://name:*` is any port of a name, `*` alone is every origin."""

    def __init__(self, allowed: Sequence[str]) -> None:
        if ANY in allowed and len(allowed) > 1:
            raise StartRefused("cors_allow_origins is either * or a list of origins")
        self.any = ANY in allowed
        self.pattern = re.compile(".*" if self.any else "|".join(map(_pattern_of, allowed)) or "(?!)")

    def allow(self, origin: str) -> bool:
        return self.pattern.fullmatch(origin) is not None


def _pattern_of(origin: str) -> str:
    if origin.endswith(ANY_PORT):
        return re.escape(origin.removesuffix(ANY_PORT)) + r"(?::[0-9]{1,5})?"
    return re.escape(origin)


def is_own(origin: str, host: str | None) -> bool:
    """Whether an origin is the server's, under the name that the request called it by."""
    return host is not None and origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")
