"""Saved views: what a person wants to see of a screen again, by name."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from msgspec import Meta

from perdure.kernel.clock import to_seconds
from perdure.kernel.record import Record

MAX_VIEW_NAME = 100
MAX_SCREEN = 100
MAX_QUERY = 2000
MAX_VIEWS = 200
"""How many views a namespace shares, and how many each caller has in it."""
SHARED = ""
"""The owner of views that all callers of a namespace see."""

ViewName = Annotated[str, Meta(min_length=1, max_length=MAX_VIEW_NAME)]
Screen = Annotated[str, Meta(min_length=1, max_length=MAX_SCREEN)]
ViewQuery = Annotated[str, Meta(max_length=MAX_QUERY)]


class ViewRow(NamedTuple):
    """A view of an owner, by its screen and name."""

    owner: str
    screen: str
    name: str
    query: str
    saved_at: int


class SavedView(Record, kw_only=True):
    """A view of a screen: its filters and order, as they stand in its URL."""

    screen: str
    name: str
    query: str
    shared: bool
    """Whether all callers of the namespace see it; else it is the caller's own."""
    saved_at: float


def row_to_saved_view(row: ViewRow) -> SavedView:
    return SavedView(
        screen=row.screen,
        name=row.name,
        query=row.query,
        shared=row.owner == SHARED,
        saved_at=to_seconds(row.saved_at),
    )
