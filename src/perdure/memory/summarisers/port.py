"""The port of summarisers: input, output and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from perdure.kernel.errors import PerdureError
from perdure.kernel.words import find_cut

MAX_TITLE = 120
MAX_BULLETS = 12
MAX_BULLET = 400
MAX_KEYWORDS = 12
MAX_KEYWORD = 60


class SummariserError(PerdureError):
    """The summariser failed; the node is tried again later."""

    code = "summariser_error"
    http_status = 502

    of_node = False
    """True if only this node is to blame, so that the build can continue with others."""

    def __init__(self, message: str | None = None, *, passing: bool = True, after: float = 0.0) -> None:
        super().__init__(message)
        self.passing = passing
        """True if a retry may help, after at least `after` seconds."""
        self.after = after

    def __str__(self) -> str:
        return f"{type(self).__name__}: {self.message}"


class ApiError(SummariserError):
    """The endpoint refused the request, or could not be reached."""

    code = "summariser_api_error"


class ParseError(SummariserError):
    """The endpoint did not answer with a summary."""

    code = "summariser_parse_error"
    of_node = True


class RateLimitExceeded(SummariserError):
    """The endpoint accepts no more requests for now."""

    code = "summariser_rate_limit"


class ConfigError(SummariserError):
    """The settings of the summariser are incomplete."""

    code = "summariser_config_error"


class Timeout(SummariserError):
    """The endpoint did not answer in time."""

    code = "summariser_timeout"


class NoEvents(SummariserError):
    """There is nothing to summarise."""

    code = "summariser_no_events"
    of_node = True


class Said(NamedTuple):
    """An event as a summariser reads it."""

    event_id: str
    session_id: str
    timestamp_ms: int
    role: str
    agent: str | None
    text: str
    repeated: bool = False
    """True for an event of the previous segment, repeated only for context."""


class Child(NamedTuple):
    """A summarised child of a node, from which the parent's summary is built."""

    node_id: str
    title: str
    bullets: Sequence[str]
    keywords: Sequence[str]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A title, a few lines about the content, and keywords."""

    title: str
    bullets: tuple[str, ...]
    keywords: tuple[str, ...]


class Summariser(Protocol):
    """Summariser. Both methods return a summary or raise a `SummariserError`."""

    @property
    def name(self) -> str: ...

    async def summarise(self, events: Sequence[Said]) -> Summary:
        """Summarise a segment."""
        ...

    async def roll_up(self, title: str, children: Sequence[Child]) -> Summary:
        """Summarise the children of a node called `title`."""
        ...


def shorten(text: str, length: int, mark: str = "…") -> str:
    """Return a text of at most `length` characters, cut between words where possible."""
    flat = " ".join(text.split())
    if len(flat) <= length:
        return flat
    end = find_cut(flat, length - len(mark), (length - len(mark)) // 2)
    return flat[:end].rstrip(" ,;:-") + mark
