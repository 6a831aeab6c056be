"""Origins of web pages that may send requests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from perdure.agents.sections import Cors
from perdure.kernel.errors import StartRefused

ANY = "*"
ANY_PORT = ":*"
MAX_ORIGIN = 512
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
LOCAL_ORIGINS = tuple(f"{scheme}://{name}{ANY_PORT}" for scheme in ("http", "https") for name in LOCAL_NAMES)
"""All pages that this machine serves."""


class Origins:
    """The allowed origins; `http://name:*` allows all ports of a name, `*` all origins."""

    def __init__(self, allowed: Sequence[str], more: Cors | None = None) -> None:
        if ANY in allowed and len(allowed) > 1:
            raise StartRefused("cors_allow_origins is either * or a list of origins")
        named = (*allowed, *(more.allow_origins if more is not None else ()))
        self.any = ANY in named or (more is not None and more.allows_every_origin)
        patterns = [*map(_build_pattern, named), *(_build_regexes(more) if more is not None else ())]
        self.none = not patterns
        self.pattern = re.compile(".*" if self.any else "|".join(patterns) or "(?!)")

    def allow(self, origin: str) -> bool:
        return len(origin) <= MAX_ORIGIN and self.pattern.fullmatch(origin) is not None


def _build_regexes(cors: Cors) -> Iterator[str]:
    if cors.allow_origin_regex is not None:
        yield f"(?:{cors.allow_origin_regex})"


def _build_pattern(origin: str) -> str:
    if origin.endswith(ANY_PORT):
        return re.escape(origin.removesuffix(ANY_PORT)) + r"(?::[0-9]{1,5})?"
    return re.escape(origin)


def is_own(origin: str, host: str | None) -> bool:
    """Return whether an origin is the server's, by the host of the request."""
    return host is not None and origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")


def parse_origin(url: str | None) -> str | None:
    """Return the origin of a URL, as browsers send it."""
    if url is None:
        return None
    parts = urlsplit(url.lower())
    default = {"http": ":80", "https": ":443"}.get(parts.scheme, "")
    return f"{parts.scheme}://{parts.netloc.removesuffix(default)}"
