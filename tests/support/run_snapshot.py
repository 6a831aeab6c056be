"""All data of a namespace about runs, read in one transaction, to compare it with the history."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from msgspec import field
from tests.support.events import stored_events
from tests.support.invariants import broken_rules

from perdure.kernel.codec import decode_json
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Storage, Tx
from perdure.rollouts.model import decode_limits
from perdure.service.namespaces import list_namespaces
from perdure.threads.model import run_status
from perdure.threads.operations.settle import thread_stream

_RUNS = statement(
    "SELECT r.id, r.thread_id, o.status, o.outcome, o.attempts, o.config, o.input, r.webhook"
    " FROM runs AS r JOIN rollouts AS o ON o.ns = r.ns AND o.id = r.id WHERE r.ns = :ns ORDER BY r.id"
)
_ATTEMPTS = statement(
    "SELECT rollout_id, sequence_id, id, status, reason, charged, worker_id FROM attempts WHERE ns = :ns"
    " ORDER BY rollout_id, sequence_id"
)
_LINKS = statement(
    "SELECT stream, seq, source, source_seq, count FROM stream_links WHERE ns = :ns ORDER BY stream, seq"
)
_STEPS = statement("SELECT run_id, name, body FROM run_steps WHERE ns = :ns")
_OUTBOX = statement("SELECT subject, count(*) FROM outbox WHERE ns = :ns GROUP BY subject")
_VALUES = statement(
    "SELECT t.id, c.body FROM threads AS t JOIN checkpoints AS c"
    " ON c.ns = t.ns AND c.thread_id = t.id AND c.id = t.checkpoint_id WHERE t.ns = :ns"
)
_CHECKPOINTS = statement("SELECT id, run_id, attempt, body FROM checkpoints WHERE ns = :ns ORDER BY position")


class RunRow(NamedTuple):
    """The fields of a run that checks read. The token is in the input of its request."""

    id: str
    thread: str
    status: str
    attempts: int = 0
    max_attempts: int = 1
    token: str = ""
    webhook: bool = False


class AttemptRow(NamedTuple):
    """The fields of an attempt that checks read."""

    run: str
    number: int
    id: str
    status: str
    reason: str | None = None
    charged: int = 1
    worker: str | None = None


class CheckpointRow(NamedTuple):
    """The fields of a checkpoint that checks read: its run, attempt and values."""

    id: str
    run: str | None
    number: int | None
    values: Any


class EventRow(NamedTuple):
    """The fields of an event that checks read."""

    seq: int
    event: str
    body: str
    source: str = ""
    """The run, in the stream of a thread."""
    attempt: int = 0


class RunRows(msgspec.Struct):
    """The runs of one namespace, with all their data."""

    runs: dict[str, RunRow] = field(default_factory=dict)
    attempts: dict[str, AttemptRow] = field(default_factory=dict)
    streams: dict[str, list[EventRow]] = field(default_factory=dict)
    """By the id of the run, or of the thread for the events of all its runs."""
    steps: dict[tuple[str, str], Any] = field(default_factory=dict)
    webhooks: dict[str, int] = field(default_factory=dict)
    """Number of effects in the outbox by run."""
    values: dict[str, Any] = field(default_factory=dict)
    """The state of each thread that has one."""
    checkpoints: dict[str, CheckpointRow] = field(default_factory=dict)
    broken_rules: list[str] = field(default_factory=list)


async def take_runs(storage: Storage, namespace: str = "default") -> RunRows:
    """Read a namespace of an open database; a missing one is empty."""
    numbers = {name: number for number, name in (await storage.read(list_namespaces)).items()}
    return await storage.read(_take, ns=numbers.get(namespace, -1))


async def _take(tx: Tx) -> RunRows:
    attempts = [AttemptRow(*row) for row in await tx.all(_ATTEMPTS)]
    return RunRows(
        runs={row[0]: _run(row) for row in await tx.all(_RUNS)},
        attempts={attempt.id: attempt for attempt in attempts},
        streams=await _streams(tx),
        steps={(row[0], row[1]): decode_json(row[2]) for row in await tx.all(_STEPS)},
        webhooks={row[0]: int(row[1]) for row in await tx.all(_OUTBOX)},
        values={row[0]: decode_json(row[1]) for row in await tx.all(_VALUES)},
        checkpoints={row[0]: _checkpoint(row) for row in await tx.all(_CHECKPOINTS)},
        broken_rules=await broken_rules(tx),
    )


def _run(row: Any) -> RunRow:
    run_id, thread_id, status, outcome, attempts, config, kwargs, webhook = row
    given = decode_json(kwargs).get("input")
    return RunRow(
        run_id,
        thread_id,
        run_status(status, outcome),
        attempts,
        decode_limits(config).max_attempts,
        str(given.get("token", "")) if isinstance(given, dict) else "",
        webhook is not None,
    )


def _checkpoint(row: Any) -> CheckpointRow:
    checkpoint_id, run_id, attempt, body = row
    return CheckpointRow(checkpoint_id, run_id, attempt, decode_json(body))


async def _streams(tx: Tx) -> dict[str, list[EventRow]]:
    streams: dict[str, list[EventRow]] = {}
    for each in await stored_events(tx):
        row = EventRow(each.seq, each.event, each.body, each.source, each.attempt)
        streams.setdefault(each.source, []).append(row)
    prefix = thread_stream("")
    for stream, seq, source, first, count in await tx.all(_LINKS):
        # A stream has no gap: event n is at index n - 1.
        told = streams.get(source, [])[first - 1 : first - 1 + count]
        joined = streams.setdefault(stream.removeprefix(prefix), [])
        joined += [each._replace(seq=seq + place) for place, each in enumerate(told)]
    return streams
