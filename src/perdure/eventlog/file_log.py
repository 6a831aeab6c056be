"""Logs as files: `<root>/projects/<project>/<session_id>.jsonl`.

The logs of sub-agents are in the folder `<session_id>`. A position is a byte offset. Each namespace after the
first has a separate folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import mmap
import os
import re
import stat
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from perdure.eventlog.file_lines import (
    last_number,
    next_line,
    plain_line,
    read_bytes,
    read_page,
    stamped,
    write_all,
)
from perdure.eventlog.port import (
    EDGE_BYTES,
    PAGE_BYTES,
    PAGE_LINES,
    Edges,
    Lines,
    LogInfo,
    LogName,
    check_append,
    check_blobs,
    check_digest,
    check_name,
    check_project,
    check_session_id,
    compute_digest,
    digests_in,
    get_idle_cursor,
)
from perdure.kernel.errors import InvalidInput, StorageClosed, StorageUnavailable
from perdure.kernel.files import make_folder, sync_folder

logger = logging.getLogger(__name__)

T = TypeVar("T")

SUFFIX: Final = ".jsonl"
SUB_AGENT: Final = "agent-"
"""Prefix of sub-agent files that Claude Code writes to the folder of their sessions."""
_SIDECHAIN: Final = re.compile(rb'"isSidechain"\s*:\s*true')
MAX_OPEN: Final = 128
"""Maximum number of files kept open for the next append."""
OPEN_SHARE: Final = 8
"""At most 1/8 of the process's descriptors are used for files kept open."""
NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""Errors of a path without a log."""
FIRST_BYTES: Final = 4096
TRIES: Final = 10
"""Number of tries to create a file whose folder is deleted meanwhile."""
DRAFT_SECONDS: Final = 3600.0
"""An older draft of a blob was left by a crash."""
_READ: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_APPEND: Final = os.O_RDWR | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class FileEventLog:
    """Logs in files under a folder, written by one process.

    With `sync`, an append is on the disk before it is acknowledged. Without it, a crash of the machine (not
    of the process) can lose the last lines.
    """

    def __init__(self, root: str | os.PathLike[str], *, sync: bool = True) -> None:
        self.root = Path(root)
        self._sync = sync
        self._open: OrderedDict[tuple[int, LogName], _OpenFile] = OrderedDict()
        self._lock = threading.Lock()
        self._blob_lock = threading.Lock()
        self._closed = False

    # --- the interface, in threads

    async def append(
        self, ns: int, name: LogName, bodies: Sequence[bytes], *, attempt_id: str = "", first: int = 1
    ) -> int:
        return await self._call(self.append_now, ns, name, bodies, attempt_id, first)

    async def read(
        self,
        ns: int,
        name: LogName,
        *,
        after: int = 0,
        limit: int = PAGE_LINES,
        max_bytes: int = PAGE_BYTES,
    ) -> Lines | None:
        return await self._call(self.read_now, ns, name, after, limit, max_bytes)

    async def edges(self, ns: int, names: Sequence[LogName], *, size: int = EDGE_BYTES) -> list[Edges | None]:
        return await self._call(lambda: [self._edges(ns, name, size) for name in names])

    async def logs(self, ns: int, *, project: str | None = None) -> list[LogInfo]:
        return await self._call(self._logs, ns, project)

    async def sub_agents(self, ns: int, name: LogName) -> list[LogInfo]:
        return await self._call(self._list_sub_agents, ns, check_name(name))

    async def find(self, ns: int, session_id: str) -> list[LogInfo]:
        return await self._call(self._find, ns, check_session_id(session_id))

    async def starting(self, ns: int, prefix: str, limit: int) -> list[LogInfo]:
        return await self._call(self._list_starting, ns, prefix, limit)

    async def idle(self, ns: int, seconds: float, after: LogInfo | None, limit: int) -> list[LogInfo]:
        return await self._call(self._idle, ns, seconds, after, limit)

    async def remove(self, ns: int, name: LogName, seconds: float) -> bool:
        return await self._call(self._remove, ns, check_name(name), seconds)

    async def drop_blobs(self, ns: int, seconds: float) -> int:
        return await self._call(self._drop_blobs, ns, seconds)

    async def put_blob(self, ns: int, content: bytes) -> str:
        return await self._call(self.put_blob_now, ns, content)

    async def put_blobs(self, ns: int, contents: Sequence[bytes]) -> None:
        await self._call(self.put_blobs_now, ns, contents)

    async def get_blob(self, ns: int, digest: str) -> bytes | None:
        return await self._call(self._get_blob, ns, check_digest(digest))

    async def close(self) -> None:
        await asyncio.to_thread(self.close_now)

    def close_now(self) -> None:
        """Close in this thread; see `close`."""
        with self._lock:
            self._closed = True
            files = [*self._open.values()]
            self._open.clear()
        for file in files:
            with file.lock:
                file.close()

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.to_thread(function, *args)

    # --- appending

    def append_now(
        self, ns: int, name: LogName, bodies: Sequence[bytes], attempt_id: str = "", first: int = 1
    ) -> int:
        """Append in this thread; see `append`."""
        key = ns, check_name(name)
        check_append(bodies, attempt_id, first)
        while True:
            file = self._get_open_file(key)
            with file.lock:
                if file.closed:
                    continue
                try:
                    return file.append(bodies, attempt_id, first, sync=self._sync)
                except StorageUnavailable as error:
                    if not _lacks_descriptors(error):
                        raise
                    failure = error
            if not self._close_idle():
                raise failure

    def _close_idle(self) -> int:
        """Close open files that no append uses, to free descriptors; return their number."""
        closed = 0
        with self._lock:
            files = [*self._open.values()]
        for file in files:
            if file.lock.acquire(blocking=False):
                closed += file.close()
                file.lock.release()
        return closed

    def _get_open_file(self, key: tuple[int, LogName]) -> _OpenFile:
        with self._lock:
            if self._closed:
                raise StorageClosed()
            existing = self._open.get(key)
            if existing is not None and not existing.closed:
                self._open.move_to_end(key)
                return existing
            file = self._open[key] = _OpenFile(self.path_of(*key), self.root)
            oldest = self._take_oldest(key) if len(self._open) > max_open_files() else None
        if oldest is not None:
            with oldest.lock:
                oldest.close()
        return file

    def _take_oldest(self, but: tuple[int, LogName]) -> _OpenFile | None:
        """Remove the least recently used file. A file in use stays, because its lock would block."""
        for key, file in self._open.items():
            if key != but and not file.lock.locked():
                return self._open.pop(key)
        return None

    # --- reading

    def read_now(
        self, ns: int, name: LogName, after: int = 0, limit: int = PAGE_LINES, max_bytes: int = PAGE_BYTES
    ) -> Lines | None:
        """Read in this thread; see `read`."""
        with self._open_for_reading(self.path_of(ns, check_name(name))) as descriptor:
            if descriptor is None:
                return None
            size = os.fstat(descriptor).st_size
            # A log that became shorter was replaced, so it is read from the beginning.
            after = after if after <= size else 0
            return read_page(descriptor, after, size, limit, max_bytes)

    def _edges(self, ns: int, name: LogName, wanted: int) -> Edges | None:
        path = self.path_of(ns, check_name(name))
        with self._open_for_reading(path) as descriptor:
            if descriptor is None:
                return None
            info = _build_info(name, os.fstat(descriptor))
            edge = wanted if info.size > 2 * EDGE_BYTES else EDGE_BYTES
            head = read_page(descriptor, 0, min(info.size, edge), PAGE_LINES, edge).lines
            head = head or read_page(descriptor, 0, info.size, 1, edge).lines
            reached = head[-1].after if head else 0
            begin = max(reached, info.size - edge)
            if begin > reached:
                begin = next_line(descriptor, begin, info.size)
            tail = read_page(descriptor, begin, info.size, PAGE_LINES, edge * 2)
            whole = begin == reached and tail.reached == tail.end
            return Edges(info, head, tail.lines, whole)

    def _logs(self, ns: int, project: str | None) -> list[LogInfo]:
        projects = self._get_projects(ns)
        wanted = None if project is None else check_project(project)
        names = [folder for folder in _list_folders(projects) if wanted in (None, folder)]
        logs = [info for folder in names for info in _logs(projects / folder, folder)]
        return sorted(logs, key=lambda info: info.updated_at, reverse=True)

    def _list_sub_agents(self, ns: int, name: LogName) -> list[LogInfo]:
        folder = self._get_projects(ns) / name.project / name.session_id
        logs = []
        for path in () if folder.is_symlink() else _list_files(folder):
            subpath = path.relative_to(folder).as_posix().removesuffix(SUFFIX)
            with contextlib.suppress(InvalidInput, OSError):
                sub_agent = check_name(LogName(name.project, name.session_id, subpath))
                logs.append(_build_info(sub_agent, path.lstat()))
        return logs

    def _find(self, ns: int, session_id: str) -> list[LogInfo]:
        logs = []
        projects = self._get_projects(ns)
        for project in _list_folders(projects):
            with contextlib.suppress(OSError):
                status = (projects / project / (session_id + SUFFIX)).lstat()
                if stat.S_ISREG(status.st_mode):
                    logs.append(_build_info(LogName(project, session_id), status))
        return logs

    def _list_starting(self, ns: int, prefix: str, limit: int) -> list[LogInfo]:
        projects = self._get_projects(ns)
        logs = [info for name in _list_folders(projects) for info in _logs(projects / name, name, prefix)]
        return sorted(logs, key=lambda info: (info.name.session_id, info.name.project))[:limit]

    # --- blobs

    def put_blob_now(self, ns: int, content: bytes) -> str:
        """Store in this thread; see `put_blob`."""
        self.put_blobs_now(ns, [content])
        return compute_digest(content)

    def put_blobs_now(self, ns: int, contents: Sequence[bytes]) -> None:
        """Store in this thread; see `put_blobs`.

        All files are written before the first sync, so that the disk can combine them.
        """
        check_blobs(contents)
        new = {compute_digest(content): content for content in contents}
        with self._blob_lock:
            for digest in [*new]:
                with contextlib.suppress(FileNotFoundError):
                    # Count it as stored now, because the line that names it is written later.
                    os.utime(self._get_blob_path(ns, digest))
                    del new[digest]
        with _translate_errors():
            drafts = {self._get_blob_path(ns, digest): self._get_draft(ns, digest) for digest in new}
            for draft, content in zip(drafts.values(), new.values(), strict=True):
                with _open_descriptor(draft, _APPEND | os.O_CREAT | os.O_TRUNC) as descriptor:
                    write_all(descriptor, content)
            for path, draft in drafts.items():
                if self._sync:
                    with _open_descriptor(draft, _READ) as descriptor:
                        os.fsync(descriptor)
                draft.replace(path)
            for folder in {path.parent for path in drafts} if self._sync else ():
                sync_folder(folder)

    def _get_draft(self, ns: int, digest: str) -> Path:
        """Return the draft file of a blob, in the blob's folder."""
        path = self._get_blob_path(ns, digest)
        make_folder(path.parent, self.root)
        return path.with_name(f"{digest}.{os.getpid()}.{threading.get_ident()}")

    def _get_blob(self, ns: int, digest: str) -> bytes | None:
        with self._open_for_reading(self._get_blob_path(ns, digest)) as descriptor:
            return None if descriptor is None else read_bytes(descriptor, 0, os.fstat(descriptor).st_size)

    # --- deleting

    def _idle(self, ns: int, seconds: float, after: LogInfo | None, limit: int) -> list[LogInfo]:
        before, idle = _get_micros_ago(seconds), []
        for info in sorted(self._logs(ns, None), key=get_idle_cursor):
            if info.updated_at < before and get_idle_cursor(info) > get_idle_cursor(after):
                if all(sub_agent.updated_at < before for sub_agent in self._list_sub_agents(ns, info.name)):
                    idle.append(info)
                if len(idle) == limit:
                    break
        return idle

    def _remove(self, ns: int, name: LogName, seconds: float) -> bool:
        before = _get_micros_ago(seconds)
        names = [info.name for info in self._list_sub_agents(ns, name)]
        if not all(self._remove_file((ns, log), before) for log in (*names, name)):
            return False
        folder = self._get_projects(ns) / name.project / name.session_id
        for parent, _, _ in os.walk(folder, topdown=False) if not folder.is_symlink() else ():
            with contextlib.suppress(OSError):
                Path(parent).rmdir()
        return True

    def _remove_file(self, key: tuple[int, LogName], before: int) -> bool:
        """Delete a file that has not changed since a time. A waiting append creates a new one."""
        path = self.path_of(*key)
        while True:
            file = self._get_open_file(key)
            with file.lock:
                if file.closed:
                    continue
                if path.exists() and _get_change_time(path) >= before:
                    return False
                with _translate_errors(), contextlib.suppress(FileNotFoundError):
                    path.unlink()
                    sync_folder(path.parent)
                # Only now may an append open a new file at the path.
                file.close()
                return True

    def _drop_blobs(self, ns: int, seconds: float) -> int:
        before, draft = _get_micros_ago(seconds), _get_micros_ago(max(seconds, DRAFT_SECONDS))
        old = {
            path.name: path
            for path in (self._get_namespace_folder(ns) / "blobs").glob("*/*")
            if _get_change_time(path) < (before if "." not in path.name else draft)
        }
        for log in _list_files(self._get_projects(ns)) if old else ():
            for digest in _read_digests(log):
                old.pop(digest, None)
        dropped = 0
        for path in old.values():
            with self._blob_lock, _translate_errors():
                if _get_change_time(path) < before:
                    path.unlink()
                    dropped += 1
        return dropped

    # --- paths

    def path_of(self, ns: int, name: LogName) -> Path:
        """Return the file of a log."""
        folder = self._get_projects(ns) / name.project
        if name.subpath:
            return folder / name.session_id / (name.subpath + SUFFIX)
        return folder / (name.session_id + SUFFIX)

    def _get_projects(self, ns: int) -> Path:
        return self._get_namespace_folder(ns) / "projects"

    def _get_blob_path(self, ns: int, digest: str) -> Path:
        return self._get_namespace_folder(ns) / "blobs" / digest[:2] / digest

    @contextlib.contextmanager
    def _open_for_reading(self, path: Path) -> Iterator[int | None]:
        """Open a regular file; None if the path has none, or leads through a link."""
        with contextlib.ExitStack() as stack:
            try:
                if path.parent.resolve() != self.root.resolve() / path.parent.relative_to(self.root):
                    raise OSError(errno.ELOOP, "a folder on the way is a link", str(path))
                descriptor = self._enter(stack, path)
            except OSError as error:
                if error.errno not in ABSENT:
                    with _translate_errors():
                        raise
                yield None
                return
            yield descriptor if stat.S_ISREG(os.fstat(descriptor).st_mode) else None

    def _enter(self, stack: contextlib.ExitStack, path: Path) -> int:
        """Open a file for reading. Without a free descriptor, close idle files."""
        while True:
            try:
                return stack.enter_context(_open_descriptor(path, _READ))
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS or not self._close_idle():
                    raise

    def _get_namespace_folder(self, ns: int) -> Path:
        return self.root if ns == 1 else self.root / "namespaces" / str(ns)


