"""A file system for SQLite that notes when a log is written, when it is on the disk, and who was answered."""

from __future__ import annotations

import threading
from typing import Any

import apsw

FRAME_HEADER_BYTES = 24


class Journal:
    """The order of things: `write`, `commit` (the last frame of a transaction), `sync` and `answer`."""

    def __init__(self) -> None:
        self.events: list[tuple[str, bytes]] = []
        self.syncing = threading.Event()
        self.may_sync = threading.Event()
        self.may_sync.set()

    def note(self, what: str, content: bytes = b"") -> None:
        self.events.append((what, content))

    def synced_before_its_answer(self, token: bytes) -> bool:
        """Whether the transaction that wrote `token` was on the disk when its caller was answered."""
        written = next(place for place, (_, content) in enumerate(self.events) if token in content)
        committed = self._next("commit", written)
        answered = self.events.index(("answer", token))
        return self._next("sync", committed) < answered

    def _next(self, what: str, start: int) -> int:
        """The first place of such an event from there on; beyond the end if there is none."""
        places = (place for place, (name, _) in enumerate(self.events) if name == what and place >= start)
        return next(places, len(self.events))


class RecordingVFS(apsw.VFS):
    """The system's own, watched at its logs."""

    def __init__(self, name: str, journal: Journal) -> None:
        self._journal = journal
        self.name = name
        super().__init__(name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        if flags[0] & apsw.SQLITE_OPEN_WAL:
            return _RecordingFile(name, flags, self._journal)
        return super().xOpen(name, flags)


class _RecordingFile(apsw.VFSFile):
    def __init__(self, name: str | apsw.URIFilename | None, flags: list[int], journal: Journal) -> None:
        self._journal = journal
        self._is_last = False
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        """A frame is written as its header and its page; the last one's header tells the database's size."""
        super().xWrite(data, offset)
        content = bytes(data)
        self._journal.note("commit" if self._is_last else "write", content)
        self._is_last = len(content) == FRAME_HEADER_BYTES and any(content[4:8])

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._journal.syncing.set()
        self._journal.may_sync.wait()
        super().xSync(flags)
        self._journal.note("sync")
