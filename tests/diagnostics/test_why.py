"""Why: every situation, on each engine, with the rule and the sentence it gets."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.diagnostics import situations
from tests.diagnostics.situations import House

from perdure.agents.records import AgentSpec
from perdure.assistants.service import Assistants
from perdure.diagnostics.explain import explain_thread
from perdure.diagnostics.model import ThreadFacts, Why
from perdure.kernel.errors import NotFound
from perdure.runtime.stores import open_store
from perdure.threads.records import Failure

T = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \((?:in \S+ \S+|\S+ \S+ ago)\)"
"""A time in a sentence."""
Situation = Callable[[House], Awaitable[str]]
RUN = r"Run [0-9a-f-]{36}"
PHASE = r"Phase [0-9a-f-]{36}"
ID = r"[0-9a-f-]{36}"
TASKS = r"Rollout ro-[0-9a-f]{12}"
THREAD = r"Thread [0-9a-f-]{36}"
REQUEST = rf"Request rq-1 to agent 'echo' about thread {ID}"

SITUATIONS: list[tuple[Situation, str, str, str]] = [
    (
        situations.paused_queue,
        "paused",
        "pending",
        f"{RUN} is waiting: the queue is paused since {T}. Resume it with `perdure queue resume agents`.",
    ),
    (
        situations.no_worker,
        "no_worker",
        "pending",
        f"{RUN} is waiting for a worker; no worker is alive for queue 'agents': none has connected "
        f"yet. Start one with `perdure worker`.",
    ),
    (
        situations.worker_gone,
        "no_worker",
        "pending",
        f"{RUN} is waiting for a worker; no worker is alive for queue 'agents': the last one, w9, was "
        f"last heard from at {T}. Start one with `perdure worker`.",
    ),
    (
        situations.worker_stopped,
        "no_worker",
        "pending",
        f"{RUN} is waiting for a worker; no worker is alive for queue 'agents': the last one, w9, has "
        f"stopped; it was last heard from at {T}. Start one with `perdure worker`.",
    ),
    (
        situations.no_agent,
        "no_agent",
        "pending",
        f"{RUN} is waiting for a worker; no live worker has agent 'echo'; live workers have: more, other. "
        f"Start one that has it with `perdure worker`.",
    ),
    (
        situations.phase_without_worker,
        "no_worker",
        "pending",
        f"{PHASE} is waiting for a worker; no worker is alive for queue 'workflows': none has connected yet. "
        f"Start one with `perdure worker --queue workflows`.",
    ),
    (
        situations.phase_without_agent,
        "no_agent",
        "pending",
        rf"{PHASE} is waiting for a worker; no live worker has agent 'perdure\.http'; live workers have: "
        rf"echo, perdure\.command\. Start one that has it with `perdure worker`.",
    ),
    (
        situations.next_in_queue,
        "in_queue",
        "pending",
        f"{RUN} is waiting for a worker; it is next in queue 'agents'; 1 worker is alive, with 4 of 4 "
        f"slots free.",
    ),
    (
        situations.in_queue,
        "in_queue",
        "pending",
        f"{RUN} is waiting for a worker; 2 of agent 'echo' are ahead of it in queue 'agents'; "
        f"2 workers are alive, with 4 of 5 slots free.",
    ),
    (
        situations.behind,
        "behind",
        "pending",
        rf"{RUN} is waiting: 2nd in line in thread {ID}, behind run {ID}, which is running "
        rf"\(multitask_strategy enqueue\).",
    ),
    (
        situations.behind_a_ready_one,
        "behind",
        "pending",
        rf"{RUN} is waiting: 1st in line in thread {ID}, behind run {ID}, which is pending "
        rf"\(multitask_strategy enqueue\).",
    ),
    (
        situations.behind_a_cancelled_one,
        "stopping",
        "pending",
        rf"{RUN} is waiting: 1st in line in thread {ID}, until the cancelled run {ID} has stopped, "
        rf"until {T} at the latest \(multitask_strategy interrupt\).",
    ),
    (situations.not_before, "not_before", "pending", f"{RUN} is delayed until {T}."),
    (
        situations.backing_off,
        "backoff",
        "pending",
        f"{RUN} is backing off until {T} before attempt 2 of 3: attempt 1 failed at {T} with "
        f"ConnectionError: refused.",
    ),
    (
        situations.tried_again,
        "retry",
        "pending",
        f"{RUN} is waiting for a worker for attempt 2 of 3 after attempt 1 failed at {T} with "
        f"ConnectionError: refused; it is next in queue 'agents'; 1 worker is alive, with 4 of 4 "
        f"slots free.",
    ),
    (
        situations.worker_lost,
        "worker_lost",
        "pending",
        f"{RUN} was taken from worker w7, last heard from at {T}, and is waiting for a worker for "
        f"attempt 2 of 3; it is next in queue 'agents'; 1 worker is alive, with 4 of 4 slots free.",
    ),
    (
        situations.handed_back,
        "handed_back",
        "pending",
        f"{RUN} was released by worker w1 at {T} without using up an attempt, and is waiting for a "
        f"worker; it is next in queue 'agents'; 1 worker is alive, with 4 of 4 slots free.",
    ),
    (
        situations.running,
        "running",
        "running",
        f"{RUN}: attempt 1 of 3 is running on worker w1 since {T}, last heard from at {T}; its lease "
        f"lasts until {T}; its timeout is that of its agent.",
    ),
    (
        situations.overdue,
        "overdue",
        "running",
        f"{RUN}: attempt 1 of 3 is running on worker w1 since {T}, no heartbeat yet; its lease ended "
        f"at {T}, and the watchdog ends it at its next check.",
    ),
    (
        situations.unknown_kind,
        "unknown_kind",
        "pending",
        f"{RUN} is of the kind 'run', which this server does not know: it neither starts nor ends it. "
        f"Use a server of the version that created it.",
    ),
    (situations.succeeded, "success", "success", f"{RUN} succeeded at {T}."),
    (situations.failed, "error", "error", f"{RUN} failed at {T} with ValueError: no such city."),
    (situations.timed_out, "timeout", "timeout", f"{RUN} timed out at {T} after its limit of 30 s."),
    (
        situations.exceeded,
        "exceeded_attempts",
        "error",
        rf"{RUN} failed at {T}: Run {ID} exceeded max attempts \(1\).* async I/O "
        rf".*BG_JOB_ISOLATED_LOOPS=true. The last attempt: ConnectionError: refused.",
    ),
    (
        situations.lost_for_good,
        "exceeded_attempts",
        "error",
        rf"{RUN} failed at {T}: Run {ID} exceeded max attempts \(1\).*The last attempt: WorkerLost: "
        rf".* fell silent.",
    ),
    (
        situations.interrupted_by_ann,
        "interrupted",
        "interrupted",
        f"{RUN} was interrupted by ann at {T} before it began.",
    ),
    (
        situations.still_to_stop,
        "interrupted",
        "interrupted",
        f"{RUN} was interrupted at {T}; worker w1 has not stopped yet, and its thread waits for it "
        f"until {T}.",
    ),
    (
        situations.rolled_back_by_another,
        "rollback",
        "rollback",
        rf"{RUN} was rolled back by ann to make way for run {ID} \(multitask_strategy rollback\) at "
        rf"{T} before it began.",
    ),
    (
        situations.temporary,
        "success",
        "success",
        f"{RUN} succeeded at {T}. Its temporary thread was deleted; its trace is kept.",
    ),
    (situations.deleted_run, "deleted", "success", f"{RUN} was deleted by ann at {T}; its trace is kept."),
    (
        situations.run_of_deleted_thread,
        "deleted",
        "interrupted",
        f"{RUN} was deleted with its thread by ann at {T}; its trace is kept.",
    ),
    (
        situations.task_alone,
        "no_worker",
        "queuing",
        f"{TASKS} is waiting for a worker; no worker is alive for queue 'default': none has connected "
        f"yet. Start one that claims from this queue.",
    ),
    (
        situations.task_in_queue,
        "in_queue",
        "queuing",
        f"{TASKS} is waiting for a worker; it is next in queue 'default'; 1 worker is alive.",
    ),
    (
        situations.task_claimed,
        "running",
        "preparing",
        f"{TASKS}: attempt 1 of 1 is running on worker runner since {T}, no heartbeat yet; its lease "
        f"lasts until {T}; its timeout is at {T}.",
    ),
    (
        situations.task_without_limits,
        "running",
        "running",
        f"{TASKS}: attempt 1 of 1 is running on worker runner since {T}, no heartbeat yet; it has no "
        f"timeout.",
    ),
    (
        situations.task_failed,
        "error",
        "failed",
        f"{TASKS} failed at {T}: attempt 1 failed, and 'failed' is not in its retry_condition.",
    ),
    (
        situations.task_out_of_attempts,
        "exceeded_attempts",
        "failed",
        f"{TASKS} failed at {T}: attempt 1 failed, and that was the last of 1 attempts.",
    ),
    (
        situations.task_timed_out,
        "timeout",
        "failed",
        f"{TASKS} timed out at {T} after its limit of 0.01 s.",
    ),
    (
        situations.task_tried_again,
        "retry",
        "requeuing",
        f"{TASKS} is waiting for a worker for attempt 2 of 2 after attempt 1 failed at {T}; it is "
        f"next in queue 'default'; 1 worker is alive.",
    ),
    (
        situations.task_cancelled,
        "cancelled",
        "cancelled",
        f"{TASKS} was cancelled by bob at {T} before it began.",
    ),
    (
        situations.task_by_hand,
        "by_hand",
        "running",
        f"{TASKS} was set to running by hand; no attempt is running.",
    ),
    (situations.task_failed_by_hand, "by_hand", "failed", f"{TASKS} was set to failed by hand at {T}."),
    (
        situations.task_put_back,
        "by_hand",
        "requeuing",
        f"{TASKS} was put back into the queue, and is waiting for a worker; it is next in queue "
        f"'default'; 1 worker is alive.",
    ),
    (situations.thread_never_run, "never_run", "idle", f"{THREAD} is idle: it has no runs."),
    (
        situations.thread_idle,
        "idle",
        "idle",
        f"{THREAD} is idle since its last run {ID} ended as success at {T}.",
    ),
    (
        situations.thread_busy,
        "busy",
        "busy",
        f"{THREAD} is busy with run {ID}, and 2 wait behind it. {RUN}: attempt 1 of 3 is running on "
        f"worker w1 .*",
    ),
    (
        situations.thread_waits_for_time,
        "busy",
        "busy",
        f"{THREAD} is busy with run {ID}. {RUN} is delayed until {T}.",
    ),
    (
        situations.thread_asks,
        "waits_for_answer",
        "interrupted",
        rf"{THREAD} is waiting for an answer to Book the flight\? \(interrupt i1\): answer it with a "
        rf"run whose command has `resume`.",
    ),
    (
        situations.thread_interrupted,
        "interrupted",
        "interrupted",
        f"{THREAD} is interrupted since its last run {ID} ended as interrupted at {T}; next: book.",
    ),
    (
        situations.thread_failed,
        "error",
        "error",
        f"{THREAD} is in error since its last run {ID} failed with ConnectionError: refused.",
    ),
    (situations.thread_deleted, "deleted", "deleted", f"{THREAD} was deleted by ann at {T}."),
    (
        situations.request_waiting,
        "request_waiting",
        "queuing",
        f"{REQUEST} is waiting for a worker that has this agent; its caller waits until {T}.",
    ),
    (
        situations.request_running,
        "request_running",
        "preparing",
        f"{REQUEST} is executed by a worker since {T}; its caller waits until {T}.",
    ),
    (situations.request_answered, "request_answered", "succeeded", f"{REQUEST} was answered at {T}."),
    (
        situations.request_expired,
        "request_expired",
        "cancelled",
        f"{REQUEST} ended at {T} without an answer, and nothing was changed.",
    ),
]


@pytest.fixture
async def house(engine_url: str) -> AsyncIterator[House]:
    async with open_store(engine_url, watchdog_interval=None) as store:
        house = House(store)
        await Assistants(store.storage).register([AgentSpec(name="echo")])
        yield house


@pytest.mark.parametrize(
    ("situation", "rule", "status", "sentence"),
    [pytest.param(*each, id=each[0].__name__) for each in SITUATIONS],
)
async def test_every_situation_has_its_sentence(
    house: House, situation: Situation, rule: str, status: str, sentence: str
) -> None:
    id = await situation(house)
    found = await house.diagnostics.why(id)
    assert isinstance(found, Why)
    assert (found.id, found.rule, found.status) == (id, rule, status), found.sentence
    assert re.fullmatch(sentence, found.sentence), found.sentence
    assert found.kind == found.sentence.partition(" ")[0].lower()
    assert None not in found.facts.values()


async def test_the_facts_are_for_programs(house: House) -> None:
    found = await house.diagnostics.why(await situations.backing_off(house))
    assert found.facts["attempts"] == 1
    assert found.facts["max_attempts"] == 3
    assert found.facts["last_error"] == {"error": "ConnectionError", "message": "refused"}
    assert found.facts["not_before"] > found.facts["created_at"]
    assert found.facts["worker_id"] == "w1"


async def test_what_is_not_there_is_named(house: House) -> None:
    with pytest.raises(NotFound, match="Nothing in this namespace has the id run-0"):
        await house.diagnostics.why("run-0")
    elsewhere = house.diagnostics.in_namespace("another")
    with pytest.raises(NotFound):
        await elsewhere.why(await situations.no_worker(house))


async def test_every_other_id_is_explained_too(house: House) -> None:
    run_id = await situations.no_worker(house)
    store = house.store
    await store.enqueue_rollout("x")
    claimed = await store.dequeue_rollout(worker_id="w-1")
    assert claimed is not None
    attempt = await house.diagnostics.why(claimed.attempt.attempt_id)
    assert (attempt.kind, attempt.rule) == ("attempt", "attempt_of")
    assert claimed.rollout_id in attempt.sentence
    worker = await house.diagnostics.why("w-1")
    assert worker.kind == "worker"
    assert worker.sentence.startswith("Worker w-1 is busy; it was heard from ")
    with pytest.raises(NotFound):
        await house.diagnostics.why(run_id[:-1])


def test_a_thread_that_failed_in_a_turn_of_a_chat_names_no_run() -> None:
    failure = Failure(error="KeyError", message="'name'")
    facts = ThreadFacts(id="t", status="error", gone_at=None, failure=failure)
    sentence = explain_thread(facts, 0).sentence
    assert sentence == "Thread t is in error since what it executed last failed with KeyError: 'name'."
