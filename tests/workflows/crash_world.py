"""A process that crashes at a chosen operation, and the world that is reopened over the same database."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.support.kinds import PHASES
from tests.threads.support import age
from tests.workflows.support import AGENT, Done, WorkflowWorld, age_runs

import perdure
from perdure.approvals.due import DueApprovals
from perdure.approvals.model import ApprovalRow
from perdure.approvals.service import Approvals, LinkedApprovals
from perdure.kernel.errors import Conflict, NotFound, StorageClosed
from perdure.kernel.storage.dialect import Statement, statement
from perdure.kernel.storage.port import Storage, Tx
from perdure.messaging.inputs import TurnInputs
from perdure.messaging.service import Messaging
from perdure.rollouts.operations import claim, report
from perdure.runs.operations import finish
from perdure.runs.queue import RunQueue
from perdure.runtime.stores import ComposedInputs
from perdure.service.idempotency import once
from perdure.testing.clock import ManualClock
from perdure.threads.operations import assign
from perdure.threads.policy import Policy
from perdure.threads.work import Assignment
from perdure.workflows.inputs import WorkflowInputs
from perdure.workflows.override_service import WorkflowOverrides
from perdure.workflows.resuming import RunResumer
from perdure.workflows.values import Config

LEASE = 10.0
POLICY = Policy(timeout=500.0, max_attempts=3, lease=LEASE, grace=5.0, linger=1000.0)
"""Policy whose leases are shorter than the shortest timeout, as by default."""


# --- the operations of the engine -------------------------------------------------------------------------

PACKAGES: Final = ("workflows", "approvals", "messaging", "executions")
WORKERS: Final = (assign.claim_runs, finish.finish_runs, finish.hand_back, report.sweep, claim.promote_due)
"""Operations that move phases, and with them the runs."""
_WRITES: Final = {"run": 0, "background": 0, "write": 0, "write_once": 1}
_STORAGES: Final = ("storage", "self.storage", "self._storage")


def operations_of(package: str) -> Iterator[Any]:
    """Yield every operation with which the modules of a package write, read from their source."""
    folder = Path(perdure.__file__).parent / package
    for file in sorted(folder.rglob("*.py")):
        parts = [part for part in file.relative_to(folder.parent).with_suffix("").parts if part != "__init__"]
        module = importlib.import_module(".".join(["perdure", *parts]))
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            place, receiver = _WRITES.get(node.func.attr), ast.unparse(node.func.value)
            is_service = receiver == "self" and hasattr(module, "Service")
            if place is not None and (is_service or receiver in _STORAGES):
                yield _resolved(module, node.args[place])


def _resolved(module: Any, named: ast.expr) -> Any:
    resolved: Any = module
    for name in ast.unparse(named).split("."):
        resolved = getattr(resolved, name)
    assert inspect.iscoroutinefunction(resolved), ast.unparse(named)
    return resolved


def engine_operations() -> set[str]:
    """Return the names of all operations of the engine."""
    operations = [operation for package in PACKAGES for operation in operations_of(package)]
    return {name_of(operation) for operation in (*operations, *WORKERS)}


def name_of(operation: Any) -> str:
    return f"{operation.__module__.removeprefix('perdure.')}.{operation.__name__}"


# --- a crashing process -----------------------------------------------------------------------------------


class Crash(StorageClosed):
    """Raised when the process has crashed."""


class Death(NamedTuple):
    """Point of a crash: before or after the commit of an operation's call with this number."""

    operation: str
    number: int
    after: bool


async def _undone(tx: Tx, operation: Any, *args: Any) -> Any:
    """Run an operation, then crash before the commit."""
    await operation(tx, *args)
    flush = getattr(tx, "flush", None)
    if flush is not None:
        await flush()
    raise Crash


def _called(operation: Any, args: tuple[Any, ...]) -> Any:
    """Return the operation without the wrappers of services."""
    return args[2][0] if operation is once else operation


class Mortal:
    """Storage whose process crashes at one of its operations; after that every call fails."""

    def __init__(self, storage: Storage, death: Death | None) -> None:
        self.storage = storage
        self._death = death
        self._dead = False
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.storage, name)

    async def read(self, operation: Any, /, *args: Any, **options: Any) -> Any:
        if self._dead:
            raise Crash
        return await self.storage.read(operation, *args, **options)

    async def run(self, operation: Any, /, *args: Any, **options: Any) -> Any:
        return await self._write(self.storage.run, operation, args, options)

    async def background(self, operation: Any, /, *args: Any, **options: Any) -> Any:
        return await self._write(self.storage.background, operation, args, options)

    async def _write(self, lane: Any, operation: Any, args: tuple[Any, ...], options: Any) -> Any:
        if self._dead:
            raise Crash
        name = name_of(_called(operation, args))
        if self._death != Death(name, self.calls[name] + 1, False):
            answer = await lane(operation, *args, **options)
            self.calls[name] += 1
            self._dead = self._death == Death(name, self.calls[name], True)
            if self._dead:
                raise Crash
            return answer
        try:
            return await lane(_undone, operation, *args, **options)
        except Crash:
            self._dead = True
            raise


