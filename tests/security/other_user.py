"""Processes of another user than root, and of a root that may not make namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from perdure.agents import as_user

UID = 12_345
# Python may be in the home of root: in a namespace of its own, others find their way to it.
SHOW_PYTHON = """
set -e
kept=$(mktemp -d)
mount --make-rprivate /
mount --rbind "$1" "$kept"
top=$(echo "$1" | cut -d / -f 1-2)
mount -t tmpfs -o mode=755 tmpfs "$top"
mkdir -p "$1"
mount --rbind "$kept" "$1"
shift
exec "$@"
"""


def is_root() -> bool:
    return os.geteuid() == 0


def give_away(folder: Path) -> None:
    """Give a folder, and what is in it, to the other user."""
    for place in (folder, *folder.rglob("*")):
        os.chown(place, UID, UID, follow_symlinks=False)


def as_other_user(command: list[str], *, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    """Start a command as a user that is not root; one that we are already stays."""
    if is_root():
        python = ["-I", "-S", as_user.__file__, str(UID), str(UID), str(cwd)]
        command = [sys.executable, *python, *command]
        if Path(sys.base_prefix).is_relative_to("/root"):
            command = ["unshare", "-m", "sh", "-c", SHOW_PYTHON, "sh", sys.base_prefix, *command]
    return subprocess.Popen(command, cwd=cwd, **options)


def without_namespaces(command: list[str]) -> list[str]:
    """A command that the kernel lets make no namespaces, as containers do."""
    everything = ["--dev-bind", "/", "/", "--die-with-parent"]
    if is_root():
        return ["bwrap", *everything, "--cap-drop", "CAP_SYS_ADMIN", *command]
    return ["bwrap", *everything, "--unshare-user", "--disable-userns", *command]


def shared_python() -> str:
    """A Python that every user can start."""
    return shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
