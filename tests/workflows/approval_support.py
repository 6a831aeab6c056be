"""What the tests of approvals share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from perdure.access.operations import ensure_namespace
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Storage, Tx
from perdure.testing.clock import ManualClock
from perdure.workflows.approval_model import ApprovalRow, NewGate
from perdure.workflows.operations.gates import open_gate, withdraw_gates
from perdure.workflows.override_service import WorkflowOverrides

ROWS = statement(
    "SELECT {columns} FROM workflow_approvals WHERE ns = :ns ORDER BY created_at, id", row=ApprovalRow
)
EFFECTS = statement(
    "SELECT o.consumer, o.subject, b.body FROM outbox AS o JOIN outbox_bodies AS b"
    " ON b.ns = o.ns AND b.id = o.id WHERE o.ns = :ns ORDER BY o.id"
)


class Run(NamedTuple):
    """What a gate knows of its run."""

    id: str
    workflow_name: str = "build"
    trigger_id: str = "acme/app#7"


async def _rows(tx: Tx) -> list[ApprovalRow]:
    return await tx.all(ROWS)


async def _effects(tx: Tx) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in await tx.all(EFFECTS)]


class ApprovalWorld:
    """The approvals of one namespace."""

    def __init__(self, storage: Storage, clock: ManualClock, namespace: str) -> None:
        self.storage, self.clock, self.namespace = storage, clock, namespace
        self.ns = 0
        self.overrides = WorkflowOverrides(storage, namespace=namespace)

    async def begin(self) -> Self:
        self.ns = await self.storage.run(ensure_namespace, self.namespace)
        return self

    async def open(self, run: Run, node: str = "plan", **fields: Any) -> str:
        gate = NewGate(**{"gate": "post_plan", "label": node, "summary": "Go on?"} | fields)
        return await self.storage.run(open_gate, run, node, gate, ns=self.ns)

    async def withdraw(self, *runs: Run) -> int:
        return await self.storage.run(withdraw_gates, [run.id for run in runs], ns=self.ns, actor="ann")

    async def rows(self) -> list[ApprovalRow]:
        return await self.storage.read(_rows, ns=self.ns)

    async def effects(self) -> Sequence[tuple[Any, ...]]:
        return await self.storage.read(_effects, ns=self.ns)
