"""Spans: storing them once, numbering them, and what they say about their attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.kernel.errors import NotFound
from perdure.kernel.storage.port import Row, Tx
from perdure.rollouts import sql, tables
from perdure.rollouts.model import ATTEMPT, Kinds, span_event
from perdure.rollouts.operations.work import AttemptRow, RolloutRow, Work, save_counts

EVICTION_ROWS = 50


class NewSpan(msgspec.Struct):
    """A span ready to be stored: a few scalar columns, and the rest as it came."""

    rollout_id: str
    attempt_id: str
    span_id: str
    sequence_id: int | None
    trace_id: str
    parent_id: str | None
    name: str
    start_ns: int | None
    end_ns: int | None
    status_code: str
    size: int
    resource_hash: str | None
    scope_hash: str | None
    format: str
    body: bytes


Stored = list[int | None]
"""The sequence ids of a call's spans; None for one that was known already."""


async def add_spans(
    tx: Tx,
    calls: Sequence[Sequence[NewSpan]],
    parts: Sequence[tuple[str, bytes]],
    kind: str,
    kinds: Kinds,
    lined: bool,
) -> list[Stored | NotFound]:
    """Store the spans of each call. A call that names an unknown rollout or attempt stores nothing.

    Spans count as heartbeats; the first one, or one after a silence, moves the attempt and its rollout.
    """
    adding = _Adding(tx, kinds)
    await adding.work.load([span.rollout_id for call in calls for span in call], [kind], lined=lined)
    accepted = [adding.check(call) for call in calls]
    spans = [span for call, error in zip(calls, accepted, strict=True) if error is None for span in call]
    if spans:
        await adding.store(spans, parts)
    return [
        error if error is not None else [adding.numbers.get(id(span)) for span in call]
        for call, error in zip(calls, accepted, strict=True)
    ]


