"""Spans: stores each once, numbers them, and updates their attempts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from perdure.kernel import changes
from perdure.kernel.errors import NotFound
from perdure.kernel.storage.dialect import Write
from perdure.kernel.storage.port import Tx
from perdure.rollouts import joining_sql, sql
from perdure.rollouts.model import ATTEMPT, Kinds, span_event
from perdure.rollouts.operations.conditions import LINES_LOCKED
from perdure.rollouts.operations.model_calls import count_calls_once
from perdure.rollouts.operations.remove import delete_spans
from perdure.rollouts.operations.work import BYTES_TOTAL, SPANS_TOTAL, LockedRollouts, add_total
from perdure.rollouts.removal_sql import OldRollout
from perdure.rollouts.rows import AttemptRow, HeartbeatRow
from perdure.service.audit import audit
from perdure.service.conditions import requires
from perdure.spans import sql as span_sql
from perdure.spans.prices import Prices
from perdure.spans.rows import ModelCallRow, NewSpan, PartRow, SpanCounterRow, SpanRow
from perdure.spans.sums import compute_sums
from perdure.spans.tables import SPANS

EVICTION_ROWS = 50
ALL_SPANS = 2**62
USAGE_WRITTEN = "spans.usage"
"""Name of the counter of transactions that added usage for the hours."""


Stored = list[int | None]
"""The sequence ids of a call's spans; None for a span that was stored before."""


class CareNeeded(Exception):
    """A span is stored already, its attempt is not, or another transaction has its rollout locked."""


@requires(LINES_LOCKED)
async def add_spans(
    tx: Tx,
    calls: Sequence[Sequence[NewSpan]],
    parts: Sequence[tuple[str, bytes]],
    kinds: Kinds,
    prices: Prices,
    lined: bool = False,
) -> list[Stored | NotFound]:
    """Store the spans of each call. A call that names an unknown rollout or attempt stores nothing.

    Spans count as heartbeats. The first span, or a span after a silence, changes the attempt and its rollout.
    """
    adding = Adding(tx, kinds, prices)
    await adding.work.load([span.rollout_id for call in calls for span in call], kinds.names(), lined=lined)
    accepted = [adding.check(call) for call in calls]
    spans = [span for call, error in zip(calls, accepted, strict=True) if error is None for span in call]
    if spans:
        await adding.store(await adding.drop_stored(spans), parts)
    await adding.audit(spans)
    return [
        error if error is not None else [adding.numbers.get(id(span)) for span in call]
        for call, error in zip(calls, accepted, strict=True)
    ]


async def add_new_spans(
    tx: Tx,
    calls: Sequence[Sequence[NewSpan]],
    parts: Sequence[tuple[str, bytes]],
    kinds: Kinds,
    prices: Prices,
) -> list[Stored]:
    """Store spans like `add_spans`, in the common case: all are new, and most attempts do not change.

    Only rollouts that may change are read. Any conflict raises `CareNeeded`, and the caller uses `add_spans`.
    """
    adding = Adding(tx, kinds, prices)
    spans = [span for call in calls for span in call]
    await adding.work.load_attempts(list({span.rollout_id for span in spans}))
    moving = adding.find({(span.rollout_id, span.attempt_id) for span in spans})
    if moving and not await adding.work.try_load(moving):
        raise CareNeeded
    await adding.store(drop_copies(spans), parts)
    await adding.audit(spans)
    numbers = adding.numbers
    return [[numbers.get(id(span)) for span in call] for call in calls]


def drop_copies(spans: Sequence[NewSpan]) -> Sequence[NewSpan]:
    """Return the spans without later copies of the same span."""
    if len({(span.rollout_id, span.attempt_id, span.span_id) for span in spans}) == len(spans):
        return spans
    first: dict[tuple[str, str, str], NewSpan] = {}
    for span in spans:
        first.setdefault((span.rollout_id, span.attempt_id, span.span_id), span)
    return list(first.values())


