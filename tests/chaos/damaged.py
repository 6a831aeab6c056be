"""A SQLite file whose own pages are damaged is refused by name, or found to be readable, and nothing else."""

import asyncio
import random
import shutil
from pathlib import Path

from tests.chaos.scenario import Run
from tests.chaos.stores import open_storage, store_over
from tests.chaos.torn import DAMAGES
from tests.chaos.writer import NAMESPACE, make_torn_file

from perdure.kernel.errors import StorageError
from perdure.rollouts.store import DatabaseLightningStore


class DamagedFiles:
    """One file, damaged over and over."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._random = random.Random(run.seed)
        origin = run.folder / "origin" / "whole.db"
        make_torn_file(origin)
        asyncio.run(open_storage(str(origin)).close())
        self._whole = origin.read_bytes()

    def damage_all(self) -> None:
        for number in range(1, self._run.size + 1):
            damage = self._random.choice(DAMAGES)
            asyncio.run(self._damage(f"{damage.__name__} {number}", damage(self._random, self._whole)))
            self._run.advance()

    async def _damage(self, where: str, content: bytes) -> None:
        folder = self._run.folder / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        path = folder / "damaged.db"
        path.write_bytes(content)
        try:
            await self._use(path)
            self._run.facts["readable"] += 1
        except StorageError as error:
            self._run.facts[error.code] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
            self._run.found(where, [repr(error)])

    async def _use(self, path: Path) -> None:
        store = store_over(open_storage(str(path)), NAMESPACE, 3600.0)
        try:
            await read_everything(store)
            await store.enqueue_rollout({"token": "after"})
            await store.dequeue_rollout("after")
        finally:
            await store.close()


async def read_everything(store: DatabaseLightningStore) -> None:
    """Every list that the store has, to its end."""
    rollouts = await store.query_rollouts()
    for rollout in rollouts:
        await store.query_attempts(rollout.rollout_id)
        await store.query_spans(rollout.rollout_id)
    await store.query_workers()
    await store.query_resources()
    await store.statistics()


def damage_files(run: Run) -> None:
    DamagedFiles(run).damage_all()
