"""Records of the workflow and cron files: workflow, phase, cron and their parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from perdure.service.callers import Credential
from perdure.workflows.graph import TriggerRule

Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Text = Annotated[str, Meta(max_length=256 << 10)]
Names = Annotated[list[str], Meta(max_length=100)]
PhaseType = Literal[
    "context", "agent", "command", "bash", "script", "callable", "http", "approval", "wait", "workflow", "map"
]
Runtime = Literal["js", "ts", "python", "sh"]
Count = Annotated[int, Meta(ge=1, le=10_000)]
Sandbox = Annotated[str, Meta(min_length=1, max_length=128)]
Seconds = Annotated[float, Meta(gt=0, le=30 * 86_400)]

COMMANDS: Final = frozenset({"command", "bash"})
KEPT: Final = {
    "pr_scoped": "GitHub",
    "unrestricted_egress": "a sandbox",
    "web_search": "a sandbox",
    "discover": "GitHub",
    "mode": "GitHub",
}
"""Fields that are stored but have no effect here, with the system that uses them."""


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a file that allows no unknown fields."""


class Classification(Strict, frozen=True, kw_only=True):
    """How a program selects the workflow for a message in free text."""

    intent: Name
    description: Text = ""
    examples: Names = []


class Chat(Strict, frozen=True, kw_only=True):
    """How a chat presents the workflow."""

    trigger: Text = ""
    summary: Text = ""
    deflect: Names = []
    reply: Text = ""


class Messages(Strict, frozen=True, kw_only=True):
    """Templates of the entries that a phase adds to the history of a run."""

    on_start: Text | None = None
    on_success: Text | None = None
    on_failure: Text | None = None
    on_skipped_done: Text | None = None
    """When `skip_if` or a missing sandbox skips the phase, or it was done before a retry."""
    on_blocked: Text | None = None
    """When the output contains BLOCKED, unless `contains_BLOCKED` has its own message."""
    on_blocked_bypassed: Text | None = None


class LoopMessages(Strict, frozen=True, kw_only=True):
    """Templates of a reviewer loop's entries in the history; they read `cycle` and `maxCycles`."""

    on_cycle_start: Text | None = None
    on_approved: Text | None = None
    on_request_changes: Text | None = None
    on_max_cycles: Text | None = None
    on_fix_start: Text | None = None
    on_fix_failed: Text | None = None
    on_pause_for_approval: Text | None = None
    """Question of the approval before a fix."""


class Blocked(Strict, frozen=True, kw_only=True):
    """Reaction to an output that contains BLOCKED."""

    action: Literal["fail", "continue", "pause"] = "fail"
    message: Text | None = None
    unless_label: str | None = None
    unless_title_matches: Annotated[str, Meta(max_length=200)] | None = None
    """A regular expression, matched without regard to case."""
    bypass_message: Text | None = None


class ReadyRule(Strict, frozen=True, kw_only=True):
    """Reaction to an output that contains READY."""

    action: Literal["continue", "pause", "fail"] = "continue"
    message: Text | None = None


class OnOutput(Strict, frozen=True, kw_only=True):
    """Checks of the output of a phase."""

    contains_BLOCKED: Blocked | None = None  # noqa: N815 - it is the name of the field
    contains_READY: ReadyRule | None = None  # noqa: N815
    requires_marker: str | None = None


class OnSuccess(Strict, frozen=True, kw_only=True):
    """Effect of a success of the phase."""

    set_phase: Name | None = None


class OnFailure(Strict, frozen=True, kw_only=True):
    """Reaction to the final failure of a phase: fail the run, continue, or go to a phase."""

    action: Literal["fail", "continue", "goto"] = "fail"
    phase: Name | None = None


class Retry(Strict, frozen=True, kw_only=True):
    """Number of attempts of a phase, and the pause between attempts, which doubles."""

    max_attempts: Annotated[int, Meta(ge=1, le=100)] = 1
    backoff_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 1.0


