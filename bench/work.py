"""The work itself, written once against the store contract: ours and the peer run the same functions.

`store` is any implementation of the contract, `kit` the module with its record types. Only the standard
library is imported, because the peer runs this file in its own environment.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from bench.timing import milliseconds, spread

CALLERS = 64
HTTP_CALLERS = 16
BATCH_CALLERS = 4
BATCH = 100
SPANS_A_CYCLE = 10
FINISHED_SHARE = 10
QUERIED_STATUSES = (["queuing"], ["succeeded"], ["queuing", "succeeded"])


def task_input(number: int) -> dict[str, Any]:
    return {
        "task": number,
        "prompt": "Find the cheapest direct flight and explain in two sentences why it was chosen.",
        "options": {"temperature": 0.7, "max_tokens": 512, "tools": ["search", "calendar"]},
    }


def span_attributes(number: int) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.system": "openai",
        "gen_ai.request.model": "a-model-of-middling-size",
        "gen_ai.request.temperature": 0.7,
        "gen_ai.usage.input_tokens": 812 + number % 100,
        "gen_ai.usage.output_tokens": 96,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "Find the cheapest direct flight and explain the choice. " * 6,
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": "The morning flight costs least and needs no change of planes. " * 4,
    }


def make_span(kit: Any, rollout_id: str, attempt_id: str, number: int) -> Any:
    started = 1_700_000_000.0 + number / 1000
    return kit.Span(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=number,
        trace_id=f"{number // BATCH:032x}",
        span_id=f"{number:016x}",
        parent_id=None,
        name="chat a-model-of-middling-size",
        status=kit.TraceStatus(status_code="OK"),
        attributes=span_attributes(number),
        events=[],
        links=[],
        start_time=started,
        end_time=started + 0.25,
        context=None,
        parent=None,
        resource=kit.OtelResource(attributes={"service.name": "agent", "host.name": "bench"}, schema_url=""),
    )


def requests(kit: Any, start: int, count: int) -> list[Any]:
    return [kit.EnqueueRolloutRequest(input=task_input(start + number)) for number in range(count)]


async def fill(store: Any, kit: Any, count: int) -> None:
    """Enqueue `count` rollouts, untimed."""
    for start in range(0, count, 500):
        await store.enqueue_many_rollouts(requests(kit, start, min(500, count - start)))


async def complete(store: Any, claimed: Sequence[Any]) -> None:
    """Complete each rollout by its own call, all at once."""
    calls = (
        store.update_attempt(one.rollout_id, one.attempt.attempt_id, status="succeeded") for one in claimed
    )
    await asyncio.gather(*calls)


async def enqueue(store: Any, kit: Any, size: int, callers: int = CALLERS) -> float:
    return await spread(callers, size, lambda number: store.enqueue_rollout(task_input(number)))


async def enqueue_many(store: Any, kit: Any, size: int) -> float:
    async def call(number: int) -> None:
        await store.enqueue_many_rollouts(requests(kit, number * BATCH, BATCH))

    return BATCH * await spread(BATCH_CALLERS, max(size // BATCH, 1), call)


async def cycle(store: Any, kit: Any, size: int, callers: int = CALLERS) -> float:
    """Dequeue, report ten spans one by one, complete."""
    await fill(store, kit, size)

    async def call(_number: int) -> None:
        claimed = await store.dequeue_rollout()
        rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
        for number in range(1, SPANS_A_CYCLE + 1):
            await store.add_span(make_span(kit, rollout_id, attempt_id, number))
        await store.update_attempt(rollout_id, attempt_id, status="succeeded")

    return await spread(callers, size, call)


async def cycle_many(store: Any, kit: Any, size: int, callers: int = CALLERS) -> float:
    """Dequeue, report ten spans in one call, complete."""
    await fill(store, kit, size)

    async def call(_number: int) -> None:
        claimed = await store.dequeue_rollout()
        rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
        numbers = range(1, SPANS_A_CYCLE + 1)
        await store.add_many_spans([make_span(kit, rollout_id, attempt_id, number) for number in numbers])
        await store.update_attempt(rollout_id, attempt_id, status="succeeded")

    return await spread(callers, size, call)


async def make_traces(store: Any, kit: Any, traces: int, size: int) -> list[list[Any]]:
    """Start `traces` rollouts and build `size` spans for them, not yet stored."""
    made = []
    for trace in range(traces):
        started = await store.start_rollout(task_input(trace))
        numbers = range(1, size // traces + 1)
        made.append([make_span(kit, started.rollout_id, started.attempt.attempt_id, n) for n in numbers])
    return made


async def add_spans(store: Any, kit: Any, size: int) -> float:
    spans = [
        span
        for trace in zip(*await make_traces(store, kit, CALLERS, max(size, CALLERS)), strict=True)
        for span in trace
    ]
    return await spread(CALLERS, len(spans), lambda number: store.add_span(spans[number]))


async def add_many_spans(store: Any, kit: Any, size: int) -> float:
    """Store batches of one trace of one rollout, as an exporter sends them."""
    traces = max(size // BATCH, 1)
    batches = await make_traces(store, kit, traces, traces * BATCH)
    return BATCH * await spread(BATCH_CALLERS, traces, lambda number: store.add_many_spans(batches[number]))


async def claim_complete(store: Any, kit: Any, size: int) -> float:
    """Claim 100, then complete each by its own call, all at once."""
    await fill(store, kit, size)

    async def call(_number: int) -> None:
        await complete(store, await store.dequeue_many_rollouts(limit=BATCH))

    return BATCH * await spread(BATCH_CALLERS, max(size // BATCH, 1), call)


async def seed_queries(store: Any, kit: Any, count: int) -> None:
    """Create `count` rollouts, a tenth of them succeeded and the rest queued."""
    finished = count // FINISHED_SHARE
    await fill(store, kit, count)
    for start in range(0, finished, BATCH):
        await complete(store, await store.dequeue_many_rollouts(limit=min(BATCH, finished - start)))


async def query(store: Any, times: int) -> float:
    """Return mean milliseconds of a filtered, sorted page of 100, over few, many and all matches."""

    async def pages() -> None:
        for number in range(times):
            statuses = QUERIED_STATUSES[number % len(QUERIED_STATUSES)]
            await store.query_rollouts(status_in=statuses, sort_by="start_time", sort_order="desc", limit=100)

    return await milliseconds(pages) / times


async def newest(store: Any, times: int) -> float:
    """Return mean milliseconds of the list of the newest 100 rollouts."""

    async def pages() -> None:
        for _ in range(times):
            await store.query_rollouts(sort_by="start_time", sort_order="desc", limit=100)

    return await milliseconds(pages) / times


async def wake_up(waiting: Any, completing: Any, kit: Any, count: int) -> tuple[int, float]:
    """Return threads alive while all wait, and milliseconds from the last completion to the waits' return.

    One wait has all the ids; each id also has its own wait.
    """
    await fill(completing, kit, count)
    claimed = list(await completing.dequeue_many_rollouts(limit=count))
    ids = [one.rollout_id for one in claimed]
    waits = [
        asyncio.create_task(waiting.wait_for_rollouts(rollout_ids=each))
        for each in (*([one] for one in ids), ids)
    ]
    await complete(completing, claimed[:1])
    await waits[0]
    threads = threading.active_count()
    await complete(completing, claimed[1:-1])
    await asyncio.gather(*waits[:-2])
    started = time.perf_counter()
    await complete(completing, claimed[-1:])
    await asyncio.gather(*waits)
    return threads, (time.perf_counter() - started) * 1000


RATES = {
    "enqueue": enqueue,
    "enqueue_many": enqueue_many,
    "cycle": cycle,
    "add_span": add_spans,
    "add_many_spans": add_many_spans,
}
HTTP_RATES: dict[str, Callable[..., Awaitable[float]]] = {
    "enqueue": partial(enqueue, callers=HTTP_CALLERS),
    "cycle": partial(cycle, callers=HTTP_CALLERS),
    "cycle_64": cycle,
    "cycle_many": partial(cycle_many, callers=HTTP_CALLERS),
}
"""Rates through a client: fewer callers, because each request has its cost."""
