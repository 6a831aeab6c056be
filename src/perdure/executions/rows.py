"""Rows of executions, their statistics and chats."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class SeedRow(NamedTuple):
    """Fields that the executions of a phase share."""

    rollout_id: str
    trigger_type: str
    trigger_id: str
    skill: str
    label: str | None
    repo: str | None
    issue_number: int | None
    workflow_run_id: str | None


class ExecutionRow(msgspec.Struct):
    """An execution without its output."""

    id: str
    trigger_type: str
    trigger_id: str
    skill: str
    repo: str | None
    issue_number: int | None
    started_at: int
    finished_at: int | None
    success: int | None
    turns: int | None
    duration_ms: int | None
    session_id: str | None
    cost_usd: float | None
    input_tokens: int | None
    cache_creation_input_tokens: int | None
    cache_read_input_tokens: int | None
    output_tokens: int | None
    api_duration_ms: int | None
    stop_reason: str | None
    workflow_run_id: str | None
    rollout_id: str | None
    attempt_id: str | None
    label: str | None
    error: str | None

    @property
    def tokens(self) -> int:
        """Return the sum of all tokens."""
        return (
            (self.input_tokens or 0)
            + (self.output_tokens or 0)
            + (self.cache_read_input_tokens or 0)
            + (self.cache_creation_input_tokens or 0)
        )


class WholeExecution(ExecutionRow):
    """An execution with its output."""

    output_text: str | None


class ExecutionOutputRow(NamedTuple):
    """The output of an execution."""

    id: str
    output_text: str | None


class ExecutionSessionRow(NamedTuple):
    """The session of an execution."""

    id: str
    session_id: str | None


class StatRow(msgspec.Struct):
    """Change of a row of the statistics."""

    series: str
    at: int
    name: str
    outcome: str
    shard: int
    total: int
    turns: int
    duration_ms: int
    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    cost_usd: float


class SumRow(NamedTuple):
    """Sum of the statistics for a time, a skill or a type of trigger, by outcome."""

    at: int
    name: str
    outcome: str
    total: int
    turns: int
    duration_ms: int
    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    cost_usd: float


class OpenCount(NamedTuple):
    """Number of executions that began in an hour and have not ended."""

    hour: int
    total: int


class ChatRow(msgspec.Struct):
    """A chat, or the change of a chat."""

    trigger_id: str
    first_at: int
    last_at: int
    turns: int
    input_tokens: int
    output_tokens: int
    cost_usd: float
    last_execution_id: str


class ExecutionState(NamedTuple):
    """Whether executions are open, and whether one has succeeded."""

    open: int | None
    done: int | None


class ExecutionCursor(NamedTuple):
    """Position in a list: after this execution or chat."""

    at: int
    id: str
