"""Connections to PostgreSQL: pools for each event loop, their settings, and what their errors mean."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncpg

from perdure.kernel import errors

if TYPE_CHECKING:
    Pool = asyncpg.Pool[asyncpg.Record]
    Connection = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]

LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    ConnectionError,
    OSError,
)
"""The connection is gone, or the server is going or not yet up."""

CONTENDED = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.UniqueViolationError)
"""Two transactions met; running the operation again decides between them."""

_ERRORS: tuple[tuple[type[BaseException], type[errors.StorageError]], ...] = (
    (asyncpg.DiskFullError, errors.StorageFull),
    (asyncpg.OutOfMemoryError, errors.StorageUnavailable),
    (asyncpg.TooManyConnectionsError, errors.StorageUnavailable),
    (asyncpg.ReadOnlySQLTransactionError, errors.ReadOnlyDatabase),
    (asyncpg.InsufficientPrivilegeError, errors.ReadOnlyDatabase),
    (asyncpg.QueryCanceledError, errors.DeadlineExceeded),
    (asyncpg.LockNotAvailableError, errors.DeadlineExceeded),
    (asyncpg.InvalidAuthorizationSpecificationError, errors.StorageUnavailable),
    (asyncpg.InvalidCatalogNameError, errors.StorageUnavailable),
    (TimeoutError, errors.DeadlineExceeded),
    *((lost, errors.StorageUnavailable) for lost in LOST),
)


def translate(error: BaseException, where: str) -> BaseException:
    """PostgreSQL's error as one of ours, without the connection's secrets; anything else as it is."""
    for theirs, ours in _ERRORS:
        if isinstance(error, theirs):
            return ours(f"PostgreSQL at {where}: {str(error) or type(error).__name__}")
    if isinstance(error, asyncpg.PostgresError):
        return errors.StorageError(f"PostgreSQL at {where}: {error}")
    return error


def describe(dsn: str) -> str:
    """Host, port and database of a URL, fit for a message."""
    parts = urlsplit(dsn)
    return f"{parts.hostname or 'localhost'}:{parts.port or 5432}{parts.path}"


class PlainConnection(asyncpg.Connection[asyncpg.Record]):
    """Our settings are local to a transaction, so that a released connection needs no reset."""

    def get_reset_query(self) -> str:
        return ""


def keep_alive(connection: Any) -> None:
    """A half-open socket must be noticed: probe it when idle, and give up on unanswered data."""
    transport = getattr(connection, "_transport", None)
    raw = transport.get_extra_info("socket") if transport is not None else None
    if raw is None or raw.family not in (socket.AF_INET, socket.AF_INET6):
        return
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 20_000)):
        if hasattr(socket, option):
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class Pools:
    """A pool of connections for each event loop that uses the database."""

    def __init__(self, dsn: str, *, size: int, timeout: float, pgbouncer: bool) -> None:
        self.dsn = dsn
        self.where = describe(dsn)
        self._size = size
        self._timeout = timeout
        self._pgbouncer = pgbouncer
        self._pools: dict[asyncio.AbstractEventLoop, asyncio.Task[Pool]] = {}

    async def get(self, prepare: Callable[[Pool], Awaitable[None]]) -> Pool:
        """The running loop's pool; `prepare` is awaited once when it is made."""
        loop = asyncio.get_running_loop()
        task = self._pools.get(loop)
        if task is None:
            task = self._pools[loop] = loop.create_task(self._open(prepare))
        try:
            return await asyncio.shield(task)
        except BaseException:
            if task.done() and (task.cancelled() or task.exception() is not None):
                self._pools.pop(loop, None)
            raise

    async def _open(self, prepare: Callable[[Pool], Awaitable[None]]) -> Pool:
        pool = await asyncpg.create_pool(
            self.dsn,
            min_size=0,
            max_size=self._size,
            max_inactive_connection_lifetime=60.0,
            timeout=min(self._timeout, 10.0),
            command_timeout=self._timeout,
            connection_class=PlainConnection,
            init=self._init,
            **self.options(),
        )
        try:
            await prepare(pool)
        except BaseException:
            pool.terminate()
            raise
        return pool

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"server_settings": {"application_name": "perdure"}}
        if self._pgbouncer:
            options["statement_cache_size"] = 0
        return options

    @staticmethod
    async def _init(connection: Any) -> None:
        keep_alive(connection)

    async def close(self) -> None:
        """Close the running loop's pool in order, and what other loops left behind at once."""
        here = asyncio.get_running_loop()
        for loop, task in list(self._pools.items()):
            del self._pools[loop]
            if not task.done() or task.cancelled() or task.exception() is not None:
                task.cancel()
            elif loop is here:
                await _close_pool(task.result())
            elif not loop.is_closed():
                loop.call_soon_threadsafe(task.result().terminate)

    async def close_here(self) -> None:
        """Close only the running loop's pool."""
        task = self._pools.pop(asyncio.get_running_loop(), None)
        if task is not None and task.done() and not task.cancelled() and task.exception() is None:
            await _close_pool(task.result())


async def _close_pool(pool: Pool) -> None:
    try:
        await asyncio.wait_for(pool.close(), 5.0)
    except (TimeoutError, *LOST):
        pool.terminate()
