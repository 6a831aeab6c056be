"""Saved views of dashboard screens, by name."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from msgspec import Meta

from perdure.kernel.clock import to_seconds
from perdure.kernel.record import Record

MAX_VIEW_NAME = 100
MAX_SCREEN = 100
MAX_QUERY = 2000
MAX_VIEWS = 200
"""Maximum number of shared views in a namespace, and of each caller's own views."""
SHARED = ""
"""Owner of views that all callers of a namespace see."""

ViewName = Annotated[str, Meta(min_length=1, max_length=MAX_VIEW_NAME)]
Screen = Annotated[str, Meta(min_length=1, max_length=MAX_SCREEN)]
ViewQuery = Annotated[str, Meta(max_length=MAX_QUERY)]


class ViewRow(NamedTuple):
    """A view of an owner, by screen and name."""

    owner: str
    screen: str
    name: str
    query: str
    saved_at: int


class SavedView(Record, kw_only=True):
    """A view of a screen: its filters and order, in the form of its URL."""

    screen: str
    name: str
    query: str
    shared: bool
    """True if all callers of the namespace see it; otherwise it is the caller's own."""
    saved_at: float


def row_to_saved_view(row: ViewRow) -> SavedView:
    return SavedView(
        screen=row.screen,
        name=row.name,
        query=row.query,
        shared=row.owner == SHARED,
        saved_at=to_seconds(row.saved_at),
    )
