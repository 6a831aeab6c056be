"""A database with something of everything in it, of which each part can be left open."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, Literal

from tests.server.native.support import AGENT, Worker, request
from tests.workflows.support import workflow

from perdure.eventlog.port import LogName, encode_line
from perdure.eventlog.writing import append_lines
from perdure.kernel.config import Settings
from perdure.kernel.errors import Conflict, Fenced, NotFound
from perdure.kernel.ids import derived_ulid
from perdure.kernel.retention import Retention
from perdure.kernel.storage.dialect import Statement, statement
from perdure.kernel.storage.port import Tx
from perdure.memory.records import NewMemoryEvent
from perdure.memory.wiring import MemoryWork
from perdure.retention.records import GcReport
from perdure.retention.service import Upkeep
from perdure.rollouts.records import AttemptedRollout
from perdure.runtime.services import Services
from perdure.runtime.stores import open_store
from perdure.spans.rows import NewSpan
from perdure.threads.model import RUN_QUEUES
from perdure.threads.records import NewCheckpoint
from perdure.threads.work import Assignment, Ending

NEW_KINDS = ("spans", "rollouts", "threads", "runs", "workflow_runs", "messaging", "sessions", "memory")
AT_ONCE = 1e-6
"""So many seconds something must be old in tests: whatever has ended is."""
EVERYTHING = Retention(**dict.fromkeys([*NEW_KINDS, "removed", "jobs", "delivered", "dead"], AT_ONCE))
AGENTS = (AGENT, "perdure.callable", "perdure.command", "perdure.script", "perdure.http", "perdure.check")
PARENT = """
name: parent
phases:
  - {name: plan, prompt: plan it}
  - {name: part, type: workflow, workflow: child, depends_on: [plan]}
"""
CHILD = """
name: child
phases:
  - {name: build, prompt: build it, approval_gate: after_build}
  - {name: ship, prompt: ship it, depends_on: [build]}
