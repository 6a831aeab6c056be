"""Pairs of operations on two connections to PostgreSQL, statement by statement in every order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from tests.reliability.interleaving import SECOND, START, Laboratory, Operation, Pair, Wrong

from perdure.kernel.storage.port import Tx
from perdure.kernel.storage.postgres_schema import upgrade
from perdure.kernel.storage.schema import Schema
from perdure.rollouts.model import TASK, Kinds, RolloutKind
from perdure.rollouts.operations import claim as claims
from perdure.rollouts.operations import enqueue as enqueues
from perdure.rollouts.operations import report as reports
from perdure.rollouts.operations import resources, spans, workers
from perdure.rollouts.operations.enqueue import NewRollout
from perdure.rollouts.operations.report import AttemptReport, RolloutChange
from perdure.runtime.stores import TABLES
from perdure.service.namespaces import ensure_namespace
from perdure.spans.prices import Prices
from perdure.spans.rows import NewSpan

KINDS = Kinds(RolloutKind(TASK))
CONFIG = (
    '{"timeout_seconds":null,"unresponsive_seconds":10.0,"max_attempts":3,'
    '"retry_condition":["failed","unresponsive"]}'
)
FINAL = '{"timeout_seconds":null,"unresponsive_seconds":10.0,"max_attempts":1,"retry_condition":[]}'


# --- operations -------------------------------------------------------------------------------------------


def new(config: str = CONFIG, **fields: Any) -> NewRollout:
    return NewRollout(input="1", config=config, metadata="{}", resources_id="r", **fields)


def claim(worker_id: str | None = None, limit: int = 1, queue: str = "default") -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        return await claims.claim(tx, [claims.Claim(worker_id, limit)], [queue], [TASK], KINDS)

    return run


def enqueue(*requests: NewRollout) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        return await enqueues.enqueue(tx, requests, KINDS)

    return run


def start(worker_id: str) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        return await enqueues.start_rollouts(tx, [new(worker_id=worker_id)], KINDS)

    return run


def report(status: str, which: int = 0, attempt_id: str | None = None, **fields: Any) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        rollout_id, claimed = given[which]
        said = AttemptReport(rollout_id, attempt_id or claimed or "latest", status=status, **fields)
        return await reports.report_attempts(tx, [said], TASK, KINDS, lined)

    return run


def report_all(status: str, *, backwards: bool = False) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        pairs = list(reversed(given)) if backwards else given
        said = [AttemptReport(rollout_id, attempt_id, status=status) for rollout_id, attempt_id in pairs]
        return await reports.report_attempts(tx, said, TASK, KINDS, lined)

    return run


def change(which: int = 0, **fields: Any) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        return await reports.change_rollouts(
            tx, [RolloutChange(given[which][0], **fields)], TASK, KINDS, lined
        )

    return run


def start_attempt(which: int = 0, worker_id: str | None = None) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        return await claims.start_attempts(tx, [(given[which][0], worker_id)], TASK, KINDS, lined)

    return run


def release() -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        return await claims.release_rollouts(tx, given, KINDS, lined)

    return run


def span(span_id: str = "1", which: int = 0, number: int | None = None) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        rollout_id, attempt_id = given[which]
        one = NewSpan(
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            span_id=span_id,
            sequence_id=number,
            trace_id="t",
            parent_id=None,
            name="n",
            start_ns=None,
            end_ns=None,
            status_code="OK",
            size=1,
            resource_hash=None,
            scope_hash=None,
            format="json",
            body=b"{}",
        )
        if not lined:
            return await spans.add_new_spans(tx, [[one]], [], KINDS, Prices())
        return await spans.add_spans(tx, [[one]], [], KINDS, Prices(), lined)

    return run


def numbers(*which: int) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        return await spans.next_sequence_ids(tx, [given[i][0] for i in which])

    return run


async def sweep(tx: Tx, given: Any, lined: bool) -> None:
    await reports.sweep(tx, KINDS, True, lined)


def beat(worker_id: str, stats: str | None = None) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        return await workers.beat(tx, [workers.Beat(worker_id, stats)])

    return run


def keep(body: str) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        return await resources.update_resources(tx, "mine", body)

    return run


async def namespace(tx: Tx, given: Any, lined: bool) -> None:
    await ensure_namespace(tx, f"space {tx.ns}")


# --- states -----------------------------------------------------------------------------------------------


async def empty(tx: Tx, given: Any, lined: bool) -> Any:
    return []


def queued(*requests: NewRollout) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        return [(row[0], "") for row in await enqueues.enqueue(tx, requests, KINDS)]

    return run


def begun(count: int = 1, config: str = CONFIG, **fields: Any) -> Operation:
    """Rollouts that were claimed; each with its attempt."""

    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        await enqueues.enqueue(tx, [new(config, **fields) for _ in range(count)], KINDS)
        (share,) = await claims.claim(tx, [claims.Claim("w", count)], ["default"], [TASK], KINDS)
        return [(rollout[0], attempt[2]) for rollout, attempt in share]

    return run


def after(setup: Operation, *operations: Operation) -> Operation:
    """A state in which more has happened, at the time of the setup."""

    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        made = await setup(tx, given, lined)
        for operation in operations:
            await operation(tx, made, True)
        return made

    return run


def in_line(*, holder_claimed: bool, waiting: int = 1) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        rows = await enqueues.enqueue(tx, [new(line="l") for _ in range(waiting + 1)], KINDS)
        made = [(row[0], "") for row in rows]
        if holder_claimed:
            ((_, attempt),) = (await claims.claim(tx, [claims.Claim("w", 1)], ["default"], [TASK], KINDS))[0]
            made[0] = (made[0][0], attempt[2])
        return made

    return run


NOTHING = claim(queue="none")
DUE = START + 5 * SECOND

PAIRS: dict[str, Pair] = {
    "claim, claim": Pair(queued(new()), claim("x"), claim("y")),
    "claim, claim by one new worker": Pair(queued(new(), new()), claim("x"), claim("x"), loose=True),
    "claim two, claim two": Pair(
        queued(new(), new(), new()),
        claim(limit=2),
        claim(limit=2),
    ),
    "claim, cancel": Pair(queued(new()), claim("x"), change(status="cancelled")),
    "claim, edit": Pair(
        queued(new()),
        claim("x"),
        change(input="2"),
        also=[(claim("x", queue="none"), change(input="2"))],
    ),
    "claim, requeue": Pair(
        begun(),
        claim("x"),
        change(status="requeuing"),
    ),
    "claim, failure that is retried": Pair(begun(), claim("x"), report("failed")),
    "claim of a retry, late report": Pair(after(begun(), report("failed")), claim("x"), report("succeeded")),
    "claim of a retry, late span": Pair(
        after(begun(), report("failed")), claim("x"), span(), also=[(claim("x", queue="none"), span())]
    ),
    "claim of a retry, revival": Pair(after(begun(), report("unresponsive")), claim("x"), span()),
    "claim what is due, claim what is due": Pair(
        queued(new(not_before=DUE), new(not_before=DUE)),
        claim(),
        claim(),
        later=10,
        also=[(claim(), NOTHING), (NOTHING, claim())],
    ),
    "claim what is due, cancel": Pair(
        queued(new(not_before=DUE)), claim(), change(status="cancelled"), later=10
    ),
    "claim, sweep": Pair(after(queued(new(), new()), claim("w")), claim("x"), sweep, later=20),
    "claim, start attempt": Pair(queued(new()), claim("x"), start_attempt(worker_id="y")),
    "claim, heartbeat of a new worker": Pair(queued(new()), claim("x"), beat("x", "{}")),
    "claim of nothing, heartbeat of a new worker": Pair(empty, claim("x"), beat("x", "{}")),
    "start, heartbeat of a new worker": Pair(empty, start("x"), beat("x", "{}")),
    "start, start by one new worker": Pair(empty, start("x"), start("x")),
    "report, heartbeat of the worker": Pair(begun(), report("succeeded"), beat("w", "{}")),
    "report success, report failure": Pair(begun(), report("succeeded"), report("failed")),
    "report twice": Pair(begun(), report("succeeded"), report("succeeded")),
    "reports in opposite orders": Pair(
        begun(2), report_all("succeeded"), report_all("failed", backwards=True)
    ),
    "report, cancel": Pair(begun(), report("succeeded"), change(status="cancelled")),
    "report, edit": Pair(begun(), report("succeeded"), change(metadata='{"m":1}')),
    "report, start attempt": Pair(begun(), report("failed"), start_attempt(worker_id="x")),
    "reports of two rollouts by one worker": Pair(begun(2), report("succeeded", 0), report("failed", 1)),
    "span, report": Pair(begun(), span(), report("succeeded")),
    "span, cancel": Pair(begun(), span(), change(status="cancelled")),
    "span, start attempt": Pair(begun(), span(), start_attempt()),
    "span, other span": Pair(begun(), span("1"), span("2")),
    "span, the same span": Pair(begun(), span("1"), span("1")),
    "span, number": Pair(begun(), span("1"), numbers(0)),
    "numbers, numbers": Pair(begun(2), numbers(0, 1, 0), numbers(1, 0)),
    "spans of two rollouts": Pair(begun(2), span("1", 0), span("1", 1)),
    "sweep, report": Pair(begun(), sweep, report("succeeded"), later=20),
    "sweep, failure": Pair(begun(config=FINAL), sweep, report("failed"), later=20),
    "sweep, span": Pair(begun(), sweep, span(), later=20),
    "sweep, sweep": Pair(begun(2), sweep, sweep, later=20),
    "sweep, cancel": Pair(begun(), sweep, change(status="cancelled"), later=20),
    "sweep, start attempt": Pair(begun(), sweep, start_attempt(), later=20),
    "sweep, new limits": Pair(begun(), sweep, change(config="{}"), later=20),
    "start attempt, start attempt": Pair(begun(), start_attempt(worker_id="x"), start_attempt(worker_id="y")),
    "release, report": Pair(begun(), release(), report("succeeded")),
    "release, claim": Pair(begun(), release(), claim("x")),
    "release, cancel": Pair(begun(), release(), change(status="cancelled")),
    "release, release": Pair(begun(2), release(), release()),
    "release, sweep": Pair(begun(), release(), sweep, later=20),
    "enqueue, enqueue with one key": Pair(
        empty, enqueue(new(idempotency_key="k")), enqueue(new(idempotency_key="k"))
    ),
    "enqueue, enqueue with keys in opposite orders": Pair(
        empty,
        enqueue(new(idempotency_key="k"), new(idempotency_key="l")),
        enqueue(new(idempotency_key="l"), new(idempotency_key="k")),
    ),
    "enqueue, claim": Pair(queued(new()), enqueue(new()), claim()),
    "resources, resources": Pair(empty, keep('{"a":1}'), keep('{"b":1}')),
    "resources twice, resources": Pair(after(empty, keep("{}")), keep('{"a":1}'), keep('{"b":1}')),
    "namespace, namespace": Pair(empty, namespace, namespace),
    "edit, edit": Pair(begun(), change(input="2"), change(metadata='{"m":1}')),
    "enter a line, enter a line": Pair(empty, enqueue(new(line="l")), enqueue(new(line="l"))),
    "enter a line, leave it": Pair(
        in_line(holder_claimed=True, waiting=0), enqueue(new(line="l")), report("succeeded")
    ),
    "leave a line, claim": Pair(
        in_line(holder_claimed=True), report("succeeded"), claim(), also=[(report("succeeded"), NOTHING)]
    ),
    "leave a line, cancel the next": Pair(
        in_line(holder_claimed=True), report("succeeded"), change(1, status="cancelled")
    ),
    "claim in a line, enter it": Pair(
        in_line(holder_claimed=False),
        claim(),
        enqueue(new(line="l")),
        also=[(NOTHING, enqueue(new(line="l")))],
    ),
    "claim what is due in a line, the same": Pair(
        queued(new(line="l", not_before=DUE), new(line="l", not_before=DUE)),
        claim(),
        claim(),
        later=10,
        also=[(claim(), NOTHING), (NOTHING, claim())],
    ),
}

SWITCHES = 1
"""How many switches that no lock enforces are tried in a test; `./dev chaos` tries more."""


@asynccontextmanager
async def laboratory(url: str) -> AsyncIterator[Laboratory]:
    connections = [await asyncpg.connect(url, command_timeout=20.0) for _ in range(3)]
    try:
        await upgrade(connections[0], Schema(TABLES))
        yield Laboratory(connections)
    finally:
        for connection in connections:
            await connection.close()


async def explore_all(url: str, pairs: Mapping[str, Pair], switches: int | None) -> dict[str, int]:
    """Every order of every pair; gives how many there were."""
    orders: dict[str, int] = {}
    async with laboratory(url) as bench:
        for name, pair in pairs.items():
            await bench.empty()
            try:
                orders[name] = await bench.explore(pair, switches)
            except Wrong as error:
                raise Wrong(f"{name}: {error}") from error
    return orders


@pytest.mark.parametrize("share", range(2))
async def test_every_order(share: int, postgres_url: str) -> None:
    print(await explore_all(postgres_url, {name: PAIRS[name] for name in list(PAIRS)[share::2]}, SWITCHES))
