"""The shipped contract suite on SQLite and PostgreSQL, and a part of it in memory, behind the wrapper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.rollouts.engines import Engine, Engines

from perdure import LightningStore
from perdure.testing.contract import *  # noqa: F403
from perdure.testing.contract import Harness

ENGINES = ("sqlite", "postgres")
IN_MEMORY = {
    "TestAddOtelSpan",
    "TestManyCallers",
    "TestManyThreads",
    "TestNamespaces",
    "TestPages",
    "TestRepeatedCalls",
    "TestSequencesInParallel",
    "TestStore",
    "TestWaiters",
    "TestWaiting",
    "TestWatchdogOfItsOwn",
    "TestWatchdogRuns",
}
"""The wrapper's methods, threads, waits and the watchdog. The engine below is SQLite, as with a file."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" in metafunc.fixturenames:
        in_memory = metafunc.cls is not None and metafunc.cls.__name__ in IN_MEMORY
        engines = (*ENGINES, "memory") if in_memory else ENGINES
        metafunc.parametrize("engine", engines, indirect=True)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    with closing(Engines(tmp_path_factory.mktemp("contract"))) as opened:
        yield opened


@pytest.fixture
def engine(request: pytest.FixtureRequest, engines: Engines) -> Engine:
    if request.param == "postgres":
        return engines.get(request.getfixturevalue("shared_database_url"))
    return engines.get(request.param)


@pytest.fixture
def store(engine: Engine) -> LightningStore:
    return engine.in_new_namespace()


@pytest.fixture
async def harness(engine: Engine) -> Harness:
    return await engine.harness()
