"""Work around the agent of a phase: its workspace, its session, its output and stop reason."""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from perdure.agents.context import Agent, AgentError, Interrupted
from perdure.agents.processes import NOT_STARTED
from perdure.agents.records import PhaseContext
from perdure.checkpoints.records import GraphState
from perdure.executions.model import FATAL, SUCCESS
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import InvalidInput
from perdure.kernel.files import make_folder
from perdure.sessions.transcripts.values import blocks, joined
from perdure.threads.records import Failure
from perdure.threads.work import MAX_OUTPUT, Assignment, Ending
from perdure.worker.session_writer import SessionWriter

# --- outputs ----------------------------------------------------------------------------------------------


MARK: Final = 64
"""Room for the truncation mark."""
_ASSISTANTS: Final = frozenset({"assistant", "ai", "AIMessage", "AIMessageChunk"})


def format_output(values: Any) -> str:
    """Convert the return value of an agent to a text.

    A text is the output. For an object with messages it is the last text of the assistant, for an object with
    `output` that value. Other values become JSON.
    """
    if values is None:
        return ""
    if isinstance(values, str):
        return values
    if isinstance(values, Mapping):
        text = _find_last_text(values.get("messages"))
        if text is not None:
            return text
        if "output" in values:
            return format_output(values["output"])
    return encode_json(values, what="the output", nan="keep")


def _find_last_text(messages: Any) -> str | None:
    """Return the last text of the assistant in a list of messages of any library."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return None
    for message in reversed(messages):
        role = _field(message, "role") or _field(message, "type") or type(message).__name__
        if role in _ASSISTANTS:
            text = _text(_field(message, "content"))
            if text:
                return text
    return None


def _field(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)


def _text(content: Any) -> str:
    return joined(block.get("text") for block in blocks(content) if block.get("type") in (None, "text"))


def format_question(interrupts: Sequence[Any]) -> str:
    """Return the first question of a phase that is not empty."""
    for interrupt in interrupts:
        value = _field(interrupt, "value")
        if isinstance(value, Mapping) and isinstance(value.get("question"), str):
            return str(value["question"])
        if value not in (None, ""):
            return format_output(value)
    return ""


def bounded(text: str) -> str:
    """Cut a text to 1 MiB, name the missing length there, and replace characters that databases refuse."""
    clean = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    data = clean.encode("utf-8", "replace")
    if len(data) <= MAX_OUTPUT:
        return data.decode()
    kept = data[: MAX_OUTPUT - MARK].decode("utf-8", "ignore")
    return f"{kept}\n…[truncated {len(clean) - len(kept)} chars]"


def safe_output(values: Any) -> str:
    """Convert the return value of an agent to a bounded text; use `repr` for a value without JSON."""
    try:
        return bounded(format_output(values))
    except InvalidInput:
        return bounded(repr(values))


# --- workspaces -------------------------------------------------------------------------------------------


_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


class Workspaces:
    """Workspaces in a folder. Later phases and retries of a run use the same workspace."""

    def __init__(self, root: str | os.PathLike[str] | None) -> None:
        self._root = None if root is None else Path(root).absolute()

    def path(self, workflow_run_id: str) -> str | None:
        """Return the path of a run's workspace, which need not exist; None if workspaces have no folder."""
        return None if self._root is None else str(self._root / _checked(workflow_run_id))

    def open(self, workflow_run_id: str) -> str:
        """Create the workspace of a run if it is missing, and return it; AgentError if it cannot be used."""
        name = _checked(workflow_run_id)
        if self._root is None:
            raise AgentError("this worker has no folder for workspaces: set PERDURE_STATE_DIR")
        folder = self._root / name
        try:
            make_folder(folder, self._root)
            status = folder.lstat()
        except OSError as error:
            raise AgentError(f"the workspace cannot be created: {error.strerror}") from error
        if not stat.S_ISDIR(status.st_mode):
            raise AgentError("the workspace is not a directory: a link has its name")
        # Root gives the workspace to the user of its commands.
        if hasattr(os, "geteuid") and os.geteuid() not in (0, status.st_uid):
            raise AgentError("the workspace belongs to another user")
        return str(folder)


def _checked(workflow_run_id: str) -> str:
    if not _RUN_ID.fullmatch(workflow_run_id):
        raise AgentError("the id of the workflow run cannot be the name of a directory")
    return workflow_run_id


# --- phases -----------------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

STOPPED = "StoppedEarly"
"""Error of a phase if its agent returned but reported that the work is not done."""
_SAME = ("prompt", "previous_output", "model", "variant")


class PhaseResult(msgspec.Struct, frozen=True):
    """Result of a built-in agent: its output, and why it stopped."""

    output: str
    stop_reason: str = SUCCESS


