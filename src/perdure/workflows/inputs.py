"""Render the inputs of phases when a worker has claimed them, outside of any transaction.

A phase stores only a pointer: the run, the node, and the executed part of the phase. Everything else is
read here: the definition as it was when the run began, the context, the scratch, and the outputs of other
phases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from perdure.executions.model import PhaseInput, PhaseOrder
from perdure.executions.operations import outputs as load_outputs
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import InvalidInput, PerdureError
from perdure.kernel.storage.port import Storage, Tx
from perdure.workflows import sql, templates
from perdure.workflows.definition import Phase
from perdure.workflows.model import Label, NodeKey, Pointer, build_skill
from perdure.workflows.operations.orders import CALLABLE, CHECK, COMMAND, HTTP, SCRIPT, built_in
from perdure.workflows.operations.reading import RunValues
from perdure.workflows.operations.runs import load_plans
from perdure.workflows.planner import PlannedPhase, WorkflowPlan
from perdure.workflows.rows import WorkflowNodeRow, WorkflowRunRow
from perdure.workflows.shell import shell_command
from perdure.workflows.steps import decode_state, max_iterations
from perdure.workflows.templates import OUTPUTS, Template, find, shown
from perdure.workflows.values import SCRATCH

KEPT_OUTPUT: Final = 10 << 10
"""Maximum length of the outputs of earlier iterations that the next iteration gets; the end is kept."""
MAX_VARIABLE: Final = 4096
"""Maximum length of an output that commands get in a variable."""
MAX_BEFORE: Final = 200
"""Maximum number of earlier phases that pass their output to a command."""

_NO_NAME = re.compile(r"[^A-Z0-9]+")


class Material(NamedTuple):
    """Everything needed to build the input of a phase."""

    run: WorkflowRunRow
    planned: PlannedPhase
    node: WorkflowNodeRow
    pointer: Pointer
    context: Mapping[str, Any]
    scope: Mapping[str, Any]
    before: Mapping[str, str]
    """Outputs of the earlier phases, by name."""
    model: str | None
    variant: str | None


class WorkflowInputs:
    """Renderer of the inputs of workflow phases."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def render(self, ns: int, orders: Sequence[PhaseOrder]) -> list[PhaseInput]:
        """Return the input of each phase, or the error that prevents it."""
        pointers: list[Pointer | None] = []
        for order in orders:
            try:
                pointers.append(msgspec.convert(order.input, Pointer))
            except msgspec.ValidationError:
                pointers.append(None)
        wanted = [pointer for pointer in pointers if pointer is not None]
        materials = iter(await self._storage.read(gather, wanted, ns=ns) if wanted else [])
        return [_input(None if pointer is None else next(materials)) for pointer in pointers]


def _input(material: Material | PerdureError | None) -> PhaseInput:
    if material is None:
        return PhaseInput(error="the phase has no pointer to a workflow run")
    if isinstance(material, PerdureError):
        return PhaseInput(error=material.message)
    try:
        return PhaseInput(input=build_input(material))
    except PerdureError as error:
        return PhaseInput(error=error.message)


# --- reading ----------------------------------------------------------------------------------------------


async def gather(tx: Tx, pointers: Sequence[Pointer]) -> list[Material | PerdureError]:
    """Read the sources from which the inputs of phases are built."""
    ids = sorted({pointer.workflow_run_id for pointer in pointers})
    runs = {run.id: run for run in await tx.all(sql.GET_RUNS, ids=ids)}
    plans = await load_plans(tx, list(runs.values()))
    materials: list[Material | PerdureError] = []
    for pointer in pointers:
        run = runs.get(pointer.workflow_run_id)
        if run is None:
            materials.append(InvalidInput(f"Workflow run {pointer.workflow_run_id} is gone"))
            continue
        try:
            materials.append(await _material(tx, run, plans[run.id], pointer))
        except PerdureError as error:
            materials.append(error)
    return materials


async def _material(tx: Tx, run: WorkflowRunRow, plan: WorkflowPlan, pointer: Pointer) -> Material:
    reader = Reading(tx, run, plan)
    planned = plan[pointer.node]
    node = await reader.node(NodeKey(pointer.node, pointer.item))
    if node is None:
        raise InvalidInput(f"node {pointer.node} of workflow run {run.id} is gone")
    paths = {path for text in list_templates(planned, pointer.role) for path in text.paths()}
    paths |= {(OUTPUTS, name) for name in planned.depends_on}
    moment = await _moment(tx, reader, planned, node, pointer)
    scratch = await _scratch_read(tx, reader, paths)
    scope = await reader.values.scope(paths, **{**scratch, **moment})
    reads_variables = built_in(planned.phase, pointer.role) in (COMMAND, SCRIPT, CHECK)
    before = await _before(tx, reader, plan, planned.name) if reads_variables else {}
    model, variant = _model(planned.phase, pointer.role, reader.values, scope, planned)
    context = await reader.values.whole_context()
    return Material(run, planned, node, pointer, context, scope, before, model, variant)


