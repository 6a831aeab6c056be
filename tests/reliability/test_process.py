"""Real processes: who owns a file, what a fork may do, and how a signal ends a worker."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from tests.chaos.child import Plan
from tests.chaos.handle import ROOT, Child
from tests.chaos.stores import damaged_pages, open_storage, read
from tests.support.checker import check
from tests.support.history import History

from perdure import SqliteLightningStore
from perdure.kernel.errors import DatabaseOwned
from perdure.testing.processes import alive

PROMPTLY = 15.0
"""Seconds within which a process that is asked to end has ended, however busy the machine is."""

OPEN_AND_FAIL = """
import sys
from perdure import SqliteLightningStore
from perdure import errors
try:
    SqliteLightningStore(sys.argv[1])
except errors.DatabaseOwned as error:
    print(error)
"""


def _fork(story: str, url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.reliability.forking", story, url]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Child]:
    """A process that has opened a file and works on it."""
    with Child() as child:
        child.go(Plan(url=str(tmp_path / "owned.db"), process="owner", number=1))
        assert child.listen(lambda line: b'["ok"' in line)
        yield child


# --- who owns a file --------------------------------------------------------------------------------------


def test_a_file_that_another_process_owns_is_refused_at_once_naming_it(owner: Child, tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(DatabaseOwned, match=rf"owned\.db is in use by process {owner.pid}\b"):
        SqliteLightningStore(tmp_path / "owned.db")
    assert time.monotonic() - started < 4.0
    assert owner.listen(lambda line: b'["ok"' in line), "the owner was disturbed"


async def test_the_same_process_cannot_open_a_file_twice(tmp_path: Path) -> None:
    async with SqliteLightningStore(tmp_path / "twice.db") as store:
        (tmp_path / "alias.db").symlink_to(tmp_path / "twice.db")
        for name in ("twice.db", "alias.db"):
            with pytest.raises(DatabaseOwned, match=rf"process {os.getpid()}\b"):
                SqliteLightningStore(tmp_path / name)
        await store.enqueue_rollout("still ours")
    async with SqliteLightningStore(tmp_path / "twice.db") as again:
        assert len(await again.query_rollouts()) == 1


async def test_another_process_is_refused_while_this_one_owns_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ours.db"
    async with SqliteLightningStore(path):
        command = [sys.executable, "-c", OPEN_AND_FAIL, str(path)]
        answer = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, cwd=ROOT)
    assert f"in use by process {os.getpid()};" in answer.stdout


async def test_a_lock_left_by_a_killed_process_never_blocks(owner: Child, tmp_path: Path) -> None:
    owner.kill()
    assert json.loads((tmp_path / "owned.db.lock").read_text())["pid"] == owner.pid
    async with SqliteLightningStore(tmp_path / "owned.db") as store:
        await store.enqueue_rollout("ours now")
    assert json.loads((tmp_path / "owned.db.lock").read_text())["pid"] == os.getpid()


# --- forks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "sqlite", "threaded", "postgres"])
def test_a_fork_is_refused_its_parents_store_and_does_not_hang(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    file = f"sqlite:///{tmp_path / 'forked.db'}"
    urls = {"memory": "memory:", "sqlite": file, "threaded": "threaded+" + file}
    url = urls[kind] if kind in urls else request.getfixturevalue("database_url")
    with _fork("use", url) as process:
        answer, _ = process.communicate(timeout=60)
    assert (process.returncode, answer) == (0, "done\n")


async def test_forks_that_end_leave_the_parents_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "forked.db"
    with _fork("end", str(path)) as process:
        answer, _ = await asyncio.to_thread(process.communicate, timeout=60)
    assert (process.returncode, answer) == (0, "done\n")
    storage = open_storage(str(path))
    assert await storage.read(damaged_pages) == []
    await storage.close()


async def test_a_fork_that_outlives_its_parent_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "orphaned.db"
    with _fork("outlive", str(path)) as process:
        assert process.stdout is not None
        parent, child = [int(await asyncio.to_thread(process.stdout.readline)) for _ in range(2)]
        with pytest.raises(DatabaseOwned, match=rf"process {parent}\b"):
            SqliteLightningStore(path)
        process.kill()
        process.wait()
        assert alive(child)
        async with SqliteLightningStore(path) as store:
            assert [rollout.input for rollout in await store.query_rollouts()] == ["kept"]
        # The fork ends with its stdin.
    await _until_gone(child)


async def _until_gone(pid: int) -> None:
    async with asyncio.timeout(PROMPTLY):
        while alive(pid):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# --- signals ----------------------------------------------------------------------------------------------


async def test_sigterm_ends_a_worker_in_order_and_promptly(owner: Child, tmp_path: Path) -> None:
    assert _end(owner, signal.SIGTERM) == 0
    assert b'"closed"' in owner.lines[-1]
    assert not (tmp_path / "owned.db-wal").exists()
    history = _history(owner)
    assert all(call.ended is not None for call in history)
    await _assert_consistent(str(tmp_path / "owned.db"), history)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
async def test_a_signal_that_nobody_handles_ends_a_worker_at_once(
    owner: Child, tmp_path: Path, number: signal.Signals
) -> None:
    assert _end(owner, number) != 0
    await _assert_consistent(str(tmp_path / "owned.db"), _history(owner))


async def test_sigterm_ends_a_worker_on_postgres_and_its_connections(postgres_url: str) -> None:
    with Child() as child:
        child.go(Plan(url=postgres_url, process="worker", number=1))
        assert child.listen(lambda line: b'["ok"' in line)
        assert _end(child, signal.SIGTERM) == 0
    await _assert_consistent(postgres_url, _history(child))
    connection = await asyncpg.connect(postgres_url)
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    try:
        async with asyncio.timeout(PROMPTLY):
            while await connection.fetchval(others):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        await connection.close()


def _end(child: Child, number: signal.Signals) -> int:
    """Send a signal and wait: no process of the child's session may be left."""
    started = time.monotonic()
    os.kill(child.pid, number)
    code = child.end(PROMPTLY * 2)
    assert time.monotonic() - started < PROMPTLY
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)
    return code


def _history(child: Child) -> History:
    history = History()
    history.read(child.lines)
    return history


async def _assert_consistent(url: str, history: History) -> None:
    storage = open_storage(url)
    try:
        snapshot, endings = await read(storage, "default")
    finally:
        await storage.close()
    assert check(history, snapshot, endings=endings).violations == []
