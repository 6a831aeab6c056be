"""The SQLite driver: one writer thread that commits in groups, and a few reading connections."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import apsw

from perdure.kernel import errors
from perdure.kernel.background import Background
from perdure.kernel.clock import Clock, SystemClock
from perdure.kernel.ids import Ids, RandomIds
from perdure.kernel.signals.local import LocalSignals
from perdure.kernel.signals.port import Signals
from perdure.kernel.storage.ownership import Ownership
from perdure.kernel.storage.port import Check, Engine, Operation, Result, inside_operation, refuse_nested
from perdure.kernel.storage.schema import Schema, Table
from perdure.kernel.storage.sqlite_backup import check_file
from perdure.kernel.storage.sqlite_engine import MEMORY, Running, SqliteEngine, WriterJob, translate

GROUP_LIMIT = 512
READERS = 2
CLOSE_SECONDS = 5.0
"""Seconds that a close waits for the queued writes."""
AGAIN_SECONDS = 0.002
"""Seconds between interrupts of a job that is still running."""
LOOK_SECONDS = 1.0
"""Maximum seconds between checks of the jobs' deadlines and of the files."""


@dataclass(slots=True)
class QueuedJob:
    """A job and the future of its caller."""

    job: WriterJob
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


def _deliver(calls: Sequence[QueuedJob]) -> None:
    for call in calls:
        if call.future.done():
            continue
        if call.job.error is not None:
            call.future.set_exception(call.job.error)
        else:
            call.future.set_result(call.job.result)


class Writer:
    """The thread that owns the writing connection."""

    def __init__(self, engine: SqliteEngine, signals: Signals) -> None:
        self._engine = engine
        self._signals = signals
        self._urgent: deque[QueuedJob] = deque()
        self._background: deque[QueuedJob] = deque()
        self._running: list[QueuedJob] = []
        self._ready = threading.Condition(threading.Lock())
        self._closing = False
        self._dead: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="perdure-writer", daemon=True)
        self._thread.start()

    def submit(self, call: QueuedJob, *, background: bool = False) -> None:
        with self._ready:
            if self._closing or self._dead is not None:
                raise errors.StorageClosed(f"the writer has stopped: {self._dead}" if self._dead else None)
            (self._background if background else self._urgent).append(call)
            self._ready.notify()

    def stop(self) -> None:
        """Run the queued jobs, then end the thread; jobs that take too long are stopped."""
        with self._ready:
            self._closing = True
            self._ready.notify()
        late = time.monotonic() + CLOSE_SECONDS
        while self._thread.is_alive():
            job = self._engine.running.job
            if job is not None and not job.writes:
                self._engine.running.stop(job, errors.StorageClosed())
            if time.monotonic() > late:
                self._stop_jobs()
            self._thread.join(AGAIN_SECONDS)

    def _stop_jobs(self) -> None:
        """Stop the running jobs and drop the queued ones."""
        with self._ready:
            dropped = [*self._urgent, *self._background]
            self._urgent.clear()
            self._background.clear()
        self._drop(dropped, errors.StorageClosed())
        for call in list(self._running):
            self._engine.running.stop(call.job, errors.StorageClosed())

    def _main(self) -> None:
        inside_operation.set(True)
        try:
            self._build_indexes()
            while group := self._take():
                self._running = group
                self._commit(group)
        except BaseException as error:  # noqa: BLE001 - raised to the callers
            self._die(error)

    def _build_indexes(self) -> None:
        for table, index in list(self._engine.missing_indexes):
            while self._urgent:
                self._commit(self._take())
            if self._closing:
                return
            self._engine.build_index(table, index)

    def _take(self) -> list[QueuedJob]:
        """Return the next group: all queued calls, otherwise one call of the background lane."""
        with self._ready:
            while not (self._urgent or self._background or self._closing):
                self._ready.wait()
            group: list[QueuedJob] = []
            while self._urgent and len(group) < GROUP_LIMIT:
                group.append(self._urgent.popleft())
            if not group and self._background:
                group.append(self._background.popleft())
            return group

    def _commit(self, group: list[QueuedJob]) -> None:
        calls = [call for call in group if not call.future.cancelled()]
        if not calls:
            return
        hints = self._engine.commit_group([call.job for call in calls])
        if hints:
            self._signals.publish(hints)
        self._answer(calls)

    @staticmethod
    def _answer(calls: Iterable[QueuedJob]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[QueuedJob]] = {}
        for call in calls:
            by_loop.setdefault(call.loop, []).append(call)
        for loop, answered in by_loop.items():
            if not loop.is_closed():
                _call_soon(loop, _deliver, answered)

    def _die(self, error: BaseException) -> None:
        """Fail every queued job, because the thread has ended."""
        with self._ready:
            self._dead = error
            left = [*self._running, *self._urgent, *self._background]
            self._urgent.clear()
            self._background.clear()
        self._drop(left, errors.StorageClosed(f"the writer has stopped: {error}"))

    def _drop(self, calls: Sequence[QueuedJob], error: BaseException) -> None:
        for call in calls:
            call.job.error = error
        self._answer(calls)


