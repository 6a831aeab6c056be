"""Model of workflow runs and their approvals in plain Python, without a database.

The model uses no code of the engine. Runs are small, so each step computes the state from scratch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

ENDED: Final = ("succeeded", "failed", "skipped", "cancelled")
LIVE: Final = ("running", "paused", "queued")
LEASE, WAIT, EXPIRY, QUEUED_FOR, LOST_WORKERS = 60.0, 40.0, 90.0, 3600.0, 3


class Refused(Exception):
    """Raised when the engine must answer with a conflict."""


class ModelPhase(NamedTuple):
    """A phase of a workflow."""

    name: str
    depends_on: tuple[str, ...] = ()
    kind: Literal["agent", "approval", "wait"] = "agent"
    rule: str = "all_success"
    on_expiry: str = "fail"
    may_fail: bool = False

    @property
    def text(self) -> str:
        """Return the phase as YAML."""
        fields = [f"name: {self.name}", f"depends_on: [{', '.join(self.depends_on)}]"]
        fields.append(f"trigger_rule: {self.rule}")
        if self.kind == "agent":
            fields.append("prompt: p")
        elif self.kind == "wait":
            fields.append(f"type: wait, seconds: {WAIT}")
        else:
            fields.append(f"type: approval, expires_after: {EXPIRY}, on_expiry: {self.on_expiry}")
        if self.may_fail:
            fields.append("on_failure: {action: continue}")
        return "  - {" + ", ".join(fields) + "}\n"


class ModelWorkflow(NamedTuple):
    name: str
    phases: tuple[ModelPhase, ...]
    max_parallel: int = 1000

    @property
    def text(self) -> str:
        head = f"name: {self.name}\nmax_parallel: {self.max_parallel}\nphases:\n"
        return head + "".join(phase.text for phase in self.phases)


P = ModelPhase
WORKFLOWS: Final = (
    ModelWorkflow("line", (P("a"), P("b", ("a",)), P("c", ("b",)))),
    ModelWorkflow("wide", (P("a"), P("b"), P("c"), P("d", ("a", "b", "c"))), max_parallel=2),
    ModelWorkflow("gated", (P("a"), P("ask", ("a",), "approval", on_expiry="approve"), P("c", ("ask",)))),
    ModelWorkflow("strict", (P("ask", (), "approval"), P("b"), P("c", ("ask", "b"), rule="one_success"))),
    ModelWorkflow("waits", (P("rest", (), "wait"), P("ask", (), "approval"), P("c", ("rest", "ask")))),
    ModelWorkflow(
        "lenient",
        (P("a", may_fail=True), P("b", ("a",)), P("c", ("b",)), P("d", ("b", "c"), rule="all_done")),
    ),
)


@dataclass
class ModelNode:
    phase: ModelPhase
    status: str = "pending"
    due: float | None = None
    gate: ModelGate | None = None
    execution: int = 0
    """Number of the execution that it waits for."""
    claim: ModelClaim | None = None


@dataclass
class ModelGate:
    """An approval."""

    node: str
    expires: float
    status: str = "pending"


@dataclass
class ModelClaim:
    """A phase that a worker executes."""

    run: ModelRun
    node: ModelNode
    worker: str
    execution: int
    deadline: float

    @property
    def is_awaited(self) -> bool:
        return self.node.claim is self


@dataclass
class ModelRun:
    workflow: ModelWorkflow
    trigger: str
    status: str
    nodes: dict[str, ModelNode]
    queued_until: float | None = None
    held: bool = False
    restarts: int = 0
    gates: list[ModelGate] = field(default_factory=list)
    done: int = 0
    """Number of successful executions."""

    @property
    def statuses(self) -> dict[str, str]:
        return {name: node.status for name, node in self.nodes.items()}

    def count(self, status: str) -> int:
        return sum(node.status == status for node in self.nodes.values())


class Model:
    """All runs of a namespace."""

    def __init__(self, cap: int) -> None:
        self.now = 0.0
        self.cap = cap
        self.runs: list[ModelRun] = []

    # --- what people do -----------------------------------------------------------------------------------

    def live(self, workflow: str, trigger: str) -> ModelRun | None:
        found = [run for run in self.runs if (run.workflow.name, run.trigger) == (workflow, trigger)]
        return next((run for run in found if run.status in LIVE), None)

    def dispatch(self, workflow: ModelWorkflow, trigger: str) -> ModelRun:
        known = self.live(workflow.name, trigger)
        if known is not None:
            return known
        nodes = {phase.name: ModelNode(phase) for phase in workflow.phases}
        waits = any(run.status == "queued" for run in self.runs) or self._running() >= self.cap
        run = ModelRun(workflow, trigger, "queued" if waits else "running", nodes)
        self.runs.append(run)
        if waits:
            run.queued_until = self.now + QUEUED_FOR
        else:
            self._go_on(run)
        return run

    def _running(self) -> int:
        return sum(run.status == "running" for run in self.runs)

    def cancel(self, run: ModelRun) -> None:
        self._must(run.status in LIVE)
        self._stop(run, "cancelled")

    def pause(self, run: ModelRun) -> None:
        self._must(run.status in ("running", "paused"))
        run.held = True
        self._go_on(run)

    def resume(self, run: ModelRun) -> None:
        self._must(run.held)
        run.held = False
        self._go_on(run)

    def retry(self, run: ModelRun) -> None:
        self._must(run.status in ("failed", "cancelled"))
        self._must(self.live(run.workflow.name, run.trigger) is None)
        run.status, run.restarts = "running", 0
        for node in run.nodes.values():
            is_done = node.status == "succeeded" or (node.status == "failed" and node.phase.may_fail)
            if not is_done:
                node.status, node.due, node.claim = "pending", None, None
        self._go_on(run)

    def answer(self, run: ModelRun, node: ModelNode, *, approves: bool) -> None:
        gate = node.gate
        self._must(gate is not None and gate.status == "pending")
        assert gate is not None
        gate.status = "approved" if approves else "rejected"
        self._leave(run, node, "succeeded" if approves else "failed")

    def _must(self, allowed: bool) -> None:
        if not allowed:
            raise Refused

    # --- what workers do ----------------------------------------------------------------------------------

    def claimable(self) -> list[tuple[ModelRun, ModelNode]]:
        live = [run for run in self.runs if run.status in LIVE]
        nodes = [(run, node) for run in live for node in run.nodes.values()]
        return [(run, node) for run, node in nodes if node.status == "running" and node.claim is None]

    def claim(self, run: ModelRun, node: ModelNode, worker: str) -> ModelClaim:
        node.claim = ModelClaim(run, node, worker, node.execution, self.now + LEASE)
        return node.claim

    def end(self, claim: ModelClaim, *, success: bool) -> None:
        """End an execution. An end that no node waits for changes nothing."""
        if not claim.is_awaited:
            return
        claim.run.done += success
        self._leave(claim.run, claim.node, "succeeded" if success else "failed")

    def hand_back(self, claim: ModelClaim) -> None:
        if claim.is_awaited:
            claim.node.claim = None

    # --- time and due work --------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for run in self.runs:
            self._lose_workers(run)

    def _lose_workers(self, run: ModelRun) -> None:
        claims = [node.claim for node in run.nodes.values() if node.claim is not None]
        lost = [claim for claim in claims if claim.deadline <= self.now]
        run.restarts += len({claim.worker for claim in lost})
        for claim in lost:
            claim.node.claim = None
        if run.restarts > LOST_WORKERS and run.status in LIVE:
            self._stop(run, "failed")

    def lose(self, claims: Iterable[ModelClaim]) -> None:
        """Expire the leases of workers whose process crashed."""
        for claim in claims:
            claim.deadline = self.now

    def settle(self) -> None:
        """Do due work in the order of the timer until none is left."""
        before: Sequence[object] = ()
        while (state := [(run.status, *run.statuses.values()) for run in self.runs]) != before:
            before = state
            for run in self.runs:
                if run.status == "queued" and run.queued_until is not None and run.queued_until <= self.now:
                    self._stop(run, "cancelled")
            for run in self.runs:
                for node in list(run.nodes.values()):
                    if node.status == "waiting" and node.due is not None and node.due <= self.now:
                        self._leave(run, node, "succeeded")
            for run in [run for run in self.runs if run.status == "queued"]:
                if self._running() < self.cap:
                    run.status, run.queued_until = "running", None
                    self._go_on(run)
            for run in self.runs:
                for node in list(run.nodes.values()):
                    gate = node.gate
                    if gate is not None and gate.status == "pending" and gate.expires <= self.now:
                        gate.status = "expired"
                        approves = node.phase.on_expiry == "approve"
                        self._leave(run, node, "succeeded" if approves else "failed")

    # --- rules --------------------------------------------------------------------------------------------

    def _leave(self, run: ModelRun, node: ModelNode, status: str) -> None:
        node.status, node.due, node.gate, node.claim = status, None, None, None
        self._go_on(run)

    def _stop(self, run: ModelRun, status: str) -> None:
        for node in run.nodes.values():
            if node.status not in ENDED:
                node.status = "cancelled"
            if node.gate is not None:
                node.gate.status = "withdrawn"
            node.due = node.gate = node.claim = None
        run.status, run.held, run.queued_until = status, False, None

    def _go_on(self, run: ModelRun) -> None:
        while self._one_step(run):
            pass
        if all(node.status in ENDED for node in run.nodes.values()):
            run.status, run.held = "failed" if self._has_failed(run) else "succeeded", False
            return
        gates = sum(node.gate is not None for node in run.nodes.values())
        busy = run.count("running") + run.count("ready")
        asks = gates > 0 and not busy and run.count("waiting") == gates
        run.status = "paused" if run.held or asks else "running"

    def _has_failed(self, run: ModelRun) -> bool:
        return any(node.status == "failed" and not node.phase.may_fail for node in run.nodes.values())

    def _one_step(self, run: ModelRun) -> bool:
        """Begin or skip one phase, if possible. Return whether something changed."""
        for node in run.nodes.values():
            before = [run.nodes[name] for name in node.phase.depends_on]
            if node.status == "pending" and all(other.status in ENDED for other in before):
                self._begin(run, node) if self._runs(node, before) else setattr(node, "status", "skipped")
                return True
        if not run.held and run.count("running") < run.workflow.max_parallel:
            ready = [node for node in run.nodes.values() if node.status == "ready"]
            for node in ready[:1]:
                node.status, node.claim = "running", None
                node.execution += 1
                return True
        return False

    def _runs(self, node: ModelNode, before: Sequence[ModelNode]) -> bool:
        good = [
            other.status == "succeeded" or (other.status == "failed" and other.phase.may_fail)
            for other in before
        ]
        if node.phase.rule == "all_success":
            return all(good)
        return node.phase.rule == "all_done" or any(good) or not good

    def _begin(self, run: ModelRun, node: ModelNode) -> None:
        if node.phase.kind == "agent":
            node.status = "ready"
            return
        node.status = "waiting"
        if node.phase.kind == "wait":
            node.due = self.now + WAIT
        else:
            node.gate = ModelGate(node.phase.name, self.now + EXPIRY)
            run.gates.append(node.gate)
