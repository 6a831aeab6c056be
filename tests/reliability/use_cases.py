"""What people do with a store, each with the state it needs; for the sweeps of faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, Status, StatusCode

from perdure import (
    AttemptedRollout,
    EnqueueRolloutRequest,
    NamedResources,
    OtelResource,
    PromptTemplate,
    RolloutConfig,
)
from perdure.access.model import new_token
from perdure.access.operations import create_token, revoke_token
from perdure.rollouts.operations.enqueue import NewRollout
from perdure.rollouts.store import DatabaseLightningStore
from perdure.service.callers import Caller
from perdure.service.tables import SYSTEM
from perdure.testing.clock import ManualClock
from perdure.testing.contract.support import make_span

Store = DatabaseLightningStore
UseCase = Callable[[Store, Any], Awaitable[Any]]
Prepare = Callable[[Store, ManualClock], Awaitable[Any]]

RETRY = RolloutConfig(max_attempts=3, retry_condition=["failed", "timeout", "unresponsive"])
SILENT = RETRY.model_copy(update={"unresponsive_seconds": 10.0})
PROMPT: NamedResources = {"prompt": PromptTemplate(template="{x}", engine="f-string")}

USE_CASES: dict[str, tuple[Prepare, UseCase]] = {}


def use_case(prepare: Prepare) -> Callable[[UseCase], UseCase]:
    """Name the function as a use case that needs `prepare` first."""

    def register(act: UseCase) -> UseCase:
        USE_CASES[act.__name__] = (prepare, act)
        return act

    return register


async def nothing(store: Store, clock: ManualClock) -> None:
    await store.statistics()


async def queued(store: Store, clock: ManualClock) -> list[str]:
    return [(await store.enqueue_rollout(i, config=RETRY)).rollout_id for i in range(3)]


async def begun(store: Store, clock: ManualClock) -> list[AttemptedRollout]:
    """Two rollouts under way, and one that waits."""
    await queued(store, clock)
    return list(await store.dequeue_many_rollouts(limit=2, worker_id="w"))


async def silent(store: Store, clock: ManualClock) -> list[AttemptedRollout]:
    """Two attempts that have been silent for too long, which nobody has noticed yet."""
    started = [await store.start_rollout(i, config=SILENT, worker_id=f"w{i}") for i in range(2)]
    clock.advance(11)
    return started


async def held_silent(store: Store, clock: ManualClock) -> list[AttemptedRollout]:
    """Two attempts that are held for unresponsive."""
    started = await silent(store, clock)
    await store.query_rollouts()
    return started


async def delayed(store: Store, clock: ManualClock) -> None:
    """Three rollouts whose time has just come."""
    later = (await store.start_rollout("now")).start_time + 50
    for i in range(3):
        await store.enqueue_rollout(i, not_before=later)
    clock.advance(100)


async def traced(store: Store, clock: ManualClock) -> list[AttemptedRollout]:
    """Two rollouts with spans."""
    started = await begun(store, clock)
    await store.add_many_spans(
        [make_span(one, n, span_id=f"{n:016x}", trace_id="1" * 32) for one in started for n in range(1, 4)]
    )
    return started


async def in_a_line(store: Store, clock: ManualClock) -> Any:
    """Three rollouts in one line, the first of them claimed."""
    for i in range(3):
        await store.rollouts.enqueue_new(lined(str(i)))
    (claimed,) = await store.rollouts.claim("w")
    return claimed.rollout_id, claimed.attempt.attempt_id


def lined(text: str) -> NewRollout:
    return NewRollout(input=f'"{text}"', config="{}", metadata="{}", line="thread")


# --- the queue --------------------------------------------------------------------------------------------


@use_case(nothing)
async def enqueue(store: Store, given: Any) -> None:
    await store.enqueue_rollout({"task": 1}, "train", config=RETRY)


@use_case(queued)
async def enqueue_with_a_key(store: Store, given: Any) -> None:
    await store.enqueue_rollout("task", idempotency_key="k")


@use_case(queued)
async def enqueue_many(store: Store, given: Any) -> None:
    await store.enqueue_many_rollouts(
        [EnqueueRolloutRequest(input=i, queue="gpu", priority=i, idempotency_key=f"k{i}") for i in range(4)]
    )


@use_case(nothing)
async def start_rollout(store: Store, given: Any) -> None:
    await store.start_rollout("task", worker_id="w")


@use_case(queued)
async def dequeue(store: Store, given: Any) -> None:
    assert await store.dequeue_rollout("w")


@use_case(queued)
async def dequeue_many(store: Store, given: Any) -> None:
    assert len(await store.dequeue_many_rollouts(limit=2)) == 2


@use_case(nothing)
async def dequeue_from_an_empty_queue(store: Store, given: Any) -> None:
    assert await store.dequeue_rollout("w") is None


@use_case(delayed)
async def dequeue_what_was_delayed(store: Store, given: Any) -> None:
    assert await store.dequeue_rollout("w")


@use_case(begun)
async def start_attempt(store: Store, given: Any) -> None:
    await store.start_attempt(given[0].rollout_id, "other")


@use_case(begun)
async def give_a_claim_back(store: Store, given: Any) -> None:
    rollouts = store.rollouts
    pairs = [(one.rollout_id, one.attempt.attempt_id) for one in given]
    await rollouts.release(pairs)


@use_case(nothing)
async def enqueue_in_a_new_namespace(store: Store, given: Any) -> None:
    await store.in_namespace("new").enqueue_rollout("task")


# --- spans ------------------------------------------------------------------------------------------------


@use_case(begun)
async def add_first_span(store: Store, given: Any) -> None:
    resource = OtelResource(attributes={"service.name": "agent"}, schema_url="")
    await store.add_span(make_span(given[0], span_id="a" * 16, trace_id="1" * 32, resource=resource))


@use_case(traced)
async def add_many_spans(store: Store, given: Any) -> None:
    spans = [make_span(one, n, span_id=f"{n:016x}", trace_id="1" * 32) for one in given for n in range(2, 6)]
    await store.add_many_spans(spans)


@use_case(held_silent)
async def add_span_after_a_silence(store: Store, given: Any) -> None:
    await store.add_span(make_span(given[0], span_id="a" * 16, trace_id="1" * 32))


@use_case(begun)
async def add_otel_span(store: Store, given: Any) -> None:
    context = SpanContext(trace_id=1, span_id=2, is_remote=False)
    span = ReadableSpan(name="otel", context=context, status=Status(StatusCode.OK), start_time=1, end_time=2)
    await store.add_otel_span(given[0].rollout_id, given[0].attempt.attempt_id, span)


@use_case(traced)
async def take_a_sequence_id(store: Store, given: Any) -> None:
    await store.get_next_span_sequence_id(given[0].rollout_id, "any")


@use_case(traced)
async def take_many_sequence_ids(store: Store, given: Any) -> None:
    await store.get_many_span_sequence_ids([(given[i % 2].rollout_id, "any") for i in range(5)])


@use_case(traced)
async def evict(store: Store, given: Any) -> None:
    assert await store.rollouts.evict_spans(1)


# --- reports and changes ----------------------------------------------------------------------------------


@use_case(begun)
async def report_success(store: Store, given: Any) -> None:
    await store.update_attempt(given[1].rollout_id, "latest", status="succeeded")


@use_case(begun)
async def report_failure_that_is_retried(store: Store, given: Any) -> None:
    await store.update_attempt(given[1].rollout_id, "latest", status="failed", metadata={"why": "x"})


@use_case(begun)
async def report_a_heartbeat_and_a_worker(store: Store, given: Any) -> None:
    await store.update_attempt(given[0].rollout_id, "latest", worker_id="new", last_heartbeat_time=1.8e9)


@use_case(begun)
async def cancel(store: Store, given: Any) -> None:
    await store.update_rollout(given[0].rollout_id, status="cancelled")


@use_case(begun)
async def requeue_and_edit(store: Store, given: Any) -> None:
    await store.update_rollout(given[0].rollout_id, status="requeuing", input="new", config=SILENT)


@use_case(silent)
async def sweep(store: Store, given: Any) -> None:
    await store.rollouts.watchdog.sweep()


@use_case(silent)
async def dequeue_after_a_sweep(store: Store, given: Any) -> None:
    assert await store.dequeue_rollout("w")


@use_case(in_a_line)
async def enqueue_in_a_line(store: Store, given: Any) -> None:
    await store.rollouts.enqueue_new(lined("x"))


@use_case(in_a_line)
async def leave_a_line(store: Store, given: Any) -> None:
    rollout_id, attempt_id = given
    await store.update_attempt(rollout_id, attempt_id, status="succeeded")


# --- resources and workers --------------------------------------------------------------------------------


@use_case(nothing)
async def add_resources(store: Store, given: Any) -> None:
    await store.add_resources(PROMPT)


@use_case(nothing)
async def update_resources(store: Store, given: Any) -> None:
    await store.update_resources("mine", PROMPT)
    await store.update_resources("mine", {})


@use_case(begun)
async def update_workers(store: Store, given: Any) -> None:
    await store.update_worker("w", {"cpu": 1})
    await store.update_worker("new")


# --- many at once -----------------------------------------------------------------------------------------


@use_case(queued)
async def enqueue_by_many_callers(store: Store, given: Any) -> None:
    await together(store.enqueue_rollout(i) for i in range(5))


@use_case(begun)
async def report_by_many_callers(store: Store, given: Any) -> None:
    await together(store.update_attempt(one.rollout_id, "latest", status="succeeded") for one in given)


@use_case(begun)
async def add_spans_by_many_callers(store: Store, given: Any) -> None:
    spans = [
        make_span(one, 1, span_id=f"{n:016x}", trace_id="1" * 32) for n, one in enumerate([*given, *given])
    ]
    await together(store.add_span(span) for span in spans)


async def together(calls: Any) -> None:
    """Calls that merge: either all are answered, or all fail, and alike."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    failures = [answer for answer in answers if isinstance(answer, BaseException)]
    assert len(failures) in (0, len(answers)), answers
    if failures:
        raise failures[0]


