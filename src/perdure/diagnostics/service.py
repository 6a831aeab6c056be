"""Diagnostics of one namespace: search by id, explanations, and queue statistics."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta
from msgspec.structs import asdict

from perdure.access.model import row_to_token
from perdure.approvals.model import ApprovalRow
from perdure.diagnostics import comparing, doctor, finding, model, operations
from perdure.diagnostics.comparison import Comparison, align, build_comparison, readable
from perdure.diagnostics.doctor import Findings
from perdure.diagnostics.explain import explain_rollout, explain_schedule, explain_thread
from perdure.diagnostics.finding import KINDS, LAST, MAX_FOUND, IdFilter, IdMatch, Kind, TokenMatches
from perdure.diagnostics.found_explain import OWNED, explain_match
from perdure.diagnostics.model import (
    LiveWorkers,
    NamespaceStats,
    OpenApprovals,
    RolloutFacts,
    RolloutRows,
    Why,
)
from perdure.diagnostics.path import RolloutPath, build_rollout_path
from perdure.diagnostics.totals import ThreadFigures, thread_figures
from perdure.diagnostics.workflow_explain import WorkflowRunRows, explain_approval, explain_workflow_run
from perdure.eventlog.port import EventLog, LogName
from perdure.kernel.checks import (
    MAX_ID,
    Id,
    Limit,
    Offset,
    check_choice,
    check_choices,
    check_id,
    check_name,
    check_number,
    check_page,
    optional_text,
)
from perdure.kernel.clock import to_micros, to_seconds
from perdure.kernel.errors import NotFound, SpansEvicted
from perdure.kernel.storage.port import Operation, Storage
from perdure.outbox.model import DEAD, PENDING
from perdure.rollouts.model import Kinds
from perdure.rollouts.watchdog import Watchdog, WatchedService
from perdure.schedules.rows import ScheduleRow, row_to_schedule
from perdure.service.callers import Caller
from perdure.service.endpoints import GET, call
from perdure.service.tables import SYSTEM
from perdure.sessions.model import described
from perdure.spans.encoding import spans_from
from perdure.statistics.model import USAGE_BY, QueueHistory, UsageBy, UsageHistory
from perdure.statistics.operations import queue_history, usage_history
from perdure.threads.policy import Policy

Beginning = Annotated[str, Meta(max_length=MAX_ID)]
Moment = Annotated[float, Meta(ge=0, le=1e11)]
FindLimit = Annotated[int, Meta(ge=1, le=MAX_FOUND)]
ALIVE_LEASES = 3
"""A worker counts as lost after this number of leases without a sign of life."""


class Diagnostics(WatchedService):
    """Explain runs, threads, rollouts and schedules of one namespace, and count its queues and workers."""

    def __init__(
        self,
        storage: Storage,
        kinds: Kinds,
        *,
        namespace: str = "default",
        caller: Caller | None = None,
        watchdog: Watchdog | None = None,
        lease: float | None = None,
        log: EventLog | None = None,
    ) -> None:
        super().__init__(storage, kinds, namespace=namespace, caller=caller, watchdog=watchdog)
        self.not_loaded: Mapping[str, str] = {}
        """Agents of this process that could not be loaded, with the reasons."""
        self._log = log
        self._alive = to_micros((Policy().lease if lease is None else lease) * ALIVE_LEASES)

    @call(GET("/why/{id}"), scope="read", errors=(NotFound,))
    async def why(self, id: Id) -> Why:
        """Explain why something waits or how it ended, by any id: of a run, thread, rollout, attempt, phase,
        workflow run, approval, schedule, session, worker, trace, span, effect, job and others."""
        now, match = await self.read(operations.find, check_id(id, "id"))
        if match is None:
            return await self._explain_other(id, to_seconds(now))
        if isinstance(match, ScheduleRow):
            return explain_schedule(row_to_schedule(match), to_seconds(now))
        if isinstance(match, WorkflowRunRows):
            return explain_workflow_run(match, now)
        if isinstance(match, ApprovalRow):
            return explain_approval(match, now)
        if isinstance(match, RolloutRows):
            return explain_rollout(self._build_facts(match, now), now)
        busy = None if match.busy is None else self._build_facts(match.busy, now)
        return explain_thread(model.thread_facts(match, busy), now)

    async def _explain_other(self, id: str, now: float) -> Why:
        """Explain an object that has no wait rules."""
        if not id.strip():
            raise NotFound("Nothing in this namespace has an empty id")
        for match in await self.find(id):
            if match.id == id:
                owner = None
                if match.kind in OWNED and match.parent_id is not None:
                    owner = await self.why(match.parent_id)
                return explain_match(match, owner, now)
        raise NotFound(f"Nothing in this namespace has the id {id}")

    def _build_facts(self, rows: RolloutRows, now: int) -> RolloutFacts:
        return model.build_facts(rows, known=rows.row.kind in self.kinds, since=now - self._alive)

    @call(GET("/rollouts/{rollout_id}/path"), scope="read", errors=(NotFound,))
    async def path(self, rollout_id: Id) -> RolloutPath:
        """Get the statuses of a rollout, a run or a phase, with their times and causes.

        The path is derived from stored data: `exact` is false if a time is only the nearest known one, and
        `unknown` lists what is not stored. If there are more than 100 attempts, the latest are shown.
        """
        rows = await self.read(operations.find_path, check_id(rollout_id, "rollout_id"), self.kinds)
        if rows is None:
            raise NotFound(f"Rollout {rollout_id} not found")
        return build_rollout_path(rows, final=rows.row.kind in self.kinds and self.kinds[rows.row.kind].final)

    @call(GET("/rollouts/{rollout_id}/comparison"), scope="read", errors=(NotFound, SpansEvicted))
    async def compare(
        self,
        rollout_id: Id,
        *,
        left: Id | None = None,
        right: Id | None = None,
        limit: Limit = 100,
        offset: Offset = 0,
    ) -> Comparison:
        """Compare two attempts of a rollout, a run or a phase, span by span, and find their first difference.

        `left` and `right` are ids or numbers of attempts, by default the last two. The first 500 spans of
        each are compared; `limit` and `offset` choose the pairs that are shown. Ids and times do not count as
        differences. `GET /rollouts/{rollout_id}/spans?span_id=` returns the content of a span.
        """
        check_page(limit, offset)
        wanted = (optional_text(left, "left"), optional_text(right, "right"))
        one, other = await self.read(comparing.find, check_id(rollout_id, "rollout_id"), *wanted)
        pairs = align(one.spans, other.spans)
        rows, parts = await self.read(comparing.read_spans, rollout_id, readable(pairs))
        read = {(span.attempt_id, span.span_id): span for span in spans_from(rows, parts)}
        return build_comparison(rollout_id, one, other, pairs, read, limit=limit, offset=offset)

    @call(GET("/find"), scope="read")
    async def find(
        self, q: Beginning, *, kind: list[Kind] | None = None, limit: FindLimit = 20
    ) -> list[IdMatch]:
        """Find objects whose id is `q` or begins with `q`; schedules also by name.

        Exact matches come first, then the others in the order of their kinds. `last` is the newest of each
        kind. `kind` limits the search; without it `q` must not be empty. Only callers with the scope `admin`
        find tokens.
        """
        check_id(q, "q") if kind else check_name(q, "q")
        check_number(limit, "limit", least=1, most=MAX_FOUND)
        kinds = KINDS if kind is None else check_choices(kind, KINDS, "kind")
        wanted = IdFilter(q, frozenset(kinds), limit)
        matches = await self.read(finding.starting, wanted)
        matches += await self._find_sessions(wanted)
        matches += await self._find_tokens(wanted)
        if q == LAST and not any(match.id == LAST for match in matches):
            return await self._newest(kinds)
        return finding.ordered(matches, q, limit)

    async def _newest(self, kinds: Sequence[Kind]) -> list[IdMatch]:
        matches = list(await self.read(finding.newest, list(kinds)))
        if "session" in kinds and self._log is not None:
            ns = await self.ns()
            logs = await self._log.logs(ns)
            matches += await self._describe(ns, [log.name for log in logs[:1]])
        if "token" in kinds:
            rows = await self._list_tokens(finding.newest_tokens, MAX_FOUND)
            matches += rows[:1]
        return finding.ordered(matches, LAST, MAX_FOUND)

    async def _find_sessions(self, wanted: IdFilter) -> list[IdMatch]:
        if "session" not in wanted.kinds or self._log is None:
            return []
        ns = await self.ns()
        logs = await self._log.starting(ns, wanted.start, wanted.limit)
        return await self._describe(ns, [log.name for log in logs])

    async def _describe(self, ns: int, names: Sequence[LogName]) -> list[IdMatch]:
        edges = [] if self._log is None else await self._log.edges(ns, names)
        return [finding.session_to_match(described(edge)) for edge in edges if edge is not None]

    async def _find_tokens(self, wanted: IdFilter) -> list[IdMatch]:
        return await self._list_tokens(finding.tokens_starting, wanted) if "token" in wanted.kinds else []

    async def _list_tokens(self, operation: Operation[..., TokenMatches], *args: Any) -> list[IdMatch]:
        """Return the tokens that the caller may see: those of its namespaces, if it has the scope `admin`."""
        who = self.caller
        if who is not None and "admin" not in who.scopes:
            return []
        now, rows = await self.storage.read(operation, *args, ns=SYSTEM)
        reached = None if who is None or who.namespaces is None else set(who.namespaces)
        return [
            finding.token_to_match(row, now)
            for row in rows
            if reached is None or set(row_to_token(row).namespaces) <= reached
        ]

    @call(GET("/stats"), scope="read")
    async def stats(self) -> dict[str, Any]:
        """Get queue depth, workers, connection pools and undelivered webhooks."""
        rows = await self.read(operations.stats)
        return {
            **asdict(rows.runs.queue),
            "workers": asdict(model.live_workers(rows.runs.workers, rows.runs.now - self._alive)),
            "pools": model.read_pools(await self.storage.health()),
            "outbox": rows.outbox,
        }

    @call(GET("/threads/{thread_id}/figures"), scope="read", errors=(NotFound,))
    async def thread_figures(self, thread_id: Id) -> ThreadFigures:
        """Get tokens and cost of all runs of a thread."""
        wanted = check_id(thread_id, "thread_id")
        return thread_figures(wanted, await self.read(operations.thread_totals, wanted))

    @call(GET("/stats/queues"), scope="read")
    async def queue_history(
        self, *, since: Moment | None = None, until: Moment | None = None
    ) -> QueueHistory:
        """Get queue depth, waiting time and throughput over time, for each queue.

        `since` and `until` are epoch seconds, by default the last hour. A point covers a minute, or more for
        a longer time: see `step_seconds`.
        """
        return await self.read(queue_history, since, until)

    @call(GET("/stats/usage"), scope="read")
    async def usage(
        self, *, by: UsageBy = "model", since: Moment | None = None, until: Moment | None = None
    ) -> UsageHistory:
        """Get tokens, cost, steps and errors over time, by model, agent, user or kind of step.

        By model, agent and user, only model calls count. `since` and `until` are epoch seconds, by default
        the last day. A point covers an hour, or more for a longer time: see `step_seconds`.
        """
        check_choice(by, USAGE_BY, "by")
        return await self.read(usage_history, by, since, until)

    @call(GET("/doctor"), scope="admin")
    async def doctor(self) -> Findings:
        """Check the database, its clock and disk, Redis, workers, agents, queues and deliveries."""
        # Reasons may contain file names and addresses.
        health = {**await self.storage.health(), "reason": "the log of the server says why"}
        before = time.time()
        condition = await self.read(operations.condition)
        after = time.time()
        workers = model.live_workers(condition.stats.runs.workers, condition.now - self._alive)
        ready = [depth for depth in condition.queues if depth.ready and depth.paused is None]
        oldest = max(
            (to_seconds(condition.now - (depth.oldest or condition.now)) for depth in ready), default=0.0
        )
        checks = [
            doctor.check_health(health, self.storage.engine),
            doctor.check_skew(before, condition.now, after),
            doctor.check_redis(health),
            doctor.check_workers(workers, sum(depth.ready for depth in ready), oldest),
            doctor.check_queues(
                [depth.queue for depth in condition.queues if depth.paused is not None], condition.drained
            ),
            *doctor.check_agents(self.not_loaded),
            doctor.check_outbox(condition.stats.outbox[PENDING], condition.stats.outbox[DEAD]),
        ]
        free = self.storage.free_bytes()
        return doctor.build_findings(checks if free is None else [*checks, doctor.check_space(free)])

    async def live_workers(self) -> LiveWorkers:
        """Return the live workers and their slots."""
        now, rows = await self.read(operations.live_workers)
        return model.live_workers(rows, now - self._alive)

    async def open_approvals(self, namespaces: Collection[str] | None) -> dict[str, OpenApprovals]:
        """Return the open approvals in these namespaces, or in all."""
        now, approvals = await self.storage.read(operations.open_approvals, namespaces)
        return {
            name: OpenApprovals(
                pending=row.pending, oldest_age_seconds=max(to_seconds(now - row.oldest), 0.0)
            )
            for name, row in approvals.items()
        }

    async def by_namespace(self, namespaces: Collection[str] | None) -> dict[str, NamespaceStats]:
        """Return the queue and the workers of these namespaces, or of all, that have runs or workers."""
        rows_by_namespace = await self.storage.read(operations.by_namespace, namespaces)
        return {
            name: NamespaceStats(rows.queue, model.live_workers(rows.workers, rows.now - self._alive))
            for name, rows in rows_by_namespace.items()
        }
