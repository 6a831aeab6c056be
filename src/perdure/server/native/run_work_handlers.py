"""What remote workers ask for: runs, leases, news of them, and everything that their agents write."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from perdure.client import native_wire as wire
from perdure.client import work_wire
from perdure.graphs.records import GraphSteps
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import InvalidInput, PerdureError
from perdure.server.http.routes import Call
from perdure.server.native.rooms import threads_of
from perdure.streams.model import NewEvent
from perdure.threads.records import Checkpoint
from perdure.threads.work import Ending

_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,255}")


async def register(call: Call) -> wire.Ok:
    wanted: work_wire.Registration = call.body
    await threads_of(call).register(wanted.worker_id, wanted.agents, wanted.concurrency)
    return wire.Ok()


async def claim(call: Call) -> work_wire.Assignments:
    wanted: work_wire.Claim = call.body
    claimed = await threads_of(call).claim(
        wanted.worker_id, wanted.limit, wanted.wait, idempotency_key=call.idempotency_key
    )
    call.app.metrics.count_claim(len(claimed))
    return work_wire.Assignments(assignments=claimed)


async def renew(call: Call) -> work_wire.Verdicts:
    wanted: work_wire.Renewal = call.body
    verdicts = await threads_of(call).renew(wanted.worker_id, wanted.held)
    return work_wire.Verdicts(verdicts=verdicts)


async def controls(call: Call) -> work_wire.Controls:
    wanted: work_wire.Watch = call.body
    return work_wire.Controls(controls=await threads_of(call).controls(wanted.held, wanted.wait))


async def append(call: Call) -> work_wire.Appended:
    threads = threads_of(call)
    wanted: list[work_wire.Append] = call.body.appends
    results = await _each(
        threads.append(each.held, checked(each.events), after=each.after) for each in wanted
    )
    return work_wire.Appended(results=results)


async def save(call: Call) -> Checkpoint:
    state: work_wire.SavedState = call.body
    events = checked(state.events)
    return await threads_of(call).save(state.held, state.checkpoint, events, after=state.after)


async def record(call: Call) -> work_wire.RecordSteps:
    done: work_wire.Steps = call.body
    seq = await threads_of(call).record(done.held, _shown(done.steps), checked(done.events), after=done.after)
    return work_wire.RecordSteps(seq=seq)


async def find_graphs(call: Call) -> work_wire.FoundGraphs:
    wanted: work_wire.GraphSearch = call.body
    return work_wire.FoundGraphs(found=await threads_of(call).find_graphs(wanted.held, wanted.query))


async def find_deltas(call: Call) -> work_wire.FoundDeltas:
    wanted: work_wire.DeltaSearch = call.body
    return work_wire.FoundDeltas(found=await threads_of(call).find_deltas(wanted.held, wanted.query))


def _shown(steps: GraphSteps) -> GraphSteps:
    """Steps whose states can be shown: their values are JSON."""
    for state in steps.states:
        decode_json(state.body)
    return steps


async def keep(call: Call) -> wire.Ok:
    step: work_wire.KeptStep = call.body
    await threads_of(call).keep(step.held, step.origin, step.name, step.body)
    return wire.Ok()


async def finish(call: Call) -> work_wire.Results:
    threads = threads_of(call)
    endings: list[Ending] = call.body.endings
    for ending in endings:
        checked(ending.events)
        if ending.graph is not None:
            _shown(ending.graph)
    found = await _each(threads.finish(ending) for ending in endings)
    return work_wire.Results(results=[_ended(each) for each in found])


def _ended(found: Any) -> work_wire.Ended:
    if isinstance(found, work_wire.Refusal):
        return work_wire.Ended(error=found)
    return work_wire.Ended(run=found)


async def release(call: Call) -> wire.Ok:
    await threads_of(call).hand_back(call.body.held)
    return wire.Ok()


def checked(events: Sequence[NewEvent]) -> Sequence[NewEvent]:
    """Events that a stream can show: one name, and one line of JSON. Whoever sends others means harm."""
    for number, event in enumerate(events):
        if not _NAME.fullmatch(event.event):
            raise InvalidInput(f"event {number} has no name that can be shown: {event.event[:64]!r}")
        if "\n" in event.body or "\r" in event.body:
            raise InvalidInput(f"the body of event {number} has more than one line")
        decode_json(event.body)
    return events


async def _each(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    """What each of the calls gives, which the room merges, or why it was refused."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    return [_given(each) for each in found]


def _given(found: Any) -> Any:
    if isinstance(found, PerdureError):
        return work_wire.Refusal(code=found.code, detail=found.message)
    if isinstance(found, BaseException):
        raise found
    return found
