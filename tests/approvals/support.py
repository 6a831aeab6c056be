"""Shared by tests of approvals: workflow runs that wait, and a record of their decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from perdure.approvals.due import DueApprovals
from perdure.approvals.gates import open_gate, withdraw_gates
from perdure.approvals.model import Approval, ApprovalRow, Decision, NewGate
from perdure.approvals.service import Approvals, LinkedApprovals
from perdure.kernel.clock import to_micros
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Storage, Tx
from perdure.service.callers import Caller
from perdure.service.namespaces import ensure_namespace
from perdure.testing.clock import ManualClock

ADD_RUN = statement(
    "INSERT INTO workflow_runs (ns, id, workflow_name, trigger_id, current_phase, started_at, updated_at,"
    " definition, trigger_type) VALUES (:ns, :id, :name, :trigger_id, 'plan', :now, :now, 'd', 'api')"
    " ON CONFLICT (ns, id) DO NOTHING"
)
LOCK_RUN = statement("SELECT id FROM workflow_runs WHERE ns = :ns AND id = :id {lock}", row=str)
TELL_RUN = statement("UPDATE workflow_runs SET restart_count = restart_count + 1 WHERE ns = :ns AND id = :id")
TOLD = statement("SELECT restart_count FROM workflow_runs WHERE ns = :ns AND id = :id", row=int)
ROWS = statement(
    "SELECT {columns} FROM workflow_approvals WHERE ns = :ns ORDER BY created_at, id", row=ApprovalRow
)
EFFECTS = statement(
    "SELECT o.consumer, o.subject, b.body FROM outbox AS o JOIN outbox_bodies AS b"
    " ON b.ns = o.ns AND b.id = o.id WHERE o.ns = :ns ORDER BY o.created_at, o.id"
)
AUDIT = statement("SELECT actor, action, object FROM audit WHERE ns = :ns ORDER BY id")
AGE = (
    statement(
        "UPDATE workflow_approvals SET created_at = created_at - :age, expires_at = expires_at - :age,"
        " due_at = due_at - :age WHERE ns = :ns"
    ),
    statement("UPDATE approval_links SET expires_at = expires_at - :age WHERE ns = :ns"),
)


class Run:
    """The fields of a run that a gate reads."""

    def __init__(self, id: str, workflow_name: str = "build", trigger_id: str = "acme/app#7") -> None:
        self.id, self.workflow_name, self.trigger_id = id, workflow_name, trigger_id


class Recorder:
    """Resumer that continues no run: it records the decision in the run."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []

    async def lock(self, tx: Tx, approval: ApprovalRow) -> bool:
        return await tx.one(LOCK_RUN, id=approval.workflow_run_id) is not None

    async def resume(self, tx: Tx, decision: Decision) -> None:
        await tx.execute(TELL_RUN, id=decision.workflow_run_id)
        self.decisions.append(decision)


async def _open(tx: Tx, run: Run, node: str, gate: NewGate) -> str:
    await tx.execute(ADD_RUN, id=run.id, name=run.workflow_name, trigger_id=run.trigger_id)
    return await open_gate(tx, run, node, gate)


async def _age(tx: Tx, seconds: float) -> None:
    for update in AGE:
        await tx.execute(update, age=to_micros(seconds))


async def _rows(tx: Tx) -> list[ApprovalRow]:
    return await tx.all(ROWS)


async def _tuples(tx: Tx, sql: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in await tx.all(sql)]


async def _told(tx: Tx, run_id: str) -> int:
    return await tx.one(TOLD, id=run_id) or 0


class ApprovalWorld:
    """The approvals of one namespace."""

    def __init__(self, storage: Storage, clock: ManualClock, namespace: str) -> None:
        self.storage, self.clock, self.namespace = storage, clock, namespace
        self.ns = 0
        self.recorder = Recorder()
        self.service = Approvals(storage, self.recorder, namespace=namespace)
        self.linked = LinkedApprovals(storage, self.recorder)
        self.timer = DueApprovals(storage, self.recorder)

    async def begin(self) -> Self:
        self.ns = await self.storage.run(ensure_namespace, self.namespace)
        return self

    def as_(self, actor: str, *scopes: str) -> Approvals:
        """Return the service for a caller."""
        allowed = frozenset(scopes or ("read", "write"))
        return self.service.acting_as(Caller(actor, allowed, self.namespace, (self.namespace,)))

    async def open(self, run: Run, node: str = "plan", **fields: Any) -> str:
        gate = NewGate(**{"gate": "post_plan", "label": node, "summary": "Go on?"} | fields)
        return await self.storage.run(_open, run, node, gate, ns=self.ns)

    async def withdraw(self, *runs: Run) -> int:
        return await self.storage.run(withdraw_gates, [run.id for run in runs], ns=self.ns, actor="ann")

    async def pass_(self, seconds: float) -> None:
        """Let time pass."""
        if self.storage.engine == "postgres":
            await self.storage.run(_age, seconds, ns=self.ns)
        else:
            self.clock.advance(seconds)

    async def settled(self, approval_id: str) -> Approval:
        """Return the approval after handling what is due."""
        await self.timer.settle()
        return await self.service.get(approval_id)

    async def rows(self) -> list[ApprovalRow]:
        return await self.storage.read(_rows, ns=self.ns)

    async def told(self, run_id: str) -> int:
        """Return the number of committed decisions that a run received."""
        return await self.storage.read(_told, run_id, ns=self.ns)

    async def events(self) -> Sequence[str]:
        """Return the events in the outbox, in order."""
        rows = await self.storage.read(_tuples, EFFECTS, ns=self.ns)
        return [body.split('"')[3] for _, _, body in rows]

    async def audit(self) -> Sequence[tuple[Any, ...]]:
        return await self.storage.read(_tuples, AUDIT, ns=self.ns)
