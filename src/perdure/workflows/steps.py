"""What a phase does next: executions, loops, checks of its output and gates. Everything here is pure.

`begin` is asked when a phase is ready and `after` when an execution of it has ended; `resumed` when a person
has answered. Each gives one step. What the step needs from outside (the values that conditions read) comes
with a `View`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from perdure.executions.model import CONDITION_MET, SOFT
from perdure.kernel.codec import decode_json
from perdure.workflows.definition import Blocked, FromContext, GenericLoop, Phase, ReadyRule
from perdure.workflows.expressions import Expression, Missing, look_up
from perdure.workflows.model import Label, PhaseEnd, Role
from perdure.workflows.planner import PlannedPhase, new_node
from perdure.workflows.rows import WorkflowNodeRow
from perdure.workflows.values import Config

DEFAULT_ITERATIONS: Final = 5
COMMAND_SECONDS: Final = 300.0
CHECK_SECONDS: Final = 30.0
MAX_ITERATIONS: Final = 10_000
MAX_QUESTION: Final = 64 << 10
NOTHING_TO_DO: Final = "Skipped (no prompt or skill)"
NO_SANDBOX: Final = "none"
DEFAULT_IMAGE: Final = "default"
MAX_TITLE: Final = 1000
"""How many characters of a title are compared with a regular expression."""

EXECUTES: Final = frozenset({"agent", "command", "bash", "script", "callable", "http"})
"""The types of phases that a worker executes."""

CONFINED: Final = EXECUTES - {"callable", "http"} | {"map"}
"""The types of phases whose executions are processes, or may be."""

_VERDICT = re.compile(
    r"^\s*VERDICT:\s*(?P<verdict>APPROVED|REQUEST_CHANGES)\s*$", re.IGNORECASE | re.MULTILINE
)

GateReason = Literal["approval", "output", "loop", "fix", "interrupt", "blocked", "ready"]
"""Why a node waits for a person: it is an approval, its output is to be approved, its loop asks, a fix is to
be approved, its graph asks, or its output says BLOCKED or READY. A gate that was withdrawn or refused is
opened again by a retry, so that what came before it is not executed again."""


class NodeState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a node remembers beside its columns. It is small, and has ids in place of texts."""

    gate: GateReason | None = None
    soft: int = 0
    """How often the iteration was tried again after a soft failure."""
    jumps: int = 0
    """How often it went to another phase after a failure."""
    completed: bool | None = None
    """Whether the condition of its loop was met."""
    approved: bool | None = None
    """Whether the reviewer approved."""
    thread_id: str | None = None
    """The thread of a graph that waits for an answer."""
    answer: str | None = None
    """The approval whose answer its graph goes on with."""
    total: int = 0
    """How many items a map phase has."""
    done: int = 0
    lost: int = 0
    """How many of its items have failed."""
    value: Any = None
    """The item itself."""
    output: str | None = None
    """The row of outputs in which a large item stands."""


_state = msgspec.json.Decoder(NodeState)


def decode_state(node: WorkflowNodeRow) -> NodeState:
    """What a node remembers."""
    return NodeState() if node.state is None else _state.decode(node.state)


def remember(node: WorkflowNodeRow, state: NodeState) -> None:
    """Write down what a node remembers."""
    text = msgspec.json.encode(state).decode()
    node.state = None if text == "{}" else text
    node.dirty = True


def forget(node: WorkflowNodeRow) -> None:
    """Let a phase begin anew: it forgets its loop, its gate, its items and the workflow that it started."""
    node.iteration = node.cycle = 0
    node.role = node.child_run_id = None
    remember(node, NodeState(jumps=decode_state(node).jumps))


def new_item(node: WorkflowNodeRow, number: int) -> WorkflowNodeRow:
    """An item of a map phase."""
    return new_node(node.run_id, node.node, node.position, item=number)


# --- steps ------------------------------------------------------------------------------------------------


class Execute(NamedTuple):
    """Execute the phase, or a part of its loop."""

    role: Role
    label: Label


class GateStep(NamedTuple):
    """Wait for a person."""

    reason: GateReason
    name: str
    label: str
    kind: Literal["approve", "reply"] = "approve"
    message: str | None = None
    """The template of the message."""
    artifact: str | None = None
    question: str | None = None
    """What the agent asks, as it is."""


