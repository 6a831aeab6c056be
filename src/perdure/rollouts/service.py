"""Service of rollouts: the queue, rollouts, their attempts and spans.

Lists and single objects follow the native API: a missing object is `NotFound`, and a page has at most 1,000
items. The methods that take a `Query` or return None are for callers in this process:
`DatabaseLightningStore` uses them for Agent-lightning's contract.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Collection, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, cast

from msgspec import UNSET, Meta, UnsetType

from perdure.kernel.checks import (
    MAX_PAGE,
    Id,
    Limit,
    Offset,
    check_number,
    check_text,
    check_texts,
    check_timeout,
    optional_id_filter,
    optional_text,
)
from perdure.kernel.errors import Conflict, NotFound, PerdureError, SpansEvicted, TooLarge
from perdure.kernel.signals.port import until
from perdure.kernel.storage.filters import given
from perdure.kernel.storage.port import Storage
from perdure.rollouts import arguments, encoding
from perdure.rollouts.model import (
    CANCELLED,
    DEFAULT_QUEUE,
    ENDED,
    KEPT_TRACE,
    REQUEUING,
    TASK,
    Kinds,
)
from perdure.rollouts.operations import claim as claim_ops
from perdure.rollouts.operations import enqueue as enqueue_ops
from perdure.rollouts.operations import overview as overview_ops
from perdure.rollouts.operations import queries
from perdure.rollouts.operations import report as report_ops
from perdure.rollouts.operations.claim import Claim
from perdure.rollouts.operations.enqueue import NewRollout
from perdure.rollouts.operations.queries import LatestRollout, Page, Query
from perdure.rollouts.operations.report import AttemptReport, RolloutChange
from perdure.rollouts.operations.work import ENDED_CHANNEL, ended_key
from perdure.rollouts.overview import QueueState, queue_state
from perdure.rollouts.records import (
    MAX_SPANS,
    ROLLOUT_STATUSES,
    AnyRequest,
    AnyRollout,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    AttemptUpdate,
    EnqueueRolloutRequest,
    LightningStoreStatistics,
    ReportedAttempt,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    StoredSpans,
    TaskInput,
)
from perdure.rollouts.records import PaginatedResult as Pages
from perdure.rollouts.rows import AttemptRecordRow, ClaimedRollout, RolloutRecordRow
from perdure.rollouts.span_service import ROWS, SpanService
from perdure.rollouts.span_writer import Eviction
from perdure.service.callers import Caller
from perdure.service.endpoints import GET, PATCH, POST, WholeBody, call
from perdure.spans import encoding as span_encoding
from perdure.spans.prices import Prices
from perdure.spans.records import Span
from perdure.spans.rollout_figures import RolloutFigures, figures_from

_UNENDED = frozenset(ROLLOUT_STATUSES) - ENDED

Logic = Literal["and", "or"]
SortOrder = Literal["asc", "desc"]
Metadata = dict[str, Any]
Batch = Annotated[list[EnqueueRolloutRequest], Meta(max_length=MAX_PAGE)]
RolloutIds = Annotated[list[str], Meta(max_length=MAX_PAGE)]
Reports = Annotated[list[AttemptUpdate], Meta(max_length=MAX_PAGE)]
ClaimLimit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]


def _build_page(
    latest: tuple[Page[RolloutRecordRow], Mapping[str, AttemptRecordRow]], query: Query
) -> Pages[Rollout]:
    (rows, total), attempts = latest
    items = [encoding.rollout_from(row, attempts.get(row.id)) for row in rows]
    return arguments.build_page(items, rows, total, query)


class Rollouts(SpanService):
    """The rollouts of one namespace. Lists and changes rollouts of one `kind`, and gets any kind by id."""

    def __init__(
        self,
        storage: Storage,
        kinds: Kinds,
        *,
        namespace: str = "default",
        kind: str = TASK,
        caller: Caller | None = None,
        eviction: Eviction | None = None,
        prices: Prices | None = None,
    ) -> None:
        super().__init__(storage, kinds, namespace=namespace, caller=caller, eviction=eviction, prices=prices)
        self.kind = kind
        self._opened = time.monotonic()

    # --- rollouts ---------------------------------------------------------------------------------------

    @call(GET("/rollouts"), scope="read")
    async def search(
        self,
        *,
        status: list[RolloutStatus] | None = None,
        rollout_id: list[str] | None = None,
        contains: str | None = None,
        parent: str | None = None,
        logic: Logic = "and",
        sort_by: str | None = "start_time",
        sort_order: SortOrder = "desc",
        limit: Limit = 100,
        offset: Offset = 0,
        cursor: str | None = None,
        total: bool = False,
        kept_traces: bool = False,
    ) -> Pages[AnyRollout]:
        """List rollouts, the newest first. `total` counts them if no count is stored.

        With `kept_traces`, list the rollouts that hold traces without a rollout instead.

        `contains` is a part of the id. With `logic=or` one matching filter is enough. With `parent`, list the
        children of that object of every kind, whatever the logic.
        """
        conditions = given(
            ("status", "within", arguments.within(status, ROLLOUT_STATUSES, "status")),
            ("rollout_id", "within", optional_id_filter(rollout_id, "rollout_id")),
            ("rollout_id", "contains", contains),
        )
        query = arguments.query(
            conditions,
            logic,
            sort_by,
            sort_order,
            limit,
            offset,
            cursor=cursor,
            sorting=queries.ROLLOUTS,
            total=total,
        )
        if parent is None:
            return await self._query(query, KEPT_TRACE if kept_traces else self.kind)
        named = check_text(parent, "parent")
        return _build_page(await self.read(queries.query_children, query, named, self._kind_names), query)

    async def query_rollouts(self, query: Query) -> Pages[Rollout]:
        """Return a page of rollouts, each with its latest attempt."""
        return await self._query(query, self.kind)

    async def _query(self, query: Query, kind: str) -> Pages[Rollout]:
        page = _build_page(await self.read(queries.query_rollouts, query, kind), query)
        await self.show_kept_traces(page.items)
        return page

    @call(POST("/rollouts"), scope="write", status=201)
    async def enqueue(self, request: EnqueueRolloutRequest, *, idempotency_key: str | None = None) -> Rollout:
        """Enqueue a rollout; a repeated Idempotency-Key returns the first one."""
        return encoding.rollout_from(await self.enqueue_row(request, idempotency_key))

    async def enqueue_row(self, request: AnyRequest, idempotency_key: str | None = None) -> RolloutRecordRow:
        """Enqueue a rollout, and return its row."""
        return await self._enqueue(encoding.from_request(request, encoding.check_key(idempotency_key)))

    async def enqueue_new(self, new: NewRollout) -> Rollout:
        """Enqueue a rollout whose fields are checked and encoded."""
        return encoding.rollout_from(await self._enqueue(new))

    def _enqueue(self, new: NewRollout) -> Awaitable[RolloutRecordRow]:
        size = len(new.input) + len(new.metadata)
        return self.write_once(None, enqueue_ops.enqueue_rollouts, new, self.kinds, size=size)

    @call(POST("/rollouts/batch"), scope="write", status=201)
    async def enqueue_many(self, rollouts: Batch, *, idempotency_key: str | None = None) -> list[Rollout]:
        """Enqueue many rollouts in their order.

        Each may have its own key; the others get one from the request's key. Up to 1,000 at a time are
        one transaction.
        """
        return [encoding.rollout_from(row) for row in await self.enqueue_rows(rollouts, idempotency_key)]

    async def enqueue_rows(
        self, requests: Sequence[AnyRequest], idempotency_key: str | None = None
    ) -> list[RolloutRecordRow]:
        """Enqueue many rollouts, and return their rows."""
        key = encoding.check_key(idempotency_key)
        new = [
            encoding.from_request(request, None if key is None else f"{key}/{number}")
            for number, request in enumerate(requests)
        ]
        rows: list[RolloutRecordRow] = []
        for start in range(0, len(new), ROWS):
            rows += await self.write(enqueue_ops.enqueue_rollouts, new[start : start + ROWS], self.kinds)
        return rows

    @call(POST("/rollouts/start"), scope="write", status=201, errors=(Conflict,))
    async def start(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: Metadata | None = None,
        worker_id: str | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> AttemptedRollout:
        """Start a rollout at once, without the queue."""
        new = encoding.new_rollout(input, mode, resources_id, config, metadata, worker_id=worker_id)
        key = encoding.check_key(idempotency_key)
        claimed: ClaimedRollout = await self.write_once(key, enqueue_ops.start_rollouts, new, self.kinds)
        return encoding.attempted_from(claimed)

    async def start_missing(self, requests: Sequence[NewRollout]) -> None:
        """Start rollouts with given ids, unless they exist."""
        await self.write(enqueue_ops.start_missing, requests, self.kinds)

    @call(POST("/dequeue"), scope="worker", errors=(Conflict,))
    async def claim(
        self,
        worker_id: str | None = None,
        *,
        queue: str = DEFAULT_QUEUE,
        limit: ClaimLimit = 1,
        idempotency_key: str | None = None,
    ) -> list[AttemptedRollout]:
        """Claim the next rollouts of a queue, each with a new attempt; none if the queue is empty."""
        check_number(limit, "limit", 1, MAX_PAGE)
        worker_id, key = optional_text(worker_id, "worker_id"), encoding.check_key(idempotency_key)
        claimed: list[ClaimedRollout] = await self.write_once(
            key,
            claim_ops.claim_rollouts,
            Claim(worker_id, limit),
            queue if queue is DEFAULT_QUEUE else check_text(queue, "queue"),
            self.kind,
            self.kinds,
            rows=limit,
            # A caller with a key may repeat the call, so its claim is not released.
            undelivered=self._release_later if key is None else None,
        )
        return [encoding.attempted_from(pair) for pair in claimed]

    def _release_later(self, claimed: list[ClaimedRollout]) -> None:
        """Release rollouts whose caller was cancelled during the claim."""
        pairs = [(pair.rollout.id, pair.attempt.id) for pair in claimed]
        if pairs:
            self.release_later(partial(self.release, pairs))

    async def release(self, claimed: Sequence[tuple[str, str]]) -> None:
        """Revert claims, (rollout_id, attempt_id), whose answer did not reach the caller."""
        await self.write(claim_ops.release_rollouts, claimed, self.kinds)

    @call(GET("/rollouts/{rollout_id}"), scope="read", errors=(NotFound,))
    async def get(self, rollout_id: Id) -> AnyRollout:
        """Get a rollout with its latest attempt."""
        rollout = await self.find(rollout_id)
        if rollout is None:
            raise NotFound(f"Rollout {rollout_id} not found")
        return rollout

    async def find(self, rollout_id: str) -> Rollout | None:
        """Return a rollout with its latest attempt, or None."""
        latest = await self._find(rollout_id)
        if latest is None:
            return None
        rollout = encoding.rollout_from(*latest)
        await self.show_kept_traces([rollout])
        return rollout

    async def _find(self, rollout_id: str) -> LatestRollout | None:
        check_text(rollout_id, "rollout_id")
        return await self.read_one(queries.get_rollouts, rollout_id, self._kind_names)

    @call(PATCH("/rollouts/{rollout_id}"), scope="write", errors=(NotFound,))
    async def update(
        self,
        rollout_id: Id,
        input: TaskInput | UnsetType = UNSET,
        mode: RolloutMode | UnsetType | None = UNSET,
        resources_id: str | UnsetType | None = UNSET,
        status: RolloutStatus | UnsetType = UNSET,
        config: RolloutConfig | UnsetType = UNSET,
        metadata: Metadata | UnsetType | None = UNSET,
    ) -> AnyRollout:
        """Change a rollout. Fields that are left out do not change. A status is set from any status."""
        return await self._change(
            arguments.rollout_change(rollout_id, input, mode, resources_id, status, config, metadata)
        )

    async def _change(self, change: RolloutChange) -> Rollout:
        row: RolloutRecordRow = await self.write_once(
            None, report_ops.change_rollouts, change, self.kind, self.kinds
        )
        return encoding.rollout_from(row)

    @call(POST("/rollouts/{rollout_id}/cancel"), scope="write", errors=(NotFound, Conflict), repeatable=True)
    async def cancel(self, rollout_id: Id) -> AnyRollout:
        """Cancel a rollout that has not ended; cancelling it again changes nothing."""
        try:
            return await self._move(rollout_id, CANCELLED, _UNENDED)
        except Conflict:
            rollout = await self.get(rollout_id)
            if rollout.status == CANCELLED:
                return rollout
            raise

    @call(POST("/rollouts/{rollout_id}/retry"), scope="write", errors=(NotFound, Conflict))
    async def retry(self, rollout_id: Id) -> AnyRollout:
        """Put a rollout that has ended back into its queue."""
        return await self._move(rollout_id, REQUEUING, ENDED)

    async def _move(self, rollout_id: str, status: str, only_from: Collection[str]) -> Rollout:
        check_text(rollout_id, "rollout_id")
        return await self._change(RolloutChange(rollout_id, status, only_from=frozenset(only_from)))

    async def wait(self, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        """Wait until all existing rollouts have ended or the time is up; return those that have ended.

        A hint wakes the caller, which then reads the named rollouts. There is no polling.
        """
        check_timeout(timeout)
        ids = list(dict.fromkeys(check_texts(rollout_ids, "rollout_ids")))
        present = await self.read(queries.present, ids)
        # After the read, since the namespace of a rollout that was read exists.
        ns = await self.ns()
        pending = {ended_key(ns, name): name for name in present}
        ended: dict[str, LatestRollout] = {}

        async def all_ended(changed: frozenset[str]) -> bool:
            asked = sorted(pending[key] for key in changed if key in pending)
            for start in range(0, len(asked), ROWS):
                for latest in await self.read(queries.get_ended, asked[start : start + ROWS]):
                    rollout_id = latest.rollout.id
                    ended[rollout_id] = latest
                    del pending[ended_key(ns, rollout_id)]
            return not pending

        await until(self.storage.signals, ENDED_CHANNEL, pending, all_ended, timeout=timeout)
        rollouts = [encoding.rollout_from(*ended[rollout_id]) for rollout_id in ids if rollout_id in ended]
        await self.show_kept_traces(rollouts)
        return rollouts

    # --- attempts ---------------------------------------------------------------------------------------

    @call(GET("/rollouts/{rollout_id}/attempts"), scope="read", errors=(NotFound,))
    async def attempts(
        self,
        rollout_id: Id,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: Limit = 100,
        offset: Offset = 0,
        cursor: str | None = None,
    ) -> Pages[Attempt]:
        """List the attempts of a rollout, in the order of their numbers."""
        query = arguments.query(
            (), "and", sort_by, sort_order, limit, offset, cursor=cursor, sorting=queries.ATTEMPTS
        )
        await self.get(rollout_id)
        return await self.query_attempts(rollout_id, query)

    async def query_attempts(self, rollout_id: str, query: Query) -> Pages[Attempt]:
        """Return a page of a rollout's attempts; the page is empty if the rollout is unknown."""
        check_text(rollout_id, "rollout_id")
        page = await self.read(queries.query_attempts, rollout_id, query, self._kind_names)
        attempts = arguments.result(page, encoding.attempt_from, query)
        await self.show_kept_attempts(rollout_id, attempts.items)
        return attempts

    @call(
        POST("/rollouts/{rollout_id}/attempts"),
        scope="worker",
        status=201,
        errors=(NotFound, Conflict),
    )
    async def start_attempt(
        self, rollout_id: Id, worker_id: str | None = None, *, idempotency_key: str | None = None
    ) -> AttemptedRollout:
        """Start another attempt, whatever the rollout's status."""
        check_text(rollout_id, "rollout_id")
        request = (rollout_id, optional_text(worker_id, "worker_id"))
        key = encoding.check_key(idempotency_key)
        started: ClaimedRollout = await self.write_once(
            key, claim_ops.start_attempts, request, self.kind, self.kinds
        )
        return encoding.attempted_from(started)

    @call(GET("/rollouts/{rollout_id}/attempts/latest"), scope="read", errors=(NotFound,))
    async def get_latest_attempt(self, rollout_id: Id) -> Attempt:
        """Get the latest attempt of a rollout."""
        attempt = await self.find_latest_attempt(rollout_id)
        if attempt is None:
            raise NotFound(f"No attempts found for rollout {rollout_id}")
        return attempt

    async def find_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """Return the attempt with the highest sequence id, or None."""
        latest = await self._find(rollout_id)
        if latest is None or latest.attempt is None:
            return None
        attempt = encoding.attempt_from(latest.attempt)
        await self.show_kept_attempts(rollout_id, [attempt])
        return attempt

    @call(
        PATCH("/rollouts/{rollout_id}/attempts/{attempt_id}"),
        scope="worker",
        errors=(NotFound,),
    )
    async def update_attempt(
        self,
        rollout_id: Id,
        attempt_id: Id,
        status: AttemptStatus | UnsetType = UNSET,
        worker_id: str | UnsetType = UNSET,
        last_heartbeat_time: float | UnsetType = UNSET,
        metadata: Metadata | UnsetType = UNSET,
    ) -> Attempt:
        """Report on an attempt; its id may be `latest`. The rollout follows its latest attempt."""
        return await self.report(
            arguments.attempt_report(rollout_id, attempt_id, status, worker_id, last_heartbeat_time, metadata)
        )

    async def report(self, attempt: AttemptReport) -> Attempt:
        """Report on an attempt whose fields are checked and encoded."""
        row: AttemptRecordRow = await self.write_once(
            None, report_ops.report_attempts, attempt, self.kind, self.kinds
        )
        return encoding.attempt_from(row)

    @call(POST("/attempts/reports"), scope="worker", repeatable=True)
    async def update_attempts(self, reports: Reports) -> list[ReportedAttempt]:
        """Report on many attempts in one transaction. Each report has its own answer: an unknown attempt is
        refused, and the other reports are applied."""
        check_number(len(reports), "the number of reports", 0, MAX_PAGE)
        return await self.report_many([arguments.build_report(update) for update in reports])

    async def report_many(self, attempts: Sequence[AttemptReport]) -> list[Attempt | PerdureError]:
        """Report on attempts whose fields are checked and encoded, in one transaction."""
        rows = await self.write(report_ops.report_attempts, attempts, self.kind, self.kinds)
        return [row if isinstance(row, NotFound) else encoding.attempt_from(row) for row in rows]

    # --- spans ------------------------------------------------------------------------------------------

    @call(
        GET("/rollouts/{rollout_id}/spans"),
        scope="read",
        errors=(NotFound, SpansEvicted),
    )
    async def spans(
        self,
        rollout_id: Id,
        *,
        attempt_id: str | None = None,
        trace_id: str | None = None,
        span_id: str | None = None,
        parent_id: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        logic: Logic = "and",
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: Limit = 100,
        offset: Offset = 0,
        cursor: str | None = None,
    ) -> Pages[Span]:
        """List the spans of a rollout; `attempt_id` may be `latest`."""
        conditions = given(
            ("trace_id", "exact", trace_id),
            ("span_id", "exact", span_id),
            ("parent_id", "exact", parent_id),
            ("name", "exact", name),
            ("name", "contains", name_contains),
        )
        query = arguments.query(
            conditions, logic, sort_by, sort_order, limit, offset, cursor=cursor, sorting=queries.SPANS
        )
        await self.get(rollout_id)
        return await self.query_spans(rollout_id, attempt_id, query)

    async def query_spans(self, rollout_id: str, attempt_id: str | None, query: Query) -> Pages[Span]:
        """Return a page of a rollout's spans; the page is empty if the rollout or attempt is unknown."""
        check_text(rollout_id, "rollout_id")
        optional_text(attempt_id, "attempt_id")
        (rows, total), parts = await self.read(
            queries.query_spans, rollout_id, attempt_id, query, self._kind_names
        )
        return arguments.build_page(span_encoding.spans_from(rows, parts), rows, total, query)

    @call(POST("/spans"), scope="worker", status=201, errors=(NotFound, TooLarge), repeatable=True)
    async def add_spans(self, spans: Annotated[list[Span], WholeBody]) -> StoredSpans:
        """Store spans; the answer says for each span whether it was new."""
        if len(spans) > MAX_SPANS:
            raise TooLarge(f"the body has {len(spans)} spans; at most {MAX_SPANS} are taken")
        return StoredSpans(stored=[number is not None for number in await self.store_spans(spans)])

    @call(GET("/figures"), scope="read")
    async def figures(self, *, rollout_id: RolloutIds) -> list[RolloutFigures]:
        """Show tokens, cost and last reward of rollouts and runs. Those without such spans are left out."""
        ids = check_texts(rollout_id, "rollout_id")
        check_number(len(ids), "the number of rollouts", 0, MAX_PAGE)
        return [figures_from(row) for row in await self.read(queries.get_figures, ids)]

    # --- counts -----------------------------------------------------------------------------------------

    @call(GET("/statistics"), scope="read")
    async def statistics(self) -> LightningStoreStatistics:
        """Show how many objects the namespace holds."""
        counts = await self.read(queries.statistics, self.kind)
        statistics = LightningStoreStatistics(uptime=time.monotonic() - self._opened)
        statistics.update(cast("LightningStoreStatistics", counts))
        return statistics

    @call(GET("/queues"), scope="read")
    async def queues(self) -> list[QueueState]:
        """Show for each queue how many rollouts wait, how long, and whether it is paused."""
        now, depths = await self.read(overview_ops.queues_here)
        return [queue_state(depth, self.namespace, now) for depth in depths]

    async def close(self) -> None:
        """Finish releasing claims, then close the storage."""
        await self.finish_releases()
        await self.storage.close()
