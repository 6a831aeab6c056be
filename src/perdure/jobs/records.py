"""Records of jobs. Times are epoch seconds."""

from __future__ import annotations

from typing import Any

from perdure.kernel.record import Record


class Job(Record, kw_only=True):
    """Internal work of the server: a function that a process claims, executes and retries."""

    job_id: str
    name: str
    key: str | None = None
    """The subject of the job."""
    status: str
    """Status of its rollout: queuing, preparing, requeuing, succeeded, failed or cancelled."""
    outcome: str | None = None
    attempts: int
    created_at: float
    ended_at: float | None = None
    error: str | None = None
    """The error of its last attempt."""
    payload: dict[str, Any]
    result: dict[str, Any] | None = None
