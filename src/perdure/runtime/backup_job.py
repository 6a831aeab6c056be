"""Backups on a schedule: a job of the server, which keeps the latest files of a directory."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perdure.jobs.model import JobContext
from perdure.kernel.config import Settings
from perdure.kernel.storage.port import Storage
from perdure.runtime.backups import make_backup
from perdure.runtime.services import state_folder

logger = logging.getLogger(__name__)

BACKUP_JOB = "backup"
BACKUP_SECONDS = 6 * 3600.0
"""How long a backup may take."""


class ScheduledBackup:
    """Makes backups of the server's database. It is registered where `backup_schedule` is set."""

    def __init__(self, storage: Storage, settings: Settings) -> None:
        self._settings = settings
        self.folder = Path(settings.backup_dir or state_folder(settings, storage) / "backups")
        self.success_time: float | None = None
        """When this process last made a backup, in epoch seconds."""

    async def run(self, context: JobContext, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Make a backup, then delete the oldest ones beyond those that are kept."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        made = await make_backup(
            self._settings.database_url, self.folder / f"perdure-{stamp}.backup", self._settings
        )
        self.success_time = time.time()
        removed = self._remove_old()
        logger.info("backup %s: %.1f MB; %d old ones were removed", made.path, made.bytes / 1e6, removed)
        return {"path": made.path, "bytes": made.bytes, "removed": removed}

    def _remove_old(self) -> int:
        # The names sort by time.
        made = sorted(self.folder.glob("perdure-*.backup"))
        old = made[: max(len(made) - self._settings.backup_keep, 0)]
        for path in old:
            path.unlink()
        return len(old)