# --- the world --------------------------------------------------------------------------------------------


@dataclass
class Outside:
    """State that survives the process: the clock, the effects of phases, and the callers' knowledge."""

    clock: ManualClock
    namespace: str
    seen: list[tuple[str, str]] = field(default_factory=list)
    """Label and prompt of every execution."""
    broken: bool = False
    """Whether the handling of approvals fails."""
    repeats: bool = False
    """Whether a call is repeated because its answer was lost."""


class Resumer(RunResumer):
    """The real resumer, which fails while `broken` is set."""

    def __init__(self, outside: Outside) -> None:
        super().__init__(PHASES)
        self._outside = outside

    async def lock(self, tx: Tx, approval: ApprovalRow) -> bool:
        if self._outside.broken:
            raise RuntimeError("approvals cannot be settled now")
        return await super().lock(tx, approval)


class CrashWorld(WorkflowWorld):
    """The parts of a server for workflows and chats, over a storage that may crash."""

    def __init__(self, storage: Any, outside: Outside, cap: int) -> None:
        config = Config(assistants={"default": AGENT}, gates=("post_plan",))
        super().__init__(storage, outside.clock, outside.namespace, config=config, cap=cap)
        PHASES.policy = POLICY
        self.outside = outside
        inputs = ComposedInputs(WorkflowInputs(storage), TurnInputs(storage))
        self.queue = RunQueue.beside(self.threads, inputs=inputs)
        resumer = Resumer(outside)
        self.approvals = Approvals(storage, resumer, namespace=outside.namespace)
        self.linked = LinkedApprovals(storage, resumer)
        self.timer.also = [DueApprovals(storage, resumer).settle]
        self.messaging = Messaging(storage, PHASES, self.threads, namespace=outside.namespace)
        self.overrides = WorkflowOverrides(storage, namespace=outside.namespace)

    @property
    def engine(self) -> Storage:
        """Return the storage itself, for actions outside of any process."""
        return self.storage.storage if isinstance(self.storage, Mortal) else self.storage

    async def lose_leases(self) -> None:
        """Let the leases of a crashed process expire; no other time passes."""
        await age(self.engine, LEASE + 2.0, await self.threads.ns())

    async def pass_time(self, seconds: float) -> None:
        """Let time pass without any process."""
        if self.storage.engine == "postgres":
            ns = await self.threads.ns()
            await self.engine.run(age_runs, seconds, ns=ns)
            await age(self.engine, seconds, ns)
        else:
            self.clock.advance(seconds)

    async def run_id(self, trigger: str) -> str:
        return (await self.workflows.get_by_trigger(trigger, live=False)).workflow_run_id

    async def work_on(self) -> None:
        """Do everything that can be done."""
        for _ in range(100):
            await self.threads.watchdog.sweep()
            if not await self.step():
                return
        raise AssertionError("it does not come to an end")

    async def execute(self, claimed: Assignment) -> None:
        """Execute a phase. The result depends on the number of its earlier completed executions."""
        facts = claimed.phase
        label = (facts.label if facts is not None else None) or "turn"
        given = claimed.run.kwargs.input
        rows = (await self.executions.list(limit=1000)).items
        skill = "chat" if label == "turn" else label
        own = [row for row in rows if row.skill.rpartition(":")[2] == skill and row.stop_reason != "skipped"]
        ended = [row for row in own if row.finished_at and row.error not in INTERRUPTED]
        self.outside.seen.append((label, str(given.get("prompt") if isinstance(given, Mapping) else given)))
        result = self.script.get(label, f"output of {label}")
        if isinstance(result, tuple):
            result = result[min(len(ended), len(result) - 1)]
        await self.end(claimed, result if isinstance(result, Done) else Done(str(result)))

    # --- the state at the end -----------------------------------------------------------------------------

    async def end_state(self) -> dict[str, Any]:
        """Return all rows without times, ids and lost workers, and the effects of the phases."""
        await self.check()
        state: dict[str, Any] = {}
        for name, query in ROWS.items():
            rows = [tuple(map(_masked, row)) for row in await self.rows(query)]
            state[name] = sorted(rows, key=repr)
        state["executions"] = [row for row in state["executions"] if row[-1] not in INTERRUPTED]
        state["effects"] = sorted(set(self.outside.seen))
        attempts = Counter(label for (label,) in await self.rows(LABELS))
        done = Counter(label for label, _ in self.outside.seen if label != "turn")
        assert done <= attempts, f"{done} were executed, and {attempts} are known"
        return state


_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22,}|[0-9a-f]{24,}")
_NUMBER = re.compile(r'"(at|ns)": ?\d+')
LOST: Final = "the worker that executed it stopped sending heartbeats"
"""Error of an execution whose process has crashed."""
INTERRUPTED: Final = (LOST, "cancelled", "handed back by its worker")
"""Errors of executions that were interrupted; crashes cause more of them."""


