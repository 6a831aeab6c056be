"""Connections to PostgreSQL: the pool, its settings, and the translation of errors."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import asyncpg

from perdure.kernel import errors

POOLER = (
    "PostgreSQL at %s is behind a pooler: statements are not prepared, and hints may not arrive, so "
    "processes poll. Set pgbouncer=true to skip this check; redis_url, or the address of the server "
    "itself, is faster"
)

logger = logging.getLogger(__name__)

Pool: TypeAlias = Any
Connection: TypeAlias = Any

LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    ConnectionError,
    OSError,
)
"""The connection was lost, or the server ended it, is shutting down or is starting up."""

CONTENDED = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.UniqueViolationError)
"""Two transactions conflicted; retry the operation."""

_UNFIT = (asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError)
"""The server received a text that no column can store."""

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
    """Translate a PostgreSQL error to a perdure error, without secrets; return other errors unchanged."""
    if isinstance(error, asyncpg.ClientConfigurationError):
        return errors.InvalidInput(f"PostgreSQL at {where}: {error}")
    if isinstance(error, _UNFIT) or (
        isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError)
    ):
        # Services check such values and name them; this covers values that they missed.
        return errors.InvalidInput("a value of the call cannot be stored in the database")
    for theirs, ours in _ERRORS:
        if isinstance(error, theirs):
            return ours(f"PostgreSQL at {where}: {str(error) or type(error).__name__}")
    if isinstance(error, asyncpg.PostgresError):
        return errors.StorageError(f"PostgreSQL at {where}: {error}")
    return error


def describe(dsn: str) -> str:
    """Return host, port and database of a URL, for messages."""
    try:
        parts = urlsplit(dsn)
        hosts = parts.netloc.rpartition("@")[2]
        if "," in hosts:
            return hosts + parts.path
        return f"{parts.hostname or 'localhost'}:{parts.port or 5432}{parts.path}"
    except ValueError:
        raise errors.InvalidInput("the URL cannot be read; is its password percent-encoded?") from None


# Operations find rows by key. On a table that has just grown the planner prefers to scan it (measured: 44 ms
# instead of 1 ms for an update of 60 rows), so the other plans are disabled.
_CLOSED = ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit")


def by_key(begin: str) -> str:
    """Return the BEGIN of a transaction on a connection that a pooler shares."""
    return begin + "".join("; SET LOCAL " + name + " = off" for name in _CLOSED)


class PlainConnection(asyncpg.Connection):  # type: ignore[misc]
    """A connection with the same settings for every transaction, which needs no reset when it is released."""

    def get_reset_query(self) -> str:
        return ""


def keep_alive(connection: Any) -> None:
    """Detect half-open sockets: probe them when idle, and time out unanswered data."""
    transport = getattr(connection, "_transport", None)
    raw = transport.get_extra_info("socket") if transport is not None else None
    if raw is None or raw.family not in (socket.AF_INET, socket.AF_INET6):
        return
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 20_000),
    ):
        if hasattr(socket, option):
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class PostgresPool:
    """The pool of connections, opened on first use in the driver's own event loop."""

    def __init__(self, dsn: str, *, size: int, timeout: float, pgbouncer: bool) -> None:
        self.dsn = dsn
        self.where = describe(dsn)
        self._size = size
        self._timeout = timeout
        self._pooled = pgbouncer
        """True if a pooler may assign each transaction to another session of the server."""
        self._looked = pgbouncer
        self._opening: asyncio.Task[Pool] | None = None

    async def pool(self, prepare: Callable[[Pool], Awaitable[None]]) -> Pool:
        """Return the pool; `prepare` is awaited once when it opens."""
        task = self._opening
        if task is None:
            task = self._opening = asyncio.get_running_loop().create_task(self._open(prepare))
        try:
            return await asyncio.shield(task)
        except BaseException:
            if task is self._opening and _has_failed(task):
                self._opening = None
            raise

    async def _open(self, prepare: Callable[[Pool], Awaitable[None]]) -> Pool:
        await self._look_for_pooler()
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

    @property
    def is_pooled(self) -> bool:
        """True behind a pooler: then nothing may be set or prepared for a session."""
        return self._pooled

    async def _look_for_pooler(self) -> None:
        """Detect, before the first connection is used, whether a pooler answers.

        Behind a pooler, the process id sent at connect is not that of the process that executes statements.
        """
        if self._looked:
            return
        options = self.options() | {"statement_cache_size": 0}
        connection = await asyncpg.connect(
            self.dsn, timeout=min(self._timeout, 10.0), command_timeout=self._timeout, **options
        )
        try:
            async with connection.transaction():
                server = await connection.fetchval("SELECT pg_backend_pid()")
            if server != connection.get_server_pid() and not self._pooled:
                logger.warning(POOLER, self.where)
                self._pooled = True
            self._looked = True
        finally:
            await connection.close(timeout=2.0)

    def sizes(self) -> dict[str, int]:
        """Return the pool's limit, its open connections and its idle connections."""
        task = self._opening
        if task is None or not task.done() or _has_failed(task):
            return {"limit": self._size, "open": 0, "idle": 0}
        pool = task.result()
        return {"limit": self._size, "open": pool.get_size(), "idle": pool.get_idle_size()}

    async def single(self) -> Connection:
        """Open a connection outside the pool."""
        await self._look_for_pooler()
        return await asyncpg.connect(self.dsn, timeout=5.0, command_timeout=5.0, **self.options())

    def begin(self, text: str) -> str:
        """Return the BEGIN of a transaction on a connection of the pool."""
        return by_key(text) if self._pooled else text

    async def _init(self, connection: Connection) -> None:
        keep_alive(connection)
        if not self._pooled:
            await connection.execute("; ".join("SET " + name + " = off" for name in _CLOSED))

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"server_settings": {"application_name": "perdure"}}
        if self._pooled:
            options["statement_cache_size"] = 0
        return options

    async def close(self) -> None:
        task, self._opening = self._opening, None
        if task is None:
            return
        if not task.done() or _has_failed(task):
            task.cancel()
            return
        try:
            await asyncio.wait_for(task.result().close(), 5.0)
        except (TimeoutError, *LOST):
            task.result().terminate()


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
