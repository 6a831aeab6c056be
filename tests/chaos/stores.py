"""A store whose kind of rollout also writes down each ending, in the transaction that ends it."""

from collections import defaultdict
from collections.abc import Sequence

from tests.support.checker import Endings
from tests.support.snapshot import Snapshot, take

from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Storage, Tx
from perdure.kernel.storage.schema import Table, integer, text
from perdure.kernel.storage.sqlite import SqliteStorage
from perdure.rollouts.model import TASK, EndedRollout, RolloutKind
from perdure.rollouts.service import Rollouts
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.stores import TABLES as PERDURE_TABLES
from perdure.runtime.stores import DatabaseKinds

ENDINGS = Table(
    "chaos_endings",
    (integer("ns"), text("rollout_id"), text("id"), text("status")),
    key=("ns", "rollout_id", "id"),
)
TABLES = (*PERDURE_TABLES, ENDINGS)
_QUICK_CHECK = statement("PRAGMA quick_check")
_ALL = statement("SELECT rollout_id, status FROM chaos_endings")


async def _write_down(tx: Tx, ended: Sequence[EndedRollout]) -> None:
    rows = [(tx.ns, rollout_id, tx.ids.hex(24), status) for rollout_id, status, *_ in ended]
    await tx.insert_many(ENDINGS, rows)


async def _endings(tx: Tx) -> Endings:
    told: dict[str, list[str]] = defaultdict(list)
    for rollout_id, status in await tx.all(_ALL):
        told[rollout_id].append(status)
    return told


def open_storage(url: str, *, timeout: float = 10.0) -> Storage:
    """The database at a path or a PostgreSQL URL."""
    if "://" not in url:
        return SqliteStorage(url, TABLES)
    from perdure.kernel.storage.postgres import PostgresStorage

    return PostgresStorage(url, TABLES, timeout=timeout)


def store_over(storage: Storage, namespace: str, watchdog_interval: float) -> DatabaseLightningStore:
    """The contract over an open database."""
    kinds = DatabaseKinds(RolloutKind(TASK, on_ended=_write_down))
    rollouts = Rollouts(storage, kinds, namespace=namespace)
    rollouts.watchdog.start(watchdog_interval)
    return DatabaseLightningStore(rollouts)


async def read(storage: Storage, namespace: str) -> tuple[Snapshot, Endings]:
    """What a namespace of an open database holds, and how its rollouts ended."""
    snapshot = await take(storage, namespace)
    return snapshot, await storage.read(_endings)


async def damaged_pages(tx: Tx) -> list[str]:
    """What SQLite finds wrong in its own file."""
    return [str(row[0]) for row in await tx.all(_QUICK_CHECK) if row[0] != "ok"]