class OnRequestChanges(Strict, frozen=True, kw_only=True):
    """Fix and review that follow when a reviewer requests changes."""

    fix_prompt: Text
    re_review_prompt: Text
    fix_model: Text | None = None
    fix_variant: Text | None = None
    fix_assistant: Text | None = None
    """Assistant that fixes; by default the one of the phase."""
    re_review_assistant: Text | None = None
    """Assistant that reviews a fix; by default the one of the phase."""


class ReviewLoop(Strict, frozen=True, kw_only=True):
    """A review and a fix in turns, until the reviewer approves."""

    max_cycles: Count = 2
    on_request_changes: OnRequestChanges
    approval_gate: Name | None = None
    approval_artifact: Text | None = None
    messages: LoopMessages = LoopMessages()


class FromContext(Strict, frozen=True, kw_only=True, rename={"from_": "from"}):
    """A number read from the context of the run, such as `{from: models.tries, default: 3}`."""

    from_: Text
    default: Annotated[float, Meta(gt=0, le=30 * 86_400)] | None = None


class OnSoftFailure(Strict, frozen=True, kw_only=True):
    """Reaction to an iteration that ended without a clear result."""

    retries: Annotated[int, Meta(ge=0, le=100)] = 0
    then: Literal["fail", "complete"] = "fail"


class GenericLoop(Strict, frozen=True, kw_only=True):
    """A phase that is repeated until a condition holds."""

    max_iterations: Count | FromContext = 5
    until: Text | None = None
    until_bash: Text | None = None
    interactive: bool = False
    gate_kind: Literal["approve", "reply"] = "approve"
    gate_message: Text | None = None
    scratch_key: Name | None = None
    fresh_context: bool = False
    on_soft_failure: OnSoftFailure | None = None


class HttpCall(Strict, frozen=True, kw_only=True):
    """An HTTP request whose response is the output."""

    url: Text
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    headers: dict[str, Text] = {}
    body: Any = None


class Phase(Strict, frozen=True, kw_only=True):
    """A phase of a workflow."""

    name: Name
    label: str | None = None
    type: PhaseType = "agent"
    assistant: Text | None = None
    """Assistant of an agent phase; by default the one that the settings name for the phase."""
    prompt: Text | None = None
    skill: str | None = None
    skills: Names = []
    input: Any = None
    command: Text | None = None
    script: Text | None = None
    runtime: Runtime | None = None
    callable: str | None = None
    http: HttpCall | None = None
    workflow: Name | None = None
    context: dict[str, Any] = {}
    items: Any = None
    """List of a map phase, or a template that renders it."""
    max_parallel: Count | None = None
    seconds: Seconds | None = None
    """Duration of a wait phase."""
    until_time: Text | None = None
    timeout_seconds: Seconds | FromContext | None = None
    retry: Retry | None = None
    on_failure: OnFailure | None = None
    model: Text | None = None
    variant: Text | None = None
    depends_on: Names | None = None
    trigger_rule: TriggerRule = "all_success"
    output_var: Name | None = None
    approval_gate: Name | None = None
    approval_artifact: Text | None = None
    approval_gate_message: Text | None = None
    assignees: Names = []
    expires_after: Seconds | None = None
    on_expiry: Literal["approve", "fail"] = "fail"
    answer_by: Annotated[list[Credential], Meta(max_length=5)] = []
    """Credentials that may answer the gates of the phase; empty allows all."""
    remind_every: Seconds | None = None
    """Interval between reminders of an approval without an answer."""
    on_output: OnOutput | None = None
    on_success: OnSuccess | None = None
    skip_if: Text | Names | None = None
    loop: ReviewLoop | None = None
    generic_loop: GenericLoop | None = None
    messages: Messages = Messages()
    pr_scoped: Any = None
    unrestricted_egress: Any = None
    web_search: Any = None
    requires_sandbox: Sandbox | bool | None = None
    """Sandbox that the phase needs; without it in the settings, the phase is skipped."""
    sandbox: Literal["bubblewrap"] | None = None
    """Sandbox that the worker starts for each command or agent of the phase."""
    network: bool | None = None
    """Whether commands and agents have network access in that sandbox."""
    sandbox_image: Sandbox | None = None
    """Image that the phase needs; without it in the settings, the phase is skipped."""

    @property
    def conditions(self) -> list[str]:
        """Return the conditions for skipping the phase; one that holds is enough."""
        if self.skip_if is None:
            return []
        return [self.skip_if] if isinstance(self.skip_if, str) else list(self.skip_if)

    def assistant_of(self, role: str) -> str | None:
        """Return the assistant that the phase names for a role of its loop, or for itself."""
        changes = None if self.loop is None else self.loop.on_request_changes
        if changes is None or role not in ("fix", "recheck"):
            return self.assistant
        named = changes.fix_assistant if role == "fix" else changes.re_review_assistant
        return named or self.assistant

    def templates(self) -> Iterator[tuple[str, str]]:
        """Yield the fields that are templates, with their text."""
        for name in (
            "assistant",
            "command",
            "model",
            "variant",
            "approval_gate_message",
            "approval_artifact",
            "until_time",
        ):
            value = getattr(self, name)
            if value is not None:
                yield name, value
        yield from _texts("messages", self.messages)
        if self.on_output is not None:
            yield from _texts("on_output.contains_BLOCKED", self.on_output.contains_BLOCKED)
            yield from _texts("on_output.contains_READY", self.on_output.contains_READY)
        if self.generic_loop is not None and self.generic_loop.gate_message is not None:
            yield "generic_loop.gate_message", self.generic_loop.gate_message
        if self.loop is not None:
            changes = self.loop.on_request_changes
            yield from (
                (f"loop.on_request_changes.{name}", value)
                for name in ("fix_model", "fix_variant", "fix_assistant", "re_review_assistant")
                if (value := getattr(changes, name)) is not None
            )
            yield from _texts("loop.messages", self.loop.messages)

    def value_templates(self) -> Iterator[tuple[str, str]]:
        """Yield the texts in fields whose values may contain templates, with the path to each."""
        for name in ("items", "input", "context"):
            yield from _texts_in(name, getattr(self, name))
        if self.http is not None:
            yield "http.url", self.http.url
            yield from _texts_in("http.headers", self.http.headers)
            yield from _texts_in("http.body", self.http.body)


