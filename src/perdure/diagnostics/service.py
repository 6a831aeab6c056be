"""Diagnostics of one namespace: why something is waiting, and how full the queues are."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec.structs import asdict

from perdure.access.endpoints import GET, call
from perdure.access.model import Caller
from perdure.approvals.model import ApprovalRow
from perdure.diagnostics import model, operations
from perdure.diagnostics.explain import explain_rollout, explain_schedule, explain_thread
from perdure.diagnostics.model import FoundRollout, LiveWorkers, NamespaceStats, RolloutFacts, Why
from perdure.diagnostics.workflow_explain import FoundWorkflowRun, explain_approval, explain_workflow_run
from perdure.kernel.checks import Id, check_id
from perdure.kernel.clock import to_micros, to_seconds
from perdure.kernel.errors import NotFound
from perdure.kernel.storage.port import Storage
from perdure.rollouts.model import Kinds
from perdure.rollouts.watchdog import Watchdog, WatchedService
from perdure.schedules.rows import ScheduleRow, schedule_of
from perdure.threads.policy import Policy

ALIVE_LEASES = 3
"""After how many leases without a sign of life a worker does not count as alive."""


class Diagnostics(WatchedService):
    """Explains runs, threads, rollouts and schedules of one namespace, and counts its queues and workers."""

    def __init__(
        self,
        storage: Storage,
        kinds: Kinds,
        *,
        namespace: str = "default",
        caller: Caller | None = None,
        watchdog: Watchdog | None = None,
        lease: float | None = None,
    ) -> None:
        super().__init__(storage, kinds, namespace=namespace, caller=caller, watchdog=watchdog)
        self._alive = to_micros((Policy().lease if lease is None else lease) * ALIVE_LEASES)

    @call(GET("/why/{id}"), scope="read", errors=(NotFound,))
    async def why(self, id: Id) -> Why:
        """Explain why a run, thread, rollout, workflow run, approval or schedule is waiting, or how it
        ended."""
        now, found = await self.read(operations.find, check_id(id, "id"))
        if found is None:
            raise NotFound(
                f"There is no rollout, run, thread, workflow run, approval or schedule {id} in this namespace"
            )
        if isinstance(found, ScheduleRow):
            return explain_schedule(schedule_of(found), to_seconds(now))
        if isinstance(found, FoundWorkflowRun):
            return explain_workflow_run(found, now)
        if isinstance(found, ApprovalRow):
            return explain_approval(found, now)
        if isinstance(found, FoundRollout):
            return explain_rollout(self._facts(found, now), now)
        busy = None if found.busy is None else self._facts(found.busy, now)
        return explain_thread(model.thread_facts(found, busy), now)

    def _facts(self, found: FoundRollout, now: int) -> RolloutFacts:
        return model.facts_of(found, known=found.row.kind in self.kinds, since=now - self._alive)

    @call(GET("/stats"), scope="read")
    async def stats(self) -> dict[str, Any]:
        """Show queue depth, workers, connection pools and undelivered webhooks."""
        found = await self.read(operations.stats)
        return {
            **asdict(found.runs.queue),
            "workers": asdict(model.live_workers(found.runs.workers, found.runs.now - self._alive)),
            "pools": model.pools_of(await self.storage.health()),
            "outbox": found.outbox,
        }

    async def live_workers(self) -> LiveWorkers:
        """The workers that are alive, and how much they can take."""
        now, rows = await self.read(operations.live_workers)
        return model.live_workers(rows, now - self._alive)

    async def by_namespace(self, namespaces: Collection[str] | None) -> dict[str, NamespaceStats]:
        """The queue and the workers of these namespaces that have runs, or of all."""
        found = await self.storage.read(operations.by_namespace, namespaces)
        return {
            name: NamespaceStats(each.queue, model.live_workers(each.workers, each.now - self._alive))
            for name, each in found.items()
        }