class Adding:
    """A batch of spans that is being stored."""

    def __init__(self, tx: Tx, kinds: Kinds, prices: Prices) -> None:
        self.tx = tx
        self._prices = prices
        self.work = LockedRollouts(tx, kinds)
        self.numbers: dict[int, int] = {}
        self.quiet: set[int] = set()
        """Ids of span objects that renew no lease and change no status."""
        self.guarded: set[str] = set()
        """Locked rollouts. Their counters may be updated in any order."""
        self.attempts: dict[tuple[str, str], AttemptRow] = {}

    def check(self, call: Sequence[NewSpan]) -> NotFound | None:
        """Find the attempt of every span of a call, or return NotFound for the missing attempt or rollout."""
        for span in call:
            key = (span.rollout_id, span.attempt_id)
            if key in self.attempts:
                continue
            attempt = self.find_attempt(*key)
            if attempt is None and span.rollout_id in self.work.rollouts:
                return NotFound(f"Attempt {span.attempt_id} not found for rollout {span.rollout_id}")
            if attempt is None:
                return NotFound(f"Rollout {span.rollout_id} not found")
            self.attempts[key] = attempt
        return None

    def find(self, keys: Iterable[tuple[str, str]]) -> set[str]:
        """Find attempts; return the rollouts that must also be locked."""
        moving: set[str] = set()
        for key in keys:
            attempt = self.find_attempt(*key)
            if attempt is None or attempt.kind not in self.work.kinds:
                raise CareNeeded
            self.attempts[key] = attempt
            if self._is_final(attempt):
                continue
            if ATTEMPT.moves(attempt.status, "span") or (attempt.last_heartbeat_time or 0) > self.tx.now:
                moving.add(attempt.rollout_id)
        return moving

    def _is_final(self, attempt: AttemptRow) -> bool:
        return self.work.kinds[attempt.kind].final

    def find_attempt(self, rollout_id: str, attempt_id: str) -> AttemptRow | None:
        for attempt in self.work.attempts.get(rollout_id, ()):
            if attempt.id == attempt_id:
                return attempt
        return None

    async def drop_stored(self, spans: Sequence[NewSpan]) -> list[NewSpan]:
        """Return the spans that are not stored yet, each once."""
        keyed = {
            (
                self.tx.ns,
                self.attempts[span.rollout_id, span.attempt_id].born,
                span.rollout_id,
                span.attempt_id,
                span.span_id,
            ): span
            for span in drop_copies(spans)
        }
        for key in await self.tx.existing(SPANS, list(keyed)):
            del keyed[key]
        return list(keyed.values())

    async def store(self, fresh: Sequence[NewSpan], parts: Sequence[tuple[str, bytes]], *more: Write) -> None:
        """Write spans, updates of attempts, and `more`. Raise `CareNeeded` if a span is stored already."""
        if not fresh:
            return
        quiet = self.quiet
        beats = self._renew([span for span in fresh if id(span) not in quiet] if quiet else fresh)
        numbers, tallies = await self._count(fresh)
        rows = [self._row(span, ordinal, numbers) for ordinal, span in enumerate(fresh)]
        counted: Sequence[NewSpan] = fresh
        calls: list[ModelCallRow] = []
        if any(attempt.joined for attempt in self.attempts.values()):
            counted, calls = await count_calls_once(self.tx, fresh, self.attempts)
        sums = compute_sums(counted, self.numbers, self.tx.now, self._prices)
        stored, *_ = await self.work.save(
            sql.ADD_SPANS.of(rows),
            sql.HEARTBEAT.of(beats),
            sql.ADD_TO_COUNTERS.of(tallies),
            sql.SAVE_PARTS.of([PartRow(*part) for part in sorted(set(parts))]),
            span_sql.ADD_ROLLOUT_FIGURES.of(sums.rollouts),
            span_sql.ADD_TRACES.of(sums.traces),
            span_sql.ADD_TRACE_NAMES.of(sums.names),
            span_sql.ADD_USAGE.of(sums.usage),
            joining_sql.ADD_MODEL_CALLS.of(calls),
            *more,
        )
        self.work.add_counts()
        if stored != len(fresh):
            raise CareNeeded
        add_total(self.tx, SPANS_TOTAL, len(fresh))
        add_total(self.tx, BYTES_TOTAL, sum([span.size for span in fresh]))
        if sums.usage:
            self.tx.count(USAGE_WRITTEN, "")
        changes.tell(self.tx, "spans", ((span.rollout_id, "added") for span in fresh))

    async def audit(self, spans: Iterable[NewSpan]) -> None:
        """Audit the attempt of each span that was stored."""
        if self.tx.actor is not None:
            stored = [span for span in spans if id(span) in self.numbers]
            await audit(self.tx, "add_spans", [span.rollout_id + "/" + span.attempt_id for span in stored])

    async def _count(self, fresh: Sequence[NewSpan]) -> tuple[dict[str, int], list[SpanCounterRow]]:
        """Return the last number of each rollout that needs numbers, and the counters to add to."""
        tallies: dict[str, _Tally] = {}
        for span in fresh:
            tally = tallies.get(span.rollout_id)
            if tally is None:
                tally = tallies[span.rollout_id] = _Tally(span.rollout_id)
            tally.spans += 1
            tally.bytes += span.size
            if span.sequence_id is None:
                tally.wanted += 1
            elif span.sequence_id > tally.floor:
                tally.floor = span.sequence_id
        ordered = [tallies[rollout_id] for rollout_id in sorted(tallies)]
        wanting: list[_Tally] = []
        if any(tally.wanted for tally in ordered):
            wanting = [tally for tally in ordered if tally.wanted or tally.rollout_id not in self.guarded]
            ordered = [tally for tally in ordered if not tally.wanted and tally.rollout_id in self.guarded]
        numbers = {tally.rollout_id: await _advance(self.tx, tally) for tally in wanting}
        return numbers, [SpanCounterRow(t.rollout_id, t.floor, t.spans, t.bytes, 0) for t in ordered]

    def _row(self, span: NewSpan, ordinal: int, numbers: dict[str, int]) -> SpanRow:
        """Set the span's sequence id, and build its row."""
        sequence_id = span.sequence_id
        if sequence_id is None:
            numbers[span.rollout_id] += 1
            sequence_id = numbers[span.rollout_id]
        self.numbers[id(span)] = sequence_id
        # Positional arguments: with this many names msgspec takes 6 times as long.
        return SpanRow(
            self.attempts[span.rollout_id, span.attempt_id].born,
            span.rollout_id,
            span.attempt_id,
            span.span_id,
            sequence_id,
            self.tx.now + ordinal,
            span.trace_id,
            span.parent_id,
            span.name,
            span.start_ns,
            span.end_ns,
            span.status_code,
            span.size,
            span.resource_hash,
            span.scope_hash,
            span.format,
            span.body,
        )

    def _renew(self, fresh: Sequence[NewSpan]) -> list[HeartbeatRow]:
        """Update the attempts of the spans; return the heartbeats of attempts without another change."""
        beats: list[HeartbeatRow] = []
        for key in dict.fromkeys([(span.rollout_id, span.attempt_id) for span in fresh]):
            attempt = self.attempts[key]
            if self._is_final(attempt):
                continue
            rollout = self.work.rollouts.get(attempt.rollout_id)
            if rollout is not None:
                attempt.beat(self.tx.now, rollout.limits)
            if rollout is not None and ATTEMPT.moves(attempt.status, "span"):
                self._move(attempt)
            elif not attempt.dirty:
                beats.append(HeartbeatRow(attempt.rollout_id, attempt.sequence_id, self.tx.now))
        return beats

    def _move(self, attempt: AttemptRow) -> None:
        rollout = self.work.rollouts[attempt.rollout_id]
        was, attempt.status = attempt.status, ATTEMPT.step(attempt.status, "span")
        attempt.reason, attempt.dirty = None, True
        if self.work.is_latest(attempt):
            event = span_event(was, rollout.status, rollout.outcome)
            if event is not None:
                self.work.move(rollout, event)
            attempt.watch(rollout.limits)