class _OpenFile:
    """A file kept open for appends, with the number of the last line of each attempt.

    Callers must hold its lock.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self.lock = threading.Lock()
        self.closed = False
        self._path = path
        self._root = root
        self._descriptor: int | None = None
        self._last: dict[str, int] = {}

    def append(self, bodies: Sequence[bytes], attempt_id: str, first: int, *, sync: bool) -> int:
        try:
            with _translate_errors():
                return self._append(bodies, attempt_id, first, sync=sync)
        except BaseException:
            # The write may have left half a line: the next append opens the file again and checks.
            self.close()
            raise

    def _append(self, bodies: Sequence[bytes], attempt_id: str, first: int, *, sync: bool) -> int:
        descriptor = self._open()
        if attempt_id:
            lines = self._stamp(descriptor, bodies, attempt_id, first)
        else:
            lines = [plain_line(body) for body in bodies]
        if lines:
            write_all(descriptor, b"".join(lines))
        if lines and attempt_id:
            self._last[attempt_id] = first + len(bodies) - 1
        if sync:
            # Lines written before are acknowledged now, so they must be on the disk too.
            _sync(descriptor)
        return os.fstat(descriptor).st_size

    def _stamp(self, descriptor: int, bodies: Sequence[bytes], attempt_id: str, first: int) -> list[bytes]:
        """Build the lines that the log lacks, each with its attempt and its number."""
        if attempt_id not in self._last:
            self._last[attempt_id] = last_number(descriptor, attempt_id.encode())
        last = self._last[attempt_id]
        attempt = attempt_id.encode()
        numbered = [(number, body) for number, body in enumerate(bodies, first) if number > last]
        return [stamped(body, attempt, number) for number, body in numbered]

    def _open(self) -> int:
        if self._descriptor is None:
            descriptor = self._descriptor = self._create()
            size = os.fstat(descriptor).st_size
            if size and read_bytes(descriptor, size - 1, size) != b"\n":
                # Half a line of a crash stays as its own line, which readers report.
                write_all(descriptor, b"\n")
            if not size:
                sync_folder(self._path.parent)
        return self._descriptor

    def _create(self) -> int:
        """Open or create the file. A concurrent deletion may remove its empty folder meanwhile."""
        for _ in range(TRIES):
            with contextlib.suppress(FileNotFoundError):
                make_folder(self._path.parent, self._root)
                return os.open(self._path, _APPEND | os.O_CREAT, 0o600)
        raise FileNotFoundError(errno.ENOENT, "its folder is being deleted", str(self._path))

    def close(self) -> bool:
        """Close the file; return whether that freed a descriptor."""
        self.closed = True
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
        return descriptor is not None


# --- files ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise file system errors as StorageUnavailable; the log has the details."""
    try:
        yield
    except OSError as error:
        level = logging.WARNING if error.errno in NO_DESCRIPTORS else logging.ERROR
        logger.log(level, "the event log is unavailable: %s", error)
        raise StorageUnavailable("the event log is unavailable; see the server's log") from error