"""
LEFT = {
    name: statement(f"SELECT count(*) FROM {name}", row=int)
    for name in (
        "attempts",
        "spans",
        "span_counters",
        "rollout_figures",
        "traces",
        "trace_names",
        "runs",
        "threads",
        "lines",
        "checkpoints",
        "run_steps",
        "streams",
        "stream_events",
        "stream_links",
        "workflow_runs",
        "workflow_nodes",
        "workflow_history",
        "workflow_outputs",
        "executions",
        "execution_seeds",
        "chat_threads",
        "workflow_approvals",
        "approval_links",
        "messaging_sessions",
        "messaging_messages",
        "memory_events",
        "memory_texts",
        "memory_nodes",
        "memory_node_versions",
        "memory_grips",
        "memory_vectors",
        "memory_feeds",
        "session_logs",
        "session_lines",
        "session_blobs",
    )
}

LEFT["rollouts"] = statement("SELECT count(*) FROM rollouts WHERE kind <> 'job'", row=int)


async def _count(tx: Tx, sql: Statement[int]) -> int:
    return await tx.one(sql) or 0


class World:
    """The services of a database, and a worker that ends what it is told to."""

    def __init__(self, url: str) -> None:
        settings = Settings(
            workflow_assistants={"default": AGENT}, max_workflows=100, workflow_gates=("after_build",)
        )
        self.services = Services(open_store(url, watchdog_interval=None), settings)
        self.storage = self.services.storage
        self.worker = Worker(self.services.run_queue)
        self.memory_work = MemoryWork(self.storage, Settings(memory_rest=0.0))
        self.claimed: dict[str, Assignment] = {}
        """What the worker executes, by the ids of its runs."""
        self._numbers = itertools.count(1)

    async def begin(self) -> World:
        await self.worker.register()
        for text in (CHILD, PARENT):
            self.services.definitions.add(workflow(text))
        return self

    def upkeep(self, retention: Retention = EVERYTHING) -> Upkeep:
        return Upkeep(self.storage, retention=retention, log=self.services.sessions.log)

    async def gc(self, retention: Retention = EVERYTHING) -> dict[str, int]:
        """Sweep; what was counted before is what is deleted, and nothing is broken after it."""
        upkeep = self.upkeep(retention)
        counted = deleted_of(await upkeep.gc(dry_run=True))
        deleted = deleted_of(await upkeep.gc())
        # What a kind makes deletable for another one is not counted before.
        follows = {"removed": 0, "runs": 0}
        assert counted | follows == deleted | follows, (counted, deleted)
        await self.verify()
        return deleted

    async def verify(self) -> None:
        found = await self.services.upkeep.verify()
        assert found.ok, [each.sentence for each in found.items if not each.ok]

    async def rows(self, *names: str) -> dict[str, int]:
        """How many rows tables have that have some."""
        found = {name: await self.storage.read(_count, LEFT[name]) for name in names or LEFT}
        return {name: count for name, count in found.items() if count}

    def number(self) -> int:
        return next(self._numbers)

    # --- tasks

    async def task(self) -> str:
        return (await self.services.store.enqueue_rollout({"n": self.number()})).rollout_id

    async def end_task(self, claimed: AttemptedRollout, *, success: bool = True) -> None:
        status: Literal["succeeded", "failed"] = "succeeded" if success else "failed"
        await self.services.store.update_attempt(
            claimed.rollout_id, claimed.attempt.attempt_id, status=status
        )

    async def span(self, rollout_id: str, attempt_id: str, trace: int, *, error: bool = False) -> None:
        number = self.number()
        new = NewSpan(
            rollout_id,
            attempt_id,
            f"{number:016x}",
            None,
            f"{trace:032x}",
            None,
            f"step {number % 3}",
            number,
            number + 1,
            "ERROR" if error else "OK",
            2,
            None,
            None,
            "json",
            b"{}",
        )
        await self.services.rollouts.write_spans([new], [])

    # --- runs, phases and turns

    async def work(self, limit: int = 100) -> list[Assignment]:
        """Claim what is ready."""
        await self.settle()
        claimed = await self.services.run_queue.claim(self.worker.name, AGENTS, limit, 0, RUN_QUEUES)
        self.claimed.update({each.run.run_id: each for each in claimed})
        return claimed

    async def finish(self, assignment: Assignment, *, success: bool = True) -> None:
        del self.claimed[assignment.run.run_id]
        ending = Ending(
            held=assignment.held,
            result="success" if success else "error",
            checkpoint=NewCheckpoint(values={"n": self.number()}),
            output_text="done" if success else None,
        )
        # It may have been cancelled or deleted meanwhile.
        with contextlib.suppress(Fenced):
            await self.services.run_queue.finish(ending)

    async def settle(self) -> None:
        while await self.services.workflow_timer.settle() == 0.0:
            pass

    async def run(self, thread_id: str | None = None, **fields: Any) -> str:
        return (await self.services.threads.create_run(request(thread_id=thread_id, **fields))).run_id

    async def workflow(self, name: str = "parent") -> str:
        answer = await self.services.workflows.run(name, trigger_id=f"t{self.number()}")
        assert answer.workflow_run_id is not None
        return answer.workflow_run_id

    async def approve(self) -> int:
        """Approve everything that waits for it."""
        found = (await self.services.approvals.list(status="pending")).items
        for each in found:
            # Another may have answered it, or cancelled its run.
            with contextlib.suppress(Conflict, NotFound):
                await self.services.approvals.approve(each.approval_id)
        return len(found)

    async def chat(self, user: str | None = None) -> str:
        user = user or f"user {self.number()}"
        session = await self.services.messaging.get_or_create("slack", "general", user, assistant_id=AGENT)
        await self.services.messaging.send(session.session_id, f"hello {self.number()}")
        return session.session_id

    async def finish_all(self) -> None:
        """End everything that is open, also what comes of it."""
        while True:
            for each in [*self.claimed.values()]:
                await self.finish(each)
            more = await self.work()
            if not more and not await self.approve():
                return

    # --- sessions and memory

    async def log(self, session_id: str, *, long: bool = False, sub_agent: str = "") -> LogName:
        name = LogName("-app", session_id, sub_agent)
        result = "x" * 70_000 if long else "short"
        block = {"type": "tool_result", "content": result}
        line = {"type": "user", "message": {"role": "user", "content": [block]}}
        log = self.services.sessions.log
        await append_lines(log, self.storage.signals, 1, name, [encode_line(line)])
        return name

    async def remember(self, *times: int) -> list[str]:
        """Events at these times, indexed and built into the table of contents."""
        events = [
            NewMemoryEvent(
                event_id=derived_ulid(time, f"{self.number()}"),
                session_id="s",
                text=f"the deployment of billing number {time} was repaired by the team",
                timestamp_ms=time,
            )
            for time in times
        ]
        answers = await self.services.memory.ingest_many(events)
        ns = await self.services.memory.ns()
        await self.memory_work.updater.update(ns, [(time, time) for time in times])
        for level in (5, 4, 3, 2, 1):
            await self.memory_work.builder.build_due(level, "test", "job", ns=ns)
        await self.memory_work.indexer.index(ns)
        return [answer.event_id for answer in answers]

    async def close(self) -> None:
        await self.services.close()


def deleted_of(report: GcReport) -> dict[str, int]:
    return {each.kind: each.deleted for each in report.items if each.deleted}