class _Tally(msgspec.Struct):
    """The new spans of a rollout: numbers wanted, the highest number given, how many, and their size."""

    rollout_id: str
    wanted: int = 0
    floor: int = 0
    spans: int = 0
    bytes: int = 0


async def _advance(tx: Tx, tally: _Tally) -> int:
    """Take the wanted numbers from a rollout's counter, above `floor`; return the number before them."""
    last = await tx.one(
        sql.TAKE_SEQUENCES,
        rollout_id=tally.rollout_id,
        first=tally.floor + tally.wanted,
        floor=tally.floor,
        n=tally.wanted,
        spans=tally.spans,
        bytes=tally.bytes,
    )
    assert last is not None
    return last - tally.wanted


async def next_sequence_ids(tx: Tx, rollout_ids: Sequence[str]) -> list[int]:
    """Return the next sequence id of each rollout, in the given order."""
    wanted: dict[str, _Tally] = {}
    for rollout_id in rollout_ids:
        if rollout_id not in wanted:
            wanted[rollout_id] = _Tally(rollout_id)
        wanted[rollout_id].wanted += 1
    following = {rollout_id: await _advance(tx, wanted[rollout_id]) for rollout_id in sorted(wanted)}
    numbers = []
    for rollout_id in rollout_ids:
        following[rollout_id] += 1
        numbers.append(following[rollout_id])
    await audit(tx, "next_sequence_id", rollout_ids)
    return numbers


async def evict(tx: Tx, bytes_to_free: int) -> int:
    """Delete the spans of the oldest rollouts until this many bytes are freed; return the freed bytes."""
    freed = 0
    evicted: dict[int, list[OldRollout]] = {}
    for row in await tx.all(sql.EVICTION_ORDER, n=EVICTION_ROWS):
        if freed >= bytes_to_free:
            break
        evicted.setdefault(row.ns, []).append(OldRollout(row.rollout_id, row.start_time))
        freed += row.bytes
    here = tx.ns
    try:
        for ns in sorted(evicted):
            tx.ns = ns
            await delete_spans(tx, sorted(evicted[ns]), ALL_SPANS)
            await tx.execute(sql.MARK_EVICTED, ids=[row.id for row in evicted[ns]])
    finally:
        tx.ns = here
    return freed
