"""Who is let in, clients in other loops and processes, and a server that is killed under its client."""

import asyncio
import pickle
from typing import Any

import aiohttp
from agentlightning.types import EnqueueRolloutRequest
from tests.conformance.framework import Run, check, make_span, refused, started, until

LOAD = 50


@check("a wrong secret is refused at once, and so is none")
async def authentication(store: Any, run: Run) -> None:
    for url in (run.url(secret="wrong-secret-of-some-length"), run.bare_url):
        async with run.client(url) as stranger:
            async with refused(401):
                await stranger.enqueue_rollout(1)
            async with refused(401):
                await stranger.query_rollouts()
    assert (await store.query_rollouts()).total == 0


@check("health needs no credentials")
async def health(store: Any, run: Run) -> None:
    async with aiohttp.ClientSession() as session, session.get(run.bare_url + "/v1/agl/health") as response:
        assert (response.status, await response.json()) == (200, {"status": "ok"})


@check("namespaces do not see each other")
async def namespaces(store: Any, run: Run) -> None:
    rollout = await started(store)
    await store.enqueue_rollout(1)
    async with run.client(run.url(namespace="elsewhere")) as other:
        assert await other.dequeue_rollout() is None
        assert await other.get_rollout_by_id(rollout.rollout_id) is None
        assert (await other.query_rollouts()).total == 0
        async with refused(400):
            await other.add_span(make_span(rollout, 1))
        async with refused(400):
            await other.update_rollout(rollout.rollout_id, status="failed")
    assert await store.get_rollout_by_id(rollout.rollout_id) == rollout


@check("a pickled client goes on in its copy")
async def pickled(store: Any, run: Run) -> None:
    rollout = await started(store)
    copy = pickle.loads(pickle.dumps(store))
    try:
        assert await copy.get_rollout_by_id(rollout.rollout_id) == rollout
    finally:
        await copy.close()


@check("one client serves two event loops")
async def two_loops(store: Any, run: Run) -> None:
    rollout = await started(store)

    async def elsewhere() -> Any:
        async with run.client() as second:
            return await second.get_rollout_by_id(rollout.rollout_id)

    assert await asyncio.to_thread(asyncio.run, elsewhere()) == rollout


@check("kill -9 of the server loses nothing that was acknowledged")
async def killed(store: Any, run: Run) -> None:
    requests = [EnqueueRolloutRequest(input=number) for number in range(20)]
    queued = await store.enqueue_many_rollouts(requests)
    claimed = await store.dequeue_rollout("w")
    await store.add_span(make_span(claimed, 1))
    await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
    resources = await store.add_resources({})
    await run.kill_server()
    found = {each.rollout_id: each for each in await store.query_rollouts()}
    assert set(found) == {each.rollout_id for each in queued}
    assert found[claimed.rollout_id].status == "succeeded"
    assert (await store.query_spans(claimed.rollout_id)).total == 1
    assert await store.get_latest_resources() == resources
    rest = [await store.dequeue_rollout("w") for _ in range(20)]
    assert sorted(each.input for each in rest if each) == list(range(1, 20))


@check("a client goes on working while its server is killed and restarted")
async def killed_under_load(store: Any, run: Run) -> None:
    patient: dict[str, Any] = {"retry_delays": (0.1,) * 20, "health_retry_delays": (0.1,) * 200}
    async with run.client(**patient) as client:
        halfway = asyncio.Event()
        work = asyncio.ensure_future(_work(client, halfway))
        await halfway.wait()
        await run.kill_server()
        acknowledged = await work
    statuses = {each.rollout_id: each.status for each in await store.query_rollouts()}
    assert acknowledged <= set(statuses), "an acknowledged rollout is lost"
    await until(lambda: _all_ended(store), "the end of all rollouts")


async def _work(client: Any, halfway: asyncio.Event) -> set[str]:
    """Queue, claim and complete; the server is killed somewhere in the middle."""
    acknowledged: set[str] = set()
    for number in range(LOAD):
        acknowledged.add((await client.enqueue_rollout(number)).rollout_id)
        claimed = await client.dequeue_rollout("w")
        if claimed is not None:
            await client.add_span(make_span(claimed, 1))
            await client.update_attempt(claimed.rollout_id, "latest", status="succeeded")
        if number == LOAD // 2:
            halfway.set()
    return acknowledged


async def _all_ended(store: Any) -> bool:
    """Finish what is left: a claim whose answer died with the server is handed out again."""
    while (claimed := await store.dequeue_rollout("w")) is not None:
        await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
    open_ones = await store.query_rollouts(status_in=["queuing", "preparing", "running", "requeuing"])
    for each in open_ones:
        await store.update_rollout(each.rollout_id, status="requeuing")
    return bool(open_ones.total == 0)
