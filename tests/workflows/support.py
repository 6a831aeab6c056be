"""Shared by tests of workflows: a world with workflows, and a worker that follows a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.support.kinds import PHASES
from tests.threads.support import POLICY, World

from perdure.approvals.model import ApprovalRow, Decision
from perdure.approvals.service import Approvals
from perdure.executions.service import Executions
from perdure.kernel.clock import to_micros
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Storage, Tx
from perdure.runs.queue import RunQueue
from perdure.testing.clock import ManualClock
from perdure.threads.model import QueueName
from perdure.threads.records import Failure, Interrupt, NewCheckpoint
from perdure.threads.work import Assignment, Ending
from perdure.workflows.definition import Workflow
from perdure.workflows.inputs import WorkflowInputs
from perdure.workflows.loading import load_text
from perdure.workflows.operations.advance import resume_node
from perdure.workflows.operations.runs import lock_run
from perdure.workflows.override_service import WorkflowOverrides
from perdure.workflows.records import WorkflowRun
from perdure.workflows.registry import WorkflowRegistry
from perdure.workflows.rows import WorkflowRunRow
from perdure.workflows.service import Workflows
from perdure.workflows.timer import WorkflowTimer
from perdure.workflows.values import Config

QUEUES: tuple[QueueName, ...] = ("workflows",)
BUILT_INS = ("perdure.command", "perdure.script", "perdure.callable", "perdure.http", "perdure.check")
AGENT = "echo"

AGE = (
    statement(
        "UPDATE workflow_runs SET started_at = started_at - :age, due_at = due_at - :age,"
        " queued_at = queued_at - :age, deadline_at = deadline_at - :age WHERE ns = :ns"
    ),
    statement("UPDATE workflow_nodes SET due_at = due_at - :age WHERE ns = :ns"),
    statement(
        "UPDATE workflow_approvals SET due_at = due_at - :age, expires_at = expires_at - :age WHERE ns = :ns"
    ),
)
CHECKED = statement(
    "SELECT id, status, active, open_nodes, ready_nodes, running_nodes, waiting_nodes, gates, history,"
    " failed_nodes FROM workflow_runs WHERE ns = :ns"
)
NODES = statement("SELECT run_id, node, item, status, rollout_id FROM workflow_nodes WHERE ns = :ns")
ENTRIES = statement("SELECT run_id, seq FROM workflow_history WHERE ns = :ns")
GATES = statement("SELECT workflow_run_id FROM workflow_approvals WHERE ns = :ns AND status = 'pending'")
COUNTS = statement(
    "SELECT status, sum(total) FROM workflow_counts WHERE ns = :ns GROUP BY status ORDER BY status"
)
STATUSES = statement("SELECT status, count(*) FROM workflow_runs WHERE ns = :ns GROUP BY status ORDER BY 1")


def run_row(**fields: Any) -> WorkflowRunRow:
    """Return a run that has just begun."""
    values: dict[str, Any] = dict.fromkeys(
        WorkflowRunRow.__struct_fields__[: -len(WorkflowRunRow.__struct_defaults__)]
    )
    numbers = (
        "restart_count",
        "started_at",
        "updated_at",
        "depth",
        "total_cost_usd",
        "total_tokens",
        "turns",
    )
    counts = [name for name in values if name.endswith("_nodes")]
    values |= dict.fromkeys((*numbers, *counts, "gates", "history"), 0)
    values |= dict.fromkeys(("succeeded", "skipped", "deferred", "failed"), 0)
    values |= {"id": "run", "workflow_name": "w", "status": "running", "trigger_id": "t"} | fields
    return WorkflowRunRow(**values)


def workflow(text: str) -> Workflow:
    """Return a workflow from its YAML."""
    loaded = load_text(text)
    assert not loaded.problems, loaded.problems
    assert isinstance(loaded.definition, Workflow)
    return loaded.definition


class Done(NamedTuple):
    """Result of a scripted agent: it returns an output, fails, or asks."""

    output: str = ""
    success: bool = True
    stop_reason: str | None = None
    error: str = "it failed"
    asks: str | None = None
    permanent: bool = True


Script = Mapping[str, Any]
"""Result of each label: a text, a Done, a list with one per execution, or a function of the input."""


class TestResumer:
    """Resumer that continues runs when their approvals are resolved."""

    __test__ = False

    async def lock(self, tx: Tx, approval: ApprovalRow) -> bool:
        return await lock_run(tx, approval.workflow_run_id) is not None

    async def resume(self, tx: Tx, decision: Decision) -> None:
        run = await lock_run(tx, decision.workflow_run_id)
        assert run is not None
        await resume_node(tx, run, decision.node, decision, PHASES)


async def age_runs(tx: Tx, seconds: float) -> None:
    """Make the runs of a namespace, their nodes and approvals older."""
    for update in AGE:
        await tx.execute(update, age=to_micros(seconds))


class WorkflowWorld(World):
    """Workflows, and a worker that executes their phases by a script."""

    def __init__(
        self,
        storage: Storage,
        clock: ManualClock,
        namespace: str = "default",
        *,
        config: Config | None = None,
        cap: int = 4,
    ) -> None:
        super().__init__(storage, clock, namespace=namespace)
        PHASES.policy = POLICY
        self.definitions = WorkflowRegistry()
        self.queue = RunQueue.beside(self.threads, inputs=WorkflowInputs(storage))
        settings = config or Config(assistants={"default": AGENT})
        self.workflows = Workflows(
            storage, self.definitions, PHASES, config=settings, cap=cap, namespace=namespace
        )
        self.timer = WorkflowTimer(storage, PHASES, cap=cap)
        self.approvals = Approvals(storage, TestResumer(), namespace=namespace)
        self.overrides = WorkflowOverrides(storage, namespace=namespace)
        self.executions = Executions(storage, namespace=namespace)
        self.script: dict[str, Any] = {}
        self.seen: list[tuple[str, Any]] = []
        """Label and input of every execution."""

    async def begin(self) -> WorkflowWorld:
        await super().begin()
        return self

    async def advance(self, seconds: float) -> None:
        if self.storage.engine == "postgres":
            await self.storage.run(age_runs, seconds, ns=await self.threads.ns())
        await super().advance(seconds)
        await self.timer.settle()

    def add(self, text: str) -> Workflow:
        """Add a workflow and return it."""
        added = workflow(text)
        self.definitions.add(added)
        return added

    async def start(self, text: str | None = None, **options: Any) -> str:
        """Run the given workflow, or the one that was added last. Return the id of the run."""
        if text is not None:
            self.add(text)
        name = options.pop("name", None) or next(reversed(self.definitions.workflows))
        answer = await self.workflows.run(name, **options)
        assert answer.workflow_run_id is not None
        return answer.workflow_run_id

    # --- the worker ---------------------------------------------------------------------------------------

    async def claim_phases(self, limit: int = 100, worker_id: str = "w1") -> list[Assignment]:
        return await self.queue.claim(worker_id, (AGENT, "other", *BUILT_INS), limit, 0, QUEUES)

    async def execute(self, claimed: Assignment) -> None:
        """Execute a phase by the script."""
        label = claimed.phase.label if claimed.phase is not None else None
        given = claimed.run.kwargs.input
        self.seen.append((label or "", given))
        await self.end(claimed, self._scripted(label or "", given))

    def _scripted(self, label: str, given: Any) -> Done:
        result = self.script.get(label, Done(f"output of {label}"))
        if isinstance(result, list):
            result = result.pop(0) if result else Done(f"output of {label}")
        if isinstance(result, Callable):  # type: ignore[arg-type]
            result = result(given)
        return result if isinstance(result, Done) else Done(str(result))

    async def end(self, claimed: Assignment, done: Done) -> None:
        """End an attempt."""
        state = None if claimed.run.kwargs.command is None else NewCheckpoint(values={})
        if done.asks is not None:
            state = NewCheckpoint(values={}, next=["ask"], interrupts=[Interrupt(id="i1", value=done.asks)])
        failure = None if done.success else Failure(error="Error", message=done.error)
        result = "success" if done.success else ("error" if done.permanent else "retriable")
        await self.queue.finish(
            Ending(
                held=claimed.held,
                result=result,  # type: ignore[arg-type]
                error=failure,
                checkpoint=state,
                output_text=done.output if done.success else None,
                stop_reason=done.stop_reason,
            )
        )

    async def step(self) -> int:
        """Do due work, and execute ready phases once. Return their number."""
        await self.settle()
        claimed = await self.claim_phases()
        for assignment in claimed:
            await self.execute(assignment)
        await self.settle()
        return len(claimed)

    async def settle(self) -> None:
        """Do due work until none is left."""
        while await self.timer.settle() == 0.0:
            pass

    async def work(self, script: Script | None = None, rounds: int = 200) -> None:
        """Execute phases until none is ready."""
        self.script |= script or {}
        for _ in range(rounds):
            if not await self.step() and not await self.step():
                return
        raise AssertionError("it does not come to an end")

    async def play(self, text: str | None, script: Script | None = None, **options: Any) -> WorkflowRun:
        """Run a workflow until no phase is ready."""
        run_id = await self.start(text, **options)
        await self.work(script)
        return await self.workflows.get(run_id)

    @property
    def labels(self) -> list[str]:
        """Return the labels of all executions, in order."""
        return [label for label, _ in self.seen]

    async def pending(self, run_id: str) -> Sequence[Any]:
        """Return the open approvals of a run."""
        return (await self.approvals.list(workflow_run_id=run_id, status="pending")).items

    # --- rules --------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Check the invariants of the stored rows."""
        await super().check()
        nodes = await self.rows(NODES)
        entries = await self.rows(ENTRIES)
        gates = [run_id for (run_id,) in await self.rows(GATES)]
        maps = {
            phase.name
            for definition in self.definitions.workflows.values()
            for phase in definition.phases
            if phase.type == "map"
        }
        for run_id, status, active, opened, ready, running, waiting, gated, history, _ in await self.rows(
            CHECKED
        ):
            own = [row for row in nodes if row[0] == run_id]
            live = status in ("running", "paused", "queued")
            assert (active == 1) == live
            ended = ("succeeded", "failed", "skipped", "cancelled")
            assert opened == sum(row[3] not in ended for row in own if not row[2]) or status == "queued"
            assert ready == sum(row[3] == "ready" for row in own)
            assert running == sum(row[3] == "running" for row in own)
            waits = [row for row in own if row[3] == "waiting" and (row[2] or row[1] not in maps)]
            assert waiting == len(waits)
            assert gated == gates.count(run_id)
            assert history == sum(entry[0] == run_id for entry in entries)
            assert all((row[3] == "running") == (row[4] is not None) for row in own)
            assert live or opened == 0
        counted = {status: total for status, total in await self.rows(COUNTS) if total}
        assert counted == {str(status): total for status, total in await self.rows(STATUSES)}