# --- with an actor, and with a key ------------------------------------------------------------------------


@use_case(begun)
async def act_as_somebody(store: Store, given: Any) -> None:
    anna = store.acting_as(Caller.trusted("anna", store.namespace))
    await anna.enqueue_rollout("task")
    await anna.update_attempt(given[0].rollout_id, "latest", status="succeeded")


@use_case(queued)
async def dequeue_with_a_key(store: Store, given: Any) -> None:
    anna = store.acting_as(Caller.trusted("anna", store.namespace))
    first = await anna.dequeue_many_rollouts(limit=2, worker_id="w", idempotency_key="k")
    assert await anna.dequeue_many_rollouts(limit=2, worker_id="w", idempotency_key="k") == first


@use_case(begun)
async def start_attempt_with_a_key(store: Store, given: Any) -> None:
    await store.start_attempt(given[0].rollout_id, "other", idempotency_key="k")


@use_case(nothing)
async def make_and_revoke_a_token(store: Store, given: Any) -> None:
    token = new_token(
        store.storage.ids.hex(16), "secret", name="ci", scopes=["read"], namespaces=["*"], expires_in=None
    )
    await store.storage.run(create_token, token, True, ns=SYSTEM, actor="anna")
    await store.storage.run(revoke_token, token.token_id, ns=SYSTEM, actor="anna")
