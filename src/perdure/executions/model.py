"""What a phase is, and what is known of its attempts. Everything here is pure.

A phase is a rollout of the kind `phase` in the queue `workflows`: a part of a workflow run, or the turn of a
chat. The domains above meet here: those that create phases, those that execute them, and the executions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, get_args

import msgspec

from perdure.kernel.errors import InvalidInput, NotFound
from perdure.kernel.storage.port import Tx

PHASE: Final = "phase"
WORKFLOWS_QUEUE: Final = "workflows"

TriggerType = Literal["webhook", "cron", "chat", "api"]

BUILT_IN: Final = "perdure."
"""How the names of built-in agents begin. They execute phases alone, and have no assistants."""


SUCCESS: Final = "success"
UNKNOWN: Final = "unknown"
"""The stop reason of an agent that ended without saying whether it was done."""
TRUNCATED: Final = "error_truncated"
"""The stop reason of an agent whose answer was cut, such as by the limit of its model."""
FATAL: Final = "error_fatal"
"""The stop reason of an attempt that ended with an error of its own."""
TOOL: Final = "error_tool"
QUOTA: Final = "error_quota"
"""The stop reason of an agent that its provider refuses for now: it is deferred, not failed."""
EXIT: Final = "error_exit_"
"""How the stop reason of a command that failed begins; its exit code follows."""
SKIPPED: Final = "skipped"
RELEASED: Final = "released"
"""The stop reason of an attempt that was handed back: another one follows."""
CONDITION_MET: Final = "condition_met"
CONDITION_NOT_MET: Final = "condition_not_met"
SOFT: Final = frozenset({UNKNOWN, TRUNCATED})
"""The stop reasons of failures after which a loop may go on."""
CHAT: Final = "chat"
"""The skill of the turns of chats."""
MAX_ERROR: Final = 1000
"""How many characters of an error an execution keeps."""
NOT_RENDERED: Final = "InputNotRendered"
"""The error of a phase whose input could not be made."""


def is_soft(success: bool | None, stop_reason: str | None) -> bool:
    """Whether an execution failed in a way that a loop may outlive: it neither crashed nor was it refused."""
    return success is False and stop_reason in SOFT


Outcome = Literal["succeeded", "skipped", "deferred", "failed"]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)


def parse_workflow_name(skill: str) -> str:
    """The workflow of a skill such as `workflow:label`; that of a chat is the skill itself."""
    workflow, _, _ = skill.partition(":")
    return workflow


def get_outcome(success: int, stop_reason: str | None) -> Outcome:
    """How an execution counts that has ended. One that is put off counts neither as done nor as failed."""
    if success:
        return "succeeded"
    if stop_reason == SKIPPED:
        return "skipped"
    return "deferred" if stop_reason in (QUOTA, RELEASED) else "failed"


def error_text(error: str) -> str:
    """What a row keeps of an error: a text that every database takes."""
    return error[:MAX_ERROR].replace("\0", "\N{REPLACEMENT CHARACTER}")


def check_not_built_in(name: str) -> str:
    """Refuse the name of a built-in agent for another one."""
    if name.startswith(BUILT_IN):
        raise InvalidInput(f"agent {name!r}: names that begin with {BUILT_IN!r} are those of built-in agents")
    return name


class ExecutionSeed(msgspec.Struct, frozen=True, kw_only=True):
    """What the executions of a phase say of what it belongs to."""

    trigger_type: TriggerType
    trigger_id: str
    skill: str
    """`workflow:label`, or `chat`."""
    label: str | None = None
    """The phase's label within its workflow: `review_fix_1`."""
    repo: str | None = None
    issue_number: int | None = None
    workflow_run_id: str | None = None


class NewPhase(msgspec.Struct, frozen=True, kw_only=True):
    """A phase to be created; its texts are JSON and are stored as they are.

    It is executed by an agent, or by the agent of an assistant with the assistant's configuration.
    """

    input: str
    """A small pointer from which its input is rendered when it is claimed, or the input itself."""
    execution: ExecutionSeed
    agent: str | None = None
    assistant: str | None = None
    """The id of an assistant, or the name of an agent that workers have registered."""
    rollout_id: str | None = None
    parent: str | None = None
    """The workflow run that it is a part of."""
    timeout_seconds: float | None = None
    """How long an attempt may take; by default as long as a run's."""
    max_attempts: int = 1
    """How often it is tried if it fails. Attempts that a worker lost do not count."""
    retry_seconds: float | None = None
    """If given, every failure is tried again after this pause; without it only a temporary error is."""
    free_lapses: int = 0
    """How many attempts may be lost with their workers without being counted."""
    priority: int = 0
    delay: int = 0
    """Microseconds before it may start."""
    metadata: str = "{}"
    thread_id: str | None = None
    """The thread to go on in, with what is stored there; without one it gets a thread of its own."""
    keeps_thread: bool = False
    """Whether the thread stays when the phase has ended."""
    stream_mode: str | None = None
    """What its stream has, as a JSON list; by default the values."""
    resume: str | None = None
    """The answer to the interrupt at which the thread stopped."""


class PhaseStarter(Protocol):
    """Creates and ends phases inside a transaction; `runtime/` connects it."""

    async def create(self, tx: Tx, requests: Sequence[NewPhase]) -> list[str | NotFound]:
        """Create phases in threads of their own; answers each with its rollout's id.

        It locks nothing that exists, so that a handler of a kind may call it.
        """
        ...

    async def enter(self, tx: Tx, requests: Sequence[NewPhase]) -> list[str | NotFound]:
        """Create phases in threads that they name; a missing one is made if it is to be kept.

        The lines of the threads are locked: an operation calls this before it locks anything else.
        """
        ...

    async def load(self, tx: Tx, rollout_ids: Sequence[str]) -> LoadedPhases:
        """Lock phases, with their lines and attempts."""
        ...

    async def cancel(self, tx: Tx, loaded: LoadedPhases) -> list[str]:
        """End those of the loaded phases that have not ended; returns their ids.

        The threads of those that wait for an answer are given up.
        """
        ...


class LoadedPhases(Protocol):
    """Phases that a transaction has locked."""

    @property
    def live(self) -> list[str]:
        """Those that have not ended."""
        ...


@dataclass(slots=True)
class PhaseReport:
    """What the worker says at the end of an attempt. The note of an attempt's end has these fields."""

    output: str | None = None
    """The text that it returned."""
    stop_reason: str | None = None
    turns: int | None = None
    api_duration_ms: int | None = None
    interrupts: str | None = None
    """The questions that its thread waits for an answer to, as JSON."""
    error: str | None = None
    """Why the attempt failed, as a text."""
    execution_id: str | None = None
    """The execution that has ended with the attempt; what follows is what it has taken."""
    session_id: str | None = None
    cost_usd: float = 0.0
    tokens: int = 0


# --- the input --------------------------------------------------------------------------------------------


class PhaseOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A phase that was claimed, whose input is to be rendered."""

    rollout_id: str
    parent: str | None
    attempt: int
    agent: str
    input: Any
    """The stored input: a pointer, decoded."""


class PhaseInput(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a claimed phase, or why there is none: then its attempt fails and nothing is executed."""

    input: Any = None
    error: str | None = None


class PhaseInputs(Protocol):
    """Renders the inputs of claimed phases, outside of any transaction."""

    async def render(self, ns: int, orders: Sequence[PhaseOrder]) -> Sequence[PhaseInput]: ...