def _texts_in(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield every text in a value, with the path to it."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts_in(f"{path}.{key}", inner)


def _texts(field: str, messages: Strict | None) -> Iterator[tuple[str, str]]:
    """Yield the messages of a part of a phase, with the path to each."""
    for name in () if messages is None else messages.__struct_fields__:
        value = getattr(messages, name)
        if isinstance(value, str) and (name.startswith("on_") or name.endswith("message")):
            yield f"{field}.{name}", value


class Workflow(Strict, frozen=True, kw_only=True):
    """A workflow, as written in its file."""

    name: Name
    phases: Annotated[list[Phase], Meta(min_length=1, max_length=1000)]
    kind: str = "agent"
    description: Text = ""
    trigger: str | None = None
    variables: dict[str, str] = {}
    status_checklist: bool = False
    final_message: Text | None = None
    max_parallel: Count | None = None
    classification: Classification | None = None
    chat: Chat | None = None
    pr_scoped: Any = None


class CronCondition(Strict, frozen=True, kw_only=True):
    """Condition that prevents a cron from firing."""

    unless: Name | None = None


class Cron(Strict, frozen=True, kw_only=True):
    """A cron file: it starts a workflow, or calls a handler, on a schedule."""

    name: Name
    schedule: Annotated[str, Meta(min_length=1, max_length=255)]
    kind: Literal["cron"] = "cron"
    description: Text = ""
    workflow: Name | None = None
    handler: Name | None = None
    context: dict[str, Any] = {}
    condition: CronCondition | None = None
    timezone: str | None = None
    enabled: bool = True
    jitter: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    """Random delay of at most this many seconds after the scheduled time."""
    overlap: Literal["skip", "concurrent"] = "skip"
    """Whether the cron fires while its previous run has not ended."""
    misfire: Literal["once", "skip", "all"] = "once"
    """Which firing times still fire if they were missed while no server was running."""
    timeout: Seconds | None = None
    """Timeout in seconds of the workflow or handler."""
    discover: Any = None
    mode: Any = None
