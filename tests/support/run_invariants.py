"""Rules for the rows of threads, runs, checkpoints and streams, in addition to those of their rollouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tests.support.events import stored_events

from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import ENDED
from perdure.streams.model import StreamEvent
from perdure.threads.model import RUN_KINDS
from perdure.threads.operations.settle import thread_stream

RUNS = statement("SELECT id, thread_id, live, gone_at FROM runs WHERE ns = :ns ORDER BY id")
THREADS = statement(
    "SELECT id, status, rest, temporary, gone_at, checkpoint_id, steps FROM threads WHERE ns = :ns"
)
CHECKPOINTS = statement("SELECT thread_id, id, step, run_id FROM checkpoints WHERE ns = :ns")
HEADS = statement("SELECT stream, last_seq, end_seq FROM streams WHERE ns = :ns")
LINKS = statement(
    "SELECT stream, seq, source, source_seq, count FROM stream_links WHERE ns = :ns ORDER BY stream, seq"
)
LOST_STATES = statement(
    "SELECT e.stream, e.seq, e.checkpoint_id FROM stream_events AS e WHERE e.ns = :ns"
    " AND e.checkpoint_id IS NOT NULL"
    " AND NOT EXISTS (SELECT 1 FROM checkpoints AS c WHERE e.keys IS NULL"
    " AND c.ns = e.ns AND c.thread_id = e.thread_id AND c.id = e.checkpoint_id)"
    " AND NOT EXISTS (SELECT 1 FROM graph_checkpoints AS g WHERE e.keys IS NOT NULL"
    " AND g.ns = e.ns AND g.thread_id = e.thread_id AND g.checkpoint_ns = e.checkpoint_ns"
    " AND g.id = e.checkpoint_id)"
)
BUSY_THREAD = "busy"
END = "end"


class StoredRun(NamedTuple):
    id: str
    thread_id: str
    live: int | None
    gone_at: int | None


class StoredThread(NamedTuple):
    id: str
    status: str
    rest: str
    temporary: int | None
    gone_at: int | None
    checkpoint_id: str | None
    steps: int


class StoredHead(NamedTuple):
    stream: str
    last_seq: int
    end_seq: int | None


async def broken_run_rules(tx: Tx, rollouts: Mapping[str, Any]) -> list[str]:
    """Return the violated rules of the threads, given the rollouts of the namespace by id."""
    runs = [StoredRun(*row) for row in await tx.all(RUNS)]
    threads = {row[0]: StoredThread(*row) for row in await tx.all(THREADS)}
    heads = {row[0]: StoredHead(*row) for row in await tx.all(HEADS)}
    wrong: list[str] = []
    for run in runs:
        wrong += [f"run {run.id} {what}" for what in _of_run(run, rollouts.get(run.id), threads, heads)]
    known = {run.id for run in runs}
    live = [each for each in rollouts.values() if each.kind in RUN_KINDS and each.status not in ENDED]
    wrong += [f"{each.id} executes a run that does not exist" for each in live if each.id not in known]
    wrong += _of_threads(threads, runs)
    wrong += _of_states(threads, await tx.all(CHECKPOINTS))
    wrong += _of_streams(heads, await stored_events(tx))
    wrong += _of_joined(heads, await tx.all(LINKS))
    wrong += [
        f"event {seq} of {stream} shows the checkpoint {checkpoint}, which is not there"
        for stream, seq, checkpoint in await tx.all(LOST_STATES)
    ]
    return wrong


def _of_run(
    run: StoredRun,
    rollout: Any,
    threads: Mapping[str, StoredThread],
    heads: Mapping[str, StoredHead],
) -> Iterator[str]:
    if rollout is None or rollout.kind not in RUN_KINDS or rollout.line != run.thread_id:
        yield f"is no rollout in the line of thread {run.thread_id}: {rollout}"
        return
    ended = rollout.status in ENDED
    if (run.live is None) != ended:
        yield f"is {rollout.status}, and live is {run.live}"
    if run.gone_at is not None and not ended:
        yield f"is {rollout.status} and out of sight"
    thread = threads.get(run.thread_id)
    if thread is None or (thread.gone_at is not None and run.gone_at is None):
        yield f"is in sight, and its thread is {thread}"
    head = heads.get(run.id)
    # A stream may be dropped some time after its end, and never before.
    if head is not None and (head.end_seq is not None) != ended:
        yield f"is {rollout.status}, and its stream ends at {head.end_seq}"


def _of_threads(threads: Mapping[str, StoredThread], runs: Sequence[StoredRun]) -> Iterator[str]:
    busy = {run.thread_id for run in runs if run.live is not None}
    for thread in threads.values():
        expected = BUSY_THREAD if thread.id in busy else thread.rest
        if thread.status != expected or thread.rest == BUSY_THREAD:
            yield f"thread {thread.id} is {thread.status}, rests {thread.rest}, and must be {expected}"
        if thread.gone_at is not None and thread.id in busy:
            yield f"thread {thread.id} is out of sight, and has live runs"


def _of_states(threads: Mapping[str, StoredThread], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    steps: dict[str, list[int]] = {}
    ids = {(row[0], row[1]) for row in rows}
    for thread_id, _, step, _ in rows:
        steps.setdefault(thread_id, []).append(step)
    for thread_id, taken in steps.items():
        thread = threads.get(thread_id)
        if thread is None:
            yield f"checkpoints of thread {thread_id}, which does not exist"
        elif len(set(taken)) != len(taken) or max(taken) >= thread.steps:
            yield f"thread {thread_id} counts {thread.steps} steps, and has {sorted(taken)}"
    for thread in threads.values():
        if thread.checkpoint_id is not None and (thread.id, thread.checkpoint_id) not in ids:
            yield f"thread {thread.id} is at {thread.checkpoint_id}, which does not exist"


def _of_streams(heads: Mapping[str, StoredHead], events: Sequence[StreamEvent]) -> Iterator[str]:
    """A stream's events are numbered from 1 without a gap, and an ended stream has its end."""
    held: dict[str, list[StreamEvent]] = {}
    for event in events:
        held.setdefault(event.source, []).append(event)
    joined = thread_stream("")
    for head in heads.values():
        if head.stream.startswith(joined):
            continue
        own = held.pop(head.stream, [])
        numbers = [event.seq for event in own]
        if numbers != list(range(1, head.last_seq + 1)):
            highest = max(numbers, default=0)
            yield f"stream {head.stream} is at {head.last_seq}, and has {len(own)} events up to {highest}"
        last = next((event.event for event in own if event.seq == head.end_seq), None)
        if head.end_seq is not None and (head.end_seq != head.last_seq or last != END):
            yield f"stream {head.stream} ends at {head.end_seq} with {last}"
    for stream in held:
        yield f"stream {stream} has events and no head"


def _of_joined(heads: Mapping[str, StoredHead], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """The links of a joined stream never overlap; a dropped run stream may leave a gap."""
    reached: dict[str, int] = {}
    sources: dict[str, int] = {}
    for stream, seq, source, source_seq, count in rows:
        if seq <= reached.get(stream, 0):
            yield f"{stream} has two events with the number {seq}"
        if source_seq != sources.get(source, 0) + 1:
            yield f"{stream} has events of {source} from {source_seq} after {sources.get(source, 0)}"
        reached[stream], sources[source] = seq + count - 1, source_seq + count - 1
    for stream, last in reached.items():
        head = heads.get(stream)
        if head is None or head.end_seq is not None or last > head.last_seq:
            yield f"{stream} has events up to {last}, and is {head}"
