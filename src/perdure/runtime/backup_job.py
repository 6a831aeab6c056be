"""Scheduled backups: a job of the server that keeps the latest files in a directory."""

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
"""Maximum seconds of a backup."""


class ScheduledBackup:
    """Backs up the server's database. It is registered if `backup_schedule` is set."""

    def __init__(self, storage: Storage, settings: Settings) -> None:
        self._settings = settings
        self.folder = Path(settings.backup_dir or state_folder(settings, storage) / "backups")
        self.success_time: float | None = None
        """When this process last finished a backup, in epoch seconds."""

    async def run(self, context: JobContext, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Create a backup, then delete the oldest ones beyond `backup_keep`."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        backup = await make_backup(
            self._settings.database_url, self.folder / f"perdure-{stamp}.backup", self._settings
        )
        self.success_time = time.time()
        removed = self._remove_old()
        logger.info("backup %s: %.1f MB; %d old ones were removed", backup.path, backup.bytes / 1e6, removed)
        return {"path": backup.path, "bytes": backup.bytes, "removed": removed}

    def _remove_old(self) -> int:
        # The names sort by time.
        backups = sorted(self.folder.glob("perdure-*.backup"))
        old = backups[: max(len(backups) - self._settings.backup_keep, 0)]
        for path in old:
            path.unlink()
        return len(old)
