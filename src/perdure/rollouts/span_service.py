"""Storing, numbering and eviction of spans in the service of rollouts, for callers in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Self

from perdure.kernel.checks import check_text
from perdure.kernel.errors import Conflict, NotFound
from perdure.kernel.storage.port import Storage
from perdure.rollouts.kept_traces import KeptTrace, is_kept_id, show_kept, show_kept_attempt
from perdure.rollouts.model import Kinds
from perdure.rollouts.operations import joining, queries
from perdure.rollouts.operations import spans as span_ops
from perdure.rollouts.operations.model_calls import AttemptKey
from perdure.rollouts.operations.queries import Query
from perdure.rollouts.operations.spans import Stored
from perdure.rollouts.records import Attempt, Rollout
from perdure.rollouts.span_writer import Answer, Eviction, SpanWriter
from perdure.rollouts.watchdog import WatchedService
from perdure.service.callers import Caller
from perdure.spans import encoding as span_encoding
from perdure.spans.forms import Forms
from perdure.spans.prices import Prices
from perdure.spans.records import AnySpan
from perdure.spans.rows import NewSpan

ROWS = 1000
"""Maximum number of items in one transaction."""
MAX_CALLS_READ = 20_000
"""Maximum number of spans of an attempt that are read to find its model calls."""
TRIES = 5
"""Maximum number of attempts to store a batch that conflicts with other batches."""


class SpanService(WatchedService):
    """Stores the spans of one namespace."""

    def __init__(
        self,
        storage: Storage,
        kinds: Kinds,
        *,
        namespace: str = "default",
        caller: Caller | None = None,
        eviction: Eviction | None = None,
        prices: Prices | None = None,
    ) -> None:
        super().__init__(storage, kinds, namespace=namespace, caller=caller)
        self.eviction = eviction
        self.prices = prices or Prices()
        """Prices of models."""
        self.forms = Forms()
        """Stored forms of spans, shared by all namespaces."""
        self._kind_names = tuple(kinds.names())
        self._writer = SpanWriter(self, eviction)

    def in_namespace(self, namespace: str) -> Self:
        """Return the rollouts of another namespace of the database."""
        sibling = super().in_namespace(check_text(namespace, "namespace"))
        sibling._writer = SpanWriter(sibling, self.eviction)
        return sibling

    def store_spans(self, spans: Sequence[AnySpan], *, numbered: bool = True) -> Awaitable[Stored]:
        """Store spans, 500 in a transaction; return their sequence ids, None for spans stored before.

        With `numbered=False` they get the next numbers of their rollout.
        """
        return self._writer.store(spans, numbered=numbered)

    async def store_new_spans(self, spans: Sequence[NewSpan], parts: Mapping[str, bytes]) -> list[Answer]:
        """Store encoded spans with the parts that they share.

        The answer to each is its sequence id, None if it was stored before, or why it was not stored. A span
        that names an unknown rollout or attempt does not prevent the storing of others.
        """
        return await self._writer.store_each(spans, parts)

    async def store_span_batch(self, spans: Sequence[NewSpan], parts: Mapping[str, bytes]) -> list[Answer]:
        """Store encoded spans of many attempts in one transaction, because usually all attempts exist."""
        try:
            return list(await self._writer.store_together(spans, parts))
        except NotFound:
            return await self._writer.store_each(spans, parts)

    def write_spans(
        self, spans: Sequence[NewSpan], parts: Sequence[tuple[str, bytes]]
    ) -> asyncio.Future[Stored]:
        """Store all spans of one call, at most 1,000, or none."""
        size = sum([span.size for span in spans])
        return self._merger.call("spans", self._span_batch, (spans, parts), rows=len(spans), size=size)

    async def _span_batch(
        self, calls: Sequence[tuple[Sequence[NewSpan], Sequence[tuple[str, bytes]]]]
    ) -> Sequence[Stored | NotFound]:
        lists = [call for call, _ in calls]
        parts = [part for _, shared in calls for part in shared]
        try:
            return await self.write(span_ops.add_new_spans, lists, parts, self.kinds, self.prices)
        except span_ops.CareNeeded:
            return await self.write(span_ops.add_spans, lists, parts, self.kinds, self.prices)

    async def next_sequence_id(self, rollout_id: str) -> int:
        """Return the next sequence id for a span of this rollout."""
        return await self.write_once(None, span_ops.next_sequence_ids, check_text(rollout_id, "rollout_id"))

    async def next_sequence_ids(self, rollout_ids: Sequence[str]) -> list[int]:
        """Return the next sequence id for each rollout, in their order."""
        wanted = [check_text(rollout_id, "rollout_id") for rollout_id in rollout_ids]
        numbers: list[int] = []
        for start in range(0, len(wanted), ROWS):
            numbers += await self.write(span_ops.next_sequence_ids, wanted[start : start + ROWS])
        return numbers

    async def evict_spans(self, bytes_to_free: int) -> int:
        """Delete the spans of the oldest rollouts in chunks, so that other writes can run between chunks."""
        freed = 0
        while freed < bytes_to_free:
            more = await self.storage.background(span_ops.evict, bytes_to_free - freed)
            if not more:
                break
            freed += more
        return freed

    # --- spans that name no rollout

    async def store_otlp_spans(
        self,
        named: Sequence[NewSpan],
        unnamed: Sequence[NewSpan],
        parts: Mapping[str, bytes],
        *,
        keep: bool,
    ) -> list[joining.Answer]:
        """Store spans that name their rollout, and spans that belong to an attempt of their trace.

        With `keep`, other spans go to a rollout that is kept for their trace. A batch is one transaction.
        """
        return await self._writer.store_otlp(named, unnamed, parts, keep=keep)

    async def write_otlp_spans(
        self,
        named: Sequence[NewSpan],
        unnamed: Sequence[NewSpan],
        parts: Sequence[tuple[str, bytes]],
        *,
        keep: bool,
    ) -> list[joining.Answer]:
        """Store the spans of one call, at most 1,000."""
        traces: dict[str, joining.TraceFamily] = {}
        for span in unnamed:
            if span.trace_id not in traces:
                trace = KeptTrace(span.trace_id, span.service or None)
                request = trace.request() if keep else None
                traces[span.trace_id] = joining.TraceFamily(
                    trace.trace_id, trace.run_id, trace.rollout_id, trace.attempt_id, request
                )
        for _ in range(TRIES):
            try:
                return await self.write(
                    joining.add_otlp_spans, named, unnamed, traces, parts, self.kinds, self.prices
                )
            except span_ops.CareNeeded:
                continue
            except joining.CallsUnknown as unknown:
                await self._note_calls(unknown.keys)
        raise Conflict("other batches with spans of the same traces were stored at the same time")

    async def _note_calls(self, keys: Sequence[AttemptKey]) -> None:
        """Store the model calls of attempts, because spans of a framework join them for the first time."""
        await self.write(joining.join_attempts, keys)
        for rollout_id, attempt_id in keys:
            for offset in range(0, MAX_CALLS_READ, ROWS):
                query = Query(sort_by="sequence_id", limit=ROWS, offset=offset, total=False)
                (rows, _), parts = await self.read(
                    queries.query_spans, rollout_id, attempt_id, query, self._kind_names
                )
                calls = await asyncio.to_thread(span_encoding.calls_in, rows, parts)
                for start in range(0, len(calls), ROWS):
                    await self.write(joining.add_model_calls, calls[start : start + ROWS])
                if len(rows) < ROWS:
                    break

    async def show_kept_traces(self, rollouts: Sequence[Rollout]) -> None:
        """Set the times of rollouts kept for traces, from the spans of each rollout."""
        kept = [rollout.rollout_id for rollout in rollouts if is_kept_id(rollout.rollout_id)]
        if kept:
            rows = await self.read(joining.get_kept_traces, kept)
            for rollout in rollouts:
                show_kept(rollout, rows)

    async def show_kept_attempts(self, rollout_id: str, attempts: Sequence[Attempt]) -> None:
        """Set the times of the attempts of a rollout kept for a trace, from the spans of each attempt."""
        if is_kept_id(rollout_id):
            rows = await self.read(joining.get_kept_traces, [rollout_id])
            for attempt in attempts:
                show_kept_attempt(attempt, rows)
