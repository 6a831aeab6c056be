"""The stores: in memory, in a SQLite file, on PostgreSQL; and the port for phases of domains."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack, cast
from urllib.parse import unquote, urlsplit

from perdure.access.service import start_retention
from perdure.access.tables import TABLES as ACCESS_TABLES
from perdure.approvals.tables import TABLES as APPROVAL_TABLES
from perdure.assistants.tables import TABLES as ASSISTANT_TABLES
from perdure.checkpoints.tables import TABLES as GRAPH_TABLES
from perdure.eventlog.tables import TABLES as SESSION_TABLES
from perdure.executions.model import LoadedPhases, NewPhase, PhaseInput, PhaseInputs, PhaseOrder
from perdure.executions.operations import EXECUTIONS
from perdure.executions.tables import TABLES as EXECUTION_TABLES
from perdure.graph_requests.model import GRAPH_REQUEST_KIND
from perdure.graph_requests.tables import TABLES as GRAPH_REQUEST_TABLES
from perdure.items.tables import TABLES as ITEM_TABLES
from perdure.jobs.operations import JOB_KIND
from perdure.jobs.tables import TABLES as JOB_TABLES
from perdure.kernel.background import Background
from perdure.kernel.clock import Clock
from perdure.kernel.config import Settings, load_settings
from perdure.kernel.errors import InvalidInput, NotFound
from perdure.kernel.ids import Ids
from perdure.kernel.retention import Retention
from perdure.kernel.signals.port import Signals
from perdure.kernel.storage.labels import TABLES as LABEL_TABLES
from perdure.kernel.storage.port import Storage, Tx
from perdure.kernel.storage.sqlite import SqliteStorage
from perdure.memory.feed import MEMORY_FEED
from perdure.memory.tables import TABLES as MEMORY_TABLES
from perdure.messaging.operations.turns import CHAT
from perdure.messaging.tables import TABLES as MESSAGING_TABLES
from perdure.outbox.tables import TABLES as OUTBOX_TABLES
from perdure.rollouts.model import KEPT_TRACE, TASK, Kinds, RolloutKind
from perdure.rollouts.records import LightningStoreStatistics
from perdure.rollouts.service import Rollouts
from perdure.rollouts.span_writer import Eviction
from perdure.rollouts.store import DatabaseLightningStore
from perdure.rollouts.tables import TABLES as ROLLOUT_TABLES
from perdure.schedules.tables import TABLES as SCHEDULE_TABLES
from perdure.spans.records import Span
from perdure.statistics.tables import TABLES as STATISTICS_TABLES
from perdure.streams.tables import TABLES as STREAM_TABLES
from perdure.threads.operations import phases
from perdure.threads.operations.phases import LockedPhases
from perdure.threads.operations.settle import PHASE_KIND, RUN_KIND
from perdure.threads.policy import Policy
from perdure.threads.tables import TABLES as THREAD_TABLES
from perdure.workflows.operations.advance import WORKFLOW_LOCKS
from perdure.workflows.operations.advance import listener as workflow_listener
from perdure.workflows.override_tables import TABLES as OVERRIDE_TABLES
from perdure.workflows.tables import TABLES as WORKFLOW_TABLES

# --- phases -----------------------------------------------------------------------------------------------


class ComposedInputs:
    """Renders the inputs of phases: parts of workflow runs and turns of chats."""

    def __init__(self, workflows: PhaseInputs, chats: PhaseInputs) -> None:
        self._workflows, self._chats = workflows, chats

    async def render(self, ns: int, orders: Sequence[PhaseOrder]) -> Sequence[PhaseInput]:
        """Return the input of each phase, in order."""
        parts = [order for order in orders if order.parent is not None]
        turns = [order for order in orders if order.parent is None]
        part_inputs = iter(await self._workflows.render(ns, parts) if parts else ())
        turn_inputs = iter(await self._chats.render(ns, turns) if turns else ())
        return [next(turn_inputs if order.parent is None else part_inputs) for order in orders]


class ThreadPhases:
    """Implements `perdure.executions.model.PhaseStarter`."""

    def __init__(self, kinds: Kinds, policy: Policy) -> None:
        self._kinds = kinds
        self.policy = policy

    async def create(self, tx: Tx, requests: Sequence[NewPhase]) -> list[str | NotFound]:
        return await phases.create_phases(tx, requests, self._kinds, self.policy)

    async def enter(self, tx: Tx, requests: Sequence[NewPhase]) -> list[str | NotFound]:
        return await phases.enter_phases(tx, requests, self._kinds, self.policy)

    async def load(self, tx: Tx, rollout_ids: Sequence[str]) -> LockedPhases:
        return await phases.load_phases(tx, rollout_ids, self._kinds)

    async def cancel(self, tx: Tx, loaded: LoadedPhases) -> list[str]:
        return await phases.cancel_phases(tx, cast(LockedPhases, loaded), self.policy)


# --- stores -----------------------------------------------------------------------------------------------


TABLES = (
    *ACCESS_TABLES,
    *LABEL_TABLES,
    *OUTBOX_TABLES,
    *STREAM_TABLES,
    *GRAPH_TABLES,
    *ITEM_TABLES,
    *ASSISTANT_TABLES,
    *ROLLOUT_TABLES,
    *JOB_TABLES,
    *EXECUTION_TABLES,
    *THREAD_TABLES,
    *SCHEDULE_TABLES,
    *SESSION_TABLES,
    *GRAPH_REQUEST_TABLES,
    *WORKFLOW_TABLES,
    *APPROVAL_TABLES,
    *OVERRIDE_TABLES,
    *MEMORY_TABLES,
    *MESSAGING_TABLES,
    *STATISTICS_TABLES,
)
WATCHDOG_SECONDS = 1.0
TASK_KIND = RolloutKind(TASK)
KEPT_TRACE_KIND = RolloutKind(KEPT_TRACE, unreported=True)
MEMORY_URLS = ("memory:", "memory://", ":memory:")


class DatabaseKinds(Kinds):
    """All kinds of rollouts of a database, with the listeners of their domains.

    `phases` creates phases, also the next phase after one ends, by the policy of this database.
    """

    def __init__(self, task: RolloutKind = TASK_KIND) -> None:
        super().__init__(
            task, KEPT_TRACE_KIND, RUN_KIND.with_listeners(MEMORY_FEED), GRAPH_REQUEST_KIND, JOB_KIND
        )
        self.phases = ThreadPhases(self, Policy())
        listeners = (WORKFLOW_LOCKS, EXECUTIONS, workflow_listener(self.phases), CHAT, MEMORY_FEED)
        self.register(PHASE_KIND.with_listeners(*listeners))

    @classmethod
    def of(cls, store: DatabaseLightningStore) -> DatabaseKinds:
        """Return the kinds of a store."""
        kinds = store.rollouts.kinds
        assert isinstance(kinds, DatabaseKinds), "the store was not built by wire"
        return kinds


def wire(
    storage: Storage,
    *,
    namespace: str = "default",
    watchdog_interval: float | None = None,
    eviction: Eviction | None = None,
    retention: Retention | None = None,
) -> Rollouts:
    """Build the rollouts of a database, with all kinds and running timers."""
    rollouts = Rollouts(storage, DatabaseKinds(), namespace=namespace, eviction=eviction)
    rollouts.watchdog.start(watchdog_interval)
    if watchdog_interval is not None:
        start_retention(storage, retention or Retention())
    return rollouts


class SqliteLightningStore(DatabaseLightningStore):
    """A durable store in one SQLite file, which this process owns while it is open.

    `synchronous="NORMAL"` is faster on slow disks; after a power failure (not after a crash of the process)
    the last acknowledged writes may be missing. `served_at` is the URL at which this process serves the file;
    a process that finds the file locked reports it. An operation is stopped after `timeout` seconds.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        namespace: str = "default",
        synchronous: str = "FULL",
        timeout: float = 30.0,
        clock: Clock | None = None,
        ids: Ids | None = None,
        watchdog_interval: float | None = WATCHDOG_SECONDS,
        served_at: str | None = None,
        retention: Retention | None = None,
    ) -> None:
        storage = SqliteStorage(
            path, TABLES, synchronous=synchronous, timeout=timeout, clock=clock, ids=ids, url=served_at
        )
        super().__init__(
            wire(storage, namespace=namespace, watchdog_interval=watchdog_interval, retention=retention)
        )


