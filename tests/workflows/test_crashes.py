"""The crash matrix: crashes before and after the commit of every operation of the engine change no result."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
from tests.threads.support import open_storage
from tests.workflows.crash_stories import STORIES
from tests.workflows.crash_world import Death, Teller, Told, engine_operations

from perdure.testing.clock import ManualClock

SAMPLE = 12
"""Number of random crashes per run on PostgreSQL; `./dev chaos` runs all on both engines."""


@asynccontextmanager
async def teller(url: str) -> AsyncIterator[Teller]:
    clock, opened = ManualClock(), count()
    # Each process gets its own seed of ids.
    teller = Teller(lambda: open_storage(url, clock=clock, seed=next(opened)), clock)
    try:
        yield teller
    finally:
        await teller.close()


def rows_of(told: dict[str, Told], *, every: bool) -> Iterator[tuple[str, Death]]:
    """Yield the points of a crash: once per operation, or at every call of every operation."""
    engine = engine_operations()
    met: set[str] = set()
    for name, each in told.items():
        for operation in sorted(each.calls.keys() & engine):
            numbers = range(1, each.calls[operation] + 1) if every else [1] * (operation not in met)
            met.add(operation)
            for number in numbers:
                yield from ((name, Death(operation, number, after)) for after in (False, True))


async def explore(url: str, *, every: bool, sample: int | None = None) -> int:
    """Run the stories once without a crash, and once per crash. Return the number of crashes."""
    async with teller(url) as tells:
        told = {name: await tells.tell(story) for name, story in STORIES.items()}
        missing = engine_operations() - {operation for each in told.values() for operation in each.calls}
        assert not missing, f"no story goes through {sorted(missing)}"
        rows = list(rows_of(told, every=every))
        assert len(rows) >= 2 * len(engine_operations())
        chosen = rows if sample is None else random.sample(rows, sample)
        for name, death in chosen:
            again = await tells.tell(STORIES[name], death)
            assert again.died, f"{name}: {death} did not happen"
            for kind, wanted in told[name].state.items():
                assert again.state[kind] == wanted, f"{name}, {death}: {kind}"
    return len(chosen)


@pytest.mark.timeout(300)
async def test_every_operation_outlives_a_crash_on_sqlite(tmp_path: Path) -> None:
    await explore(str(tmp_path / "test.db"), every=False)


@pytest.mark.timeout(300)
async def test_operations_outlive_a_crash_on_postgres(database_url: str) -> None:
    await explore(database_url, every=False, sample=SAMPLE)
