"""The built files of the dashboard, read once. Requests cannot reach files outside its folder."""

from __future__ import annotations

import gzip
import mimetypes
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parents[2] / "web" / "ui"
"""The build's folder: `./dev setup` writes it, and a wheel contains it."""
INDEX: Final = "index.html"
STAMP: Final = ".stamp"
MIN_PACKED: Final = 1024
"""Smaller files are sent uncompressed."""


class BuiltFile(NamedTuple):
    """A file: plain, and gzipped if that is smaller."""

    content: bytes
    packed: bytes | None
    media_type: str


class Build(NamedTuple):
    """A build: the page, and its other files by path."""

    page: str
    files: dict[str, BuiltFile]


def find_build(folder: Path | None = None) -> Build | None:
    """Return the build, or None if it is missing. A new build needs no restart."""
    place = folder or FOLDER
    try:
        version = (place / INDEX).stat().st_mtime_ns
    except OSError:
        return None
    return _read(place, version)


@lru_cache(maxsize=2)
def _read(folder: Path, version: int) -> Build:
    files = {
        path.relative_to(folder).as_posix(): _file(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (INDEX, STAMP)
    }
    return Build((folder / INDEX).read_text("utf-8"), files)


def _file(path: Path) -> BuiltFile:
    content = path.read_bytes()
    packed = gzip.compress(content, 9, mtime=0) if len(content) >= MIN_PACKED else None
    media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    if media_type.startswith("text/") or media_type.endswith("/javascript"):
        media_type = media_type.replace("application/javascript", "text/javascript") + "; charset=utf-8"
    return BuiltFile(content, packed if packed and len(packed) < len(content) else None, media_type)