class PostgresLightningStore(DatabaseLightningStore):
    """A durable store on PostgreSQL 15 or newer, shared by any number of processes.

    It connects at the first call. Every call ends within `timeout` seconds. Set `pgbouncer` behind a pooler
    in transaction mode. With `redis_url`, processes notify each other of changes through Redis instead of the
    database; all processes must then use the same Redis.
    """

    def __init__(
        self,
        dsn: str,
        *,
        namespace: str = "default",
        pool_size: int = 4,
        timeout: float = 30.0,
        pgbouncer: bool = False,
        redis_url: str | None = None,
        redis_key_prefix: str = "",
        redis_max_connections: int = 50,
        watchdog_interval: float | None = WATCHDOG_SECONDS,
        retention: Retention | None = None,
    ) -> None:
        try:
            from perdure.kernel.storage.postgres import PostgresStorage
        except ModuleNotFoundError as error:
            raise InvalidInput("PostgreSQL needs asyncpg: pip install 'perdure[postgres]'") from error
        signals = by_redis(redis_url, redis_key_prefix, redis_max_connections) if redis_url else None
        storage = PostgresStorage(
            dsn, TABLES, pool_size=pool_size, timeout=timeout, pgbouncer=pgbouncer, signals=signals
        )
        super().__init__(
            wire(storage, namespace=namespace, watchdog_interval=watchdog_interval, retention=retention)
        )


