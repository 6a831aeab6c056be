"""Records of executions, their statistics and chats, as callers get them. Times are ISO 8601."""

from __future__ import annotations

from msgspec import field

from perdure.kernel.record import Record


class Execution(Record, kw_only=True):
    """An attempt of a phase or chat turn, or a phase that was skipped."""

    execution_id: str
    trigger_type: str
    """webhook, cron, chat or api."""
    trigger_id: str
    skill: str
    """`workflow:label`, or `chat`."""
    label: str | None = None
    repo: str | None = None
    issue_number: int | None = None
    workflow_run_id: str | None = None
    rollout_id: str | None = None
    attempt_id: str | None = None
    started_at: str
    finished_at: str | None = None
    success: bool | None = None
    """Null until it has ended."""
    stop_reason: str | None = None
    error: str | None = None
    turns: int | None = None
    duration_ms: int | None = None
    api_duration_ms: int | None = None
    session_id: str | None = None
    """Session that has the messages of its agent."""
    cost_usd: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class ExecutionDetail(Execution, kw_only=True):
    """An execution with its output."""

    output_text: str | None = None


class ExecutionFigures(Record, kw_only=True):
    """Number of executions, their outcomes, and their usage.

    Executions that have not ended count only in `total`.
    """

    total: int = 0
    succeeded: int = 0
    skipped: int = 0
    deferred: int = 0
    failed: int = 0
    turns: int = 0
    duration_ms: int = 0
    cost_usd: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class Bucket(ExecutionFigures, kw_only=True):
    """Figures of an hour (`2026-11-03T14`) or a day (`2026-11-03`), in UTC."""

    at: str


class ExecutionStats(Record, kw_only=True):
    """Figures of all executions, of today (UTC), by skill and by type of trigger."""

    all: ExecutionFigures
    today: ExecutionFigures
    running: int
    by_skill: dict[str, ExecutionFigures] = field(default_factory=dict)
    by_trigger: dict[str, ExecutionFigures] = field(default_factory=dict)


class ChatThread(Record, kw_only=True):
    """A chat: the usage of its turns, and the last text of the assistant."""

    trigger_id: str
    first_at: str
    last_at: str
    turns: int
    cost_usd: float
    input_tokens: int
    output_tokens: int
    last_execution_id: str
    last_text: str | None = None
    """The first 1,000 characters at most."""