class Succeed(NamedTuple):
    """The phase has done what it should."""

    summary: str | None = None
    """What the history says, a template; without one, the phase's own message."""
    output: str | None = None
    """The execution whose output is that of the phase."""


class Fail(NamedTuple):
    """The phase has failed. `marks` says that its execution, which succeeded, counts as failed too."""

    error: str
    marks: bool = False
    message: str | None = None
    """The template of the error, which the workflow gives."""


class Wait(NamedTuple):
    """Wait for a time, or for what is made ready outside of the transaction."""


class Start(NamedTuple):
    """Start another workflow, or the items of a map."""


Step = Execute | GateStep | Succeed | Fail | Wait | Start


class HistoryNote(NamedTuple):
    """An entry of the history that comes before a step."""

    label: str
    summary: str | None
    message: str | None = None
    """The template of what is said in place of the summary."""
    cycle: int | None = None
    """The cycle of a reviewer loop that the message speaks of."""
    success: bool = True


class ScopeReader(Protocol):
    """What conditions and templates read of a run."""

    def holds(self, condition: Expression, output: str) -> bool: ...
    def context(self) -> Mapping[str, Any]: ...
    def is_gate_on(self, name: str) -> bool: ...
    def last_output(self) -> str:
        """The output of the iteration whose condition was checked."""
        ...


# --- what a phase needs -----------------------------------------------------------------------------------


def own_sandbox(phase: Phase, config: Config) -> str | None:
    """The sandbox that workers start for a phase: its own, or that of the settings if it requires one."""
    if phase.sandbox is not None:
        return phase.sandbox
    is_required = phase.requires_sandbox is True or phase.requires_sandbox == config.command_sandbox
    return config.command_sandbox if is_required and phase.type in CONFINED else None


def lacking(phase: Phase, config: Config) -> str | None:
    """What a phase needs of a sandbox that the settings do not name, or None."""
    needed, there = phase.requires_sandbox, own_sandbox(phase, config) or config.sandbox
    if needed is True and there is None:
        return "it requires a sandbox; there is none"
    if isinstance(needed, str) and needed != (there or NO_SANDBOX):
        return f"it requires the sandbox {needed!r}; there is {'none' if there is None else repr(there)}"
    image = phase.sandbox_image
    if image not in (None, DEFAULT_IMAGE, *config.sandbox_images):
        return f"it requires the sandbox image {image!r}, which is not there"
    return None


# --- the beginning ----------------------------------------------------------------------------------------


def begin(planned: PlannedPhase, node: WorkflowNodeRow) -> Step:
    """What a phase that is ready does first. One that was interrupted goes on where it was."""
    phase, reason = planned.phase, decode_state(node).gate
    if reason is not None and reason != "interrupt":
        return build_gate(phase, node, reason)
    if phase.type == "context":
        return Succeed()
    if _has_nothing_to_do(phase, node):
        return Succeed(NOTHING_TO_DO)
    if phase.type == "approval":
        return build_gate(phase, node, "approval")
    if phase.type == "wait":
        return Wait()
    if phase.type == "workflow" or (phase.type == "map" and not node.item):
        return Start()
    if node.item:
        return (
            Start() if phase.workflow is not None else Execute("work", Label(phase.name, "item", node.item))
        )
    if phase.generic_loop is not None:
        node.iteration = max(node.iteration, 1)
        if node.role == "check":
            return Execute("check", Label(phase.name, "check", node.iteration))
        return Execute("work", Label(phase.name, "iter", node.iteration))
    if phase.loop is not None and node.cycle and node.role in ("fix", "recheck"):
        return Execute(node.role, Label(phase.name, node.role, node.cycle))  # type: ignore[arg-type]
    return Execute("work", Label(phase.name))


def _has_nothing_to_do(phase: Phase, node: WorkflowNodeRow) -> bool:
    given = (phase.prompt, phase.skill, phase.assistant, phase.input)
    return (
        phase.type == "agent" and not node.item and not phase.skills and all(each is None for each in given)
    )


def max_iterations(loop: GenericLoop, context: Mapping[str, Any]) -> int:
    """How often a loop goes round at most; a number of the context is rounded up."""
    asked = loop.max_iterations
    if isinstance(asked, int):
        return asked
    found = read_number(asked, context)
    return DEFAULT_ITERATIONS if found is None else min(math.ceil(found), MAX_ITERATIONS)


