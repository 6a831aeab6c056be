"""Comparison of stored rows with the model: statuses, states, streams, and holders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tests.support.events import stored_events
from tests.support.invariants import broken_rules
from tests.support.thread_model import ModelLimits, ModelRun, ModelThread, ThreadModel
from tests.threads.support import World

from perdure.kernel.codec import decode_json
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Row, Tx
from perdure.rollouts.model import LIVE
from perdure.streams.model import StreamEvent
from perdure.streams.operations import read
from perdure.threads.model import run_status
from perdure.threads.operations.settle import thread_stream
from perdure.threads.policy import Policy, backstop

# Times are multiples of 100 s with limits in between, so a slow machine changes no answer.
POLICY = Policy(timeout=200.0, max_attempts=3, lease=150.0, grace=50.0, linger=1050.0)
LIMITS = ModelLimits(lease=150.0, timeout=backstop(200.0, 150.0), grace=50.0, linger=1050.0)

RUNS = statement(
    "SELECT n.id, n.thread_id, r.status, r.outcome, r.attempts, r.ready, n.gone_at, n.live, n.error"
    " FROM runs AS n JOIN rollouts AS r ON r.ns = n.ns AND r.id = n.id WHERE n.ns = :ns"
)
ATTEMPTS = statement(
    "SELECT a.rollout_id, a.id, a.status, a.charged, r.line FROM attempts AS a"
    " JOIN rollouts AS r ON r.ns = a.ns AND r.id = a.rollout_id"
    " WHERE a.ns = :ns ORDER BY a.rollout_id, a.sequence_id"
)
THREADS = statement("SELECT id, status, gone_at, checkpoint_id, error FROM threads WHERE ns = :ns")
STATES = statement(
    "SELECT thread_id, id, run_id, body FROM checkpoints WHERE ns = :ns ORDER BY thread_id, position"
)
LINES = statement("SELECT line, holder FROM lines WHERE ns = :ns AND holder IS NOT NULL")


async def compare(world: World, model: ThreadModel) -> None:
    """Read everything in the namespace at once."""
    ns = await world.threads.ns()
    wrong = await world.storage.read(_wrong, model, ns=ns)
    assert not wrong, wrong


async def _wrong(tx: Tx, model: ThreadModel) -> list[str]:
    wrong = await broken_rules(tx)
    wrong += _runs(await tx.all(RUNS), model)
    wrong += _attempts(await tx.all(ATTEMPTS), model)
    wrong += _threads(await tx.all(THREADS), await tx.all(STATES), model)
    wrong += _streams(await stored_events(tx), model)
    holders = {thread_id: run.run_id for thread_id, run in model.holders.items() if run is not None}
    wrong += _differ("the holders of lines", {row[0]: row[1] for row in await tx.all(LINES)}, holders)
    for thread in model.threads.values():
        wrong += await _joined(tx, thread.thread_id, model)
    return wrong


def _differ(what: str, found: Any, expected: Any) -> list[str]:
    return [] if found == expected else [f"{what}: {found}, and must be {expected}"]


def _runs(rows: list[Row] | Any, model: ThreadModel) -> list[str]:
    found = {
        row[0]: (row[1], run_status(row[2], row[3]), row[4], row[6] is not None, row[7] is not None)
        for row in rows
    }
    expected = {
        run.run_id: (run.thread_id, run.status, len(run.attempts), run.gone_at is not None, run.live)
        for run in model.runs.values()
        if not run.purged
    }
    failed = {row[0] for row in rows if row[8] is not None}
    known = {run.run_id for run in model.runs.values() if _failed(run)}
    ready = {row[0] for row in rows if row[5] is not None}
    return [
        *_differ("runs", found, expected),
        *_differ("runs with an error", failed, known),
        *_differ("ready runs", ready, {run.run_id for run in model.ready()}),
    ]


def _failed(run: ModelRun) -> bool:
    """Return whether the run must have an error."""
    return run.status in ("error", "timeout") and not run.purged


def _attempts(rows: list[Row] | Any, model: ThreadModel) -> list[str]:
    found: dict[str, list[tuple[str, bool, bool]]] = defaultdict(list)
    live: dict[str, int] = defaultdict(int)
    for run_id, attempt_id, status, charged, line in rows:
        found[run_id].append((attempt_id, status in LIVE, bool(charged)))
        live[line] += status in LIVE
    expected = {
        run.run_id: [(each.attempt_id, each.live, each.charged) for each in run.attempts]
        for run in model.runs.values()
        if run.attempts
    }
    two = [line for line, count in live.items() if count > 1]
    return [*_differ("attempts", dict(found), expected), *_differ("threads with two live attempts", two, [])]


def _threads(rows: list[Row] | Any, states: list[Row] | Any, model: ThreadModel) -> list[str]:
    kept: dict[str, list[tuple[Any, str | None]]] = defaultdict(list)
    bodies: dict[tuple[str, str], Any] = {}
    for thread_id, id, run_id, body in states:
        kept[thread_id].append((decode_json(body), run_id))
        bodies[thread_id, id] = decode_json(body)
    found = {
        row[0]: (row[1], row[2] is not None, bodies.get((row[0], row[3])), row[4] is not None, kept[row[0]])
        for row in rows
    }
    expected = {thread.thread_id: _expected(thread, model) for thread in model.threads.values()}
    return _differ("threads", found, expected)


def _expected(thread: ModelThread, model: ThreadModel) -> tuple[Any, ...]:
    states = [(state.values, None if state.run is None else state.run.run_id) for state in thread.states]
    values = None if thread.state is None else thread.state.values
    gone = thread.gone_at is not None
    return model.thread_status(thread), gone, values, thread.failed, states


def _streams(events: Sequence[StreamEvent], model: ThreadModel) -> list[str]:
    found: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for each in events:
        found[each.source].append((each.event, each.attempt))
    expected = {run.run_id: run.events for run in model.runs.values() if run.events and not run.purged}
    return _differ("streams", dict(found), expected)


async def _joined(tx: Tx, thread_id: str, model: ThreadModel) -> list[str]:
    """Check that the thread's stream has the events of each run in order, each with a number."""
    page = await read(tx, thread_stream(thread_id), 0, 10_000, True)
    found: dict[str, list[str]] = defaultdict(list)
    for event in page.events:
        found[event.source].append(event.event)
    expected = {
        run.run_id: [name for name, _ in run.events]
        for run in model.runs.values()
        if run.thread_id == thread_id and run.events and not run.purged
    }
    numbers = [event.seq for event in page.events]
    wrong = _differ(f"the stream of thread {thread_id}", dict(found), expected)
    if numbers != sorted(set(numbers)) or page.reached != (page.head.last_seq if page.head else 0):
        wrong.append(f"the stream of thread {thread_id} is numbered {numbers} up to {page.reached}")
    return wrong