def build_phase(assignment: Assignment, workspace: str | None) -> PhaseContext | None:
    """Build the context of a phase for its agent: parts of its rendered input, and its workspace."""
    facts = assignment.phase
    if facts is None:
        return None
    given = assignment.run.kwargs.input
    fields: Mapping[str, Any] = given if isinstance(given, dict) else {}
    texts = {name: fields[name] for name in _SAME if isinstance(fields.get(name), str)}
    objects = {name: fields[name] for name in ("context", "outputs") if isinstance(fields.get(name), dict)}
    skills = fields.get("skills")
    return PhaseContext(
        workflow_run_id=facts.workflow_run_id,
        label=facts.label,
        iteration=facts.iteration,
        skills=[skill for skill in skills if isinstance(skill, str)] if isinstance(skills, list) else [],
        workspace=workspace,
        **texts,
        **objects,
    )


class PhaseWork:
    """Work on one attempt of a phase, apart from its agent."""

    def __init__(self, assignment: Assignment, session: SessionWriter, workspaces: Workspaces) -> None:
        self._assignment = assignment
        self._session = session
        self._workspaces = workspaces
        self.output: str | None = None
        """Text form of the agent's return value."""
        self.stop_reason: str | None = None
        self.answer = ""
        """Text that a function returned, logged as a message of the assistant."""
        self.built_in = False
        self._speaks = False

    def place(self) -> str | None:
        """Return the path of the workspace, which need not exist."""
        facts = self._assignment.phase
        if facts is None or facts.workflow_run_id is None:
            return None
        return self._workspaces.path(facts.workflow_run_id)

    def begin(self, agent: Agent, *, built_in: bool) -> None:
        """Create the workspace, and start the session with the prompt."""
        self.built_in = built_in
        self._speaks = not built_in and agent.spec.kind != "graph"
        if self._session.meter is not None:
            self._session.meter.counts_turns = not built_in
        facts, given = self._assignment.phase, self._assignment.run.kwargs.input
        if facts is not None and facts.sandbox is not None and not getattr(agent, "is_process", False):
            raise AgentError(
                f"the phase must be executed in the sandbox {facts.sandbox}, but agent {agent.spec.name!r} "
                "runs inside its worker: make it isolated, or a command",
                error=NOT_STARTED,
            )
        if facts is not None and facts.workflow_run_id is not None:
            try:
                self._session.work_in(self._workspaces.open(facts.workflow_run_id))
            except AgentError:
                if built_in:
                    raise
                logger.warning("run %s has no workspace", self._assignment.run.run_id, exc_info=True)
        prompt = given.get("prompt") if isinstance(given, dict) else given
        if isinstance(prompt, str) and prompt and agent.spec.kind != "graph":
            # The messages of a graph's state include the prompt.
            self._session.open_with(prompt)

    def returned(self, values: Any, last: GraphState | None) -> Any:
        """Store the output of an agent that returned; return the values for the thread."""
        if isinstance(values, PhaseResult):
            self.output, self.stop_reason = bounded(values.output), values.stop_reason
            return None
        if values is None and last is not None:
            if last.interrupts:
                self.output = bounded(format_question(last.interrupts))
            elif last.body is not None:
                self.output = safe_output(decode_json(last.body))
            return None
        if values is None:
            self.output = bounded(self._session.meter.text) if self._session.meter is not None else ""
            return None
        self.output = safe_output(values)
        if self._speaks and (isinstance(values, str) or not self._has_spoken):
            self.answer = self.output or ""
        return values

    @property
    def _has_spoken(self) -> bool:
        """Whether the session has text of the assistant."""
        return self._session.meter is not None and bool(self._session.meter.text)

    def report(self, ending: Ending, error: BaseException | None) -> Ending:
        """Add the results of the phase to the ending."""
        meter = self._session.meter
        stated = None if meter is None else meter.stop_reason
        output, reason = self.output, self.stop_reason
        if isinstance(error, Interrupted):
            output = bounded(format_question(error.interrupts))
        elif isinstance(error, AgentError):
            output = output if error.output is None else bounded(error.output)
            reason = error.stop_reason or reason
        if ending.result == "success":
            if stated not in (None, SUCCESS) and not self.built_in:
                failure = Failure(error=STOPPED, message=f"the agent stopped before it was done: {stated}")
                ending = Ending(held=ending.held, result="error", error=failure, checkpoint=ending.checkpoint)
                reason = stated
            reason = reason or SUCCESS
        else:
            reason = reason or (stated if stated != SUCCESS else None) or FATAL
        message = None if ending.error is None else ending.error.message
        self._session.conclude(reason, output or "", message, answer=self.answer)
        return msgspec.structs.replace(
            ending,
            output_text=output,
            stop_reason=reason,
            turns=None if meter is None else meter.turns,
            api_duration_ms=None if meter is None else meter.api_duration_ms,
        )