class Reading:
    """Read access to a run and its nodes."""

    def __init__(self, tx: Tx, run: WorkflowRunRow, plan: WorkflowPlan) -> None:
        self._tx, self.run = tx, run
        self._nodes: dict[NodeKey, WorkflowNodeRow | None] = {}
        self.values = RunValues(tx, run, plan, self._phase)

    async def _phase(self, name: str) -> WorkflowNodeRow | None:
        return await self.node(NodeKey(name))

    async def node(self, key: NodeKey) -> WorkflowNodeRow | None:
        """Return a node of the run."""
        if key not in self._nodes:
            self._nodes[key] = await self._tx.one(
                sql.GET_NODE, run_id=self.run.id, node=key.node, item=key.item
            )
        return self._nodes[key]

    async def item(self, node: WorkflowNodeRow) -> Any:
        """Return the value of an item of a map phase."""
        state = decode_state(node)
        if state.output is None:
            return state.value
        rows = await self._tx.all(sql.GET_OUTPUTS, ids=[state.output])
        return next((decode_json(row.body) for row in rows), None)

    async def phases(self) -> list[WorkflowNodeRow]:
        """Return all phases of the run."""
        rows = await self._tx.all(sql.GET_PHASES, run_id=self.run.id)
        self._nodes.update({row.key: row for row in rows})
        return rows


async def _moment(
    tx: Tx, reader: Reading, planned: PlannedPhase, node: WorkflowNodeRow, pointer: Pointer
) -> dict[str, Any]:
    """Return the variables of one execution: its iteration, previous output, item and answers."""
    phase = planned.phase
    moment: dict[str, Any] = {"phase": phase.name, "label": pointer.label, "iteration": pointer.iteration}
    if node.execution_id is not None:
        moment["output"] = (await load_outputs(tx, [node.execution_id])).get(node.execution_id, "")
    if pointer.item:
        moment |= {"item": await reader.item(node), "itemNumber": pointer.item}
    if phase.loop is not None:
        moment["cycle"] = pointer.cycle
    loop = phase.generic_loop
    if loop is not None:
        moment["maxIterations"] = max_iterations(loop, await reader.values.context())
        if not loop.fresh_context and pointer.iteration > 1:
            moment["previousOutput"] = await _earlier(tx, reader, planned, pointer)
        scratch = await reader.values.scratch()
        answers = await _answers(tx, scratch.get(loop.scratch_key or phase.name))
        if answers:
            moment |= {"qa": answers, "reply": answers[-1]["answer"]}
    return moment


async def _scratch_read(tx: Tx, reader: Reading, paths: set[tuple[str, ...]]) -> dict[str, Any]:
    """Return the scratch with the texts of the questions and answers, if the phase reads the scratch."""
    read = [path[1:] for path in paths if path[:1] == (SCRATCH,)]
    if not read:
        return {}
    scratch = await reader.values.scratch()
    keys = set(scratch) if () in read else {key for key, *_ in read}
    answers = {key: qa for key in keys if (qa := await _answers(tx, scratch.get(key)))}
    return {SCRATCH: {**scratch, **{key: {**scratch[key], "qa": qa} for key, qa in answers.items()}}}


async def _earlier(tx: Tx, reader: Reading, planned: PlannedPhase, pointer: Pointer) -> str:
    """Return the end of the outputs of earlier iterations, in their order."""
    run_id, name = pointer.workflow_run_id, planned.name
    texts: list[str] = []
    size = 0
    for number in range(pointer.iteration - 1, 0, -1):
        label = str(Label(name, "iter", number))
        text = await tx.one(
            sql.ITERATION_OUTPUT, run_id=run_id, skill=build_skill(reader.run.workflow_name, label), success=1
        )
        texts.append(text or "")
        size += len(text or "")
        if size >= KEPT_OUTPUT:
            break
    return "\n\n".join(reversed(texts))[-KEPT_OUTPUT:]


async def _answers(tx: Tx, slot: Any) -> list[dict[str, Any]]:
    """Return the texts of a loop's questions and answers."""
    entries = slot.get("qa") if isinstance(slot, dict) else None
    if not isinstance(entries, list) or not entries:
        return []
    asked = [str(entry.get("questionExecutionId")) for entry in entries]
    texts = await load_outputs(tx, asked)
    rows = await tx.all(sql.ANSWERS, ids=[str(entry.get("approvalId")) for entry in entries])
    answers = {row.id: row.response for row in rows}
    return [
        {
            "question": texts.get(question, ""),
            "answer": answers.get(entry.get("approvalId")) or "",
            "sender": entry.get("sender"),
            "at": entry.get("at"),
        }
        for question, entry in zip(asked, entries, strict=True)
    ]


async def _before(tx: Tx, reader: Reading, plan: WorkflowPlan, name: str) -> dict[str, str]:
    """Return the outputs of the phases that come before a phase; of many, the nearest."""
    names = plan.before(name)
    nodes = [node for node in await reader.phases() if node.node in names and node.execution_id is not None]
    nearest = nodes[-MAX_BEFORE:]
    texts = await load_outputs(tx, [node.execution_id or "" for node in nearest]) if nearest else {}
    return {node.node: texts.get(node.execution_id or "", "") for node in nearest}