def read_number(asked: FromContext, context: Mapping[str, Any]) -> float | None:
    """A number that the context gives, if it is one above 0; else the default."""
    value = look_up(asked.from_.removeprefix("ctx.").removeprefix("context.").split("."), context)
    try:
        number = float("nan") if isinstance(value, Missing | bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    return number if math.isfinite(number) and number > 0 else asked.default


def reads_context(phase: Phase) -> bool:
    """Whether an execution of a phase needs a number of the context."""
    return isinstance(phase.timeout_seconds, FromContext)


def get_seconds(phase: Phase, role: str, context: Mapping[str, Any]) -> float | None:
    """How long an execution may take; None is as long as any run."""
    if role == "check":
        return CHECK_SECONDS
    asked = phase.timeout_seconds
    found = read_number(asked, context) if isinstance(asked, FromContext) else asked
    if found is not None:
        return found
    return COMMAND_SECONDS if phase.type in ("command", "bash", "script") else None


# --- after an execution -----------------------------------------------------------------------------------


class After(NamedTuple):
    """What happens after an execution: entries of the history, then a step."""

    step: Step
    notes: Sequence[HistoryNote] = ()


def after(planned: PlannedPhase, node: WorkflowNodeRow, end: PhaseEnd, view: ScopeReader) -> After:
    """What a phase does after an execution of it has ended."""
    phase, state = planned.phase, decode_state(node)
    if end.success and end.interrupted:
        label = node.label or phase.name
        return After(GateStep("interrupt", label, label, "reply", question=end.output))
    if node.item or (phase.generic_loop is None and phase.loop is None):
        return After(_checked(phase, node, end, view) if end.success else failed(end))
    if phase.generic_loop is not None:
        if node.role == "check":
            met = end.success and end.stop_reason == CONDITION_MET
            end = end._replace(success=True, output=view.last_output(), execution_id=node.execution_id)
            return _after_condition(planned, phase.generic_loop, node, state, end, view, met=met)
        return _after_iteration(planned, phase.generic_loop, node, state, end, view)
    return _after_review(phase, node, state, end, view)


def failed(end: PhaseEnd) -> Fail:
    """The step after an execution that has failed."""
    return Fail(end.error or f"it ended with {end.stop_reason or 'an error'}")


def _after_iteration(
    planned: PlannedPhase,
    loop: GenericLoop,
    node: WorkflowNodeRow,
    state: NodeState,
    end: PhaseEnd,
    view: ScopeReader,
) -> After:
    phase, number = planned.phase, node.iteration
    if not end.success:
        soft = loop.on_soft_failure
        if soft is None or end.stop_reason not in SOFT:
            return After(failed(end))
        if state.soft < soft.retries:
            state.soft += 1
            remember(node, state)
            return After(Execute("work", Label(phase.name, "retry", number)))
        if soft.then == "fail":
            return After(failed(end))
        state.completed = False
        remember(node, state)
        return After(Succeed("ended without a clear result", end.execution_id))
    state.soft = 0
    remember(node, state)
    node.execution_id = end.execution_id
    label = str(Label(phase.name, "iter", number))
    notes = [HistoryNote(label, f"iteration {number} — work complete")]
    if planned.until is not None and view.holds(planned.until, end.output):
        found = _after_condition(planned, loop, node, state, end, view, met=True)
        return After(found.step, [*notes, *found.notes])
    if loop.until_bash is not None:
        return After(Execute("check", Label(phase.name, "check", number)), notes)
    found = _after_condition(planned, loop, node, state, end, view, met=False)
    return After(found.step, [*notes, *found.notes])


def _after_condition(
    planned: PlannedPhase,
    loop: GenericLoop,
    node: WorkflowNodeRow,
    state: NodeState,
    end: PhaseEnd,
    view: ScopeReader,
    *,
    met: bool,
) -> After:
    phase, number = planned.phase, node.iteration
    label = str(Label(phase.name, "iter", number))
    if met or number >= max_iterations(loop, view.context()):
        state.completed = met
        remember(node, state)
        summary = "condition met" if met else f"condition not met after {number} iterations"
        return After(_checked(phase, node, end, view), [HistoryNote(label, summary)])
    if loop.interactive:
        return After(build_gate(phase, node, "loop"))
    node.iteration += 1
    return After(Execute("work", Label(phase.name, "iter", node.iteration)))


def _after_review(
    phase: Phase, node: WorkflowNodeRow, state: NodeState, end: PhaseEnd, view: ScopeReader
) -> After:
    loop = phase.loop
    assert loop is not None
    label, messages = node.label or phase.name, loop.messages
    if not end.success:
        step = failed(end)
        told = node.role == "fix" and messages.on_fix_failed is not None
        return After(
            step, [HistoryNote(label, step.error, messages.on_fix_failed, node.cycle, False)] if told else []
        )
    if node.role == "fix":
        return After(Execute("recheck", Label(phase.name, "recheck", node.cycle)))
    node.execution_id = end.execution_id
    state.approved = is_approved(end.output)
    remember(node, state)
    if state.approved:
        note = HistoryNote(label, "APPROVED", messages.on_approved, node.cycle + 1)
        return After(_checked(phase, node, end, view), [note])
    if node.cycle >= loop.max_cycles:
        note = HistoryNote(label, "REQUEST_CHANGES — max cycles reached", messages.on_max_cycles, node.cycle)
        return After(_checked(phase, node, end, view), [note])
    note = HistoryNote(label, "REQUEST_CHANGES", messages.on_request_changes, node.cycle + 1)
    if loop.approval_gate is not None and view.is_gate_on(loop.approval_gate):
        return After(build_gate(phase, node, "fix"), [note])
    node.cycle += 1
    return After(Execute("fix", Label(phase.name, "fix", node.cycle)), [note])


def start_message(phase: Phase, node: WorkflowNodeRow) -> HistoryNote | None:
    """What is said when a part of a phase is started, if the workflow says something."""
    label = node.label or phase.name
    if node.item:
        return None
    if phase.loop is not None and node.role == "fix":
        message, cycle = phase.loop.messages.on_fix_start, node.cycle
    elif phase.loop is not None and phase.loop.messages.on_cycle_start is not None:
        message, cycle = phase.loop.messages.on_cycle_start, node.cycle + 1
    else:
        message, cycle = None if node.started_at else phase.messages.on_start, node.cycle
    return None if message is None else HistoryNote(label, None, message, cycle)


def is_approved(output: str) -> bool:
    """What a reviewer decided: its first line VERDICT, or else a text that begins with APPROVED."""
    found = _VERDICT.search(output)
    if found is not None:
        return found["verdict"].upper() == "APPROVED"
    text = output.strip().upper()
    return text.startswith("APPROVED") and "REQUEST_CHANGES" not in text


# --- checks of the output ---------------------------------------------------------------------------------


def _checked(phase: Phase, node: WorkflowNodeRow, end: PhaseEnd, view: ScopeReader) -> Step:
    """The step after an execution that succeeded, by what its output says."""
    node.execution_id = end.execution_id
    checks = phase.on_output
    if checks is None:
        return _gated(phase, node, end.execution_id, view)
    summary = None
    blocked = checks.contains_BLOCKED
    if blocked is not None and "BLOCKED" in end.output.upper():
        if is_bypassed(blocked, view.context()):
            summary = blocked.bypass_message or phase.messages.on_blocked_bypassed
        elif blocked.action != "continue":
            return _stopped(phase, node, blocked, "blocked")
        else:
            summary = blocked.message
    ready = checks.contains_READY
    if ready is not None and "READY" in end.output.upper():
        if ready.action != "continue":
            return _stopped(phase, node, ready, "ready")
        summary = summary or ready.message
    marker = checks.requires_marker
    if marker is not None and marker not in end.output:
        return Fail(f"the output does not contain {marker!r}", marks=True)
    return _gated(phase, node, end.execution_id, view, summary)


def _stopped(
    phase: Phase, node: WorkflowNodeRow, check: Blocked | ReadyRule, word: Literal["blocked", "ready"]
) -> Step:
    if check.action == "pause":
        return build_gate(phase, node, word)
    message = check.message or (phase.messages.on_blocked if word == "blocked" else None)
    return Fail(f"the output says {word.upper()}", marks=True, message=message)


def is_bypassed(blocked: Blocked, context: Mapping[str, Any]) -> bool:
    """Whether a label or the title of what triggered the run lets BLOCKED pass."""
    if blocked.unless_label is not None and blocked.unless_label in list_labels(context):
        return True
    title = _find_first(context, ("title", "issueTitle", "issue_title"))
    wanted = blocked.unless_title_matches
    return wanted is not None and isinstance(title, str) and _matches(wanted, title)


def _matches(pattern: str, title: str) -> bool:
    return re.search(pattern, title[:MAX_TITLE], re.IGNORECASE) is not None


def list_labels(context: Mapping[str, Any]) -> set[str]:
    """The labels in a context: texts, or objects with a name."""
    found = _find_first(context, ("labels", "issueLabels", "issue_labels"))
    if not isinstance(found, list):
        return set()
    return {str(each.get("name")) if isinstance(each, Mapping) else str(each) for each in found}


def _find_first(context: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((context[name] for name in names if name in context), None)


def _gated(
    phase: Phase,
    node: WorkflowNodeRow,
    execution_id: str | None,
    view: ScopeReader,
    summary: str | None = None,
) -> Step:
    """Success, or the gate before it. A gate that is not switched on does not stop anybody."""
    node.execution_id = execution_id
    if phase.approval_gate is None or node.item or not view.is_gate_on(phase.approval_gate):
        return Succeed(summary, execution_id)
    return build_gate(phase, node, "output")


# --- gates ------------------------------------------------------------------------------------------------


def build_gate(phase: Phase, node: WorkflowNodeRow, reason: GateReason) -> GateStep:
    """The gate at which a phase waits, for a reason."""
    message, artifact = phase.approval_gate_message, phase.approval_artifact
    if reason == "loop" and phase.generic_loop is not None:
        loop, label = phase.generic_loop, str(Label(phase.name, "iter", node.iteration))
        return GateStep("loop", label, label, loop.gate_kind, loop.gate_message)
    if reason == "fix" and phase.loop is not None:
        label = str(Label(phase.name, "fix", node.cycle + 1))
        message = phase.loop.messages.on_pause_for_approval or message
        return GateStep(
            "fix", phase.loop.approval_gate or label, label, "approve", message, phase.loop.approval_artifact
        )
    checks = phase.on_output
    if reason in ("blocked", "ready") and checks is not None:
        check = checks.contains_BLOCKED if reason == "blocked" else checks.contains_READY
        asked = (check.message if check else None) or (
            phase.messages.on_blocked if reason == "blocked" else None
        )
        return GateStep(reason, f"{phase.name}_{reason}", phase.name, "approve", asked)
    return GateStep(reason, phase.approval_gate or phase.name, phase.name, "approve", message, artifact)


def format_question(interrupts: str) -> str:
    """What a graph asks, as a text for people."""
    if len(interrupts) > MAX_QUESTION:
        return interrupts[:MAX_QUESTION]
    found = decode_json(interrupts)
    if isinstance(found, dict):
        found = [each for group in found.values() for each in (group if isinstance(group, list) else [group])]
    values = [each.get("value", each) if isinstance(each, dict) else each for each in found or []]
    return "\n".join(each if isinstance(each, str) else interrupts for each in values)


# --- after a gate -----------------------------------------------------------------------------------------


def resumed(planned: PlannedPhase, node: WorkflowNodeRow, view: ScopeReader) -> Step:
    """What a phase does after a person let it go on."""
    phase, state = planned.phase, decode_state(node)
    reason, state.gate = state.gate, None
    remember(node, state)
    if reason == "loop":
        node.iteration += 1
        return Execute("work", Label(phase.name, "iter", node.iteration))
    if reason == "fix":
        node.cycle += 1
        return Execute("fix", Label(phase.name, "fix", node.cycle))
    if reason in ("blocked", "ready"):
        return _gated(phase, node, node.execution_id, view)
    return Succeed(None, node.execution_id)


def build_result(phase: Phase, node: WorkflowNodeRow, state: NodeState) -> dict[str, Any] | None:
    """The value of `output_var` for a loop or a map; for others it is the output itself."""
    if phase.generic_loop is not None:
        return {"completed": bool(state.completed), "iterations": node.iteration}
    if phase.loop is not None:
        return {"approved": bool(state.approved), "cycles": node.cycle}
    return None