def by_redis(url: str, prefix: str, max_connections: int) -> Callable[[Background], Signals]:
    """Build the function that creates Redis signals between processes."""
    try:
        from perdure.kernel.signals.redis import RedisSignals
    except ModuleNotFoundError as error:
        raise InvalidInput("Redis needs redis-py: pip install 'perdure[redis]'") from error
    return partial(RedisSignals, url=url, prefix=prefix, max_connections=max_connections)


class InMemoryLightningStore(DatabaseLightningStore):
    """A store in memory, for experiments and tests; it ends with the process.

    When its spans take more than `eviction_memory_threshold` (bytes, or a ratio of the machine's memory up to
    1.0), those of the oldest rollouts are dropped until at most `safe_memory_threshold` is used. It is always
    thread-safe, and its watchdog is exact. `thread_safe` and `scan_debounce_seconds` exist only for
    compatibility with existing code.
    """

    def __init__(
        self,
        *,
        thread_safe: bool = True,
        eviction_memory_threshold: float | int | None = None,
        safe_memory_threshold: float | int | None = None,
        span_size_estimator: Callable[[Span], int] | None = None,
        scan_debounce_seconds: float = 0.0,
        namespace: str = "default",
        timeout: float = 30.0,
        clock: Clock | None = None,
        ids: Ids | None = None,
        watchdog_interval: float | None = WATCHDOG_SECONDS,
        retention: Retention | None = None,
    ) -> None:
        self._memory = _machine_memory()
        threshold = _threshold("eviction_memory_threshold", eviction_memory_threshold, 0.7, self._memory, 1)
        safe = int(threshold * 0.8)
        if safe_memory_threshold is not None:
            safe = _threshold("safe_memory_threshold", safe_memory_threshold, 0.0, self._memory, 0)
        if not safe < threshold:
            raise InvalidInput("safe_memory_threshold must be smaller than eviction_memory_threshold")
        self._limits = Eviction(threshold, safe, span_size_estimator)
        storage = SqliteStorage(":memory:", TABLES, timeout=timeout, clock=clock, ids=ids)
        super().__init__(
            wire(
                storage,
                namespace=namespace,
                watchdog_interval=watchdog_interval,
                eviction=self._limits,
                retention=retention,
            )
        )

    async def statistics(self) -> LightningStoreStatistics:
        statistics = await super().statistics()
        statistics["eviction_threshold_bytes"] = self._limits.threshold
        statistics["safe_threshold_bytes"] = self._limits.safe
        statistics["memory_capacity_bytes"] = self._memory
        return statistics


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 << 30