# --- rendering --------------------------------------------------------------------------------------------


def list_templates(planned: PlannedPhase, role: str) -> list[Template]:
    """List the templates that the input of a phase uses."""
    phase = planned.phase
    texts: list[str | None] = [_prompt(phase, role), phase.command, phase.model, phase.variant]
    if phase.loop is not None:
        changes = phase.loop.on_request_changes
        texts += [changes.fix_model, changes.fix_variant]
    if phase.http is not None:
        texts += [phase.http.url, *phase.http.headers.values(), *strings_in(phase.http.body)]
    texts += strings_in(phase.input)
    return [planned.template(text) for text in texts if text is not None]


def strings_in(value: Any) -> list[str]:
    """List every text in a value."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [text for element in inner for text in strings_in(element)]


def render_value(value: Any, scope: Mapping[str, Any]) -> Any:
    """Return a value with its templates rendered. A template that is only a path becomes the value there."""
    if isinstance(value, str):
        template = templates.parse(value)
        path = template.only_path
        if path is None:
            return template.render(scope)
        content = find(path, scope)
        return content if isinstance(content, dict | list | int | float) else shown(content)
    if isinstance(value, Mapping):
        return {key: render_value(element, scope) for key, element in value.items()}
    return [render_value(element, scope) for element in value] if isinstance(value, list) else value


def _prompt(phase: Phase, role: str) -> str | None:
    if phase.loop is not None and role == "fix":
        return phase.loop.on_request_changes.fix_prompt
    if phase.loop is not None and role == "recheck":
        return phase.loop.on_request_changes.re_review_prompt
    return phase.prompt


def _model(
    phase: Phase, role: str, values: RunValues, scope: Mapping[str, Any], planned: PlannedPhase
) -> tuple[str | None, str | None]:
    """Return the model and the variant of a phase: its own, or the settings' for the name of the phase."""
    model, variant = phase.model, phase.variant
    if role == "fix" and phase.loop is not None:
        changes = phase.loop.on_request_changes
        model, variant = changes.fix_model or model, changes.fix_variant or variant
    config = values.config
    model, variant = (
        None if text is None else planned.template(text).render(scope) for text in (model, variant)
    )
    return model or config.models.get(phase.name), variant or config.variants.get(phase.name)


def build_input(material: Material) -> dict[str, Any]:
    """Build the input with which a phase is executed."""
    planned, pointer, scope = material.planned, material.pointer, material.scope
    phase = planned.phase
    agent = built_in(phase, pointer.role)
    prompt = _prompt(phase, pointer.role)
    text = None if prompt is None else planned.template(prompt).render(scope)
    if agent == CHECK and phase.generic_loop is not None:
        return {"command": phase.generic_loop.until_bash or "false", "env": build_variables(material)}
    if agent == COMMAND:
        command = shell_command(planned.template(phase.command or ""), scope)
        return {"command": command.text, "env": {**build_variables(material), **command.env}}
    if agent == SCRIPT:
        return {"script": phase.script, "runtime": phase.runtime or "sh", "env": build_variables(material)}
    if agent == CALLABLE:
        given = build_agent_input(material, text) if phase.input is None else render_value(phase.input, scope)
        return {"callable": phase.callable, "input": given}
    if agent == HTTP and phase.http is not None:
        return {
            "method": phase.http.method,
            "url": planned.template(phase.http.url).render(scope),
            "headers": render_value(phase.http.headers, scope),
            "body": render_value(phase.http.body, scope),
        }
    if phase.input is not None:
        given = render_value(phase.input, scope)
        return given if isinstance(given, dict) else {"input": given}
    return build_agent_input(material, text)


def build_agent_input(material: Material, prompt: str | None) -> dict[str, Any]:
    """Build the input of an agent if its phase has no `input`."""
    phase, scope, pointer = material.planned.phase, material.scope, material.pointer
    skills = [phase.skill] if phase.skill is not None else list(phase.skills)
    content: dict[str, Any] = {
        "prompt": prompt or "",
        "messages": [{"role": "user", "content": prompt or ""}],
        "context": dict(material.context),
        "outputs": scope.get(OUTPUTS, {}),
        "iteration": pointer.iteration,
        "previous_output": scope.get("previousOutput", ""),
        "model": material.model,
        "variant": material.variant,
        "skills": skills,
    }
    for name in ("item", "qa", "reply", "cycle"):
        if name in scope:
            content[name] = scope[name]
    return content


def build_variables(material: Material) -> dict[str, str]:
    """Return the one-line outputs of earlier phases as environment variables, under two names each."""
    env: dict[str, str] = {}
    for name, output in material.before.items():
        text = output.rstrip("\r\n")
        if len(text) > MAX_VARIABLE or "\n" in text or "\r" in text or "\0" in text:
            continue
        key = _NO_NAME.sub("_", name.upper())
        env["PERDURE_OUT_" + key] = env["LL_OUT_" + key] = text
    return env
