"""Retention of data without a deletion request: all policies in one place."""

from __future__ import annotations

from typing import Self

import msgspec

from perdure.kernel.config import Settings

DAY = 86_400.0


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds for which each kind of data is kept; None keeps it. All other data is kept.

    Data that an open run needs is kept at any age.
    """

    audit: float | None = 90 * DAY
    """Audit entries."""
    keys: float | None = DAY
    """Idempotency keys, with their answers."""
    delivered: float | None = 7 * DAY
    """Delivered entries of the outbox."""
    dead: float | None = 30 * DAY
    """Dead letters."""
    jobs: float | None = 7 * DAY
    """Ended jobs of the server."""
    statistics: float | None = 30 * DAY
    """Queue statistics per minute."""
    usage: float | None = 400 * DAY
    """Usage per hour."""
    spans: float | None = None
    """Spans of ended rollouts, runs and phases; the rollouts, runs and phases stay."""
    rollouts: float | None = None
    """Ended rollouts of the queue, except runs, phases and jobs."""
    threads: float | None = None
    """Unchanged threads, with their runs."""
    temporary: float | None = 7 * DAY
    """Threads of a single run that callers do not keep, with the run; also those of failed temporary runs."""
    runs: float | None = None
    """Rollouts, attempts and spans of deleted or threadless runs; None keeps them as long as threads."""
    workflow_runs: float | None = None
    """Workflow runs that ended with everything they started, with their phases and approvals."""
    messaging: float | None = None
    """Conversations without a message."""
    sessions: float | None = None
    """Logs of agent sessions that have not changed."""
    memory: float | None = None
    """Days of memory."""
    removed: float = 60.0
    """Deleted threads and runs, which callers no longer see."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Read the policies from the settings, which are in days."""

        def seconds(days: float | None) -> float | None:
            return None if days is None else days * DAY

        return cls(
            audit=seconds(settings.retention_audit),
            keys=seconds(settings.retention_keys),
            delivered=seconds(settings.retention_delivered),
            dead=seconds(settings.retention_dead),
            jobs=seconds(settings.retention_jobs),
            statistics=seconds(settings.retention_statistics),
            usage=seconds(settings.retention_usage),
            spans=seconds(settings.retention_spans),
            rollouts=seconds(settings.retention_rollouts),
            threads=seconds(settings.retention_threads),
            temporary=seconds(settings.retention_temporary),
            runs=seconds(settings.retention_runs),
            workflow_runs=seconds(settings.retention_workflow_runs),
            messaging=seconds(settings.retention_messaging),
            sessions=seconds(settings.retention_sessions),
            memory=seconds(settings.retention_memory),
        )
