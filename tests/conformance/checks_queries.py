"""Searches of rollouts, attempts, resources and workers; waiting; the store as a whole."""

import asyncio
import time
from typing import Any

from agentlightning.types import (
    LLM,
    AttemptedRollout,
    EnqueueRolloutRequest,
    PromptTemplate,
    ProxyLLM,
    Rollout,
    Worker,
)
from tests.conformance.framework import Run, check, refused, started

MANY = 2500


@check("query_rollouts filters by status, id and a part of the id")
async def filters(store: Any, run: Run) -> None:
    queued = await store.enqueue_rollout("a")
    begun = await started(store)
    ended = await started(store)
    await store.update_rollout(ended.rollout_id, status="failed")

    async def found(**options: Any) -> set[str]:
        return {each.rollout_id for each in await store.query_rollouts(**options)}

    everyone = {each.rollout_id for each in (queued, begun, ended)}
    assert await found() == everyone
    assert await found(status_in=["queuing"]) == {queued.rollout_id}
    assert await found(status_in=["queuing", "failed"]) == {queued.rollout_id, ended.rollout_id}
    assert await found(status_in=[]) == set()
    assert await found(status=["failed"]) == {ended.rollout_id}
    assert await found(status=["failed"], status_in=["queuing"]) == {queued.rollout_id}
    assert await found(rollout_id_in=[begun.rollout_id, "unknown"]) == {begun.rollout_id}
    assert await found(rollout_ids=[begun.rollout_id]) == {begun.rollout_id}
    assert await found(rollout_id_contains=begun.rollout_id[5:]) == {begun.rollout_id}
    assert await found(status_in=["failed"], rollout_id_in=[begun.rollout_id]) == set()
    either = {"status_in": ["failed"], "rollout_id_in": [begun.rollout_id], "filter_logic": "or"}
    assert await found(**either) == {begun.rollout_id, ended.rollout_id}


@check("query_rollouts gives each rollout with its latest attempt")
async def kinds_of_rollouts(store: Any, run: Run) -> None:
    await store.enqueue_rollout(1)
    begun = await started(store)
    await store.start_attempt(begun.rollout_id)
    first, second = await store.query_rollouts(sort_by="start_time")
    assert (type(first), type(second)) == (Rollout, AttemptedRollout)
    assert second.attempt.sequence_id == 2


@check("query_rollouts sorts by each field, both ways")
async def sorts(store: Any, run: Run) -> None:
    for number, mode in enumerate((None, "val", "test")):
        rollout = await store.enqueue_rollout(number, mode=mode, resources_id=f"r-{2 - number}")
        if number == 0:
            await store.update_rollout(rollout.rollout_id, status="cancelled")

    async def order(sort_by: str, sort_order: str = "asc") -> list[Any]:
        return [each.input for each in await store.query_rollouts(sort_by=sort_by, sort_order=sort_order)]

    assert await order("start_time") == [0, 1, 2]
    assert await order("start_time", "desc") == [2, 1, 0]
    assert await order("resources_id") == [2, 1, 0]
    assert await order("mode") == [0, 2, 1]
    assert await order("mode", "desc") == [1, 2, 0]
    assert (await order("end_time"))[0] == 0
    assert (await order("end_time", "desc"))[-1] == 0
    assert (await order("status"))[0] == 0
    ids = [each.rollout_id for each in await store.query_rollouts(sort_by="rollout_id")]
    assert ids == sorted(ids)


@check("pages tell of the whole")
async def pages(store: Any, run: Run) -> None:
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(7)])
    page = await store.query_rollouts(sort_by="start_time", limit=3, offset=2)
    assert [each.input for each in page.items] == [2, 3, 4]
    assert (page.limit, page.offset, page.total) == (3, 2, 7)
    last = await store.query_rollouts(sort_by="start_time", limit=3, offset=6)
    assert [each.input for each in last] == [6]
    past = await store.query_rollouts(limit=3, offset=70)
    assert (list(past), past.total) == ([], 7)
    everything = await store.query_rollouts()
    assert (len(everything), everything.limit, everything.total) == (7, -1, 7)


