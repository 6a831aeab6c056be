"""Rules of requests to workers. Everything here is pure: no I/O, no clock, no randomness."""

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
"""How long a worker may stop renewing a claimed request before another worker gets it."""
MAX_ANSWER: Final = 16 << 20
"""Maximum length of an answer, in characters of JSON."""
MAX_MESSAGE: Final = 2000

LIMITS: Final = encode_json(
    Limits(unresponsive_seconds=LEASE_SECONDS, max_attempts=5, retry_condition=(UNRESPONSIVE,))
)
"""The limits of a request's attempts; the deadline of the request ends all of them."""

GRAPH_REQUEST_KIND: Final = RolloutKind(GRAPH_REQUEST, final=True)


class UnreadableState(PerdureError):
    """The types of the graph refuse a state: its first input was invalid, or the types have changed since."""

    code = "unreadable_state"
    http_status = 422


_REFUSALS: Final = {
    error.code
    for error in (InvalidInput, BadRequest, NotFound, Conflict, NotSupported, AgentError, UnreadableState)
}
"""Codes of errors that a worker may answer with instead of a value."""


def build_refusal(code: str, message: str) -> Exception:
    """Build the error of a worker's answer; codes that it must not use become an error of the agent."""
    error = error_named(code, message[:MAX_MESSAGE]) if code in _REFUSALS else None
    return error or AgentError(message[:MAX_MESSAGE])


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
    """A request whose deadline has passed."""

    ns: int
    id: str
