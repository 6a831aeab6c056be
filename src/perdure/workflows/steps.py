"""The next step of a phase: executions, loops, checks of its output and gates. Everything here is pure.

Call `begin` when a phase is ready, `after` when one of its executions has ended, and `resumed` when a person
has answered. Each returns one step. A `ScopeReader` provides what the step needs from outside, such as the
values that conditions read.
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
"""Maximum length of a title that is compared with a regular expression."""

EXECUTES: Final = frozenset({"agent", "command", "bash", "script", "callable", "http"})
"""Types of phases that a worker executes."""

CONFINED: Final = EXECUTES - {"callable", "http"} | {"map"}
"""Types of phases that are or may be executed as processes."""

_VERDICT = re.compile(
    r"^\s*VERDICT:\s*(?P<verdict>APPROVED|REQUEST_CHANGES)\s*$", re.IGNORECASE | re.MULTILINE
)

GateReason = Literal["approval", "output", "loop", "fix", "interrupt", "blocked", "ready"]
"""Why a node waits for a person: the node is an approval, its output or a fix needs approval, its loop or its
graph asks, or its output contains BLOCKED or READY. A retry opens a withdrawn or refused gate again, so that
the work before it is not repeated."""


class NodeState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """State of a node beside its columns. It is small, and has ids in place of texts."""

    gate: GateReason | None = None
    soft: int = 0
    """Number of retries of the iteration after a soft failure."""
    jumps: int = 0
    """Number of jumps to another phase after a failure."""
    completed: bool | None = None
    """Whether the condition of its loop was met."""
    approved: bool | None = None
    """Whether the reviewer approved."""
    thread_id: str | None = None
    """Thread of a graph that waits for an answer."""
    answer: str | None = None
    """Approval; the graph continues with its answer."""
    total: int = 0
    """Number of items of a map phase."""
    done: int = 0
    lost: int = 0
    """Number of its items that have failed."""
    value: Any = None
    """The item itself."""
    output: str | None = None
    """Row of outputs that contains a large item."""


_state = msgspec.json.Decoder(NodeState)


def decode_state(node: WorkflowNodeRow) -> NodeState:
    """Decode the state of a node."""
    return NodeState() if node.state is None else _state.decode(node.state)


def remember(node: WorkflowNodeRow, state: NodeState) -> None:
    """Encode the state of a node into its row."""
    text = msgspec.json.encode(state).decode()
    node.state = None if text == "{}" else text
    node.dirty = True


def forget(node: WorkflowNodeRow) -> None:
    """Reset the state of a phase that starts again: loop, gate, items and started workflow."""
    node.iteration = node.cycle = 0
    node.role = node.child_run_id = None
    remember(node, NodeState(jumps=decode_state(node).jumps))


def new_item(node: WorkflowNodeRow, number: int) -> WorkflowNodeRow:
    """Return a new item of a map phase."""
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
    """Template of the message."""
    artifact: str | None = None
    question: str | None = None
    """Question of the agent, verbatim."""


class Succeed(NamedTuple):
    """End the phase as succeeded."""

    summary: str | None = None
    """Template of the entry in the history; by default the phase's own message."""
    output: str | None = None
    """Execution whose output is the output of the phase."""


class Fail(NamedTuple):
    """End the phase as failed. With `marks`, its execution, which succeeded, counts as failed too."""

    error: str
    marks: bool = False
    message: str | None = None
    """Template of the error, given by the workflow."""


class Wait(NamedTuple):
    """Wait for a time."""


class Start(NamedTuple):
    """Start another workflow, or the items of a map."""


Step = Execute | GateStep | Succeed | Fail | Wait | Start


class HistoryNote(NamedTuple):
    """An entry that is added to the history before a step."""

    label: str
    summary: str | None
    message: str | None = None
    """Template of a message that replaces the summary."""
    cycle: int | None = None
    """Cycle of a reviewer loop that the message refers to."""
    success: bool = True


class ScopeReader(Protocol):
    """Reader of the values of a run for conditions and templates."""

    def holds(self, condition: Expression, output: str) -> bool: ...
    def context(self) -> Mapping[str, Any]: ...
    def is_gate_on(self, name: str) -> bool: ...
    def last_output(self) -> str:
        """Return the output of the iteration after which the condition was checked."""
        ...


# --- requirements of a phase ------------------------------------------------------------------------------


def own_sandbox(phase: Phase, config: Config) -> str | None:
    """Return the sandbox that workers start for a phase: its own, or the settings' sandbox if required."""
    if phase.sandbox is not None:
        return phase.sandbox
    is_required = phase.requires_sandbox is True or phase.requires_sandbox == config.command_sandbox
    return config.command_sandbox if is_required and phase.type in CONFINED else None


def find_missing_sandbox(phase: Phase, config: Config) -> str | None:
    """Return the required sandbox or image that the settings do not provide, or None."""
    needed, there = phase.requires_sandbox, own_sandbox(phase, config) or config.sandbox
    if needed is True and there is None:
        return "it requires a sandbox; there is none"
    if isinstance(needed, str) and needed != (there or NO_SANDBOX):
        return f"it requires the sandbox {needed!r}; there is {'none' if there is None else repr(there)}"
    image = phase.sandbox_image
    if image not in (None, DEFAULT_IMAGE, *config.sandbox_images):
        return f"it requires the sandbox image {image!r}, which is not there"
    return None


# --- first step -------------------------------------------------------------------------------------------


def begin(planned: PlannedPhase, node: WorkflowNodeRow) -> Step:
    """Return the first step of a phase that is ready. An interrupted phase continues where it was."""
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
    return phase.type == "agent" and not node.item and not phase.skills and all(x is None for x in given)


