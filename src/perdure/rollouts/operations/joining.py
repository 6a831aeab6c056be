"""Spans that name no rollout: each joins an attempt of its trace, or a rollout that is kept for the trace.

A batch is one transaction. A span that joins an attempt renews no lease and changes no status, because its
sender does not execute the attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

import msgspec

from perdure.kernel.errors import NotFound
from perdure.kernel.storage.port import Tx
from perdure.rollouts import joining_sql as sql
from perdure.rollouts.joining_sql import KeptTraceRow
from perdure.rollouts.model import FAILED, KEPT_TRACE, LIVE, RUNNING, SUCCEEDED, Kinds, compute_outcome
from perdure.rollouts.operations.conditions import LINES_LOCKED
from perdure.rollouts.operations.enqueue import NewRollout, count_new, new_attempt, new_row
from perdure.rollouts.operations.model_calls import AttemptKey
from perdure.rollouts.operations.report import set_status
from perdure.rollouts.operations.spans import Adding, CareNeeded
from perdure.rollouts.operations.work import ATTEMPTS_TOTAL, ROLLOUT_ENDED, add_total
from perdure.rollouts.rows import AttemptRow, NewRolloutRow
from perdure.service.audit import audit
from perdure.service.conditions import requires
from perdure.spans.encoding import call_row
from perdure.spans.prices import Prices
from perdure.spans.rows import ModelCallRow, NewSpan
from perdure.spans.sums import ERROR
from perdure.spans.tables import SPANS

MAX_ROLLOUTS = 1000
"""Maximum number of rollouts whose callers started the traces of a batch."""
MAX_ATTEMPTS = 32
"""Maximum number of attempts of a trace to consider: live attempts, then the newest."""
MAX_SEARCHED = 1000
"""Largest number of spans of a trace in which other rollouts are searched by the spans."""
MAX_LINKED = 20
"""Maximum number of rollouts in `linked` of a kept trace."""


class SpanRefusal(Enum):
    """Why a span without a rollout is not stored."""

    NOT_KEPT = "not kept"


NOT_KEPT: Final = SpanRefusal.NOT_KEPT

Answer = int | None | NotFound | SpanRefusal
"""The sequence id of a span, None if it was stored before, or why it is not stored."""


class CallsUnknown(Exception):
    """A framework's first model call joins an attempt: the calls of its worker must be stored before."""

    def __init__(self, keys: Sequence[AttemptKey]) -> None:
        super().__init__(keys)
        self.keys = keys


SpanKey = tuple[str, str]
"""Key of a span: trace, span."""


class TraceFamily(msgspec.Struct, frozen=True):
    """A trace with the ids of its run and its kept rollout. Without `request` it is not kept."""

    trace_id: str
    run_id: str
    kept_id: str
    attempt_id: str
    request: NewRollout | None


@requires(LINES_LOCKED)
async def add_otlp_spans(
    tx: Tx,
    named: Sequence[NewSpan],
    unnamed: Sequence[NewSpan],
    families: Mapping[str, TraceFamily],
    parts: Sequence[tuple[str, bytes]],
    kinds: Kinds,
    prices: Prices,
    lined: bool = False,
) -> list[Answer]:
    """Store spans that name their rollout and spans that do not; return an answer for each in this order.

    Spans of an unknown rollout do not prevent the storing of others.
    """
    adding = Adding(tx, kinds, prices)
    joining = _Joining(tx, adding, families, [msgspec.structs.replace(span) for span in unnamed])
    await joining.load(named, kinds, lined)
    errors = {id(span): error for span in named if (error := adding.check([span])) is not None}
    new = await adding.drop_stored([span for span in named if id(span) not in errors])
    new = [*new, *await joining.place(named, errors)]
    await joining.store(new, parts)
    numbers = adding.numbers
    return [
        *(errors.get(id(span), numbers.get(id(span))) for span in named),
        *(numbers.get(id(span), joining.refusal(span)) for span in joining.unnamed),
    ]


async def join_attempts(tx: Tx, keys: Sequence[AttemptKey]) -> None:
    """Mark attempts as joined by spans of a framework, so that each model call counts once from now on."""
    for rollout_id, attempt_id in sorted(keys):
        await tx.execute(sql.JOIN_ATTEMPT, rollout_id=rollout_id, attempt_id=attempt_id)


async def add_model_calls(tx: Tx, calls: Sequence[ModelCallRow]) -> None:
    """Store model calls that were counted before."""
    await tx.write(sql.ADD_MODEL_CALLS.of(calls))


