"""Check requests of callers and encode them for operations."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from perdure.checkpoints.packs import encode_packed, superseded
from perdure.checkpoints.records import GraphState, GraphSteps
from perdure.checkpoints.rows import encode_changes
from perdure.checkpoints.view import decode_keys, encode_keys
from perdure.kernel.checks import (
    check_choice,
    check_id,
    check_object,
    check_text,
    optional_choice,
    optional_id,
)
from perdure.kernel.clock import to_micros
from perdure.kernel.codec import check_json, decode_json, encode_json
from perdure.kernel.errors import InvalidInput
from perdure.kernel.storage.labels import encode_labels, encode_metadata
from perdure.spans.recording import parse_traceparent
from perdure.streams.model import METADATA, REFERENCE_SIZE, VALUES, NewEvent
from perdure.threads.kwargs import decode_references, kwargs_text
from perdure.threads.model import RUN_QUEUES
from perdure.threads.operations.create import NewRun
from perdure.threads.operations.execute import Checked
from perdure.threads.operations.graphs import GraphStep, Steps
from perdure.threads.operations.packed import PackedState, encode_states
from perdure.threads.operations.shown import are_shown
from perdure.threads.operations.states import MergedMetadata
from perdure.threads.policy import Policy, encode_limits
from perdure.threads.records import PRUNE_STRATEGIES, Lifetime, NewCheckpoint, RunKwargs, RunRequest
from perdure.threads.rows import IN_CHECKPOINT, IN_PIECES, NOTHING_ASKED, NOTHING_NEXT
from perdure.threads.work import Lease

MAX_LIFETIME_MINUTES = 100 * 366 * 1440
MAX_TEXT = 1 << 30
MAX_KEYS = 1 << 16
_PRINTABLE = re.compile(r"[^\x00-\x1f\x7f]{1,255}")
INLINE_BYTES = 2048
"""Largest size of a graph's latest values that is stored in the state row, to be read without the pieces."""


def check_lease(held: Lease) -> Lease:
    """Check that the ids of a lease can be looked up. Whether the lease holds a run is decided later."""
    check_id(held.run_id, "run_id")
    check_id(held.thread_id, "thread_id")
    check_id(held.attempt_id, "attempt_id")
    return held


def check_queues(queues: Sequence[str]) -> tuple[str, ...]:
    """Return the queues that a worker serves, without duplicates; at least one."""
    served = tuple(dict.fromkeys(check_choice(queue, RUN_QUEUES, "queue") for queue in queues))
    if not served:
        raise InvalidInput("a worker serves at least one queue: agents or workflows")
    return served


def check_events(events: Sequence[NewEvent]) -> tuple[NewEvent, ...]:
    for event in events:
        check_id(event.event, "the name of an event")
        check_text(event.body, "the body of an event", max_length=MAX_TEXT)
    if are_shown(events):
        return tuple(map(_checked_event, events))
    return tuple(events)


def check_sent(events: Sequence[NewEvent]) -> tuple[NewEvent, ...]:
    """Check the events that a worker sent: each has a printable name and one line of JSON.

    Workers are not trusted, and a line break would split one event into two for its readers.
    """
    for number, event in enumerate(events):
        if not _PRINTABLE.fullmatch(event.event):
            raise InvalidInput(f"event {number} has no printable name: {event.event[:64]!r}")
        if "\n" in event.body or "\r" in event.body:
            raise InvalidInput(f"the body of event {number} has more than one line")
        check_json(event.body, f"the body of event {number}")
    return check_events(events)


def _checked_event(event: NewEvent) -> NewEvent:
    """Check the checkpoint reference of an event. Drop it if readers cannot resolve it."""
    shown = event.shown
    if shown is None:
        return event
    name = VALUES if not shown.checkpoint_ns else VALUES + "|" + shown.checkpoint_ns
    if event.event != name or len(event.body) < REFERENCE_SIZE or shown.keys is None:
        return msgspec.structs.replace(event, shown=None)
    check_id(shown.checkpoint_id, "checkpoint_id")
    decode_keys(check_text(shown.keys, "keys", max_length=MAX_KEYS))
    return event


def check_lifetime(lifetime: Lifetime | None) -> Lifetime | None:
    if lifetime is None:
        return None
    optional_choice(lifetime.strategy, PRUNE_STRATEGIES, "strategy")
    if not 0 < lifetime.minutes <= MAX_LIFETIME_MINUTES:
        raise InvalidInput(f"minutes must be above 0, at most {MAX_LIFETIME_MINUTES}, not {lifetime.minutes}")
    return lifetime


def metadata_text(metadata: Mapping[str, Any] | None) -> str:
    return "{}" if metadata is None else encode_metadata(metadata)


def merged_metadata(known: str, change: Mapping[str, Any]) -> MergedMetadata:
    """Merge a change into the stored metadata of a thread."""
    merged = {**decode_json(known), **change}
    return MergedMetadata(known, encode_metadata(merged, known=known), encode_labels(merged))


def config_text(config: Mapping[str, Any] | None) -> str:
    return "{}" if config is None else encode_json(check_object(config, "config"), what="config")