class _Adding:
    """One batch of spans on its way into the tables."""

    def __init__(self, tx: Tx, kinds: Kinds) -> None:
        self.tx = tx
        self.work = Work(tx, kinds)
        self.numbers: dict[int, int] = {}
        self._attempts: dict[tuple[str, str], AttemptRow] = {}

    def check(self, call: Sequence[NewSpan]) -> NotFound | None:
        """Find the attempt of every span of a call, or say which is missing."""
        try:
            for span in call:
                key = (span.rollout_id, span.attempt_id)
                if key not in self._attempts:
                    rollout = self.work.rollout(span.rollout_id)
                    self._attempts[key] = self._find(rollout, span.attempt_id)
        except NotFound as error:
            return error
        return None

    def _find(self, rollout: RolloutRow, attempt_id: str) -> AttemptRow:
        for attempt in self.work.attempts[rollout.id]:
            if attempt.id == attempt_id:
                return attempt
        raise NotFound(f"Attempt {attempt_id} not found for rollout {rollout.id}")

    async def store(self, spans: Sequence[NewSpan], parts: Sequence[tuple[str, bytes]]) -> None:
        counters = await self._lock_counters(sorted({span.rollout_id for span in spans}))
        fresh = await self._drop_known(spans)
        rows = [self._number(span, counters[span.rollout_id]) for span in fresh]
        await self._save_parts(parts)
        if rows:
            await self.tx.insert_many(tables.SPANS, rows)
        beats = self._hear(fresh)
        await self.work.save()
        if beats:
            await self.tx.update_many(sql.HEARTBEAT, beats)
        if rows:
            changed = {span.rollout_id for span in fresh}
            values = [(*counters[rollout_id], self.tx.ns, rollout_id) for rollout_id in sorted(changed)]
            await self.tx.update_many(sql.SAVE_COUNTERS, values)
        await save_counts(self.tx, self.work.counts)

    async def _lock_counters(self, ids: list[str]) -> dict[str, list[int]]:
        """Lock the counter row of each rollout: (sequence, spans, bytes)."""
        found = await self.tx.all(sql.LOCK_COUNTERS, ids=ids)
        if len(found) < len(ids):
            known = {row[0] for row in found}
            new = [{"rollout_id": rollout_id} for rollout_id in ids if rollout_id not in known]
            await self.tx.execute_many(sql.OPEN_COUNTERS, new)
            found = await self.tx.all(sql.LOCK_COUNTERS, ids=ids)
        return {row[0]: [row[1], row[2], row[3]] for row in found}

    async def _drop_known(self, spans: Sequence[NewSpan]) -> list[NewSpan]:
        """The spans that are not stored yet, each once."""
        keyed: dict[tuple[Any, ...], NewSpan] = {}
        for span in spans:
            born = self.work.rollouts[span.rollout_id].start_time
            keyed.setdefault((self.tx.ns, born, span.rollout_id, span.attempt_id, span.span_id), span)
        for row in await self.tx.existing(tables.SPANS, list(keyed)):
            keyed.pop(tuple(row), None)
        return list(keyed.values())

    def _number(self, span: NewSpan, counter: list[int]) -> tuple[Any, ...]:
        """Give the span its place, and make it a row of the table."""
        if span.sequence_id is None:
            counter[0] += 1
            sequence_id = counter[0]
        else:
            sequence_id = span.sequence_id
            counter[0] = max(counter[0], sequence_id)
        counter[1] += 1
        counter[2] += span.size
        self.numbers[id(span)] = sequence_id
        return (
            self.tx.ns,
            self.work.rollouts[span.rollout_id].start_time,
            span.rollout_id,
            span.attempt_id,
            span.span_id,
            sequence_id,
            counter[1],
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

    async def _save_parts(self, parts: Sequence[tuple[str, bytes]]) -> None:
        if parts:
            rows = [{"hash": name, "body": body} for name, body in sorted(set(parts))]
            await self.tx.execute_many(sql.SAVE_PART, rows)

    def _hear(self, fresh: Sequence[NewSpan]) -> list[tuple[Any, ...]]:
        """Let each attempt that spoke move; returns the heartbeats of those that did not."""
        beats: list[tuple[Any, ...]] = []
        for key in dict.fromkeys((span.rollout_id, span.attempt_id) for span in fresh):
            attempt = self._attempts[key]
            attempt.hear(self.tx.now, self.work.rollouts[attempt.rollout_id].limits)
            if ATTEMPT.moves(attempt.status, "span"):
                self._speak(attempt)
            else:
                beats.append((self.tx.now, self.tx.ns, attempt.rollout_id, attempt.sequence_id))
        return beats

    def _speak(self, attempt: AttemptRow) -> None:
        rollout = self.work.rollouts[attempt.rollout_id]
        was, attempt.status = attempt.status, ATTEMPT.step(attempt.status, "span")
        attempt.reason, attempt.dirty = None, True
        if self.work.is_latest(attempt):
            event = span_event(was, rollout.status, rollout.outcome)
            if event is not None:
                self.work.move(rollout, event)
            attempt.watch(rollout.limits)


async def next_sequence_ids(tx: Tx, rollout_ids: Sequence[str]) -> list[int]:
    """The next number of each rollout, in the order asked for."""
    wanted: dict[str, int] = {}
    for rollout_id in rollout_ids:
        wanted[rollout_id] = wanted.get(rollout_id, 0) + 1
    following: dict[str, int] = {}
    for rollout_id, n in sorted(wanted.items()):
        row = await tx.one(sql.TAKE_SEQUENCES, rollout_id=rollout_id, n=n)
        assert row is not None
        following[rollout_id] = row[0] - n
    numbers = []
    for rollout_id in rollout_ids:
        following[rollout_id] += 1
        numbers.append(following[rollout_id])
    return numbers


async def evict(tx: Tx, bytes_to_free: int) -> int:
    """Drop the spans of the oldest rollouts until so many bytes are freed; returns how many were."""
    freed = 0
    rows: Sequence[Row] = await tx.all(sql.EVICTION_ORDER, n=EVICTION_ROWS)
    for ns, rollout_id, size in rows:
        if freed >= bytes_to_free:
            break
        await tx.execute(sql.DROP_SPANS, ns=ns, rollout_id=rollout_id)
        await tx.execute(sql.MARK_EVICTED, ns=ns, rollout_id=rollout_id)
        freed += size
    return freed