def _threshold(name: str, value: float | int | None, default: float, memory: int, least: int) -> int:
    """Return a threshold in bytes. A whole number is bytes; a fraction up to 1.0 is a share of the memory."""
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{name} must be a number of bytes or a ratio, not {value!r}")
    if isinstance(value, float):
        if not 0 <= value <= 1:
            raise InvalidInput(f"{name} as a ratio must lie between 0 and 1, not {value!r}")
        value = int(memory * value)
    if value < least:
        raise InvalidInput(f"{name} must be at least {least}, not {value!r}")
    return value


class StoreOptions(TypedDict, total=False):
    """Options of the store classes; each class accepts some of them."""

    namespace: str
    timeout: float
    watchdog_interval: float | None
    retention: Retention | None
    clock: Clock | None
    ids: Ids | None
    synchronous: str
    served_at: str | None
    pool_size: int
    pgbouncer: bool
    redis_url: str | None
    redis_key_prefix: str
    redis_max_connections: int
    thread_safe: bool
    eviction_memory_threshold: float | int | None
    safe_memory_threshold: float | int | None
    span_size_estimator: Callable[[Span], int] | None
    scan_debounce_seconds: float


def open_store(url: str | None = None, **options: Unpack[StoreOptions]) -> DatabaseLightningStore:
    """Open a store by its URL, or the store that the environment and `perdure.toml` name.

    `memory:` is a store in memory, `sqlite:///path/to/file` (or just a path) a SQLite file, and
    `postgresql://user:password@host/database` a PostgreSQL database. Options are those of the store's class;
    without a URL, missing options come from the settings.
    """
    if url is None:
        return open_configured(load_settings(), **options)
    given: dict[str, Any] = {**options}
    if url in MEMORY_URLS:
        return InMemoryLightningStore(**given)
    file = sqlite_file(url)
    if file is not None:
        return SqliteLightningStore(file, **given)
    scheme = url.partition("://")[0]
    if scheme in ("postgresql", "postgres"):
        return PostgresLightningStore(url, **given)
    raise InvalidInput(f"no store for {scheme}://; use memory:, sqlite:///path or postgresql://host/database")


def open_configured(settings: Settings, **options: Unpack[StoreOptions]) -> DatabaseLightningStore:
    """Open the store that the settings name and configure; options have precedence."""
    names = ["namespace", "watchdog_interval", "timeout"]
    if settings.database_url.startswith(("postgresql://", "postgres://")):
        names += ["pool_size", "pgbouncer"]
        names += ["redis_url", "redis_key_prefix", "redis_max_connections"]
    elif not settings.database_url.startswith(("memory:", ":memory:")):
        names += ["synchronous"]
    chosen: dict[str, Any] = {name: getattr(settings, name) for name in names}
    chosen |= {"retention": Retention.of(settings), **options}
    return open_store(settings.database_url, **cast(StoreOptions, chosen))


def sqlite_file(url: str) -> str | None:
    """Return the file that a URL names, or None for another kind of store."""
    scheme, separator, _ = url.partition("://")
    if url in MEMORY_URLS or (separator and scheme != "sqlite"):
        return None
    return _sqlite_path(url) if separator else url


def _sqlite_path(url: str) -> str:
    """Return the path of `sqlite:///relative` or `sqlite:////absolute`."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidInput(f"{url!r} is not a URL: {error}") from error
    path = unquote(parts.netloc + parts.path)
    path = path[1:] if path.startswith("/") else path
    if not path:
        raise InvalidInput("the URL names no file; write sqlite:///path/to/file")
    return path
