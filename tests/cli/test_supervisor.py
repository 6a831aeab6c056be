"""Several server processes on one PostgreSQL: one is killed under load, and nothing is lost."""

import asyncio
import os
import signal
import subprocess
from pathlib import Path

from perdure import open_store
from perdure.cli.hosting.supervisor import build_environment
from perdure.client.lightning import LightningStoreClient
from perdure.kernel.config import load_settings

from .command import Server

ROLLOUTS = 400
CALLERS = 8


def children_of(pid: int) -> list[int]:
    listing = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = [tuple(map(int, line.split())) for line in listing.stdout.splitlines()]
    return [child for child, parent in pairs if parent == pid]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def answers(server: Server) -> bool:
    """Return whether a process still listens; the last process that holds the socket closes it."""
    try:
        return bool(server.get("/healthz"))
    except OSError:
        return False


class Load:
    """Callers that enqueue, claim and complete through one client."""

    def __init__(self, client: LightningStoreClient) -> None:
        self.client = client
        self.queued: list[str] = []
        self.completed: list[str] = []
        self.half_way = asyncio.Event()

    async def enqueue(self, caller: int) -> None:
        for number in range(ROLLOUTS // CALLERS):
            key = f"{caller}/{number}"
            rollout = await self.client.enqueue_rollout({"key": key}, idempotency_key=key)
            self.queued.append(rollout.rollout_id)

    async def work(self, name: str) -> None:
        while len(self.completed) < ROLLOUTS:
            claimed = await self.client.dequeue_rollout(name)
            if claimed is None:
                # Other callers may hold everything; more may come in a moment.
                await asyncio.sleep(0)
                continue
            attempt = claimed.attempt
            await self.client.update_attempt(attempt.rollout_id, attempt.attempt_id, status="succeeded")
            self.completed.append(claimed.rollout_id)
            if len(self.completed) * 2 >= ROLLOUTS:
                self.half_way.set()

    async def kill(self, pid: int) -> None:
        await self.half_way.wait()
        os.kill(pid, signal.SIGKILL)

    async def run(self, victim: int) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.kill(victim))
            for caller in range(CALLERS):
                group.create_task(self.enqueue(caller))
                group.create_task(self.work(f"worker-{caller}"))


async def test_a_worker_is_killed_under_load_and_nothing_is_lost(tmp_path: Path, database_url: str) -> None:
    with Server(tmp_path, "serve", "--workers", "2", "--database", database_url) as server:
        assert server.facts["workers"] == 2
        before = children_of(server.process.pid)
        assert len(before) == 2
        async with LightningStoreClient(server.url, retry_delays=(0.1,) * 50) as client:
            load = Load(client)
            await load.run(before[0])
        assert server.get("/readyz")[0] == 200
        await until_two(server)
        assert server.stop() == 0
    assert not any(map(is_alive, before))
    assert "ended with signal 9" in server.errors
    await assert_nothing_is_lost(database_url, load)


async def until_two(server: Server) -> None:
    """Wait until a dead worker has been replaced."""
    async with asyncio.timeout(60):
        while len(children_of(server.process.pid)) != 2:
            await asyncio.to_thread(server.get, "/healthz")


async def assert_nothing_is_lost(url: str, load: Load) -> None:
    async with open_store(url) as store:
        page = await store.query_rollouts()
        assert page.total == ROLLOUTS
        assert {each.rollout_id for each in page} == set(load.queued)
        assert {each.status for each in page} == {"succeeded"}
        assert sorted(load.completed) == sorted(load.queued)


def test_ctrl_c_ends_all_of_them(tmp_path: Path, database_url: str) -> None:
    with Server(tmp_path, "serve", "--workers", "2", "--database", database_url) as server:
        workers = children_of(server.process.pid)
        assert server.stop(signal.SIGINT) == 130
    assert len(workers) == 2
    assert not any(map(is_alive, workers))
    assert "Traceback" not in server.errors


async def test_workers_end_when_their_supervisor_is_killed(tmp_path: Path, database_url: str) -> None:
    with Server(tmp_path, "serve", "--workers", "2", "--database", database_url) as server:
        workers = children_of(server.process.pid)
        assert len(workers) == 2
        server.stop(signal.SIGKILL)
        async with asyncio.timeout(60):
            while await asyncio.to_thread(answers, server):
                pass


def test_no_secret_stands_in_the_list_of_processes(tmp_path: Path, database_url: str) -> None:
    url = database_url + ("&" if "?" in database_url else "?") + "application_name=hidden-name"
    with Server(tmp_path, "serve", "--workers", "2", "--database", url) as server:
        for pid in children_of(server.process.pid):
            command = ["ps", "-o", "args=", "-p", str(pid)]
            shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            assert "--lifeline" in shown
            assert "hidden-name" not in shown
        assert server.get("/readyz")[0] == 200


def test_arguments_reach_workers_through_the_environment() -> None:
    environment = {
        "DATABASE_URL": "a",
        "PERDURE_DATABASE_URL_FILE": "b",
        "PERDURE_API_KEY_FILE": "kept",
        "X": "y",
    }
    given = {
        "database_url": "postgresql://x/y",
        "keep_traces": True,
        "cors_allow_origins": ["http://a", "http://b"],
    }
    settings = load_settings(given, environment={})
    passed = build_environment(settings, environment)
    assert passed == {
        "PERDURE_DATABASE_URL": "postgresql://x/y",
        "PERDURE_KEEP_TRACES": "true",
        "PERDURE_CORS_ALLOW_ORIGINS": "http://a,http://b",
        "PERDURE_API_KEY_FILE": "kept",
        "X": "y",
    }
    again = load_settings(environment={**passed, "PERDURE_API_KEY_FILE": ""})
    names = ("database_url", "keep_traces", "cors_allow_origins")
    assert [getattr(again, name) for name in names] == [getattr(settings, name) for name in names]
