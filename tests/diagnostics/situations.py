"""Situations in which something waits, runs or has ended, each really brought about."""

from __future__ import annotations

from typing import Any

from tests.kernel.support import until_true
from tests.support.kinds import KINDS

from perdure.agents.records import AgentSpec
from perdure.diagnostics.service import Diagnostics
from perdure.executions.model import ExecutionSeed, NewPhase
from perdure.graph_requests.model import RequestRow
from perdure.graph_requests.operations import ask
from perdure.graph_requests.service import GraphRequests
from perdure.kernel.clock import to_micros
from perdure.rollouts.model import TASK, Kinds, RolloutKind
from perdure.rollouts.records import RolloutConfig
from perdure.rollouts.store import DatabaseLightningStore
from perdure.rollouts.workers import Workers
from perdure.runs.queue import RunQueue
from perdure.runtime.stores import ThreadPhases
from perdure.service.callers import Caller
from perdure.threads.policy import Policy
from perdure.threads.records import Failure, Interrupt, NewCheckpoint, Run, RunRequest
from perdure.threads.service import Threads
from perdure.threads.work import Assignment, Ending

REFUSED = Failure(error="ConnectionError", message="refused")


def diagnose(threads: Threads) -> Diagnostics:
    """Diagnostics that know the same kinds and leases."""
    return Diagnostics(threads.storage, threads.kinds, lease=threads.policy.lease)


class House:
    """A database with one that has patience with its workers, one that has none, and one who acts by name."""

    def __init__(self, store: DatabaseLightningStore) -> None:
        self.store = store
        self.threads = self.service(60.0)
        self.queue = RunQueue.beside(self.threads)
        self.hasty = self.service(0.02)

    def service(self, seconds: float, kinds: Kinds = KINDS) -> Threads:
        policy = Policy(lease=seconds, grace=seconds)
        return Threads(self.store.storage, kinds, policy=policy)

    @property
    def diagnostics(self) -> Diagnostics:
        return diagnose(self.threads)

    @property
    def ann(self) -> Threads:
        return self.threads.acting_as(Caller.trusted("ann", "default"))

    async def worker(self, worker_id: str = "w1", places: int | None = 4) -> None:
        await self.queue.register(worker_id, [AgentSpec(name="echo")], places)

    async def run(self, service: Threads | None = None, **request: Any) -> Run:
        return await (service or self.threads).create_run(RunRequest(assistant_id="echo", **request))

    async def thread(self) -> str:
        return (await self.threads.create_thread()).thread_id

    async def claim(self, worker_id: str = "w1") -> Assignment:
        (assignment,) = await self.queue.claim(worker_id, ["echo"], 1, 0)
        return assignment

    async def ended(self, result: Any, error: Failure | None = None, **request: Any) -> str:
        """A run of which an attempt has ended like this."""
        run = await self.run(thread_id=await self.thread(), **request)
        claimed = await self.claim()
        await self.queue.finish(Ending(held=claimed.held, result=result, error=error))
        return run.run_id


async def paused_queue(house: House) -> str:
    await house.worker()
    await Workers.of_same(house.threads).pause_queue("agents")
    return (await house.run()).run_id


async def no_worker(house: House) -> str:
    return (await house.run()).run_id


async def worker_gone(house: House) -> str:
    await RunQueue.beside(house.hasty).register("w9", [AgentSpec(name="echo")])
    run = await house.run(house.hasty)

    async def gone() -> bool:
        return (await diagnose(house.hasty).why(run.run_id)).rule == "no_worker"

    await until_true(gone)
    house.threads = house.hasty
    return run.run_id


async def worker_stopped(house: House) -> str:
    await house.worker("w9")
    await house.queue.deregister("w9")
    return (await house.run()).run_id


async def no_agent(house: House) -> str:
    await house.worker()
    await house.queue.register("w2", [AgentSpec(name="other"), AgentSpec(name="more")])
    run = await house.run()
    await house.queue.deregister("w1")
    return run.run_id


async def phase(house: House, agent: str = "echo") -> str:
    seed = ExecutionSeed(trigger_type="api", trigger_id="t", skill="build:plan")
    new = NewPhase(input="{}", agent=agent, execution=seed, parent="w1")
    (made,) = await house.queue.write(ThreadPhases(KINDS, house.threads.policy).create, [new])
    return str(made)


async def phase_without_worker(house: House) -> str:
    """The one worker that is alive serves the runs of callers alone."""
    await house.worker()
    return await phase(house)


async def phase_without_agent(house: House) -> str:
    served: Any = ("agents", "workflows")
    await house.queue.register("w1", [AgentSpec(name="echo")], 4, served, ["perdure.command"])
    return await phase(house, "perdure.http")


async def next_in_queue(house: House) -> str:
    await house.worker()
    return (await house.run()).run_id


async def in_queue(house: House) -> str:
    await house.worker()
    await house.worker("w2", 1)
    await house.run()
    await house.run(priority=3)
    await house.claim()
    await house.run(priority=3)
    return (await house.run()).run_id


