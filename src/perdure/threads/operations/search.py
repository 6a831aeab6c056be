"""Search of threads by columns, by metadata, and by the values of their latest states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs

from perdure.kernel.checks import check_filter, optional_choice, optional_id_filter
from perdure.kernel.cursors import Place
from perdure.kernel.errors import InvalidInput
from perdure.kernel.json_values import contains
from perdure.kernel.pages import PageRequest
from perdure.kernel.storage.filters import Clause, Sorting, SortKey, SortOrder, given, where
from perdure.kernel.storage.labels import few_labelled
from perdure.kernel.storage.port import Tx
from perdure.threads import sql
from perdure.threads.operations.remove import THREAD
from perdure.threads.operations.states import get_states
from perdure.threads.records import THREAD_STATUSES
from perdure.threads.rows import ThreadAnswer, ThreadRow, row_to_thread

THREADS = Sorting("threads", sql.THREAD_FIELDS, SortOrder((SortKey("id", "text"),)))
SCANNED_AT_ONCE = 100
MAX_SCANNED = 10_000
"""Most threads whose values one search reads. Larger searches are refused."""


class ThreadFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filter and page of a list of threads."""

    status: str | None = None
    ids: Sequence[str] | None = None
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)
    having: Mapping[str, Any] | None = None
    """Properties that the values of the latest state contain."""
    values: bool = True
    """Return the states too."""
    sort_by: str = "created_at"
    sort_order: str = "desc"
    limit: int = 10
    offset: int = 0
    place: Place | None = None
    """Position after which the page starts."""
    total: bool = True
    """Return the total even if counting is necessary."""

    @property
    def order(self) -> SortOrder:
        return THREADS.order(self.sort_by, self.sort_order)

    @property
    def request(self) -> PageRequest[Any, Place | None]:
        return PageRequest(self.order.keyset(THREADS.what), self.limit, self.offset, self.place)


def check_search(search: ThreadFilter) -> None:
    """Refuse invalid statuses and filters."""
    optional_choice(search.status, THREAD_STATUSES, "status")
    optional_id_filter(search.ids, "thread_id")
    check_filter(search.metadata, "metadata")
    check_filter(search.having, "values")


def from_cursor(search: ThreadFilter, cursor: str | None) -> ThreadFilter:
    """Return the search with the position that a cursor encodes."""
    request = search.request.keyset.open_page(search.limit, search.offset, cursor)
    return structs.replace(search, place=request.place)


async def search_threads(tx: Tx, search: ThreadFilter) -> tuple[list[ThreadAnswer], int | None]:
    """List a page of threads; the total if known or requested."""
    clause = await _matching(tx, search)
    if search.having:
        matching = await _having(tx, search, clause)
        return matching[search.offset : search.offset + search.limit], len(matching)
    threads = await _page(tx, search, clause, search.limit, search.offset)
    total = await sql.LIST_THREADS.total(
        tx,
        clause,
        len(threads),
        limit=search.limit,
        offset=search.offset,
        place=search.place,
        asked=search.total,
    )
    states = await get_states(tx, threads) if search.values else {}
    return [(thread, states.get(thread.id)) for thread in threads], total


async def count_threads(tx: Tx, search: ThreadFilter) -> int:
    clause = await _matching(tx, search)
    if search.having:
        return len(await _having(tx, search, clause))
    total = await tx.one(sql.LIST_THREADS.count(clause), **clause.values)
    return total or 0


async def _matching(tx: Tx, search: ThreadFilter) -> Clause:
    tests = given(("status", "exact", search.status), ("thread_id", "within", search.ids))
    clause = where(sql.THREAD_FIELDS, tests, "and")
    if not search.metadata:
        return clause
    labels = await few_labelled(tx, THREAD, "threads", search.metadata)
    return Clause(clause.sql + " AND " + labels.sql, {**clause.values, **labels.values})


async def _page(tx: Tx, search: ThreadFilter, clause: Clause, limit: int, offset: int) -> list[ThreadRow]:
    page, values = sql.LIST_THREADS.page(clause, search.order, limit, offset, search.place)
    return await tx.all(page, **values)


async def _having(tx: Tx, search: ThreadFilter, clause: Clause) -> list[ThreadAnswer]:
    """Find all threads whose values contain the filter. Values are read, since no index has them."""
    total = await tx.one(sql.LIST_THREADS.count(clause), **clause.values)
    if total and total > MAX_SCANNED:
        raise InvalidInput(
            f"a search of values would read {total} threads, and at most {MAX_SCANNED} are allowed:"
            " filter by status or metadata too"
        )
    matching: list[ThreadAnswer] = []
    for offset in range(0, total or 0, SCANNED_AT_ONCE):
        threads = await _page(tx, search, clause, SCANNED_AT_ONCE, offset)
        states = await get_states(tx, threads)
        answers = [(thread, states.get(thread.id)) for thread in threads]
        matching += [pair for pair in answers if contains(row_to_thread(*pair).values, search.having)]
    return matching