@check("a search that cannot be is refused at once")
async def bad_searches(store: Any, run: Run) -> None:
    rollout = await started(store)
    for options in ({"sort_by": "bogus"}, {"limit": 0}, {"limit": -2}, {"offset": -1}):
        async with refused(400):
            await store.query_rollouts(**options)
        async with refused(400):
            await store.query_attempts(rollout.rollout_id, **options)
        async with refused(400):
            await store.query_spans(rollout.rollout_id, **options)
        async with refused(400):
            await store.query_resources(**options)
    async with refused(400):
        await store.query_workers(sort_by="bogus")
    for wrong in ({"status_in": ["bogus"]}, {"filter_logic": "xor"}):
        async with refused(422):
            await store.query_rollouts(**wrong)
        async with refused(422):
            await store.query_workers(**wrong)


@check(f"limit=-1 gives all of {MANY} rollouts")
async def everything(store: Any, run: Run) -> None:
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(MANY)])
    found = await store.query_rollouts()
    assert found.total == MANY
    assert [each.input for each in found] == list(range(MANY))
    rest = await store.query_rollouts(sort_by="start_time", sort_order="desc", offset=100)
    assert [each.input for each in rest] == list(range(MANY - 100))[::-1]


@check("query_attempts lists a rollout's attempts")
async def attempts(store: Any, run: Run) -> None:
    rollout = await started(store)
    for worker in ("b", "a"):
        await store.start_attempt(rollout.rollout_id, worker)
    everyone = await store.query_attempts(rollout.rollout_id)
    assert ([each.sequence_id for each in everyone], everyone.total) == ([1, 2, 3], 3)
    down = await store.query_attempts(rollout.rollout_id, sort_order="desc", limit=2)
    assert [each.sequence_id for each in down] == [3, 2]
    by_worker = await store.query_attempts(rollout.rollout_id, sort_by="worker_id", offset=1)
    assert [each.worker_id for each in by_worker] == ["a", "b"]
    assert len(await store.query_attempts(rollout.rollout_id, sort_by=None)) == 3
    assert list(await store.query_attempts("ro-unknown")) == []


@check("resources have versions, and the last written are the latest")
async def resources(store: Any, run: Run) -> None:
    llm = LLM(endpoint="http://localhost/v1", model="m", api_key="k", sampling_parameters={"t": 0.5})
    proxy = ProxyLLM(endpoint="http://localhost/v1", model="m")
    prompt = PromptTemplate(template="Hi {name}", engine="f-string")
    first = await store.add_resources({"llm": llm, "proxy": proxy, "prompt": prompt})
    assert (len(first.resources_id), first.version) == (15, 1)
    assert first.create_time == first.update_time
    assert first.resources == {"llm": llm, "proxy": proxy, "prompt": prompt}
    assert [type(each) for each in first.resources.values()] == [LLM, ProxyLLM, PromptTemplate]
    second = await store.add_resources({})
    changed = await store.update_resources(first.resources_id, {"prompt": prompt})
    assert (changed.version, changed.create_time) == (2, first.create_time)
    assert changed.resources == {"prompt": prompt}
    assert await store.get_latest_resources() == changed
    assert await store.get_resources_by_id(second.resources_id) == second
    made = await store.update_resources("mine", {"prompt": prompt})
    assert (made.resources_id, made.version) == ("mine", 1)


