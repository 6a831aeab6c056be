"""Folders below a root that only their owner can enter."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def make_folder(folder: Path, root: Path) -> None:
    """Create a folder below the root, accessible only to its owner; refuse links out of the root."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for ancestor in (*reversed(folder.parents), folder):
        if ancestor.is_relative_to(root) and ancestor != root and not ancestor.is_dir():
            ancestor.mkdir(mode=0o700, exist_ok=True)
            # Files are durable only if the names of their folders are.
            sync_folder(ancestor.parent)
    if not folder.resolve().is_relative_to(root.resolve()):
        raise OSError(errno.ELOOP, "a link leads out of its folder", str(folder))


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
