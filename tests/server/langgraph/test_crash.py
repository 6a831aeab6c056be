"""kill -9 of the server process in the middle of a graph of 30 steps: the run continues where it was."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from tests.kernel.support import until
from tests.server.langgraph.project import project
from tests.server.langgraph.run_support import (
    collected,
    data_of,
    new_thread,
    serving_on,
    until_thread,
)
from tests.server.otlp_support import ENGINES

from perdure.testing.serving import ServerProcess

TOP = 30
STOP_AT = 15
QUICKLY = {"BG_JOB_HEARTBEAT": "1"}
"""A dead worker is detected after a second."""


@pytest.fixture(params=ENGINES)
def mortal(
    request: pytest.FixtureRequest, tmp_path: Path, shared_postgres_url: str, shared_redis_url: str
) -> Iterator[ServerProcess]:
    """Start a server that a test may kill and restart on the same port and database."""
    folder = project(tmp_path / "project", ("stairs", "steps"))
    with serving_on(request.param, folder, shared_postgres_url, shared_redis_url, **QUICKLY) as started:
        yield started


class Stairs:
    """The files of a run of `stairs`."""

    def __init__(self, folder: Path) -> None:
        self.trace = folder / "trace"
        self.gate = folder / "gate"

    @property
    def input(self) -> dict[str, Any]:
        return {
            "n": 0,
            "top": TOP,
            "stop_at": STOP_AT,
            "trace": str(self.trace),
            "gate": str(self.gate),
        }

    @property
    def done(self) -> list[int]:
        return [int(line) for line in self.trace.read_text().split()] if self.trace.exists() else []

    async def until_at_the_gate(self) -> None:
        await until(lambda: STOP_AT in self.done)

    def check(self) -> None:
        """Check that every step ran once, except that the interrupted one ran again."""
        assert Counter(self.done) == Counter(range(1, TOP + 1)) + Counter([STOP_AT])
        assert self.done == [*range(1, STOP_AT + 1), *range(STOP_AT, TOP + 1)]


def check_events(parts: list[Any]) -> None:
    """Check that each event occurs once; events of two attempts are of the same step."""
    ids = [part.id for part in parts]
    assert len(set(ids)) == len(ids)
    assert [data["step"] for data in data_of(parts, "custom")] == list(range(1, TOP + 1))
    begun = [data["attempt"] for data in data_of(parts, "metadata")]
    assert begun == [1, 2]
    assert [list(data) for data in data_of(parts, "updates")] == [["climb"]] * TOP


async def test_a_killed_server_goes_on_and_its_reader_sees_each_event_once(
    mortal: ServerProcess, tmp_path: Path
) -> None:
    stairs, made = Stairs(tmp_path), list[Any]()
    async with get_client(url=mortal.url) as client:
        thread_id = await new_thread(client)
        stream = client.runs.stream(
            thread_id,
            "stairs",
            input=stairs.input,
            stream_mode=["custom", "updates"],
            stream_resumable=True,
            durability="sync",
            config={"recursion_limit": 100},
            on_run_created=made.append,
        )
        # The client itself reconnects with the id of the last event.
        reading = asyncio.ensure_future(collected(stream))
        await stairs.until_at_the_gate()
        await asyncio.to_thread(mortal.kill)
        stairs.gate.touch()
        await asyncio.to_thread(mortal.start)
        check_events(await reading)
        stairs.check()
        await check_the_end(client, thread_id, made[0]["run_id"])


async def check_the_end(client: LangGraphClient, thread_id: str, run_id: str) -> None:
    await until_thread(client, thread_id, "idle")
    run = await client.runs.get(thread_id, run_id)
    assert run["status"] == "success"
    assert (await client.runs.join(thread_id, run_id))["n"] == TOP
    check_events(await collected(client.runs.join_stream(thread_id, run_id, last_event_id="-1")))


async def test_a_reader_that_comes_by_its_last_event_misses_nothing(
    mortal: ServerProcess, tmp_path: Path
) -> None:
    stairs = Stairs(tmp_path)
    async with get_client(url=mortal.url) as client:
        thread_id = await new_thread(client)
        run = await client.runs.create(
            thread_id,
            "stairs",
            input=stairs.input,
            stream_mode=["custom", "updates"],
            stream_resumable=True,
            durability="sync",
            config={"recursion_limit": 100},
        )
        seen = []
        async for part in client.runs.join_stream(thread_id, run["run_id"], last_event_id="-1"):
            seen.append(part)
            if part.data == {"step": STOP_AT - 1}:
                break
        await stairs.until_at_the_gate()
    mortal.kill()
    stairs.gate.touch()
    mortal.start()
    async with get_client(url=mortal.url) as client:
        stream = client.runs.join_stream(thread_id, run["run_id"], last_event_id=seen[-1].id)
        check_events(seen + await collected(stream))
        stairs.check()


async def restarted(mortal: ServerProcess, stairs: Stairs, waiting: asyncio.Future[Any]) -> Any:
    """Stop the server gracefully, start it again, and return the awaited result."""
    await asyncio.to_thread(mortal.stop)
    stairs.gate.touch()
    await asyncio.to_thread(mortal.start)
    return await waiting


async def test_whoever_waits_is_answered_by_the_next_server(mortal: ServerProcess, tmp_path: Path) -> None:
    stairs = Stairs(tmp_path)
    async with get_client(url=mortal.url) as client:
        thread_id = await new_thread(client)
        waiting = asyncio.ensure_future(
            client.runs.wait(thread_id, "stairs", input=stairs.input, config={"recursion_limit": 100})
        )
        await stairs.until_at_the_gate()
        again = pytest.warns(UserWarning, match="attempting reconnect")
        with again:
            values: Any = await restarted(mortal, stairs, waiting)
        assert values["n"] == TOP