def max_iterations(loop: GenericLoop, context: Mapping[str, Any]) -> int:
    """Return the maximum number of iterations of a loop; a number of the context is rounded up."""
    asked = loop.max_iterations
    if isinstance(asked, int):
        return asked
    number = read_number(asked, context)
    return DEFAULT_ITERATIONS if number is None else min(math.ceil(number), MAX_ITERATIONS)


def read_number(asked: FromContext, context: Mapping[str, Any]) -> float | None:
    """Return a number of the context if it is above 0, otherwise the default."""
    value = look_up(asked.from_.removeprefix("ctx.").removeprefix("context.").split("."), context)
    try:
        number = float("nan") if isinstance(value, Missing | bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    return number if math.isfinite(number) and number > 0 else asked.default


def reads_context(phase: Phase) -> bool:
    """Return whether an execution of a phase needs a number of the context."""
    return isinstance(phase.timeout_seconds, FromContext)


def get_seconds(phase: Phase, role: str, context: Mapping[str, Any]) -> float | None:
    """Return the timeout of an execution; None means no timeout of its own."""
    if role == "check":
        return CHECK_SECONDS
    asked = phase.timeout_seconds
    seconds = read_number(asked, context) if isinstance(asked, FromContext) else asked
    if seconds is not None:
        return seconds
    return COMMAND_SECONDS if phase.type in ("command", "bash", "script") else None


# --- after an execution -----------------------------------------------------------------------------------


class After(NamedTuple):
    """Result of an execution: entries of the history, then a step."""

    step: Step
    notes: Sequence[HistoryNote] = ()


def after(planned: PlannedPhase, node: WorkflowNodeRow, end: PhaseEnd, view: ScopeReader) -> After:
    """Return the next step of a phase after one of its executions has ended."""
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
    """Return the step after an execution that failed."""
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
        following = _after_condition(planned, loop, node, state, end, view, met=True)
        return After(following.step, [*notes, *following.notes])
    if loop.until_bash is not None:
        return After(Execute("check", Label(phase.name, "check", number)), notes)
    following = _after_condition(planned, loop, node, state, end, view, met=False)
    return After(following.step, [*notes, *following.notes])


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
        if node.role != "fix" or messages.on_fix_failed is None:
            return After(step)
        return After(step, [HistoryNote(label, step.error, messages.on_fix_failed, node.cycle, False)])
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
    """Return the history entry for the start of a phase or a part of its loop; None if none is defined."""
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
    """Return whether a reviewer approved: by its first VERDICT line, or if its text begins with APPROVED."""
    verdict = _VERDICT.search(output)
    if verdict is not None:
        return verdict["verdict"].upper() == "APPROVED"
    text = output.strip().upper()
    return text.startswith("APPROVED") and "REQUEST_CHANGES" not in text


# --- checks of the output ---------------------------------------------------------------------------------


def _checked(phase: Phase, node: WorkflowNodeRow, end: PhaseEnd, view: ScopeReader) -> Step:
    """Return the step after an execution that succeeded, depending on its output."""
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
    """Return whether a label or title of the run's trigger makes BLOCKED not count."""
    if blocked.unless_label is not None and blocked.unless_label in list_labels(context):
        return True
    title = _find_first(context, ("title", "issueTitle", "issue_title"))
    pattern = blocked.unless_title_matches
    if pattern is None or not isinstance(title, str):
        return False
    return re.search(pattern, title[:MAX_TITLE], re.IGNORECASE) is not None


def list_labels(context: Mapping[str, Any]) -> set[str]:
    """Return the labels in a context: texts, or objects with a name."""
    labels = _find_first(context, ("labels", "issueLabels", "issue_labels"))
    if not isinstance(labels, list):
        return set()
    return {str(label.get("name")) if isinstance(label, Mapping) else str(label) for label in labels}


def _find_first(context: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((context[name] for name in names if name in context), None)


def _gated(
    phase: Phase,
    node: WorkflowNodeRow,
    execution_id: str | None,
    view: ScopeReader,
    summary: str | None = None,
) -> Step:
    """Return success, or the gate before it. A gate that the settings do not enable is skipped."""
    node.execution_id = execution_id
    if phase.approval_gate is None or node.item or not view.is_gate_on(phase.approval_gate):
        return Succeed(summary, execution_id)
    return build_gate(phase, node, "output")


# --- gates ------------------------------------------------------------------------------------------------


def build_gate(phase: Phase, node: WorkflowNodeRow, reason: GateReason) -> GateStep:
    """Build the gate at which a phase waits for the given reason."""
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
    """Format the interrupts of a graph as a text for people."""
    if len(interrupts) > MAX_QUESTION:
        return interrupts[:MAX_QUESTION]
    items = decode_json(interrupts)
    if isinstance(items, dict):
        items = [item for group in items.values() for item in (group if isinstance(group, list) else [group])]
    values = [item.get("value", item) if isinstance(item, dict) else item for item in items or []]
    return "\n".join(value if isinstance(value, str) else interrupts for value in values)


# --- after a gate -----------------------------------------------------------------------------------------


def resumed(planned: PlannedPhase, node: WorkflowNodeRow, view: ScopeReader) -> Step:
    """Return the step of a phase after a person approved or replied."""
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
    """Return the value of `output_var` for a loop. Other phases return None: their value is the output."""
    if phase.generic_loop is not None:
        return {"completed": bool(state.completed), "iterations": node.iteration}
    if phase.loop is not None:
        return {"approved": bool(state.approved), "cycles": node.cycle}
    return None
