"""Values that the conditions and templates of a run read, loaded when needed.

Outputs stay texts. Only context and scratch are decoded here; their length is limited.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from perdure.approvals.model import Decision
from perdure.executions.operations import outputs as load_outputs
from perdure.kernel.storage.port import Tx
from perdure.workflows import sql
from perdure.workflows.definition import FromContext
from perdure.workflows.expressions import Expression
from perdure.workflows.model import SUCCEEDED
from perdure.workflows.planner import PlannedPhase, WorkflowPlan
from perdure.workflows.rows import WorkflowNodeRow, WorkflowRunRow
from perdure.workflows.steps import build_result, decode_state
from perdure.workflows.templates import Template
from perdure.workflows.values import (
    Config,
    Paths,
    build_scope,
    decode_body,
    decode_config,
    decode_context,
    decode_scratch,
    list_reads,
    outputs_read,
    parse_pointer,
    scratch_text,
)

MAX_ITEM_OUTPUTS = 1000


class LoadedScope:
    """`ScopeReader` of values that are already loaded."""

    def __init__(
        self, scope: Mapping[str, Any], context: Mapping[str, Any], config: Config, last: str
    ) -> None:
        self._scope, self._context, self._config, self._last = scope, context, config, last

    def holds(self, condition: Expression, output: str) -> bool:
        return condition.holds({**self._scope, "output": output})

    def context(self) -> Mapping[str, Any]:
        return self._context

    def is_gate_on(self, name: str) -> bool:
        return name in self._config.gates

    def last_output(self) -> str:
        return self._last


class RunValues:
    """The values of one run in one transaction."""

    def __init__(
        self,
        tx: Tx,
        run: WorkflowRunRow,
        plan: WorkflowPlan,
        node_of: Callable[[str], Awaitable[WorkflowNodeRow | None]],
    ) -> None:
        self._tx, self._run, self._plan, self._node_of = tx, run, plan, node_of
        self._context: Mapping[str, Any] | None = None
        self._scratch: dict[str, Any] | None = None
        self._outputs: dict[str, Any] = {}

    @property
    def config(self) -> Config:
        return decode_config(self._run.config)

    async def _load(self) -> None:
        row = await self._tx.one(sql.GET_VALUES, ids=[self._run.id])
        self._context = decode_context(row.context if row else None)
        self._scratch = decode_scratch(row.scratch if row else None)

    async def context(self) -> Mapping[str, Any]:
        if self._context is None:
            await self._load()
        return self._context or {}

    async def whole_context(self) -> Mapping[str, Any]:
        """Return the context with its large values."""
        context = await self.context()
        return await self._whole(context, set(context))

    async def scratch(self) -> dict[str, Any]:
        if self._scratch is None:
            await self._load()
        return self._scratch if self._scratch is not None else {}

    async def set_slot(self, key: str, change: Mapping[str, Any]) -> None:
        """Update the given keys of one slot of the scratch."""
        scratch = await self.scratch()
        slot = scratch.get(key)
        scratch[key] = {**(slot if isinstance(slot, dict) else {}), **change}
        text = scratch_text(scratch, self._run.id)
        await self._tx.execute(sql.SET_SCRATCH, id=self._run.id, scratch=text)

    async def keep_answer(self, key: str, node: WorkflowNodeRow, decision: Decision) -> None:
        """Add a question and its answer to the scratch, as ids of the rows that store the two texts."""
        slot = (await self.scratch()).get(key)
        earlier = slot.get("qa") if isinstance(slot, dict) else None
        entry = {
            "questionExecutionId": node.execution_id,
            "approvalId": decision.approval_id,
            "sender": decision.responded_by,
            "at": decision.responded_at,
        }
        await self.set_slot(key, {"qa": [*(earlier if isinstance(earlier, list) else []), entry]})

    async def scope(self, paths: Paths, /, **more: Any) -> dict[str, Any]:
        """Return the scope that these paths read."""
        wanted = frozenset(paths)
        context, scratch = await self.context(), await self.scratch()
        outputs = await self.outputs(outputs_read(self._plan, wanted, context))
        context = await self._whole(context, {first for first, *_ in wanted})
        return build_scope(context, scratch, outputs, self.config, **more)

    async def _whole(self, values: Mapping[str, Any], names: set[str]) -> Mapping[str, Any]:
        """Return the values, with pointers replaced by the large values for the given names."""
        pointers = {name: row_id for name in names if (row_id := parse_pointer(values.get(name))) is not None}
        if not pointers:
            return values
        rows = await self._tx.all(sql.GET_OUTPUTS, ids=sorted(pointers.values()))
        bodies = {row.id: decode_body(row.body) for row in rows}
        return {**values, **{name: bodies.get(row_id) for name, row_id in pointers.items()}}

    async def outputs(self, names: set[str]) -> dict[str, Any]:
        """Return outputs by name."""
        missing = sorted(names - self._outputs.keys())
        nodes = {name: await self._node_of(self._plan.by_output[name]) for name in missing}
        ids = [node.execution_id for node in nodes.values() if node is not None and node.execution_id]
        texts = await load_outputs(self._tx, ids) if ids else {}
        for name, node in nodes.items():
            self._outputs[name] = None if node is None else await self._output(name, node, texts)
        return {name: value for name in names if (value := self._outputs[name]) is not None}

    async def _output(self, name: str, node: WorkflowNodeRow, texts: Mapping[str, str]) -> Any:
        phase = self._plan[node.node].phase
        if phase.type == "map":
            return await self._items(node)
        result = build_result(phase, node, decode_state(node)) if name != node.node else None
        if result is not None:
            return result
        return None if node.execution_id is None else texts.get(node.execution_id, "")

    async def _items(self, node: WorkflowNodeRow) -> list[str]:
        """Return the outputs of the successful items of a map phase, in order."""
        rows = await self._tx.all(
            sql.GET_ITEMS,
            run_id=node.run_id,
            status=SUCCEEDED,
            position=node.position,
            n=MAX_ITEM_OUTPUTS,
        )
        ids = [row.execution_id for row in rows if row.execution_id is not None]
        texts = await load_outputs(self._tx, ids) if ids else {}
        return [texts.get(row.execution_id or "", "") for row in rows]

    async def view(self, planned: PlannedPhase, node: WorkflowNodeRow) -> LoadedScope:
        """Load the values that the steps of a phase may read."""
        last = ""
        if node.role == "check" and planned.phase.on_output is not None and node.execution_id is not None:
            last = (await load_outputs(self._tx, [node.execution_id])).get(node.execution_id, "")
        if not reads_values(planned):
            return LoadedScope({}, {}, self.config, last)
        scope = await self.scope(list_reads(planned))
        return LoadedScope(scope, await self.context(), self.config, last)

    async def render(
        self, planned: PlannedPhase, texts: Sequence[str | None], **more: Any
    ) -> list[str | None]:
        """Render texts of a phase."""
        templates = [None if text is None else planned.template(text) for text in texts]
        parsed: list[Template] = [template for template in templates if template is not None]
        if all(template.is_literal for template in parsed):
            return list(texts)
        scope = await self.scope({path for template in parsed for path in template.paths()}, **more)
        return [None if template is None else template.render(scope) for template in templates]


def reads_values(planned: PlannedPhase) -> bool:
    """Return whether the steps of a phase read the context or the scratch."""
    phase = planned.phase
    blocked = None if phase.on_output is None else phase.on_output.contains_BLOCKED
    return (
        phase.generic_loop is not None
        or bool(planned.skip_conditions)
        or isinstance(phase.timeout_seconds, FromContext)
        or blocked is not None
    )
