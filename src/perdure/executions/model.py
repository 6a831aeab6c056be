"""Phases and their executions: records and pure rules. Everything here is pure.

A phase is a rollout of the kind `phase` in the queue `workflows`: a part of a workflow run, or a turn of a
chat. This module connects the domains that create phases, execute them, and record their executions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, get_args

import msgspec

from perdure.kernel.errors import InvalidInput, NotFound
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import EndReport

PHASE: Final = "phase"
WORKFLOWS_QUEUE: Final = "workflows"

TriggerType = Literal["webhook", "cron", "chat", "api"]

BUILT_IN: Final = "perdure."
"""Prefix of the names of built-in agents, which execute only phases and have no assistants."""


SUCCESS: Final = "success"
UNKNOWN: Final = "unknown"
"""Stop reason of an agent that ended without reporting whether it was done."""
TRUNCATED: Final = "error_truncated"
"""Stop reason of an agent whose answer was cut, such as by the limit of its model."""
FATAL: Final = "error_fatal"
"""Stop reason of an attempt that ended with an error."""
TOOL: Final = "error_tool"
QUOTA: Final = "error_quota"
"""Stop reason of an agent that its provider refuses temporarily: it is deferred, not failed."""
EXIT: Final = "error_exit_"
"""Prefix of the stop reason of a failed command; its exit code follows."""
SKIPPED: Final = "skipped"
RELEASED: Final = "released"
"""Stop reason of an attempt that its worker handed back; another attempt follows."""
CONDITION_MET: Final = "condition_met"
CONDITION_NOT_MET: Final = "condition_not_met"
SOFT: Final = frozenset({UNKNOWN, TRUNCATED})
"""Stop reasons of failures after which a loop may continue."""
CHAT: Final = "chat"
"""Skill of the turns of chats."""
MAX_ERROR: Final = 1000
"""Maximum length of the error of an execution."""
NOT_RENDERED: Final = "InputNotRendered"
"""Error of a phase whose input could not be rendered."""


def is_soft(success: bool | None, stop_reason: str | None) -> bool:
    """Return whether an execution failed in a way that a loop may retry: neither crashed nor refused."""
    return success is False and stop_reason in SOFT


Outcome = Literal["succeeded", "skipped", "deferred", "failed"]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)


def parse_workflow_name(skill: str) -> str:
    """Return the workflow of a skill such as `workflow:label`; for a chat, the skill itself."""
    workflow, _, _ = skill.partition(":")
    return workflow


def get_outcome(success: int, stop_reason: str | None) -> Outcome:
    """Return the outcome of an ended execution. A deferred execution is neither done nor failed."""
    if success:
        return "succeeded"
    if stop_reason == SKIPPED:
        return "skipped"
    return "deferred" if stop_reason in (QUOTA, RELEASED) else "failed"


def error_text(error: str) -> str:
    """Return an error as a text of limited length that every database accepts."""
    return error[:MAX_ERROR].replace("\0", "\N{REPLACEMENT CHARACTER}")


def check_not_built_in(name: str) -> str:
    """Refuse the name of a built-in agent for another agent."""
    if name.startswith(BUILT_IN):
        raise InvalidInput(
            f"agent {name!r}: names that begin with {BUILT_IN!r} are reserved for built-in agents"
        )
    return name


class ExecutionSeed(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that all executions of a phase share."""

    trigger_type: TriggerType
    trigger_id: str
    skill: str
    """`workflow:label`, or `chat`."""
    label: str | None = None
    """Label of the phase within its workflow, such as `review_fix_1`."""
    repo: str | None = None
    issue_number: int | None = None
    workflow_run_id: str | None = None


class NewPhase(msgspec.Struct, frozen=True, kw_only=True):
    """A phase to create; its texts are JSON and are stored unchanged.

    It is executed by an agent, or by the agent of an assistant with the assistant's configuration.
    """

    input: str
    """A small pointer from which the input is rendered when the phase is claimed, or the input itself."""
    execution: ExecutionSeed
    agent: str | None = None
    assistant: str | None = None
    """Id of an assistant, or name of an agent that workers have registered."""
    rollout_id: str | None = None
    parent: str | None = None
    """Workflow run that the phase belongs to."""
    timeout_seconds: float | None = None
    """Timeout of an attempt; by default that of a run."""
    max_attempts: int = 1
    """Maximum number of attempts if it fails. Attempts lost by a worker do not count."""
    retry_seconds: float | None = None
    """Pause before every failure is retried; without it, only temporary errors are retried."""
    free_lapses: int = 0
    """Number of attempts lost by workers that do not count."""
    priority: int = 0
    delay: int = 0
    """Delay before it may start, in microseconds."""
    metadata: str = "{}"
    thread_id: str | None = None
    """Thread to continue in, with its stored state; by default a new thread."""
    keeps_thread: bool = False
    """Whether the thread is kept after the phase has ended."""
    stream_mode: str | None = None
    """Modes of its stream, as a JSON list; by default the values."""
    resume: str | None = None
    """Answer to the interrupt at which the thread stopped."""


class PhaseStarter(Protocol):
    """Port that creates and ends phases inside a transaction; `runtime/` connects it."""

    async def create(self, tx: Tx, requests: Sequence[NewPhase]) -> list[str | NotFound]:
        """Create phases in new threads. Return the rollout id of each.

        It locks no existing rows, so a handler of a kind may call it.
        """
        ...

    async def enter(self, tx: Tx, requests: Sequence[NewPhase]) -> list[str | NotFound]:
        """Create phases in the threads that they name. A missing thread is created if it is to be kept.

        The lines of the threads are locked: an operation calls this before it locks anything else.
        """
        ...

    async def load(self, tx: Tx, rollout_ids: Sequence[str]) -> LoadedPhases:
        """Lock phases, with their lines and attempts."""
        ...

    async def cancel(self, tx: Tx, loaded: LoadedPhases) -> list[str]:
        """End the loaded phases that have not ended. Return their ids.

        Threads of phases that wait for an answer are abandoned.
        """
        ...


class LoadedPhases(Protocol):
    """Phases that a transaction has locked."""

    @property
    def live(self) -> list[str]:
        """Return the phases that have not ended."""
        ...


@dataclass(slots=True)
class PhaseReport(EndReport):
    """Report of a worker at the end of an attempt."""

    output: str | None = None
    """Text that the agent returned."""
    stop_reason: str | None = None
    turns: int | None = None
    api_duration_ms: int | None = None
    error: str | None = None
    """Error of the attempt, as a text."""


# --- the input --------------------------------------------------------------------------------------------


class PhaseOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A claimed phase whose input is to be rendered."""

    rollout_id: str
    parent: str | None
    attempt: int
    agent: str
    input: Any
    """The stored input: a decoded pointer."""


class PhaseInput(msgspec.Struct, frozen=True, kw_only=True):
    """Input of a claimed phase, or the error: then the attempt fails and nothing is executed."""

    input: Any = None
    error: str | None = None


class PhaseInputs(Protocol):
    """Port that renders the inputs of claimed phases, outside of any transaction."""

    async def render(self, ns: int, orders: Sequence[PhaseOrder]) -> Sequence[PhaseInput]: ...