async def behind(house: House) -> str:
    thread_id = await house.thread()
    await house.run(thread_id=thread_id)
    await house.claim()
    await house.run(thread_id=thread_id, multitask_strategy="enqueue")
    return (await house.run(thread_id=thread_id, multitask_strategy="enqueue")).run_id


async def behind_a_ready_one(house: House) -> str:
    thread_id = await house.thread()
    await house.run(thread_id=thread_id)
    return (await house.run(thread_id=thread_id, multitask_strategy="enqueue")).run_id


async def behind_a_cancelled_one(house: House) -> str:
    thread_id = await house.thread()
    await house.run(thread_id=thread_id)
    await house.claim()
    return (await house.run(thread_id=thread_id, multitask_strategy="interrupt")).run_id


async def not_before(house: House) -> str:
    return (await house.run(after_seconds=600)).run_id


async def backing_off(house: House) -> str:
    run = await house.run(max_attempts=3)
    claimed = await house.claim()
    ending = Ending(held=claimed.held, result="retriable", error=REFUSED, retry_after=600)
    await house.queue.finish(ending)
    return run.run_id


async def tried_again(house: House) -> str:
    await house.worker()
    return await house.ended("retriable", REFUSED)


async def worker_lost(house: House) -> str:
    await house.worker()
    run = await house.run(house.hasty)
    await house.claim("w7")

    async def swept() -> bool:
        await house.hasty.watchdog.sweep()
        return (await house.threads.get_run(run.run_id)).status == "pending"

    await until_true(swept)
    return run.run_id


async def handed_back(house: House) -> str:
    await house.worker()
    run = await house.run()
    claimed = await house.claim()
    await house.queue.hand_back([claimed.held])
    return run.run_id


async def running(house: House) -> str:
    run = await house.run()
    claimed = await house.claim()
    await house.queue.renew("w1", [claimed.held])
    return run.run_id


async def overdue(house: House) -> str:
    run = await house.run(house.hasty)
    await house.claim()

    async def late() -> bool:
        return (await house.diagnostics.why(run.run_id)).rule == "overdue"

    await until_true(late)
    return run.run_id


async def unknown_kind(house: House) -> str:
    run = await house.run()
    house.threads = house.service(60.0, Kinds(RolloutKind(TASK)))
    return run.run_id


async def succeeded(house: House) -> str:
    return await house.ended("success")


async def failed(house: House) -> str:
    return await house.ended("error", Failure(error="ValueError", message="no such city"))


async def timed_out(house: House) -> str:
    return await house.ended("timeout", timeout_seconds=30)


async def exceeded(house: House) -> str:
    return await house.ended("retriable", REFUSED, max_attempts=1)


async def lost_for_good(house: House) -> str:
    thread_id = await house.thread()
    run = await house.run(house.hasty, max_attempts=1, thread_id=thread_id)
    await house.claim()

    async def swept() -> bool:
        await house.hasty.watchdog.sweep()
        return (await house.threads.get_run(run.run_id)).status == "error"

    await until_true(swept)
    return run.run_id


async def interrupted_by_ann(house: House) -> str:
    run = await house.run(thread_id=await house.thread())
    await house.ann.cancel_run(run.run_id)
    return run.run_id


async def still_to_stop(house: House) -> str:
    run = await house.run(thread_id=await house.thread())
    await house.claim()
    await house.threads.cancel_run(run.run_id)
    return run.run_id


async def rolled_back_by_another(house: House) -> str:
    thread_id = await house.thread()
    run = await house.run(thread_id=thread_id)
    await house.run(house.ann, thread_id=thread_id, multitask_strategy="rollback")
    return run.run_id


async def temporary(house: House) -> str:
    run = await house.run(on_completion="delete")
    await house.queue.finish(Ending(held=(await house.claim()).held, result="success"))
    return run.run_id


async def deleted_run(house: House) -> str:
    run_id = await house.ended("success")
    await house.ann.delete_run(run_id)
    return run_id


async def run_of_deleted_thread(house: House) -> str:
    thread_id = await house.thread()
    run = await house.run(thread_id=thread_id)
    await house.ann.delete_thread(thread_id)
    return run.run_id


# --- tasks ------------------------------------------------------------------------------------------------


async def task_alone(house: House) -> str:
    return (await house.store.enqueue_rollout({})).rollout_id


async def task_in_queue(house: House) -> str:
    await house.store.dequeue_rollout("runner")
    return (await house.store.enqueue_rollout({})).rollout_id


async def task_claimed(house: House) -> str:
    config = RolloutConfig(unresponsive_seconds=60, timeout_seconds=600)
    rollout = await house.store.enqueue_rollout({}, config=config)
    await house.store.dequeue_rollout("runner")
    return rollout.rollout_id


async def task_without_limits(house: House) -> str:
    rollout = await house.store.start_rollout({}, worker_id="runner")
    await house.store.update_attempt(rollout.rollout_id, "latest", status="running")
    return rollout.rollout_id


