"""Schedules from cron files: the row of each name takes its definition from the file."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from perdure.jobs.model import JobRegistry
from perdure.kernel.errors import PerdureError
from perdure.schedules.conditions import Conditions
from perdure.schedules.job_target import JOB_FIELD, PAYLOAD_FIELD, SCHEDULE_FIELD, JobTarget
from perdure.schedules.model import FILE, NewSchedule
from perdure.schedules.service import Schedules
from perdure.workflows.definition import Cron
from perdure.workflows.definition_files import Definitions

WORKFLOW: Final = "workflow"
"""The name of the target that starts workflows."""
CONTROL: Final = frozenset({SCHEDULE_FIELD, "trigger_type", "trigger_id", "trigger_actor", "actor", "source"})
"""Keys of a context that only the server sets."""

logger = logging.getLogger(__name__)


class CronFiles:
    """Load crons as schedules of origin `file`. Changes by callers are overrides."""

    def __init__(self, schedules: Schedules, handlers: JobRegistry, conditions: Conditions) -> None:
        self._schedules = schedules
        self._handlers = handlers
        self._conditions = conditions

    async def take(self, definitions: Definitions) -> str | None:
        """Load the crons into their rows; return a summary of the changes, or None.

        A cron with an unknown handler is dropped. A cron with an unknown condition fires without it. The
        crons of a file with an error stay as they were.
        """
        wanted = [
            schedule
            for file, cron in definitions.crons
            if (schedule := self._build_schedule(file, cron)) is not None
        ]
        synced = await self._schedules.sync(FILE, wanted, keeping=definitions.broken)
        for name, reason in synced.refused.items():
            logger.error("the cron %s cannot be loaded: %s", name, reason)
        changes = [
            f"{len(names)} {'cron' if len(names) == 1 else 'crons'} {what}"
            for what, names in (
                ("added", synced.added),
                ("changed", synced.changed),
                ("removed", synced.removed),
            )
            if names
        ]
        return ", ".join(changes) or None

    def _build_schedule(self, file: str, cron: Cron) -> NewSchedule | None:
        """Return the schedule of a cron; None if this server cannot start its target."""
        if cron.handler is not None and cron.handler not in self._handlers:
            logger.warning("%s: unknown handler %r; the cron %s is dropped", file, cron.handler, cron.name)
            return None
        unless = None if cron.condition is None else cron.condition.unless
        if unless is not None:
            self._conditions.warn_unknown(unless, f"{file}: cron {cron.name}")
        context = _check_context(file, cron)
        payload: dict[str, Any]
        if cron.handler is not None:
            target, payload = JobTarget.name, {JOB_FIELD: cron.handler, PAYLOAD_FIELD: context}
        else:
            target, payload = WORKFLOW, {"workflow": cron.workflow, "context": context}
        try:
            return self._schedules.definition(
                target,
                cron.schedule,
                name=cron.name,
                timezone=cron.timezone,
                enabled=cron.enabled,
                jitter=cron.jitter,
                overlap=cron.overlap,
                misfire=cron.misfire,
                timeout=cron.timeout,
                unless=unless,
                payload=payload,
                origin=FILE,
                file=file,
            )
        except PerdureError as error:
            logger.error("%s: the cron %s cannot be loaded: %s", file, cron.name, error.message)
            return None


def _check_context(file: str, cron: Cron) -> Mapping[str, Any]:
    """Return the context of a cron without the keys that only the server sets."""
    taken = sorted(CONTROL & cron.context.keys())
    if taken:
        logger.warning("%s: the context must not have %s; left out", file, ", ".join(taken))
    return {key: value for key, value in cron.context.items() if key not in CONTROL}
