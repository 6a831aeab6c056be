"""Paused queues and drained workers: claims skip them, and `why` explains it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure.agents.records import AgentSpec
from perdure.kernel.config import Settings
from perdure.kernel.errors import InvalidInput, NotFound
from perdure.runtime.services import Services
from perdure.runtime.stores import open_store
from perdure.service.callers import Caller
from perdure.threads.records import RunRequest


@pytest.fixture
async def services(engine_url: str) -> AsyncIterator[Services]:
    found = Services(open_store(engine_url, watchdog_interval=None), Settings())
    yield found.acting_as(Caller.trusted("anna"))
    await found.close()


async def test_nothing_is_claimed_from_a_paused_queue_until_it_is_resumed(services: Services) -> None:
    store, workers = services.store, services.workers
    rollout = await store.enqueue_rollout({"a": 1})
    paused = await workers.pause_queue("default")
    assert paused.paused_since is not None
    assert (await workers.pause_queue("default")).paused_since == paused.paused_since, "it stays as it is"
    assert await store.dequeue_rollout(worker_id="w1") is None
    why = await services.diagnostics.why(rollout.rollout_id)
    assert why.rule == "paused"
    assert "the queue is paused since" in why.sentence
    (queue,) = await services.rollouts.queues()
    assert (queue.queue, queue.ready, queue.paused_since) == ("default", 1, paused.paused_since)
    other = services.acting_as(Caller.trusted("anna", "other"))
    await other.store.enqueue_rollout({"a": 2})
    assert await other.store.dequeue_rollout() is not None, "a queue of another namespace is another one"
    await workers.resume_queue("default")
    assert (await workers.resume_queue("default")).paused_since is None
    claimed = await store.dequeue_rollout(worker_id="w1")
    assert claimed is not None
    assert claimed.rollout_id == rollout.rollout_id
    assert await services.rollouts.queues() == []
    audit = await services.access.query_audit()
    assert [entry.action for entry in audit.items if entry.action.endswith("_queue")] == [
        "resume_queue",
        "pause_queue",
    ]
    with pytest.raises(InvalidInput):
        await workers.pause_queue(" ")


async def test_runs_of_a_paused_queue_wait_and_those_of_another_are_claimed(services: Services) -> None:
    queue = services.run_queue
    await queue.register("w1", [AgentSpec(name="echo")], 4)
    run = await services.threads.create_run(RunRequest(assistant_id="echo"))
    await services.workers.pause_queue("agents")
    assert await queue.claim("w1", ["echo"], 1, 0) == []
    assert (await services.diagnostics.why(run.run_id)).rule == "paused"
    await services.workers.resume_queue("agents")
    await services.workers.pause_queue("workflows")
    (claimed,) = await queue.claim("w1", ["echo"], 1, 0)
    assert claimed.run.run_id == run.run_id


async def test_a_drained_worker_finishes_what_it_holds_and_claims_no_more(services: Services) -> None:
    queue, workers = services.run_queue, services.workers
    await queue.register("w1", [AgentSpec(name="echo")], 4)
    await queue.register("w2", [AgentSpec(name="echo")], 4)
    runs = [await services.threads.create_run(RunRequest(assistant_id="echo")) for _ in range(3)]
    (held,) = await queue.claim("w1", ["echo"], 1, 0)
    drained = await workers.drain("w1")
    assert drained.draining_since is not None
    assert [each.rollout_id for each in drained.held] == [held.run.run_id]
    assert await queue.claim("w1", ["echo"], 1, 0) == []
    assert len(await queue.claim("w2", ["echo"], 1, 0)) == 1, "others claim"
    found = {each.worker_id: each.draining_since for each in await workers.search()}
    assert (found["w1"], found["w2"]) == (drained.draining_since, None)
    assert (await workers.undrain("w1")).draining_since is None
    (again,) = await queue.claim("w1", ["echo"], 1, 0)
    assert again.run.run_id == runs[2].run_id
    await workers.drain("w1")
    await queue.register("w1", [AgentSpec(name="echo")], 4)
    assert (await workers.get("w1")).draining_since is None, "a worker that starts again claims again"
    with pytest.raises(NotFound):
        await workers.drain("nobody")


async def test_many_rollouts_are_cancelled_and_retried_with_an_answer_each(services: Services) -> None:
    ids = [(await services.store.enqueue_rollout({"n": n})).rollout_id for n in range(5)]
    cancelled = await services.bulk.cancel_rollouts(rollout_ids=[*ids[:3], "ro-unknown", ids[0]])
    assert [(each.id, each.status, each.code) for each in cancelled] == [
        *((id, "cancelled", None) for id in ids[:3]),
        ("ro-unknown", None, "not_found"),
    ]
    retried = await services.bulk.retry_rollouts(rollout_ids=[ids[0], ids[4]])
    assert [(each.status, each.code) for each in retried] == [("requeuing", None), (None, "conflict")]
    rest = await services.bulk.cancel_rollouts(status=["queuing", "requeuing"])
    assert {each.id for each in rest} == {ids[0], ids[3], ids[4]}
    bads: list[dict[str, Any]] = [
        {},
        {"rollout_ids": []},
        {"rollout_ids": ["a"], "status": ["failed"]},
        {"rollout_ids": ["a"] * 1001},
    ]
    for bad in bads:
        with pytest.raises(InvalidInput):
            await services.bulk.cancel_rollouts(**bad)


async def test_runs_are_run_again_with_the_same_input(services: Services) -> None:
    await services.run_queue.register("w1", [AgentSpec(name="echo")], 4)
    thread = await services.threads.create_thread()
    request = RunRequest(assistant_id="echo", thread_id=thread.thread_id, input={"a": 1}, metadata={"b": 2})
    run = await services.threads.create_run(request)
    (live,) = await services.bulk.retry_runs(run_ids=[run.run_id])
    assert (live.code, live.run_id) == ("conflict", None)
    await services.threads.cancel_run(run.run_id)
    again = await services.bulk.retry_run(run.run_id, idempotency_key="once")
    assert (again.thread_id, again.kwargs.input) == (thread.thread_id, {"a": 1})
    assert again.metadata == {"b": 2, "retry_of": run.run_id}
    assert (await services.bulk.retry_run(run.run_id, idempotency_key="once")).run_id == again.run_id
    (answer, missing) = await services.bulk.retry_runs(run_ids=[run.run_id, "nothing"])
    assert answer.run_id not in (None, run.run_id, again.run_id)
    assert (answer.status, missing.code) == ("pending", "not_found")
    with pytest.raises(NotFound):
        await services.bulk.retry_run("nothing")
