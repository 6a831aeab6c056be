"""Working directories of workflow runs on this machine, one per run."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from perdure.agents.context import AgentError
from perdure.kernel.folders import make_folder

_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


class Workspaces:
    """Workspaces in a folder. Later phases and retries of a run use the same workspace."""

    def __init__(self, root: str | os.PathLike[str] | None) -> None:
        self._root = None if root is None else Path(root).absolute()

    def path(self, workflow_run_id: str) -> str | None:
        """Return the path of a run's workspace, which need not exist; None if there is no folder for them."""
        return None if self._root is None else str(self._root / _checked(workflow_run_id))

    def open(self, workflow_run_id: str) -> str:
        """Create the workspace of a run if it is missing, and return it; AgentError if it cannot be used."""
        name = _checked(workflow_run_id)
        if self._root is None:
            raise AgentError("this worker has no folder for workspaces: set PERDURE_STATE_DIR")
        folder = self._root / name
        try:
            make_folder(folder, self._root)
            status = folder.lstat()
        except OSError as error:
            raise AgentError(f"the workspace cannot be created: {error.strerror}") from error
        if not stat.S_ISDIR(status.st_mode):
            raise AgentError("the workspace is not a directory: a link has its name")
        # Root gives the workspace to the user of its commands.
        if hasattr(os, "geteuid") and os.geteuid() not in (0, status.st_uid):
            raise AgentError("the workspace belongs to another user")
        return str(folder)


def _checked(workflow_run_id: str) -> str:
    if not _RUN_ID.fullmatch(workflow_run_id):
        raise AgentError("the id of the workflow run cannot be the name of a directory")
    return workflow_run_id
