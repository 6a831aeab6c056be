"""The rules of requests to workers. Everything here is pure: no I/O, no clock, no randomness."""

from __future__ import annotations

from typing import Final, NamedTuple

from perdure.agents.context import AgentError
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import (
    BadRequest,
    Conflict,
    InvalidInput,
    NotFound,
    NotSupported,
    PerdureError,
    error_named,
)
from perdure.rollouts.model import UNRESPONSIVE, Limits, RolloutKind

GRAPH_REQUEST: Final = "graph_request"
GRAPHS_QUEUE: Final = "graphs"

DEADLINE_SECONDS: Final = 10.0
"""How long a caller waits for a worker's answer."""
LEASE_SECONDS: Final = 3.0
"""How long a worker that claimed a request may be silent before another gets it."""
MAX_ANSWER: Final = 16 << 20
"""How many characters an answer may have as JSON."""
MAX_MESSAGE: Final = 2000

LIMITS: Final = encode_json(
    Limits(unresponsive_seconds=LEASE_SECONDS, max_attempts=5, retry_condition=(UNRESPONSIVE,))
)
"""The limits of a request's attempts; its deadline ends all of them."""

GRAPH_REQUEST_KIND: Final = RolloutKind(GRAPH_REQUEST, final=True)


class UnreadableState(PerdureError):
    """The types of the graph refuse a state: its first input was refused, or they have changed since."""

    code = "unreadable_state"
    http_status = 422


_REFUSALS: Final = {
    each.code
    for each in (InvalidInput, BadRequest, NotFound, Conflict, NotSupported, AgentError, UnreadableState)
}
"""What a worker may answer with instead of a value."""


def build_refusal(code: str, message: str) -> Exception:
    """The error that a worker answered with; one that it must not use is the agent's failure."""
    found = error_named(code, message[:MAX_MESSAGE]) if code in _REFUSALS else None
    return found or AgentError(message[:MAX_MESSAGE])


# --- rows -------------------------------------------------------------------------------------------------


class RequestRow(NamedTuple):
    """A request; its call is JSON."""

    id: str
    agent: str
    thread_id: str
    actor: str | None
    expires_at: int
    call: str


class NewAnswer(NamedTuple):
    """The answer of an attempt to a request: a value as JSON, or an error."""

    id: str
    attempt_id: str
    error_code: str | None = None
    error: str | None = None
    answer: str | None = None


class GraphAnswerRow(NamedTuple):
    """The status of a request, and its answer, if it has one."""

    status: str
    error_code: str | None
    error: str | None
    answer: str | None


class ExpiredRequestRow(NamedTuple):
    """A request that nobody waits for any more."""

    ns: int
    id: str