@check("query_resources filters, sorts and pages")
async def query_resources(store: Any, run: Run) -> None:
    for name in ("b-1", "a-2", "a-3"):
        await store.update_resources(name, {})
    await store.update_resources("a-3", {})

    async def found(**options: Any) -> list[str]:
        return [each.resources_id for each in await store.query_resources(**options)]

    assert await found() == ["b-1", "a-2", "a-3"]
    assert await found(resources_id="a-2") == ["a-2"]
    assert await found(resources_id_contains="a-") == ["a-2", "a-3"]
    assert await found(resources_id="b-1", resources_id_contains="a-") == []
    assert await found(sort_by="resources_id", sort_order="desc") == ["b-1", "a-3", "a-2"]
    assert (await found(sort_by="version", sort_order="desc"))[0] == "a-3"
    assert await found(limit=1, offset=1) == ["a-2"]
    assert (await store.query_resources(limit=1)).total == 3


@check("workers beat, and keep what they last said of themselves")
async def workers(store: Any, run: Run) -> None:
    worker = await store.update_worker("w")
    assert type(worker) is Worker
    assert (worker.status, worker.heartbeat_stats) == ("unknown", None)
    assert worker.last_heartbeat_time is not None
    assert (await store.update_worker("w", {"cpu": 0.5})).heartbeat_stats == {"cpu": 0.5}
    assert (await store.update_worker("w")).heartbeat_stats == {"cpu": 0.5}
    assert (await store.get_worker_by_id("w")).heartbeat_stats == {"cpu": 0.5}


@check("query_workers filters and sorts")
async def query_workers(store: Any, run: Run) -> None:
    await store.update_worker("c-1")
    await started(store, worker_id="a-2")
    await store.dequeue_rollout("b-3")

    async def found(**options: Any) -> list[str]:
        return [each.worker_id for each in await store.query_workers(**options)]

    assert sorted(await found()) == ["a-2", "b-3", "c-1"]
    assert await found(status_in=["busy", "idle"], sort_by="worker_id") == ["a-2", "b-3"]
    assert await found(worker_id_contains="-3") == ["b-3"]
    assert await found(status_in=["unknown"], worker_id_contains="-3") == []
    either = {"status_in": ["unknown"], "worker_id_contains": "-3", "filter_logic": "or"}
    assert sorted(await found(**either)) == ["b-3", "c-1"]
    assert await found(sort_by="worker_id", sort_order="desc") == ["c-1", "b-3", "a-2"]
    assert (await store.query_workers()).total == 3


@check("wait_for_rollouts gives those that have ended")
async def wait(store: Any, run: Run) -> None:
    ended, pending = await started(store), await started(store)
    await store.update_attempt(ended.rollout_id, "latest", status="succeeded")
    ids = [ended.rollout_id, pending.rollout_id, "ro-unknown"]
    for timeout in (0, 0.1):
        found = await store.wait_for_rollouts(rollout_ids=ids, timeout=timeout)
        assert [each.rollout_id for each in found] == [ended.rollout_id]
    before = time.monotonic()
    assert len(await store.wait_for_rollouts(rollout_ids=ids[:1])) == 1
    assert time.monotonic() - before < 3


@check("wait_for_rollouts without a timeout is answered when the last has ended")
async def wait_for_end(store: Any, run: Run) -> None:
    rollout = await started(store)
    waiting = asyncio.ensure_future(store.wait_for_rollouts(rollout_ids=[rollout.rollout_id]))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    before = time.monotonic()
    await store.update_rollout(rollout.rollout_id, status="cancelled")
    assert [each.status for each in await waiting] == ["cancelled"]
    assert time.monotonic() - before < 3


@check("statistics count what there is")
async def statistics(store: Any, run: Run) -> None:
    await started(store, worker_id="w")
    await store.enqueue_rollout(1)
    await store.add_resources({})
    found = await store.statistics()
    counted = {name: found[name] for name in ("total_rollouts", "total_attempts", "total_workers")}
    assert counted == {"total_rollouts": 2, "total_attempts": 1, "total_workers": 1}
    assert (found["total_spans"], found["total_resources"]) == (0, 1)
    assert store.otlp_traces_endpoint().endswith("/v1/traces")
