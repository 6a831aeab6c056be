"""Redis that is down, restarted, emptied, frozen or cut off: no call raises or waits, and it recovers."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.kernel.proxy import Proxy
from tests.kernel.redis_hubs import redis_client, redis_hub
from tests.kernel.support import soon, until

from perdure.kernel.signals.port import CLUSTER_REASON, Watch
from perdure.kernel.signals.redis import QUEUE, READY, RedisSignals
from perdure.kernel.signals.shared import MAX_OUTGOING
from perdure.testing.redis_server import RedisServer

AT_ONCE = 1.5
"""Maximum seconds of a call, also on a busy machine; every time limit of the driver is longer."""
TWO_POLLS = 10.0

Pair = tuple[RedisSignals, RedisSignals]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
async def pair(server: RedisServer) -> AsyncIterator[Pair]:
    async with redis_hub(server.url, "p:") as here, redis_hub(server.url, "p:") as there:
        yield here, there


def publish_at_once(signals: RedisSignals, *keys: str) -> None:
    began = time.monotonic()
    signals.publish([("things", key) for key in keys])
    signals.publish([("streams", "7/run"), (READY, QUEUE)])
    signals.mark_running(["run"], 10)
    assert time.monotonic() - began < AT_ONCE


async def until_heard(signals: RedisSignals, watch: Watch, key: str, channel: str = "things") -> None:
    """Publish until the hint arrives, which must be within 2 polls."""
    deadline = time.monotonic() + TWO_POLLS
    while key not in await watch.changed(timeout=0.05):
        signals.publish([(channel, key)])
        assert time.monotonic() < deadline


async def until_down(*hubs: RedisSignals) -> None:
    await until(lambda: all(hub.status()[0] == "down" for hub in hubs))


async def until_up(*hubs: RedisSignals) -> None:
    began = time.monotonic()
    await until(lambda: all(hub.status()[0] == "ok" for hub in hubs))
    assert time.monotonic() - began < TWO_POLLS


async def test_without_a_server_everything_works_inside_the_process(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.stop()
    with caplog.at_level(logging.WARNING, "perdure.kernel.signals.redis"):
        async with redis_hub(server.url, "p:", up=False) as hub:
            watch = hub.watch("things", ["a"])
            publish_at_once(hub, "a")
            assert await soon(watch.changed()) == {"a"}
            assert await soon(hub.try_sweep(5)), "the database's own lock decides"
            await soon(hub.end_sweep())
            await until_down(hub)
            hub.publish([("things", f"n{number}") for number in range(MAX_OUTGOING + 10)])
            assert len(hub._outgoing) <= MAX_OUTGOING
            server.start()
            await until_up(hub)
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2, texts
    assert "fails" in texts[0]
    assert texts[1].endswith("answers again")


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_it_comes_back_when_the_server_does(server: RedisServer, pair: Pair, how: str) -> None:
    here, there = pair
    watch, stream = here.watch("things", ["a", "b"]), here.watch("streams", ["7/run"])
    work = here.watch(READY, [QUEUE])
    assert await soon(stream.changed()) == {"7/run"}
    getattr(server, how)()
    publish_at_once(there, "b")
    await until_down(here, there)
    server.start()
    await until_up(here, there)
    assert await soon(watch.changed()) >= {"a"}, "who was cut off looks once"
    assert await soon(stream.changed()) == {"7/run"}
    assert await soon(work.changed()) == {QUEUE}
    await until_heard(there, watch, "b")


async def test_an_emptied_server_goes_on_carrying(server: RedisServer, pair: Pair) -> None:
    here, there = pair
    watch, work = here.watch("things", ["a"]), here.watch(READY, [QUEUE])
    async with redis_client(server.url) as client:
        await client.flushall()
    publish_at_once(there, "a")
    assert await soon(watch.changed()) == {"a"}
    assert await soon(work.changed()) == {QUEUE}


async def test_a_frozen_server_delays_nobody(server: RedisServer, pair: Pair) -> None:
    here, there = pair
    watch, work = here.watch("things", ["a"]), here.watch(READY, [QUEUE])
    server.pause()
    try:
        publish_at_once(here, "a")
        assert await soon(watch.changed()) == {"a"}
        assert await soon(work.changed()) == {QUEUE}
        began = time.monotonic()
        assert await soon(here.try_sweep(5))
        await until_down(here, there)
        assert time.monotonic() - began < TWO_POLLS
        publish_at_once(there, "a")
    finally:
        server.resume()
    await until_up(here, there)
    await until_heard(there, watch, "a")


async def test_a_frozen_server_does_not_hold_up_the_end(server: RedisServer) -> None:
    async with redis_hub(server.url, "p:") as hub:
        hub.watch(READY, [QUEUE])
        server.pause()
        publish_at_once(hub, "a")
        began = time.monotonic()
    assert time.monotonic() - began < TWO_POLLS
    server.resume()


async def test_connections_that_died_silently_are_replaced(server: RedisServer) -> None:
    async with (
        Proxy.before(server.url) as proxy,
        redis_hub(server.url, "p:") as there,
        redis_hub(proxy.url, "p:") as here,
    ):
        watch, work = here.watch("things", ["a"]), here.watch(READY, [QUEUE])
        before = proxy.connections
        proxy.trouble = "silence"
        publish_at_once(here, "a")
        assert await soon(watch.changed()) == {"a"}
        await until_down(here)
        proxy.trouble = "none"
        await until_up(here)
        assert proxy.connections > before
        await until_heard(there, watch, "a")
        await soon(work.changed())
        # The server may still send an element to a dead connection that it has not detected.
        await until_heard(there, work, QUEUE, READY)


async def test_what_the_server_refuses_is_noted_once_and_the_rest_goes_on(
    server: RedisServer, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = pair
    watch = here.watch("things", ["a"])
    async with redis_client(server.url) as client:
        await client.set("p:run:queue", "not a list")
        work = here.watch(READY, [QUEUE])
        with caplog.at_level(logging.WARNING, "perdure.kernel.signals.redis"):
            publish_at_once(there, "a")
            assert await soon(watch.changed()) == {"a"}
            await until_down(here)
            publish_at_once(there, "a")
            assert await soon(watch.changed()) == {"a"}
            await until(lambda: len(caplog.records) >= 2)
        assert "WRONGTYPE" in str(here.status()[1])
        assert there.status() == ("ok", None)
        assert len(caplog.records) == 2, "one for each hub"
        await client.delete("p:run:queue")
        publish_at_once(there)
        await until_up(here)
        assert await soon(work.changed()) == {QUEUE}


async def test_a_cluster_is_named_once_and_polled_past(
    redis_cluster_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with redis_hub(redis_cluster_url, "c:") as hub:
        with hub.watch(READY, [QUEUE, "another"]):
            for number in range(50):
                publish_at_once(hub, f"{number}")
            hub.mark_running([f"run-{number}" for number in range(50)], 5.0)
            await until(lambda: hub.status() == ("down", CLUSTER_REASON))
    said = [record.getMessage() for record in caplog.records if "Redis Cluster" in record.getMessage()]
    assert len(said) == 1
    assert "falling back to polling" in said[0]