def _masked(value: Any) -> Any:
    return _NUMBER.sub("N", _ID.sub("ID", value)) if isinstance(value, str) else value


ROWS: Final[Mapping[str, Statement[Any]]] = {
    "runs": statement(
        "SELECT workflow_name, trigger_id, status, current_phase, error, active, held, due_at, open_nodes,"
        " failed_nodes, ready_nodes, running_nodes, waiting_nodes, gates, history, depth, succeeded, skipped,"
        " scratch FROM workflow_runs WHERE ns = :ns"
    ),
    "nodes": statement(
        "SELECT r.trigger_id, n.node, n.item, n.status, n.waiting_on, n.succeeded_before, n.failed_before,"
        " n.iteration, n.cycle, n.role, n.label, n.rollout_id, n.approval_id, n.due_at, n.error, n.state"
        " FROM workflow_nodes AS n JOIN workflow_runs AS r ON r.ns = n.ns AND r.id = n.run_id"
        " WHERE n.ns = :ns"
    ),
    "history": statement(
        "SELECT r.trigger_id, h.phase, h.success, h.summary FROM workflow_history AS h"
        " JOIN workflow_runs AS r ON r.ns = h.ns AND r.id = h.run_id WHERE h.ns = :ns"
    ),
    "approvals": statement(
        "SELECT gate, node, kind, status, response, responded_by, reminders, due_at"
        " FROM workflow_approvals WHERE ns = :ns"
    ),
    "executions": statement(
        "SELECT e.skill, e.success, e.stop_reason, e.finished_at IS NULL, e.output_text, e.error"
        " FROM executions AS e WHERE e.ns = :ns"
    ),
    "phases": statement("SELECT kind, status, outcome FROM rollouts WHERE ns = :ns"),
    "counts": statement(
        "SELECT workflow_name, status, sum(total) FROM workflow_counts WHERE ns = :ns"
        " GROUP BY workflow_name, status HAVING sum(total) <> 0"
    ),
    "overrides": statement("SELECT name, enabled FROM workflow_overrides WHERE ns = :ns"),
    "sessions": statement(
        "SELECT platform, user_id, active, message_count, pending_turn, question, agent_session_id"
        " FROM messaging_sessions WHERE ns = :ns"
    ),
    "messages": statement("SELECT role, content FROM messaging_messages WHERE ns = :ns"),
    "told": statement(
        "SELECT b.body FROM outbox AS o JOIN outbox_bodies AS b ON b.ns = o.ns AND b.id = o.id"
        " WHERE o.ns = :ns"
    ),
    "used links": statement("SELECT assignee FROM approval_links WHERE ns = :ns AND used_at IS NOT NULL"),
}
LABELS: Final = statement("SELECT label FROM executions WHERE ns = :ns AND label IS NOT NULL")


# --- a story ----------------------------------------------------------------------------------------------

Step = Callable[[CrashWorld], Awaitable[Any]]
"""An action of a person or worker. It is repeated if its answer was lost; a conflict then means success."""


@dataclass(frozen=True)
class Story:
    """A sequence of actions of people and workers."""

    workflows: Sequence[str]
    steps: Sequence[Step]
    script: Mapping[str, Any] = field(default_factory=dict)
    """Result of each label: always the same, or a tuple with one per execution."""
    cap: int = 4


class Told(NamedTuple):
    """Result of a story."""

    state: dict[str, Any]
    calls: Counter[str]
    died: bool


class Teller:
    """Runner of stories on one database, each in a namespace of its own."""

    def __init__(self, opens: Callable[[], Storage], clock: ManualClock) -> None:
        self._opens, self._clock = opens, clock
        self._storage = opens()
        self._stories = 0

    async def close(self) -> None:
        await self._storage.close()

    async def tell(self, story: Story, death: Death | None = None) -> Told:
        """Run a story whose process crashes once and is restarted."""
        self._stories += 1
        outside = Outside(self._clock, f"story {self._stories}")
        mortal = Mortal(self._storage, death)
        world = await self._world(mortal, outside, story)
        died, step = False, 0
        while step < len(story.steps):
            try:
                await story.steps[step](world)
            except Crash:
                died = outside.repeats = True
                await self._storage.close()
                self._storage = self._opens()
                world = await self._world(Mortal(self._storage, None), outside, story)
                await world.lose_leases()
                continue
            except (Conflict, NotFound):
                if not outside.repeats:
                    raise
            outside.repeats = False
            step += 1
        return Told(await world.end_state(), mortal.calls, died)

    async def _world(self, storage: Mortal, outside: Outside, story: Story) -> CrashWorld:
        world = CrashWorld(storage, outside, story.cap)
        for text in story.workflows:
            world.add(text)
        world.script = dict(story.script)
        # A crash during the start is not part of the matrix.
        death, storage._death = storage._death, None
        await world.begin()
        storage._death = death
        storage.calls.clear()
        return world