def _call_soon(
    loop: asyncio.AbstractEventLoop,
    function: Callable[[Sequence[QueuedJob]], None],
    calls: Sequence[QueuedJob],
) -> None:
    try:
        loop.call_soon_threadsafe(function, calls)
    except RuntimeError:
        if not loop.is_closed():
            raise


class SqliteReader:
    """A reading connection and its running job."""

    __slots__ = ("connection", "running")

    def __init__(self, connection: apsw.Connection, path: str) -> None:
        self.connection = connection
        self.running = Running(path)


class SqliteStorage:
    """A SQLite database, in a file owned by this process or in memory."""

    engine: Engine = "sqlite"

    def __init__(
        self,
        path: str | os.PathLike[str],
        tables: Iterable[Table],
        *,
        synchronous: str = "FULL",
        timeout: float = 30.0,
        clock: Clock | None = None,
        ids: Ids | None = None,
        url: str | None = None,
        vfs: str | None = None,
    ) -> None:
        self.path = str(path) if str(path) == MEMORY else _absolute(path)
        self.clock: Clock = clock or SystemClock()
        self.ids: Ids = ids or RandomIds()
        self.signals: Signals = LocalSignals()
        self.timers = Background("perdure-background")
        self._pid = os.getpid()
        self._ownership = None if self.path == MEMORY else _own(Path(self.path), url)
        try:
            self._engine = SqliteEngine(
                self.path,
                Schema(tables),
                clock=self.clock,
                ids=self.ids,
                synchronous=synchronous,
                timeout=timeout,
                vfs=vfs,
            )
        except BaseException:
            self._release()
            raise
        self._engine.wants = self.signals.wanted
        self.tally = self._engine.tally
        self._writer = Writer(self._engine, self.signals)
        self._readers: ThreadPoolExecutor | None = None
        self._idle: SimpleQueue[SqliteReader] = SimpleQueue()
        self._running = [self._engine.running]
        """Jobs that can be interrupted: the writer's and the readers'."""
        self._timeout = timeout
        self._closed = False
        self._lock = threading.Lock()
        self.timers.every(min(LOOK_SECONDS, timeout / 10), self._look)

    async def run(
        self,
        operation: Operation[..., Result],
        /,
        *args: Any,
        ns: int | None = None,
        actor: str | None = None,
        before: Sequence[Check] = (),
    ) -> Result:
        job = WriterJob(operation, args, ns, actor, before)
        result: Result = await self._submit(job, background=False)
        return result

    async def background(
        self, operation: Operation[..., Result], /, *args: Any, ns: int | None = None
    ) -> Result:
        result: Result = await self._submit(WriterJob(operation, args, ns), background=True)
        return result

    def _submit(self, job: WriterJob, *, background: bool) -> asyncio.Future[Any]:
        refuse_nested()
        self._check_open()
        loop = asyncio.get_running_loop()
        call = QueuedJob(job, loop, loop.create_future())
        self._writer.submit(call, background=background)
        return call.future

    async def read(
        self,
        operation: Operation[..., Result],
        /,
        *args: Any,
        ns: int | None = None,
        before: Sequence[Check] = (),
    ) -> Result:
        """Run a reading operation; if the caller is cancelled, its statement is interrupted."""
        deadline = time.monotonic() + self._timeout
        job = WriterJob(operation, args, ns, before=before, writes=False, deadline=deadline)
        try:
            if self._engine.in_memory:
                result: Result = await self._submit(job, background=False)
                return result
            refuse_nested()
            self._check_open()
            await asyncio.get_running_loop().run_in_executor(self._pool(), self._read, job)
        except asyncio.CancelledError:
            self._stop(job, asyncio.CancelledError())
            raise
        if job.error is not None:
            raise job.error
        done: Result = job.result
        return done

    def _read(self, job: WriterJob) -> None:
        token = inside_operation.set(True)
        try:
            reader = self._new_reader() if self._idle.empty() else self._idle.get()
            try:
                self._engine.read(job, reader.connection, reader.running)
            finally:
                self._put_back(reader)
        except (apsw.Error, errors.StorageUnavailable) as error:
            job.error = translate(error, self.path)
        finally:
            inside_operation.reset(token)

    def _put_back(self, reader: SqliteReader) -> None:
        """Return a reader to the idle ones, unless its snapshot is still open.

        A debugger or profiler that holds a cursor keeps the snapshot open. Later jobs would then read old
        rows, and the write-ahead log could not be emptied.
        """
        if reader.connection.txn_state() == apsw.SQLITE_TXN_NONE:
            self._idle.put(reader)
        else:
            self._running = [running for running in self._running if running is not reader.running]
            reader.connection.close(True)

    def _new_reader(self) -> SqliteReader:
        reader = SqliteReader(self._engine.connect(), self.path)
        if not self._engine.check_file():
            reader.connection.close()
            raise errors.StorageUnavailable(self._engine.lost, public=self._engine.lost)
        self._running.append(reader.running)
        reader.running.closed = self._closed
        return reader

    def _stop(self, job: WriterJob, reason: BaseException) -> None:
        """Stop a queued or running job."""
        if any(running.stop(job, reason) for running in self._running):
            self.timers.spawn(self._interrupt(job, reason))

    async def _interrupt(self, job: WriterJob, reason: BaseException) -> None:
        """Interrupt a job until it has ended."""
        while any(running.stop(job, reason) for running in self._running):  # noqa: ASYNC110 - by a thread
            await asyncio.sleep(AGAIN_SECONDS)

    async def _look(self) -> None:
        """Stop jobs past their deadlines, and check that the files are still there."""
        self._engine.check_file()
        for running in self._running:
            job = running.job
            if job is not None and job.stopped is None and job.deadline < time.monotonic():
                reason = (
                    f"the call was stopped after {self._timeout:g} s (setting timeout); nothing was changed"
                )
                self._stop(job, errors.DeadlineExceeded(reason))

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._closed:
                raise errors.StorageClosed()
            if self._readers is None:
                self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="perdure-reader")
            return self._readers

    def _check_open(self) -> None:
        if self._closed:
            raise errors.StorageClosed()
        if os.getpid() != self._pid:
            raise errors.StorageClosed(
                f"{self.path} was opened by process {self._pid}; a forked process cannot use it"
            )
        if self._engine.lost is not None:
            raise errors.StorageUnavailable(self._engine.lost, public=self._engine.lost)

    async def health(self) -> Mapping[str, Any]:
        reason = self._engine.lost or self._engine.degraded
        indexes = [index.name for _, index in self._engine.missing_indexes]
        return {"status": "degraded" if reason else "ok", "reason": reason, "indexes_being_built": indexes}

    def free_bytes(self) -> int | None:
        """Return the free space on the disk of the file."""
        if self._engine.in_memory:
            return None
        try:
            return shutil.disk_usage(Path(self.path).absolute().parent).free
        except OSError:
            return None

    async def integrity(self) -> list[str]:
        """Check the pages, the indexes and the foreign keys, on a separate connection."""
        if self._engine.in_memory:
            return []
        self._check_open()
        return await asyncio.to_thread(check_file, Path(self.path))

    async def close(self) -> None:
        """Run the queued writes, stop the reads, checkpoint into the database file, and release it."""
        with self._lock:
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
        self.timers.close()
        self._writer.stop()
        self._stop_readers()
        while not self._idle.empty():
            self._idle.get().connection.close()
        self._engine.close()
        self.signals.close()
        self._release()

    def _stop_readers(self) -> None:
        if self._readers is None:
            return
        for running in self._running:
            running.closed = True
        while any(running.stop(running.job, errors.StorageClosed()) for running in self._running):
            time.sleep(AGAIN_SECONDS)
        self._readers.shutdown()

    def _release(self) -> None:
        if self._ownership is not None:
            self._ownership.release()


def _absolute(path: str | os.PathLike[str]) -> str:
    try:
        return str(Path(path).expanduser().resolve())
    except (ValueError, RuntimeError) as error:
        raise errors.InvalidInput(f"{os.fspath(path)!r} cannot be a path: {error}") from None


def _own(path: Path, url: str | None) -> Ownership:
    if not path.parent.is_dir():
        raise errors.StorageUnavailable(f"the directory of {path} does not exist")
    ownership = Ownership(path, url)
    try:
        ownership.lock_file()
    except BaseException:
        ownership.release()
        raise
    return ownership
