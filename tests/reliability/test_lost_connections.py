"""Each use case on PostgreSQL with the connection cut at its first statement, its second … and at the commit.

The driver runs the operation again, or finds out that it was done: the caller sees nothing of it, and the
effect is there once.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import asyncpg
import pytest
from tests.reliability import use_cases
from tests.reliability.engines import check_rules
from tests.reliability.interleaving import dump
from tests.reliability.use_cases import USE_CASES

from perdure import PostgresLightningStore
from perdure.kernel.storage.postgres_connection import PlainConnection
from perdure.rollouts.store import DatabaseLightningStore
from perdure.spans.forms import Forms
from perdure.testing.clock import ManualClock
from perdure.testing.faults import Fault

# Those that need no hand on the clock.
TIMELESS = (use_cases.nothing, use_cases.queued, use_cases.begun, use_cases.traced, use_cases.in_a_line)
EVERY = [name for name, (prepare, _) in USE_CASES.items() if prepare in TIMELESS]
CORE = [
    "enqueue_with_a_key",
    "dequeue",
    "start_attempt",
    "give_a_claim_back",
    "add_many_spans",
    "take_many_sequence_ids",
    "report_failure_that_is_retried",
    "requeue_and_edit",
    "update_workers",
    "leave_a_line",
]
CHANGING = re.compile(r"\b(ro|at|rs)-[0-9a-f]{8,12}|\b1[0-9]{15}\b")


class Cutter:
    """Cuts the connection before a statement, or between a commit and its answer."""

    def __init__(self) -> None:
        self.fault = Fault()
        self.after_commits = False

    async def pass_on(
        self, real: Callable[..., Any], connection: Any, sql: str, *args: Any, **more: Any
    ) -> Any:
        if self.after_commits:
            answer = await real(connection, sql, *args, **more)
            if sql == "COMMIT" and self.fault.comes(sql):
                connection.terminate()
                raise asyncpg.ConnectionDoesNotExistError("cut between the commit and its answer")
            return answer
        if self.fault.comes(sql):
            connection.terminate()
        return await real(connection, sql, *args, **more)


@pytest.fixture
def cutter(monkeypatch: pytest.MonkeyPatch) -> Cutter:
    return cut_connections(monkeypatch)


def cut_connections(monkeypatch: pytest.MonkeyPatch) -> Cutter:
    """Let all connections of the driver pass through a cutter."""
    made = Cutter()

    def wrap(name: str) -> Callable[..., Any]:
        real = getattr(asyncpg.Connection, name)

        async def method(self: Any, sql: str, *args: Any, **more: Any) -> Any:
            return await made.pass_on(real, self, sql, *args, **more)

        return method

    for name in ("execute", "executemany", "fetch", "fetchrow"):
        monkeypatch.setattr(PlainConnection, name, wrap(name), raising=False)
    return made


_numbers: Iterator[int] = itertools.count()


async def shape(connection: asyncpg.Connection, store: DatabaseLightningStore) -> str:
    """What is stored, without the names and times that differ from run to run."""
    rows = await dump(connection, await store.rollouts.ns())
    return "\n".join(sorted(CHANGING.sub("_", rows).splitlines()))


async def act(
    root: PostgresLightningStore, name: str, cutter: Cutter, fault: Fault
) -> DatabaseLightningStore:
    """Prepare the use case in a namespace of its own, and run it into the fault."""
    prepare, action = USE_CASES[name]
    store = root.in_namespace(f"{name} {next(_numbers)}")
    # Else the third time its spans would be stored in another form.
    store.rollouts.forms = Forms()
    given = await prepare(store, ManualClock())
    cutter.fault = fault
    await action(store, given)
    fault.at = 0
    return store


async def cut_everywhere(url: str, names: Sequence[str], cutter: Cutter) -> int:
    """Cut the connection at each statement of each use case in its turn; returns how many cuts there were."""
    cuts = 0
    connection = await asyncpg.connect(url)
    async with PostgresLightningStore(url, pool_size=1, watchdog_interval=None) as root:
        for name, cutter.after_commits in itertools.product(names, (False, True)):
            clean = await shape(connection, await act(root, name, cutter, Fault()))
            for at in itertools.count(1):
                fault = Fault(at)
                store = await act(root, name, cutter, fault)
                assert await shape(connection, store) == clean, f"{name}, cut at call {at}: {fault.met}"
                await check_rules(store)
                if fault.met is None:
                    break
                cuts += 1
    await connection.close()
    return cuts


@pytest.mark.timeout(240)
@pytest.mark.parametrize("share", range(2))
async def test_every_statement(share: int, postgres_url: str, cutter: Cutter) -> None:
    names = CORE[share::2]
    assert await cut_everywhere(postgres_url, names, cutter) > 5 * len(names)


def run(url: str) -> int:
    """The long run: every use case that needs no hand on the clock; returns how many cuts there were."""
    with pytest.MonkeyPatch.context() as patch:
        return asyncio.run(cut_everywhere(url, EVERY, cut_connections(patch)))
