"""Each use case with a fault at its first call to the engine, at its second, at its third … to the last.

Whatever fails, the store holds what was there before or what would be there after, and goes on by itself.
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest
from tests.reliability.use_cases import USE_CASES
from tests.support.invariants import broken_rules
from tests.support.simulation import InlineStorage

from perdure import SqliteLightningStore, errors
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.kernel.storage.sqlite_engine import WriterJob
from perdure.rollouts.model import TASK, Kinds, RolloutKind
from perdure.rollouts.operations import claim, enqueue, spans, workers
from perdure.rollouts.operations.enqueue import NewRollout
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.stores import TABLES, wire
from perdure.testing.clock import ManualClock, SeededIds
from perdure.testing.contract.support import soon
from perdure.testing.faults import FULL, IOERR, Fault, FaultyDisk, FaultyStatements, Manner, sweep

Dump = dict[str, list[tuple[Any, ...]]]
START = 1_800_000_000.0


def dump(connection: apsw.Connection) -> Dump:
    """Every row of every table."""
    return {
        table.name: connection.execute(
            "SELECT * FROM " + table.name + " ORDER BY " + ", ".join(table.key)
        ).fetchall()
        for table in TABLES
    }


async def look(tx: Tx) -> int:
    """An operation that changes nothing, and shows that the store works."""
    return tx.now


class RecordingStorage(InlineStorage):
    """Keeps the state after each commit."""

    states: list[Dump]

    def commit(self, jobs: list[WriterJob]) -> None:
        super().commit(jobs)
        self.states.append(dump(self.database.connection))


class Prepared(NamedTuple):
    """A database in the state that a use case begins with, and what a clean run makes of it."""

    path: Path
    given: Any
    now: float
    states: list[Dump]


class World:
    """An open copy of the prepared database."""

    def __init__(
        self,
        path: Path,
        now: float,
        *,
        seed: int = 2,
        vfs: str | None = None,
        kind: type[InlineStorage] = InlineStorage,
    ) -> None:
        self.clock = ManualClock(now)
        self.storage = kind.open(TABLES, clock=self.clock, ids=SeededIds(seed), path=str(path), vfs=vfs)
        self.store = DatabaseLightningStore(wire(self.storage))

    def dump(self) -> Dump:
        return dump(self.storage.database.connection)

    async def health(self) -> str:
        return str((await self.storage.health())["status"])


async def prepare(name: str, folder: Path) -> Prepared:
    """Make the state that the use case begins with, and run it once without any fault."""
    path = folder / "prepared.db"
    world = World(path, START, seed=1)
    given = await USE_CASES[name][0](world.store, world.clock)
    now = world.clock.now() / 1e6 + 1
    await world.store.close()
    return Prepared(path, given, now, await _clean(name, path, given, now, folder / "clean.db"))


async def _clean(name: str, path: Path, given: Any, now: float, copy: Path) -> list[Dump]:
    shutil.copy(path, copy)
    world = World(copy, now, kind=RecordingStorage)
    assert isinstance(world.storage, RecordingStorage)
    world.storage.states = [world.dump()]
    await USE_CASES[name][1](world.store, given)
    await world.store.close()
    return world.storage.states


async def meet(name: str, prepared: Prepared, world: World, path: Path, fault: Fault) -> None:
    """Run the use case into its fault, and check what is left."""
    act = USE_CASES[name][1]
    error: errors.StorageError | None = None
    try:
        await act(world.store, prepared.given)
    except errors.StorageError as failure:
        error = failure
    assert error is None or await world.health() == "degraded"
    fault.at = 0
    await world.storage.run(look)
    assert await world.health() == "ok"
    state = world.dump()
    assert state in prepared.states, "a state between two commits"
    if error is None:
        assert state == prepared.states[-1], "an acknowledged write is lost"
    elif not isinstance(error, errors.OutcomeUnknown):
        assert state != prepared.states[-1] or state in prepared.states[:-1], "a refused write was done"
    await check_rules(world)
    if state in prepared.states[:-1]:
        await act(world.store, prepared.given)
        await check_rules(world)
    after = world.dump()
    await world.store.close()
    with_own_eyes = apsw.Connection(str(path))
    assert dump(with_own_eyes) == after, "what was read is not on the disk"
    assert with_own_eyes.pragma("quick_check") == "ok"
    with_own_eyes.close()


async def check_rules(world: World) -> None:
    for (ns,) in world.storage.database.connection.execute("SELECT id FROM namespaces").fetchall():
        assert await world.storage.read(broken_rules, ns=int(str(ns))) == []


class Kind(NamedTuple):
    """Where the fault lies, what it says, and how it fails."""

    place: str
    code: int
    manner: Manner = "refused"

    def open(self) -> FaultyDisk | FaultyStatements:
        if self.place == "disk":
            return FaultyDisk()
        return FaultyStatements(only=lambda sql: self.place in ("statement", sql))


KINDS = {
    "statement refused, full": Kind("statement", FULL),
    "statement and all, i/o error": Kind("statement", IOERR, "rolled back"),
    "commit done, answer lost": Kind("COMMIT", IOERR, "answer lost"),
    "disk full": Kind("disk", FULL),
    "disk error": Kind("disk", IOERR),
}
MORE_KINDS = {
    "statement refused, i/o error": Kind("statement", IOERR),
    "statement and all, full": Kind("statement", FULL, "rolled back"),
    "commit and all, full": Kind("COMMIT", FULL, "rolled back"),
}


def sweep_use_case(name: str, kinds: Iterable[Kind]) -> int:
    """Fail every call of the use case in its turn, in every way; returns how many there were."""
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        prepared = asyncio.run(prepare(name, folder))
        return sum(sweep_prepared(name, prepared, kind, folder / "faulty.db") for kind in kinds)


def sweep_prepared(name: str, prepared: Prepared, kind: Kind, path: Path) -> int:
    with kind.open() as source:

        def scenario(at: int) -> Fault:
            for old in path.parent.glob("faulty.db*"):
                old.unlink()
            shutil.copy(prepared.path, path)
            source.fault = Fault()
            world = World(path, prepared.now, vfs=source.name if isinstance(source, FaultyDisk) else None)
            fault = source.fault = Fault(at, kind.code, kind.manner)
            try:
                asyncio.run(meet(name, prepared, world, path, fault))
            except AssertionError as error:
                raise AssertionError(f"{name}, {kind}, call {at} ({fault.met}): {error}") from error
            return fault

        swept = len(list(sweep(scenario))) - 1
        assert swept > 0
        return swept


SAMPLE = 1


@pytest.mark.parametrize("name", USE_CASES)
def test_every_call_of(name: str) -> None:
    """One kind of fault each time, at every call; `./dev chaos` tries all of them."""
    sweep_use_case(name, random.sample(list(KINDS.values()), SAMPLE))


# --- several operations under one commit ------------------------------------------------------------------

TASKS = Kinds(RolloutKind(TASK))


def new(text: str, key: str | None = None) -> NewRollout:
    return NewRollout(input=f'"{text}"', config="{}", metadata="{}", idempotency_key=key)


async def refuse(tx: Tx) -> None:
    raise ValueError("not this one")


def group() -> list[WriterJob]:
    """Operations of five callers who came at the same time."""
    return [
        WriterJob(enqueue.enqueue_rollouts, ([new("a"), new("b", "k")], TASKS), 1),
        WriterJob(claim.claim_rollouts, ([claim.Claim("w", 1)], "default", TASK, TASKS), 1),
        WriterJob(refuse, (), 1),
        WriterJob(enqueue.start_rollouts, ([new("c")], TASKS), 1),
        WriterJob(spans.next_sequence_ids, (["ro-any", "ro-any"],), 1),
        WriterJob(workers.beat, ([workers.Beat("w", None), workers.Beat("x", "{}")],), 1),
    ]


def shape(state: Dump) -> dict[str, list[str]]:
    """A state without the names that chance gave."""
    return {
        name: sorted(re.sub(r"'(ro|at)-[0-9a-f]{8,}'", r"\1", repr(row)) for row in rows)
        for name, rows in state.items()
    }


def committed(path: Path, now: float, jobs: list[WriterJob]) -> Dump:
    """What the group leaves behind when nothing fails."""
    copy = path.with_name("clean.db")
    shutil.copy(path, copy)
    world = World(copy, now)
    world.storage.commit(jobs)
    state = world.dump()
    world.storage.database.close()
    copy.unlink()
    return state


@pytest.mark.parametrize("kind", [*KINDS, *MORE_KINDS])
def test_a_group_of_operations(kind: str, tmp_path: Path) -> None:
    chosen = (KINDS | MORE_KINDS)[kind]
    prepared = asyncio.run(prepare("dequeue", tmp_path))
    before = shape(prepared.states[0])
    with chosen.open() as source:

        def scenario(at: int) -> Fault:
            path = tmp_path / f"{at}.db"
            shutil.copy(prepared.path, path)
            source.fault = Fault()
            world = World(path, prepared.now, vfs=source.name if isinstance(source, FaultyDisk) else None)
            fault = source.fault = Fault(at, chosen.code, chosen.manner)
            jobs = group()
            world.storage.commit(jobs)
            fault.at = 0
            asyncio.run(world.storage.run(look))
            state = shape(world.dump())
            answered = [job if job.error is None else WriterJob(refuse, (), 1) for job in group_again(jobs)]
            after = shape(committed(prepared.path, prepared.now, answered))
            unknown = [isinstance(job.error, errors.OutcomeUnknown) for job in jobs]
            if all(unknown):
                assert state in (before, shape(committed(prepared.path, prepared.now, group()))), fault.met
            else:
                assert not any(unknown), "some know, some do not"
                assert state == after, (
                    f"call {at} ({fault.met}) left what was not acknowledged, or lost what was"
                )
            world.storage.database.close()
            return fault

        assert len(list(sweep(scenario))) > 1


def group_again(jobs: list[WriterJob]) -> list[WriterJob]:
    """The same group, not yet run, with the errors of the first run."""
    again = group()
    for job, done in zip(again, jobs, strict=True):
        job.error = done.error
    return again


# --- the store that people open ---------------------------------------------------------------------------


async def wave(store: SqliteLightningStore, number: int) -> tuple[set[str], set[str], set[str]]:
    """Many callers at once: what was acknowledged, what was refused, and what nobody knows."""
    names = [f"{number}.{i}" for i in range(20)]
    calls = [store.enqueue_rollout(name) for name in names[:10]]
    calls += [store.start_rollout(name) for name in names[10:]]
    answers = await soon(asyncio.gather(*calls, return_exceptions=True))
    told = dict(zip(names, answers, strict=True))
    unknown = {name for name, answer in told.items() if isinstance(answer, errors.OutcomeUnknown)}
    refused = {name for name, answer in told.items() if isinstance(answer, BaseException)} - unknown
    return set(names) - unknown - refused, refused, unknown


OPEN = ["statement refused, full", "statement and all, i/o error", "commit done, answer lost"]


@pytest.mark.parametrize("kind", OPEN)
async def test_an_open_store_loses_nothing_it_acknowledged(kind: str, tmp_path: Path) -> None:
    chosen = KINDS[kind]
    acknowledged: set[str] = set()
    maybe: set[str] = set()
    refusals = 0
    with chosen.open() as source:
        async with SqliteLightningStore(tmp_path / "db", watchdog_interval=None) as store:
            for number in range(30):
                source.fault = Fault(number + 1, chosen.code, chosen.manner)
                kept, refused, unknown = await wave(store, number)
                source.fault = Fault()
                acknowledged |= kept
                maybe |= unknown
                refusals += len(refused) + len(unknown)
                found = {rollout.input for rollout in await store.query_rollouts()}
                assert acknowledged <= found <= acknowledged | maybe
    assert refusals > 0


@pytest.mark.parametrize("kind", OPEN)
async def test_health_is_degraded_until_the_store_works_again(kind: str, tmp_path: Path) -> None:
    chosen = KINDS[kind]
    with chosen.open() as source:
        async with SqliteLightningStore(tmp_path / "db", watchdog_interval=None) as store:
            await store.update_worker("w")
            for at in range(1, 4 if chosen.place == "statement" else 2):
                assert (await store.health())["status"] == "ok"
                source.fault = Fault(at, chosen.code, chosen.manner)
                with pytest.raises(errors.StorageError):
                    await store.update_worker("w")
                health = await store.health()
                assert health["status"] == "degraded"
                assert "injected" in health["reason"]
                await store.update_worker("w")


LIMIT = statement("PRAGMA max_page_count = 80")
NO_LIMIT = statement("PRAGMA max_page_count = 1000000")


async def pragma(tx: Tx, limit: Any) -> None:
    await tx.one(limit)


async def fill(store: SqliteLightningStore) -> list[str]:
    """Queue until nothing more fits; what was acknowledged."""
    kept: list[str] = []
    while len(kept) < 1000:
        try:
            kept.append((await store.enqueue_rollout("x" * 3000)).rollout_id)
        except errors.StorageFull:
            return kept
    raise AssertionError("it never was full")


async def test_a_database_that_is_really_full(tmp_path: Path) -> None:
    async with SqliteLightningStore(tmp_path / "db", watchdog_interval=None) as store:
        storage = store.rollouts.storage
        await storage.run(pragma, LIMIT)
        kept = await fill(store)
        assert (await store.health())["status"] == "degraded"
        await storage.run(pragma, NO_LIMIT)
        kept.append((await store.enqueue_rollout("y" * 3000)).rollout_id)
        assert (await store.health())["status"] == "ok"
        assert [rollout.rollout_id for rollout in await store.query_rollouts()] == kept


def run() -> dict[str, int]:
    """Every use case, every kind of fault; how many calls were failed of each."""
    return {name: sweep_use_case(name, (KINDS | MORE_KINDS).values()) for name in USE_CASES}
