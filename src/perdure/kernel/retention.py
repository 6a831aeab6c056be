"""How long data is kept that nobody deletes: every policy, in one place."""

from __future__ import annotations

from typing import Self

import msgspec

from perdure.kernel.config import Settings

DAY = 86_400.0


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """For how many seconds each kind of data is kept; None keeps it. All other data is kept."""

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
        )