def _lacks_descriptors(error: StorageUnavailable) -> bool:
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in NO_DESCRIPTORS


def max_open_files() -> int:
    """Return the maximum number of open files: a share of the process's descriptors."""
    if sys.platform == "win32":
        return MAX_OPEN
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_OPEN if soft == resource.RLIM_INFINITY else max(1, min(MAX_OPEN, soft // OPEN_SHARE))


@contextlib.contextmanager
def _open_descriptor(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    getattr(os, "fdatasync", os.fsync)(descriptor)


def _list_files(folder: Path) -> list[Path]:
    """Return the log files below a folder, in order; skip folders deleted meanwhile."""
    paths = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return sorted(path for path in paths if path.suffix == SUFFIX)


def _list_folders(parent: Path) -> list[str]:
    """Return the folders of projects, without links."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    return []


def _logs(folder: Path, project: str, prefix: str = "") -> list[LogInfo]:
    """Return the logs of sessions in a project's folder, with ids that start with `prefix`."""
    logs: list[LogInfo] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            session_id = entry.name.removesuffix(SUFFIX)
            if session_id == entry.name or not session_id.startswith(prefix):
                continue
            with contextlib.suppress(InvalidInput, OSError):
                name = LogName(project, check_session_id(session_id))
                if entry.is_file(follow_symlinks=False) and not _is_sub_agent(entry):
                    logs.append(_build_info(name, entry.stat(follow_symlinks=False)))
    return logs


def _is_sub_agent(entry: os.DirEntry[str]) -> bool:
    """Return whether Claude Code wrote the file for a sub-agent, according to its first line."""
    if not entry.name.startswith(SUB_AGENT):
        return False
    with _open_descriptor(Path(entry.path), _READ) as descriptor:
        return _SIDECHAIN.search(read_bytes(descriptor, 0, FIRST_BYTES).partition(b"\n")[0]) is not None


def _build_info(name: LogName, status: os.stat_result) -> LogInfo:
    created = min(status.st_ctime_ns, status.st_mtime_ns)
    return LogInfo(name, status.st_size, created // 1000, status.st_mtime_ns // 1000, status.st_ino)


def _get_micros_ago(seconds: float) -> int:
    return int((time.time() - seconds) * 1_000_000)


def _get_change_time(path: Path) -> int:
    """Return when a file was changed; a missing file counts as just changed."""
    try:
        return path.lstat().st_mtime_ns // 1000
    except OSError:
        return 2**62


def _read_digests(path: Path) -> Iterator[str]:
    """Yield all possible blob names in a log."""
    with contextlib.suppress(OSError), _open_descriptor(path, _READ) as descriptor:
        if os.fstat(descriptor).st_size:
            with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
                yield from digests_in(content)