def new_run(request: RunRequest, policy: Policy, *, known: str = "{}") -> NewRun:
    """Check and encode a request. `known` is metadata that is already stored."""
    request = _valid(request)
    kwargs = RunKwargs(
        input=request.input,
        command=request.command,
        config=request.config,
        context=request.context,
        checkpoint_id=request.checkpoint_id,
        stream_mode=request.stream_mode,
        options=request.options,
        traceparent=request.traceparent,
    )
    if request.command is not None and request.thread_id is None:
        raise InvalidInput("a command continues a thread from where it stopped: give the thread_id")
    if request.checkpoint_id is not None and request.thread_id is None:
        raise InvalidInput("a checkpoint belongs to a thread: give the thread_id")
    span, _ = parse_traceparent(request.traceparent) or (None, None)
    webhook = request.webhook
    if webhook is not None and policy.check_webhook is not None:
        webhook = policy.check_webhook(webhook)
    text = kwargs_text(kwargs)
    return NewRun(
        thread_id=optional_id(request.thread_id, "thread_id"),
        assistant=check_id(request.assistant_id, "assistant_id"),
        kwargs=text,
        metadata=encode_metadata(request.metadata or {}, known=known),
        config=encode_limits(request, policy),
        strategy=request.multitask_strategy,
        make_thread=request.thread_id is None or request.if_not_exists == "create",
        delay=to_micros(request.after_seconds or 0.0),
        on_disconnect=request.on_disconnect,
        on_completion=request.on_completion if request.thread_id is None else "keep",
        webhook=webhook,
        priority=request.priority,
        grace=to_micros(policy.grace),
        checkpoint_id=optional_id(request.checkpoint_id, "checkpoint_id"),
        inherits=request.inherit_metadata,
        lifetime=policy.lifetime,
        trace_id=None if span is None else span.trace_id,
        references=decode_references(text),
    )


def followed(new: NewRun, run_id: str) -> NewRun:
    """Add an ID, so that the stream is readable before the run exists, and the first event of the stream."""
    return msgspec.structs.replace(new, run_id=run_id, first=begin_event(run_id, 1))


def begin_event(run_id: str, attempt: int) -> NewEvent:
    """Build the first event of an attempt."""
    return NewEvent(METADATA, encode_json({"run_id": run_id, "attempt": attempt}))


def _valid(request: RunRequest) -> RunRequest:
    """Validate a request; msgspec does not check structs that were created in code."""
    try:
        return msgspec.convert(msgspec.structs.asdict(request), RunRequest)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the request for a run: {error}") from None


def checked(checkpoint: NewCheckpoint) -> Checked:
    """Check and encode a state."""
    for checkpoint_id in (checkpoint.checkpoint_id, checkpoint.parent_id):
        if checkpoint_id is not None:
            check_id(checkpoint_id, "checkpoint_id")
    return Checked(
        values=encode_json(checkpoint.values, what="values"),
        next=encode_json(checkpoint.next, what="next"),
        interrupts=encode_json(checkpoint.interrupts, what="interrupts"),
        metadata=encode_json(checkpoint.metadata, what="metadata"),
        state=checkpoint.state,
        checkpoint_id=checkpoint.checkpoint_id,
        parent_id=checkpoint.parent_id,
    )


def check_states(steps: GraphSteps) -> GraphSteps:
    """Check that the values of all states are JSON, so that they can be shown."""
    for state in steps.states:
        if state.body is not None:
            check_json(state.body, "a state")
    return steps


def encode_steps(steps: GraphSteps, thread_id: str, events: Sequence[NewEvent] = ()) -> Steps:
    """Check and encode what a graph did in a thread. `events` are stored with it."""
    named = {put.thread_id for put in steps.changes.puts}
    named.update(write.thread_id for write in steps.changes.writes)
    if others := named - {thread_id}:
        raise InvalidInput(f"the changes of thread {thread_id} contain checkpoints of thread {min(others)}")
    packed = _packed(steps, {event.shown.checkpoint_id for event in events if event.shown is not None})
    if packed:
        states = [_step(state, packed=state.checkpoint_id in packed) for state in steps.states]
        changes = encode_packed(steps.changes, packed, encode_states(_packed_states(states, packed)))
        if changes is not None:
            return Steps(changes, tuple(states))
    return Steps(encode_changes(steps.changes), tuple(map(_step, steps.states)))


def _packed(steps: GraphSteps, shown: Collection[str]) -> list[str]:
    """Return checkpoints to pack instead of storing rows: plain steps whose states are part of `steps`."""
    puts = superseded(steps.changes.puts, shown)
    states = [state for state in steps.states if not state.again]
    if not puts or not states or states[-1].checkpoint_id != _last_root(steps):
        return []
    plain = {state.checkpoint_id for state in states if not (state.interrupts or state.body or state.whole)}
    return [put.checkpoint_id for put in puts if put.checkpoint_id in plain]


def _last_root(steps: GraphSteps) -> str:
    return next(put.checkpoint_id for put in reversed(steps.changes.puts) if not put.checkpoint_ns)


def _packed_states(states: Sequence[GraphStep], packed: Sequence[str]) -> list[PackedState]:
    new = [step.state for step in states if not step.again]
    places = {checkpoint_id: place for place, checkpoint_id in enumerate(packed)}
    return [
        PackedState(places[state.checkpoint_id], len(new) - number, state.next, state.output, state.parent_id)
        for number, state in enumerate(new, 1)
        if state.checkpoint_id is not None and state.checkpoint_id in places
    ]


def _step(state: GraphState, *, packed: bool = False) -> GraphStep:
    body = state.body
    short = body is not None and (state.whole or len(body) <= INLINE_BYTES)
    kept = Checked(
        values=body if body is not None and short else IN_PIECES,
        next=encode_json(state.next, what="next") if state.next else NOTHING_NEXT,
        interrupts=encode_json(state.interrupts, what="interrupts") if state.interrupts else NOTHING_ASKED,
        # Otherwise the checkpoint of the graph has it.
        metadata=encode_json(state.metadata, what="metadata") if state.whole else IN_CHECKPOINT,
        state=b"",
        checkpoint_id=check_id(state.checkpoint_id, "checkpoint_id"),
        parent_id=optional_id(state.parent_id, "checkpoint_id"),
        shown=body,
        output=None if state.output is None else encode_keys(state.output),
    )
    return GraphStep(kept, state.again, packed)