async def get_kept_traces(tx: Tx, rollout_ids: Sequence[str]) -> dict[str, KeptTraceRow]:
    """Return the rows of kept traces by the ids of their rollouts."""
    rows = await tx.all(sql.GET_KEPT_TRACES, ids=list(rollout_ids))
    return {row.rollout_id: row for row in rows}


class _Joining:
    """A batch that is assigned to the attempts and kept rollouts of its traces."""

    def __init__(
        self, tx: Tx, adding: Adding, families: Mapping[str, TraceFamily], unnamed: Sequence[NewSpan]
    ) -> None:
        self.unnamed = unnamed
        self._tx = tx
        self._adding = adding
        self._work = adding.work
        self._families = families
        self._members: dict[str, set[str]] = {trace_id: set() for trace_id in families}
        """The rollouts that may have spans of each trace, without the rollout kept for the trace."""
        self._attempts: dict[str, list[AttemptRow]] = {}
        """Attempts of the candidate rollouts by trace, live attempts first."""
        self._started_by: dict[str, str] = {}
        """Runs that started their own trace, by trace. All spans of such a trace are below the run."""
        self._rooted: set[tuple[str, str]] = set()
        """Ended attempts of runs in `_started_by`, if their worker has stored its spans."""
        self._places: dict[SpanKey, AttemptKey | None] = {}
        """The attempts of spans; None for refused spans."""
        self._added: list[NewRolloutRow] = []
        self._new_attempts: list[AttemptRow] = []
        self._rows: list[KeptTraceRow] = []

    # --- loading

    async def load(self, named: Sequence[NewSpan], kinds: Kinds, lined: bool) -> None:
        """Lock the rollouts that spans name or are kept in, and the attempts that spans may join."""
        wanted = {span.rollout_id for span in named}.union(await self._find_members())
        if wanted:
            await self._work.load(wanted, kinds.names(), lined=lined)
        members = {rollout_id for ids in self._members.values() for rollout_id in ids}
        missing = members.difference(self._work.attempts)
        if missing:
            await self._work.load_attempts(sorted(missing))
        for trace_id, ids in self._members.items():
            rows = [row for rollout_id in ids for row in self._work.attempts.get(rollout_id, ())]
            attempts = [attempt for attempt in rows if attempt.kind in kinds]
            attempts.sort(key=lambda row: (row.status in LIVE, row.start_time, row.id), reverse=True)
            self._attempts[trace_id] = attempts[:MAX_ATTEMPTS]

    async def _find_members(self) -> list[str]:
        """Find the rollouts of the traces; return the ids of existing kept rollouts."""
        if not self._families:
            return []
        by_run = {family.run_id: trace_id for trace_id, family in self._families.items()}
        by_kept = {family.kept_id: trace_id for trace_id, family in self._families.items()}
        trace_ids = sorted(self._families)
        for row in await self._tx.all(sql.ROLLOUTS_OF_TRACES, trace_ids=trace_ids, n=MAX_ROLLOUTS):
            if row.trace_id is not None:
                self._members[row.trace_id].add(row.id)
        kept: list[str] = []
        for row in await self._tx.all(sql.ROLLOUTS_NAMED, ids=[*by_run, *by_kept]):
            if row.id in by_kept:
                kept.append(row.id)
            elif row.trace_id is None:
                self._members[by_run[row.id]].add(row.id)
                self._started_by[by_run[row.id]] = row.id
        await self._find_by_spans(trace_ids)
        return kept

    async def _find_by_spans(self, trace_ids: Sequence[str]) -> None:
        """Find rollouts that already have spans of the traces."""
        searched: list[str] = []
        for home in await self._tx.all(sql.HOMES_OF_TRACES, trace_ids=trace_ids):
            if home.rollout_id == self._families[home.trace_id].kept_id:
                continue
            self._members[home.trace_id].add(home.rollout_id)
            if home.spans <= MAX_SEARCHED:
                searched.append(home.trace_id)
        if searched:
            for row in await self._tx.all(sql.MEMBERS_OF_TRACES, trace_ids=searched):
                if row.rollout_id != self._families[row.trace_id].kept_id:
                    self._members[row.trace_id].add(row.rollout_id)

    # --- finding the attempt of each span

    async def place(self, named: Sequence[NewSpan], errors: Mapping[int, NotFound]) -> list[NewSpan]:
        """Set the attempts of the spans; return the spans to store."""
        if not self.unnamed:
            return []
        places = self._places
        await self._find_stored()
        await self._find_rooted()
        stored = set(places)
        for span in named:
            if id(span) not in errors:
                home = AttemptKey(span.rollout_id, span.attempt_id)
                places.setdefault((span.trace_id, span.span_id), home)
        batch = {(span.trace_id, span.span_id): span for span in self.unnamed}
        for span in self.unnamed:
            self._place(span, batch)
        joined: list[NewSpan] = []
        kept: dict[str, list[NewSpan]] = {}
        for key, span in batch.items():
            place = places[key]
            if place is None or key in stored:
                continue
            span.rollout_id, span.attempt_id = place
            if span.rollout_id == self._families[span.trace_id].kept_id:
                kept.setdefault(span.trace_id, []).append(span)
            else:
                joined.append(span)
        self._join(joined)
        await self._keep(kept)
        return joined + [span for spans in kept.values() for span in spans]

    def refusal(self, span: NewSpan) -> SpanRefusal | None:
        """Return why a span is not stored; None if it was stored before."""
        return NOT_KEPT if self._places[span.trace_id, span.span_id] is None else None

    async def _find_stored(self) -> None:
        """Find the spans and parents that are stored already."""
        wanted: dict[str, set[str]] = {}
        for span in self.unnamed:
            ids = wanted.setdefault(span.trace_id, set())
            ids.add(span.span_id)
            if span.parent_id is not None:
                ids.add(span.parent_id)
        keys: list[tuple[int | None, int, str, str, str]] = []
        traces: dict[tuple[str, str], str] = {}
        for trace_id, family in self._families.items():
            for attempt in (*self._attempts[trace_id], *self._work.attempts.get(family.kept_id, ())):
                traces[attempt.rollout_id, attempt.id] = trace_id
                home = (self._tx.ns, attempt.born, attempt.rollout_id, attempt.id)
                keys += [(*home, span_id) for span_id in sorted(wanted[trace_id])]
                self._adding.attempts[attempt.rollout_id, attempt.id] = attempt
        if keys:
            for _, _, rollout_id, attempt_id, span_id in await self._tx.existing(SPANS, keys):
                place = AttemptKey(rollout_id, attempt_id)
                self._places[traces[place], span_id] = place

    async def _find_rooted(self) -> None:
        """Find the ended attempts with a root span stored by their worker."""
        for trace_id, run_id in self._started_by.items():
            attempts = self._attempts[trace_id]
            if any(attempt.status in LIVE for attempt in attempts):
                continue
            for born in {attempt.born for attempt in attempts if attempt.rollout_id == run_id}:
                rows = await self._tx.all(sql.ROOTED_ATTEMPTS, born=born, rollout_id=run_id)
                self._rooted.update((run_id, attempt_id) for attempt_id in rows)

    def _place(self, span: NewSpan, batch: Mapping[SpanKey, NewSpan]) -> None:
        """Set the attempt of a span to the attempt of the nearest ancestor that has an attempt."""
        places = self._places
        passed: dict[SpanKey, None] = {}
        current: NewSpan | None = span
        top = span
        place: AttemptKey | None = None
        while current is not None:
            top, key = current, (current.trace_id, current.span_id)
            if key in places or key in passed:
                break
            passed[key] = None
            above = (current.trace_id, current.parent_id or "")
            if above in places:
                key = above
                break
            current = batch.get(above)
        place = places[key] if key in places else self._place_in_trace(top)
        family = self._families[span.trace_id]
        if place is not None and place.rollout_id == family.kept_id and family.request is None:
            place = None
        places.update(dict.fromkeys(passed, place))

    def _place_in_trace(self, top: NewSpan) -> AttemptKey | None:
        """Return the attempt of a span without known ancestors, or the kept rollout of its trace."""
        attempts = self._attempts[top.trace_id]
        candidates = [attempt for attempt in attempts if attempt.status in LIVE]
        if not candidates and top.parent_id is not None:
            # Its parent may be a span that the worker of an ended run has not stored yet.
            candidates = self._ended_attempts(top, attempts)
        if len(candidates) == 1:
            (attempt,) = candidates
            return AttemptKey(attempt.rollout_id, attempt.id)
        request = self._families[top.trace_id].request
        return None if request is None else AttemptKey(str(request.rollout_id), str(request.attempt_id))

    def _ended_attempts(self, span: NewSpan, attempts: Sequence[AttemptRow]) -> list[AttemptRow]:
        """Return the attempts of the run that started the trace that may have executed a span.

        The workers' own spans are not stored yet and may include the span's parent.
        """
        run_id = self._started_by.get(span.trace_id)
        if run_id is None or any(attempt.rollout_id != run_id for attempt in attempts):
            return []
        candidates = [row for row in attempts if (row.rollout_id, row.id) not in self._rooted]
        if len(attempts) > 1:
            start = (span.start_ns or 0) // 1000
            candidates = [row for row in candidates if row.start_time <= start <= (row.end_time or start)]
        return candidates

    def _join(self, spans: Sequence[NewSpan]) -> None:
        """Join spans to attempts. An attempt must have its model calls stored before its first span joins."""
        self._adding.quiet.update(map(id, spans))
        calls = {
            AttemptKey(span.rollout_id, span.attempt_id)
            for span in spans
            if call_row(span, span.figures) is not None
        }
        unjoined = [key for key in calls if not self._adding.attempts[key].joined]
        if unjoined:
            raise CallsUnknown(sorted(unjoined))

    # --- kept traces

    async def _keep(self, kept: Mapping[str, list[NewSpan]]) -> None:
        """Add the rollouts of new traces. End a rollout if its root span is in this batch."""
        ids = [self._families[trace_id].kept_id for trace_id in kept]
        present = [rollout_id for rollout_id in ids if rollout_id in self._work.rollouts]
        last = dict(await self._tx.all(sql.LAST_NUMBERS, ids=present)) if present else {}
        for trace_id in sorted(kept):
            spans, family = kept[trace_id], self._families[trace_id]
            number = last.get(family.kept_id, 0)
            for span in spans:
                if span.sequence_id is None:
                    number += 1
                    span.sequence_id = number
                else:
                    number = max(number, span.sequence_id)
            roots = [span.status_code for span in spans if span.parent_id is None]
            status = None if not roots else FAILED if ERROR in roots else SUCCEEDED
            self._adding.guarded.add(family.kept_id)
            if family.kept_id in self._work.rollouts:
                attempt = self._work.attempt(self._work.rollouts[family.kept_id], str(family.attempt_id))
                if status is not None:
                    set_status(self._work, attempt, status)
            elif family.request is not None:
                attempt = self._start_kept(family.request, status)
                self._adding.quiet.update(map(id, spans))
            self._rows.append(self._build_row(family, spans, rooted=status is not None))

    def _start_kept(self, request: NewRollout, status: str | None) -> AttemptRow:
        """Start a rollout that is kept for a trace. With a `status` of the root span it has ended."""
        row = new_row(self._tx, request, len(self._added), None, {}, self._work.kinds)
        row.status, row.ready, row.attempts = status or RUNNING, None, 1
        attempt = new_attempt(self._tx, row, 1, None, request.attempt_id)
        attempt.status, attempt.last_heartbeat_time = row.status, self._tx.now
        if status is not None:
            row.outcome, row.end_time = compute_outcome(status, status), self._tx.now
            attempt.end_time, attempt.reason, attempt.check_at = self._tx.now, status, None
        self._added.append(row)
        self._new_attempts.append(attempt)
        self._adding.attempts[row.id, attempt.id] = attempt
        return attempt

    def _build_row(self, family: TraceFamily, spans: Sequence[NewSpan], *, rooted: bool) -> KeptTraceRow:
        now = self._tx.now * 1000
        starts = [span.start_ns or span.end_ns or now for span in spans]
        ends = [span.end_ns or start for span, start in zip(spans, starts, strict=True)]
        linked = dict.fromkeys(attempt.rollout_id for attempt in self._attempts[family.trace_id])
        return KeptTraceRow(
            family.kept_id,
            min(starts),
            max(*starts, *ends),
            int(rooted),
            "\n".join(list(linked)[:MAX_LINKED]) or None,
        )

    async def store(self, fresh: Sequence[NewSpan], parts: Sequence[tuple[str, bytes]]) -> None:
        """Write the new rollouts and the spans."""
        tx = self._tx
        if self._added:
            added = await tx.write(
                sql.KEEP_ROLLOUTS.of(self._added), sql.KEEP_ATTEMPTS.of(self._new_attempts)
            )
            if added != [len(self._added), len(self._new_attempts)]:
                # Another process has started to keep one of the traces.
                raise CareNeeded
            count_new(tx, self._added)
            add_total(tx, ATTEMPTS_TOTAL, len(self._new_attempts))
            for status in (SUCCEEDED, FAILED):
                ended = sum(row.status == status for row in self._added)
                if ended:
                    tx.count(ROLLOUT_ENDED, KEPT_TRACE + "/" + status, times=ended)
            await audit(tx, "start_rollout", [attempt.name for attempt in self._new_attempts])
        await self._adding.store(fresh, parts, sql.ADD_KEPT_TRACES.of(self._rows))
        await self._adding.audit(fresh)
