"""How long data is kept that nobody deletes: every policy, in one place."""

from __future__ import annotations

from typing import Self

import msgspec

from perdure.kernel.config import Settings

DAY = 86_400.0


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """For how many seconds each kind of data is kept; None keeps it. All other data is kept.

    What an open run needs is kept, whatever its age.
    """

    audit: float | None = 90 * DAY
    """Entries of the audit."""
    keys: float | None = DAY
    """Idempotency keys, with their answers."""
    delivered: float | None = 7 * DAY
    """Entries of the outbox that were delivered."""
    dead: float | None = 30 * DAY
    """Dead letters."""
    jobs: float | None = 7 * DAY
    """Jobs of the server that have ended."""
    statistics: float | None = 30 * DAY
    """Minutes of queues."""
    usage: float | None = 400 * DAY
    """Hours of usage."""
    spans: float | None = None
    """Spans of rollouts, runs and phases that have ended; what they are spans of stays."""
    rollouts: float | None = None
    """Rollouts of the queue that have ended: no runs, phases or jobs."""
    threads: float | None = None
    """Threads that nothing has changed, with their runs."""
    temporary: float | None = 7 * DAY
    """Threads that were created for one run, with it: those that callers do not keep, and those of temporary
    runs that failed."""
    runs: float | None = None
    """What is left of runs that were deleted or had no thread: rollouts, attempts and spans. Without it they
    are kept as long as threads."""
    workflow_runs: float | None = None
    """Workflow runs that have ended with all that they started, with their phases and approvals."""
    messaging: float | None = None
    """Conversations without a message."""
    sessions: float | None = None
    """Logs of agent sessions that have not changed."""
    memory: float | None = None
    """Days of memory."""
    removed: float = 60.0
    """Threads and runs that were deleted: they are out of sight at once."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """What the settings say, which count in days."""

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