async def task_failed(house: House) -> str:
    rollout = await house.store.start_rollout({})
    await house.store.update_attempt(rollout.rollout_id, "latest", status="failed")
    return rollout.rollout_id


async def task_out_of_attempts(house: House) -> str:
    rollout = await house.store.start_rollout({}, config=RolloutConfig(retry_condition=["failed"]))
    await house.store.update_attempt(rollout.rollout_id, "latest", status="failed")
    return rollout.rollout_id


async def task_timed_out(house: House) -> str:
    rollout = await house.store.start_rollout({}, config=RolloutConfig(timeout_seconds=0.01))

    async def ended() -> bool:
        found = await house.store.get_rollout_by_id(rollout.rollout_id)
        return found is not None and found.status == "failed"

    await until_true(ended)
    return rollout.rollout_id


async def task_tried_again(house: House) -> str:
    config = RolloutConfig(retry_condition=["failed"], max_attempts=2)
    rollout = await house.store.enqueue_rollout({}, config=config)
    await house.store.dequeue_rollout("runner")
    await house.store.update_attempt(rollout.rollout_id, "latest", status="failed")
    return rollout.rollout_id


async def task_cancelled(house: House) -> str:
    rollout = await house.store.enqueue_rollout({})
    await house.store.acting_as(Caller.trusted("bob", "default")).update_rollout(
        rollout.rollout_id, status="cancelled"
    )
    return rollout.rollout_id


async def task_by_hand(house: House) -> str:
    rollout = await house.store.enqueue_rollout({})
    await house.store.update_rollout(rollout.rollout_id, status="running")
    return rollout.rollout_id


async def task_failed_by_hand(house: House) -> str:
    rollout = await house.store.enqueue_rollout({})
    await house.store.update_rollout(rollout.rollout_id, status="failed")
    return rollout.rollout_id


async def task_put_back(house: House) -> str:
    rollout = await house.store.start_rollout({}, worker_id="runner")
    await house.store.update_rollout(rollout.rollout_id, status="requeuing")
    return rollout.rollout_id


# --- threads ----------------------------------------------------------------------------------------------


async def thread_never_run(house: House) -> str:
    return await house.thread()


async def thread_idle(house: House) -> str:
    thread_id = await house.thread()
    await house.run(thread_id=thread_id)
    await house.queue.finish(Ending(held=(await house.claim()).held, result="success"))
    return thread_id


async def thread_busy(house: House) -> str:
    thread_id = await house.thread()
    await house.run(thread_id=thread_id)
    await house.claim()
    for _ in range(2):
        await house.run(thread_id=thread_id, multitask_strategy="enqueue")
    return thread_id


async def thread_waits_for_time(house: House) -> str:
    thread_id = await house.thread()
    await house.run(thread_id=thread_id, after_seconds=600)
    return thread_id


async def thread_asks(house: House) -> str:
    thread_id = await house.thread()
    await house.run(thread_id=thread_id)
    state = NewCheckpoint(next=["book"], interrupts=[Interrupt(id="i1", value="Book the flight?")])
    await house.queue.finish(Ending(held=(await house.claim()).held, result="success", checkpoint=state))
    return thread_id


async def thread_interrupted(house: House) -> str:
    thread_id = await house.thread()
    run = await house.run(thread_id=thread_id)
    claimed = await house.claim()
    await house.queue.save(claimed.held, NewCheckpoint(values=1, next=["book"]))
    await house.threads.cancel_run(run.run_id)
    await house.queue.finish(Ending(held=claimed.held, result="stopped"))
    return thread_id


async def thread_failed(house: House) -> str:
    thread_id = await house.thread()
    await house.run(thread_id=thread_id)
    ending = Ending(held=(await house.claim()).held, result="error", error=REFUSED)
    await house.queue.finish(ending)
    return thread_id


async def thread_deleted(house: House) -> str:
    thread_id = await house.thread()
    await house.ann.delete_thread(thread_id)
    return thread_id


# --- requests for graphs ----------------------------------------------------------------------------------


async def _asked(house: House, seconds: float = 60.0) -> str:
    """A request to the agent about a thread."""
    await house.worker()
    row = RequestRow("rq-1", "echo", await house.thread(), None, 0, '{"type":"read_state"}')
    await house.threads.write(ask, row, to_micros(seconds), KINDS)
    return row.id


async def request_waiting(house: House) -> str:
    return await _asked(house)


async def request_running(house: House) -> str:
    request_id = await _asked(house)
    await GraphRequests.of_same(house.threads).claim("w1", ["echo"])
    return request_id


async def request_answered(house: House) -> str:
    request_id = await _asked(house)
    requests = GraphRequests.of_same(house.threads)
    (claimed,) = await requests.claim("w1", ["echo"])
    await requests.answer(claimed.held, claimed.thread_id, "1")
    return request_id


async def request_expired(house: House) -> str:
    request_id = await _asked(house, 0.0)
    assert await GraphRequests.of_same(house.threads).claim("w1", ["echo"]) == []
    return request_id
