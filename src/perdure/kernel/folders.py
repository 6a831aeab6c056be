"""Folders below a root that only their owner can enter."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def make_folder(folder: Path, root: Path) -> None:
    """Make a folder below the root, for its owner alone; a link that leads out of the root is refused."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in (*reversed(folder.parents), folder):
        if each.is_relative_to(root) and each != root and not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)
            # What is written below it is only as durable as its name is.
            sync_folder(each.parent)
    if not folder.resolve().is_relative_to(root.resolve()):
        raise OSError(errno.ELOOP, "a link leads out of its folder", str(folder))


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
