"""Model calls that both a worker and a framework report: the call that is stored first counts.

Two spans of an attempt are the same call if their response ids are equal, or one span is below the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from perdure.kernel.storage.port import Tx
from perdure.rollouts import joining_sql as sql
from perdure.rollouts.rows import AttemptRow
from perdure.spans.encoding import call_row
from perdure.spans.rows import ModelCallRow

if TYPE_CHECKING:
    from perdure.spans.rows import NewSpan

MAX_KNOWN = 1000
"""Maximum number of stored calls to compare new calls with."""
MAX_DEPTH = 32
"""Maximum number of spans between two spans of the same call."""


class AttemptKey(NamedTuple):
    """An attempt of a rollout."""

    rollout_id: str
    attempt_id: str


async def count_calls_once(
    tx: Tx, spans: Sequence[NewSpan], attempts: Mapping[tuple[str, str], AttemptRow]
) -> tuple[list[NewSpan], list[ModelCallRow]]:
    """Return the spans and the rows of all new calls. Spans of stored calls lose their figures."""
    groups: dict[AttemptKey, list[NewSpan]] = {}
    for span in spans:
        key = AttemptKey(span.rollout_id, span.attempt_id)
        if attempts[key].joined:
            groups.setdefault(key, []).append(span)
    repeated: set[int] = set()
    rows: list[ModelCallRow] = []
    for key in sorted(groups):
        calls = [(span, call) for span in groups[key] if (call := call_row(span, span.figures)) is not None]
        if calls:
            comparison = _Comparison(tx, attempts[key], groups[key])
            new = [call for _, call in calls]
            await comparison.load(new)
            repeated.update(id(span) for span, call in calls if comparison.is_repeated(call))
            rows += new
    counted = [
        msgspec.structs.replace(span, figures=None) if id(span) in repeated else span for span in spans
    ]
    return counted, rows


class _Comparison:
    """The stored calls of an attempt, and the ancestors of each."""

    def __init__(self, tx: Tx, attempt: AttemptRow, spans: Sequence[NewSpan]) -> None:
        self._tx = tx
        self._attempt = attempt
        self._parents: dict[str, str | None] = {span.span_id: span.parent_id for span in spans}
        self._stored: dict[str, ModelCallRow] = {}

    async def load(self, calls: Sequence[ModelCallRow]) -> None:
        """Read the stored calls that new calls may repeat."""
        attempt = {"rollout_id": self._attempt.rollout_id, "attempt_id": self._attempt.id}
        start, end = min(call.start_ns for call in calls), max(call.end_ns for call in calls)
        stored = await self._tx.all(sql.CALLS_WITHIN, **attempt, start_ns=start, end_ns=end, n=MAX_KNOWN)
        answered = sorted({call.response_id for call in calls if call.response_id})
        if answered:
            stored += await self._tx.all(sql.CALLS_ANSWERED, **attempt, response_ids=answered)
        self._stored = {call.span_id: call for call in stored}
        if not stored and len(calls) == 1:
            return
        self._parents.update((call.span_id, call.parent_id) for call in stored)
        for _ in range(MAX_DEPTH):
            missing = {parent for parent in self._parents.values() if parent and parent not in self._parents}
            if not missing:
                break
            parents = await self._tx.all(
                sql.PARENTS_OF_SPANS, **attempt, born=self._attempt.born, span_ids=sorted(missing)
            )
            if not parents:
                break
            self._parents.update(parents)

    def is_repeated(self, call: ModelCallRow) -> bool:
        """Return whether a call is stored already, and add it to the stored calls."""
        above = set(self._above(call))
        repeated = any(
            (call.response_id and call.response_id == other.response_id)
            or other.span_id in above
            or call.span_id in self._above(other)
            for other in self._stored.values()
            if other.span_id != call.span_id
        )
        self._stored[call.span_id] = call
        return repeated

    def _above(self, call: ModelCallRow) -> Iterator[str]:
        parent, seen = call.parent_id, 0
        while parent is not None and seen < MAX_DEPTH:
            yield parent
            parent, seen = self._parents.get(parent), seen + 1
