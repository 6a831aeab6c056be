"""Hints through Redis: their key names, the watchers that they wake, and other stored keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.kernel.redis_hubs import redis_client, redis_hub
from tests.kernel.support import soon, until, until_true

from perdure import PostgresLightningStore, open_store
from perdure.kernel.errors import InvalidInput
from perdure.kernel.signals.port import Carrier, Watch
from perdure.kernel.signals.redis import LIST_LENGTH, LIST_SECONDS, QUEUE, READY, RedisSignals
from perdure.rollouts.operations.work import READY_CHANNEL

Pair = tuple[RedisSignals, RedisSignals]


@pytest.fixture
async def pair(redis_url: str, redis_prefix: str) -> AsyncIterator[Pair]:
    """Two hubs, as in two processes."""
    async with redis_hub(redis_url, redis_prefix) as here, redis_hub(redis_url, redis_prefix) as there:
        yield here, there


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Any]:
    async with redis_client(redis_url) as client:
        yield client


# --- between processes ------------------------------------------------------------------------------------


async def test_a_hint_reaches_other_processes_and_its_own_once(pair: Pair) -> None:
    here, there = pair
    mine, theirs = here.watch("things", ["a"]), there.watch("things", ["a", "b"])
    here.publish([("things", "a"), ("things", "x")])
    assert await soon(mine.changed()) == {"a"}
    assert await soon(theirs.changed()) == {"a"}
    there.publish([("things", "b")])
    assert await soon(theirs.changed()) == {"b"}
    assert await mine.changed(timeout=0) == frozenset()
    assert await theirs.changed(timeout=0) == frozenset()


async def test_prefixes_keep_installations_apart(redis_url: str, redis_prefix: str) -> None:
    one, other = redis_prefix + "one:", redis_prefix + "other:"
    async with redis_hub(redis_url, one) as here, redis_hub(redis_url, other) as there:
        mine, theirs = here.watch("things", ["a"]), there.watch("things", ["a", "b"])
        async with redis_hub(redis_url, other) as third, redis_hub(redis_url, one) as fourth:
            fourth.publish([("things", "a")])
            assert await soon(mine.changed()) == {"a"}
            third.publish([("things", "b")])
            assert await soon(theirs.changed()) == {"b"}


async def test_a_burst_of_hints_arrives_whole(pair: Pair) -> None:
    here, there = pair
    names = {f"n{number:04}" * 8 for number in range(3000)}
    watch = here.watch("things", names)
    there.publish([("things", name) for name in sorted(names)])
    seen: set[str] = set()
    while seen != names:
        seen |= await soon(watch.changed())


async def test_a_follower_is_wanted_and_reads_what_others_publish(pair: Pair) -> None:
    here, there = pair
    stream = here.follow("changes", "7/", 10)
    await until(lambda: there.wanted("changes"))
    there.publish([("changes", "7/a"), ("changes", "8/b"), ("changes", "7/c")])
    assert await soon(stream.next()) == ["7/a", "7/c"]


# --- streams and control ----------------------------------------------------------------------------------

NAMED = [
    ("streams", "7/run-1", "run:run-1:stream"),
    ("streams", "7/thread/t/1", "thread:t/1:stream"),
    ("threads.control", "7/run-1", "run:run-1:control"),
]


async def _subscribed(client: Any, prefix: str) -> set[str]:
    names = await client.pubsub_channels(prefix + "*")
    return {name.removeprefix(prefix) for name in names} - {"perdure:hints"}


@pytest.mark.parametrize(("channel", "key", "name"), NAMED)
async def test_each_run_has_channels_which_only_its_watchers_hear(
    pair: Pair, client: Any, redis_prefix: str, channel: str, key: str, name: str
) -> None:
    here, there = pair
    watch = here.watch(channel, [key])
    assert await soon(watch.changed()) == {key}, "it looks once when the server begins to tell of it"
    assert await _subscribed(client, redis_prefix) == {name}
    there.publish([(channel, key)])
    assert await soon(watch.changed()) == {key}
    await client.publish(redis_prefix + name, "1")
    assert await soon(watch.changed()) == {key}, "anybody may publish there"
    watch.close()
    await until_true(lambda: _is_empty(client, redis_prefix))


async def _is_empty(client: Any, prefix: str) -> bool:
    return not await _subscribed(client, prefix)


async def test_two_watchers_of_one_stream_share_its_channel(
    pair: Pair, client: Any, redis_prefix: str
) -> None:
    here, there = pair
    first, second = here.watch("streams", ["7/r"]), here.watch("streams", ["7/r", "8/r"])
    assert await soon(first.changed()) == {"7/r"}
    first.close()
    await soon(second.changed())
    there.publish([("streams", "8/r")])
    await until_true(lambda: _took(second, "8/r"))
    assert await _subscribed(client, redis_prefix) == {"run:r:stream"}


async def _took(watch: Any, key: str) -> bool:
    return key in await watch.changed(timeout=0.01)


async def test_a_follower_of_all_streams_hears_them_by_pattern(pair: Pair, client: Any) -> None:
    here, there = pair
    before = await client.pubsub_numpat()
    stream = here.follow("streams", "7/", 10)
    await until_true(lambda: _has_patterns(client, before + 2))
    there.publish([("streams", "7/run-1"), ("streams", "7/thread/t"), ("streams", "8/run-2")])
    heard: list[str] = []
    while len(heard) < 2:
        keys = await soon(stream.next())
        heard += keys or []
    assert sorted(heard) == ["7/run-1", "7/thread/t"]
    stream.close()


async def _has_patterns(client: Any, number: int) -> bool:
    return bool(await client.pubsub_numpat() >= number)


# --- the list of work -------------------------------------------------------------------------------------


def test_the_name_of_the_channel_is_that_of_the_rollouts() -> None:
    assert READY == READY_CHANNEL


async def test_whoever_pushes_to_the_list_wakes_one_process(
    pair: Pair, client: Any, redis_prefix: str
) -> None:
    watches = {asyncio.ensure_future(watch.changed()): watch for watch in _waiting(pair)}
    await client.lpush(redis_prefix + "run:queue", 1)
    done, still = await asyncio.wait(watches, timeout=20, return_when=asyncio.FIRST_COMPLETED)
    assert (len(done), len(still)) == (1, 1)
    watches[done.pop()].close()
    await client.lpush(redis_prefix + "run:queue", 1)
    assert await soon(still.pop()) == {QUEUE}, "who waits no longer leaves it to others"


def _waiting(pair: Pair) -> list[Watch]:
    return [hub.watch(READY, [QUEUE]) for hub in pair]


async def test_work_that_is_published_wakes_another_process(pair: Pair) -> None:
    here, there = pair
    watch = there.watch(READY, [QUEUE])
    for _ in range(3):
        here.publish([(READY, QUEUE)])
        assert await soon(watch.changed()) == {QUEUE}


async def test_work_of_an_agent_wakes_only_a_process_that_waits_for_that_agent(
    pair: Pair, client: Any, redis_prefix: str
) -> None:
    here, there = pair
    mine, theirs = here.watch(READY, ["agents/a"]), there.watch(READY, ["agents/b", "agents/c"])
    there.publish([(READY, "agents/a")])
    assert await soon(mine.changed()) == {"agents/a"}
    await client.lpush(redis_prefix + "run:queue:c", 1)
    assert await soon(theirs.changed()) == {"agents/c"}
    here.publish([(READY, "agents/d")])
    await until_true(lambda: client.llen(redis_prefix + "run:queue:d"))
    assert await theirs.changed(timeout=0) == await mine.changed(timeout=0) == frozenset()


async def test_a_process_that_waits_already_waits_for_one_more_agent_at_once(
    redis_url: str, redis_prefix: str
) -> None:
    """Its wait for the first agent would end long after the test."""
    long = redis_hub(redis_url, redis_prefix, block_seconds=60.0)
    async with long as here, redis_hub(redis_url, redis_prefix) as there:
        first = here.watch(READY, ["agents/a"])
        await until(lambda: bool(here._waiting_on))
        second = here.watch(READY, ["agents/b"])
        there.publish([(READY, "agents/b")])
        assert await soon(second.changed()) == {"agents/b"}
        there.publish([(READY, "agents/a")])
        assert await soon(first.changed()) == {"agents/a"}


async def test_the_list_is_bounded_and_passes_away_when_nobody_waits(
    pair: Pair, client: Any, redis_prefix: str
) -> None:
    here, there = pair
    key = redis_prefix + "run:queue"
    for _ in range(LIST_LENGTH * 3):
        here.publish([(READY, QUEUE)])
    await until_true(lambda: client.llen(key))
    other = there.watch("things", ["last"])
    here.publish([("things", "last")])
    assert await soon(other.changed()) == {"last"}
    assert 0 < await client.llen(key) <= LIST_LENGTH
    assert 0 < await client.ttl(key) <= LIST_SECONDS
    watch = there.watch(READY, [QUEUE])
    assert await soon(watch.changed()) == {QUEUE}
    await until_true(lambda: _no_list(client, key))


async def _no_list(client: Any, key: str) -> bool:
    return not await client.exists(key)


async def test_an_element_that_comes_when_nobody_waits_any_more_is_given_back(
    pair: Pair, client: Any, redis_prefix: str
) -> None:
    here, _ = pair
    name = redis_prefix + "run:queue"
    here._waiting_on = {name: (READY, QUEUE)}
    here._on_work(name.encode(), b"another")
    assert await soon(client.blpop([name], timeout=10))


async def test_ones_own_element_wakes_nobody_twice(pair: Pair, client: Any, redis_prefix: str) -> None:
    here, _ = pair
    watch = here.watch(READY, [QUEUE])
    here.publish([(READY, QUEUE)])
    assert await soon(watch.changed()) == {QUEUE}
    await until_true(lambda: _no_list(client, redis_prefix + "run:queue"))
    await client.lpush(redis_prefix + "run:queue", "another")
    assert await soon(watch.changed()) == {QUEUE}
    assert await watch.changed(timeout=0) == frozenset()


async def test_other_queues_wake_everybody(pair: Pair) -> None:
    watches = [hub.watch(READY, ["default"]) for hub in pair]
    pair[0].publish([(READY, "default")])
    assert [await soon(watch.changed()) for watch in watches] == [{"default"}, {"default"}]


# --- what else is kept there ------------------------------------------------------------------------------


async def test_marks_of_running_runs_pass_away(pair: Pair, client: Any, redis_prefix: str) -> None:
    here, _ = pair
    names = [f"{redis_prefix}run:{run}:running" for run in "abc"]
    here.mark_running("ab", 30)
    here.mark_running("c", 0.1)
    await until_true(lambda: client.exists(names[2]))
    assert [0 < await client.ttl(name) <= most for name, most in zip(names, (30, 30, 1), strict=True)]
    here.unmark_running("a")
    await until_true(lambda: _left(client, names, 1))
    assert await client.exists(names[1])


async def _left(client: Any, names: list[str], number: int) -> bool:
    return bool(await client.exists(*names) == number)


async def test_one_process_sweeps_at_a_time(pair: Pair, client: Any, redis_prefix: str) -> None:
    here, there = pair
    key = redis_prefix + "run:sweep"
    assert await here.try_sweep(30)
    assert not await there.try_sweep(30)
    assert 0 < await client.ttl(key) <= 30
    await there.end_sweep()
    assert not await there.try_sweep(30), "only its holder gives it back"
    await here.end_sweep()
    assert await there.try_sweep(0.1)
    await until_true(lambda: here.try_sweep(30))


async def test_it_tells_its_state_and_its_connections(pair: Pair) -> None:
    here, _ = pair
    assert isinstance(here, Carrier)
    assert here.status() == ("ok", None)
    statistics = here.pool_statistics()
    assert statistics["in_use_connections"] >= 2
    assert statistics["max_connections"] == 50
    assert set(statistics) == {"idle_connections", "in_use_connections", "max_connections"}


# --- under a store ----------------------------------------------------------------------------------------


async def test_stores_on_postgres_tell_each_other_by_redis(
    database_url: str, redis_url: str, redis_prefix: str
) -> None:
    options: dict[str, Any] = {"redis_url": redis_url, "redis_key_prefix": redis_prefix}
    here = open_store(database_url, watchdog_interval=None, **options)
    there = PostgresLightningStore(database_url, watchdog_interval=None, **options)
    rollout = await here.enqueue_rollout("task")
    waiting = asyncio.ensure_future(here.wait_for_rollouts(rollout_ids=[rollout.rollout_id]))
    claimed = await there.dequeue_rollout()
    assert claimed is not None
    await there.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
    assert [rollout.status for rollout in await soon(waiting)] == ["succeeded"]
    await until_true(lambda: _is_ok(here))
    await here.close()
    await there.close()


async def _is_ok(store: Any) -> bool:
    health = await store.health()
    return bool(health["redis"] == "ok" and health["redis_connections"]["max_connections"] == 50)


@pytest.mark.parametrize("url", ["http://:hunter22@host/0", "redis://host:hunter22/0", "nonsense"])
def test_a_url_that_is_none_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(InvalidInput, match="redis_url is not the URL of a Redis") as refused:
        PostgresLightningStore("postgresql://127.0.0.1/x", redis_url=url)
    assert "hunter22" not in str(refused.value)
