"""Jobs: enqueued once, executed by a process with the function, renewed, retried, timed out, released."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from tests.jobs.conftest import PATIENCE, JobWorld
from tests.support.kinds import KINDS

from perdure.embedding.perdure import Perdure
from perdure.jobs import operations
from perdure.jobs.executor import JobExecutor
from perdure.jobs.model import LOST, MAX_BODY, JobContext, JobEnd, JobLease, JobRegistry, new_job
from perdure.kernel.clock import to_micros
from perdure.kernel.errors import InvalidInput, NotFound, TooLarge
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx

AGE_ATTEMPTS = statement("UPDATE attempts SET check_at = 1, last_heartbeat_time = 1 WHERE ns = :ns")
END_EARLIER = statement("UPDATE jobs SET ended_at = ended_at - :age WHERE ns = :ns")


async def ended(world: JobWorld, job_id: str) -> Any:
    return await asyncio.wait_for(world.jobs.join(job_id), PATIENCE)


async def test_a_job_is_executed_with_its_payload_and_its_result_is_kept(world: JobWorld) -> None:
    job_id = await world.jobs.enqueue(world.name, {"day": 3}, key="k")
    assert (await world.jobs.get(job_id)).status == "queuing"
    await world.executing()
    job = await ended(world, job_id)
    assert (job.status, job.outcome, job.result, job.error) == ("succeeded", "success", {"seen": 1}, None)
    ((context, payload),) = world.seen
    assert (context.namespace, context.ns) == (world.jobs.namespace, await world.jobs.ns())
    assert (context.name, context.key, context.attempt, payload) == (world.name, "k", 1, {"day": 3})


async def test_a_hint_wakes_an_executor_that_waits(world: JobWorld) -> None:
    executor = await world.executing()
    executor.poll = 1000.0
    await ended(world, await world.jobs.enqueue(world.name))


async def test_of_one_name_and_key_one_job_waits(world: JobWorld) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def held(context: JobContext, payload: Mapping[str, Any]) -> None:
        begun.set()
        await go_on.wait()

    first = await world.jobs.enqueue(world.name, key="a")
    assert await world.jobs.enqueue(world.name, key="a") == first
    assert await world.jobs.enqueue(world.name, key="b") != first
    assert await world.jobs.enqueue(world.name) != await world.jobs.enqueue(world.name)
    await world.executing(held, concurrency=1)
    await asyncio.wait_for(begun.wait(), PATIENCE)
    # The first may have read already, so a second one must follow.
    second = await world.jobs.enqueue(world.name, key="a")
    assert second != first
    go_on.set()
    await ended(world, second)


async def test_an_idempotency_key_counts_after_the_end_too(world: JobWorld) -> None:
    await world.executing()
    first = await world.jobs.enqueue(world.name, idempotency_key=world.name)
    await ended(world, first)
    assert await world.jobs.enqueue(world.name, idempotency_key=world.name) == first
    assert len(world.seen) == 1


async def test_jobs_are_enqueued_inside_other_operations(world: JobWorld) -> None:
    jobs = [new_job(world.name, key=key) for key in ("a", "b", "a")]

    async def fail(tx: Tx) -> None:
        await operations.enqueue_jobs(tx, jobs)
        raise InvalidInput("no")

    ns = await world.jobs.ns("write")
    with pytest.raises(InvalidInput):
        await world.storage.run(fail, ns=ns)
    assert not await world.storage.read(operations.ready_namespaces, [world.name])
    one, two, same = await world.storage.run(operations.enqueue_jobs, jobs, ns=ns)
    assert one == same != two
    # Concurrent transactions agree on one job.
    calls = [world.jobs.enqueue(world.name, key="c") for _ in range(8)]
    assert len(set(await asyncio.gather(*calls))) == 1


async def test_a_job_that_is_enqueued_again_sees_what_its_enqueuer_wrote(world: JobWorld) -> None:
    """Check that a claim waits for a transaction that relies on the waiting job."""
    if world.storage.engine == "sqlite":
        return  # There is one writer: nothing runs in between.
    ns = await world.jobs.ns("write")
    first = await world.jobs.enqueue(world.name, key="a")
    counted, commit = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def enqueue_and_wait(tx: Tx) -> list[str]:
        answer = await operations.enqueue_jobs(tx, [new_job(world.name, key="a")])
        loop.call_soon_threadsafe(counted.set)
        while not commit.is_set():
            await tx.all(statement("SELECT pg_sleep(0.01)"))
        return answer

    again = asyncio.ensure_future(world.storage.run(enqueue_and_wait, ns=ns))
    await asyncio.wait_for(counted.wait(), PATIENCE)
    claiming = asyncio.ensure_future(world.storage.run(operations.claim_jobs, 1, [world.name], KINDS, ns=ns))
    done, _ = await asyncio.wait([claiming], timeout=0.2)
    assert not done
    commit.set()
    assert await again == [first]
    (claimed,) = await claiming
    assert claimed.lease.job_id == first


async def test_failures_are_retried_until_they_are_too_many(world: JobWorld) -> None:
    async def fail(context: JobContext, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        await world.note(context, payload)
        if payload.get("fails", 9) < context.attempt:
            return {"attempt": context.attempt}
        raise ValueError("broken")

    await world.executing(fail, max_attempts=3)
    job = await ended(world, await world.jobs.enqueue(world.name))
    assert (job.status, job.attempts, job.error) == ("failed", 3, "ValueError: broken")
    job = await ended(world, await world.jobs.enqueue(world.name, {"fails": 1}))
    assert (job.status, job.attempts, job.error, job.result) == ("succeeded", 2, None, {"attempt": 2})
    job = await ended(world, await world.jobs.enqueue(world.name, max_attempts=1))
    assert (job.status, job.attempts) == ("failed", 1)


async def test_bad_input_and_timeouts_are_not_retried(world: JobWorld) -> None:
    async def refuse(context: JobContext, payload: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if payload.get("large"):
            return {"text": "x" * MAX_BODY}
        if payload:
            raise InvalidInput("no such day")
        await asyncio.Event().wait()
        return None

    await world.executing(refuse, timeout=0.02)
    job = await ended(world, await world.jobs.enqueue(world.name))
    assert (job.status, job.outcome, job.attempts) == ("failed", "timeout", 1)
    assert job.error == "Job timed out after 0.02 seconds"
    job = await ended(world, await world.jobs.enqueue(world.name, {"day": 0}, timeout=100.0))
    assert (job.status, job.attempts, job.error) == ("failed", 1, "no such day")
    job = await ended(world, await world.jobs.enqueue(world.name, {"large": 1}, max_attempts=1))
    assert job.status == "failed"
    assert "characters" in job.error
    with pytest.raises(TooLarge):
        await world.jobs.enqueue(world.name, {"text": "x" * MAX_BODY})
    for bad in ("", "a\0"):
        with pytest.raises(InvalidInput):
            await world.jobs.enqueue(bad)
    with pytest.raises(NotFound):
        await world.jobs.get("missing")
    with pytest.raises(NotFound):
        await world.jobs.cancel("missing")


async def test_a_job_whose_process_was_lost_is_given_to_another(world: JobWorld) -> None:
    job_id, ns = await world.jobs.enqueue(world.name, key="a"), await world.jobs.ns()
    (lost,) = await world.storage.run(operations.claim_jobs, 1, [world.name], KINDS, ns=ns)
    await world.storage.run(_execute, AGE_ATTEMPTS, {}, ns=ns)
    await world.executing()
    job = await ended(world, job_id)
    assert (job.status, job.attempts) == ("succeeded", 2)
    # A report of the lost process has no effect.
    assert await world.storage.run(operations.renew_jobs, [lost.lease], KINDS, ns=ns) == [False]
    end = JobEnd(lost.lease, error="late")
    assert await world.storage.run(operations.finish_jobs, [end], KINDS, ns=ns) == [False]
    await world.storage.run(operations.release_jobs, [lost.lease, JobLease("no", "no")], KINDS, ns=ns)
    assert (await world.jobs.get(job_id)).error is None


async def _execute(tx: Tx, sql: Any, values: Mapping[str, Any]) -> None:
    await tx.execute(sql, **values)


async def test_a_job_that_is_lost_too_often_fails(world: JobWorld) -> None:
    job_id, ns = await world.jobs.enqueue(world.name), await world.jobs.ns()
    while (await world.jobs.get(job_id)).status != "failed":
        await world.storage.run(operations.claim_jobs, 1, [world.name], KINDS, ns=ns)
        await world.storage.run(_execute, AGE_ATTEMPTS, {}, ns=ns)
        await world.services.store.rollouts.watchdog.sweep()
    job = await world.jobs.get(job_id)
    assert (job.outcome, job.error) == ("unresponsive", LOST)
    assert job.ended_at is not None


async def test_a_stopping_executor_waits_and_then_gives_back(world: JobWorld) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def held(context: JobContext, payload: Mapping[str, Any]) -> None:
        begun.set()
        await go_on.wait()

    executor = await world.executing(held)
    job_id = await world.jobs.enqueue(world.name)
    await asyncio.wait_for(begun.wait(), PATIENCE)
    stopping = asyncio.ensure_future(executor.stop(PATIENCE))
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait_for(stopping, PATIENCE)
    assert (await world.jobs.get(job_id)).status == "succeeded"

    begun.clear()
    go_on.clear()
    executor = await world.executing(held)
    job_id = await world.jobs.enqueue(world.name)
    await asyncio.wait_for(begun.wait(), PATIENCE)
    await asyncio.wait_for(executor.stop(0.0), PATIENCE)
    assert (await world.jobs.get(job_id)).status == "requeuing"
    go_on.set()
    await world.executing()
    job = await ended(world, job_id)
    assert (job.status, job.attempts) == ("succeeded", 2)


async def test_a_cancelled_job_is_stopped_at_its_next_renewal(
    world: JobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.jobs.executor.LEASE_SECONDS", 0.1)
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def held(context: JobContext, payload: Mapping[str, Any]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    waiting = await world.jobs.enqueue(world.name, delay=1000.0, key="later")
    assert (await world.jobs.cancel(waiting)).error == "the job was cancelled"
    assert await world.jobs.enqueue(world.name, delay=1000.0, key="later") != waiting
    await world.executing(held)
    job_id = await world.jobs.enqueue(world.name)
    await asyncio.wait_for(begun.wait(), PATIENCE)
    assert (await world.jobs.cancel(job_id)).status == "cancelled"
    await asyncio.wait_for(stopped.wait(), PATIENCE)
    assert (await world.jobs.cancel(job_id)).outcome == "cancelled"


async def test_jobs_are_in_no_list_of_others(world: JobWorld) -> None:
    await world.jobs.enqueue(world.name)
    assert not (await world.services.store.query_rollouts()).items
    assert not (await world.services.threads.list_runs()).items
    assert await world.services.store.dequeue_rollout() is None


async def test_why_a_job_waits(world: JobWorld) -> None:
    found = await world.services.diagnostics.why(await world.jobs.enqueue(world.name))
    assert (found.rule, found.status) == ("waits_for_server", "queuing")
    assert found.sentence.startswith(f"Job {found.id} ({world.name}) is ready, and waits for a server")


async def test_ended_jobs_are_removed_after_a_while(world: JobWorld) -> None:
    await world.executing()
    old, open_one = await world.jobs.enqueue(world.name), await world.jobs.enqueue(world.name, delay=1000.0)
    await ended(world, old)
    ns = await world.jobs.ns()
    await world.storage.run(_execute, END_EARLIER, {"age": to_micros(100.0)}, ns=ns)
    while await world.storage.background(operations.remove_ended, to_micros(50.0)):
        pass
    with pytest.raises(NotFound):
        await world.jobs.get(old)
    assert (await world.jobs.get(open_one)).status == "queuing"


async def test_a_program_executes_jobs(tmp_path: Any) -> None:
    async with Perdure(str(tmp_path / "p.db")) as perdure:
        assert isinstance(perdure.services.job_executor, JobExecutor)
        perdure.services.job_registry.register("note", _nothing)
        await perdure.services.job_executor.stop()
        await perdure.services.job_executor.start()
        job = await asyncio.wait_for(perdure.jobs.join(await perdure.jobs.enqueue("note")), PATIENCE)
        assert (job.status, job.result) == ("succeeded", {})


async def _nothing(context: JobContext, payload: Mapping[str, Any]) -> None:
    return None


def test_a_name_is_registered_once() -> None:
    registry = JobRegistry()
    registry.register("note", _nothing)
    with pytest.raises(AssertionError, match="twice"):
        registry.register("note", _nothing)
