"""Scheduled jobs of the server, defined in code and stored when a process starts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from perdure.schedules.job_target import JOB_FIELD, PAYLOAD_FIELD, JobTarget
from perdure.schedules.model import CODE, Misfire, NewSchedule, Overlap
from perdure.schedules.service import Schedules

logger = logging.getLogger(__name__)


class ScheduledJobs:
    """Schedules of jobs defined in code. Callers pause and change them by overrides, which stay.

    Domains add theirs before the components of a process start.
    """

    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules
        self._definitions: dict[str, NewSchedule] = {}

    def add(
        self,
        name: str,
        expression: str,
        *,
        job: str | None = None,
        payload: Mapping[str, Any] | None = None,
        timezone: str | None = None,
        jitter: float = 0.0,
        overlap: Overlap = "skip",
        misfire: Misfire = "once",
        timeout: float | None = None,
        enabled: bool = True,
    ) -> None:
        """Schedule a job; its function is registered under `job`, or under the schedule's name."""
        self._definitions[name] = self._schedules.definition(
            JobTarget.name,
            expression,
            name=name,
            timezone=timezone,
            enabled=enabled,
            jitter=jitter,
            overlap=overlap,
            misfire=misfire,
            timeout=timeout,
            payload={JOB_FIELD: job or name, PAYLOAD_FIELD: dict(payload or {})},
            origin=CODE,
        )

    async def start(self) -> None:
        """Store the definitions. Those of other processes stay."""
        if not self._definitions:
            return
        synced = await self._schedules.sync(CODE, list(self._definitions.values()))
        for name, reason in synced.refused.items():
            logger.warning("the job %s is not scheduled: %s", name, reason)

    async def stop(self) -> None:
        """Do nothing; the component has no background task."""
