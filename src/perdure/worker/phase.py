"""Work around the agent of a phase: its workspace, its session, its output and stop reason."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.agents.context import Agent, AgentError, Interrupted
from perdure.agents.processes import NOT_STARTED
from perdure.agents.records import PhaseContext
from perdure.checkpoints.records import GraphState
from perdure.executions.model import FATAL, SUCCESS
from perdure.kernel.codec import decode_json
from perdure.threads.records import Failure
from perdure.threads.work import Assignment, Ending
from perdure.worker.outputs import bounded, format_question, safe_output
from perdure.worker.session_writer import SessionWriter
from perdure.worker.workspaces import Workspaces

logger = logging.getLogger(__name__)

STOPPED = "StoppedEarly"
"""Error of a phase whose agent returned, but reported that it was not done."""
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
