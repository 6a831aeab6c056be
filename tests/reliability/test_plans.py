"""The index that each hot statement goes by, on fifty thousand rows and both engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from tests.support.plans import Subject, plans_of, row_of

from perdure import RolloutConfig, open_store
from perdure.kernel.clock import MICROS
from perdure.kernel.storage.filters import FilterCondition
from perdure.kernel.storage.port import Storage, Tx
from perdure.kernel.storage.schema import Table
from perdure.rollouts import claim_sql, completion_sql, sql, tables
from perdure.rollouts.operations.claim import Claim, claim
from perdure.rollouts.operations.enqueue import NewRollout
from perdure.rollouts.operations.queries import Query
from perdure.rollouts.operations.report import RolloutChange, change_rollouts
from perdure.rollouts.operations.work import ENDED_CHANNEL, ended_key
from perdure.rollouts.overview import Overview
from perdure.rollouts.records import RolloutStatus
from perdure.rollouts.service import Rollouts
from perdure.rollouts.store import DatabaseLightningStore
from perdure.spans import tables as span_tables
from perdure.testing.contract.support import make_span

ROLLOUTS = 50_000
CHUNK = 5_000
LINES = 500
STATUSES = ("succeeded",) * 14 + ("failed",) * 2 + ("queuing",) * 3 + ("running",)

EXPECTED = {
    "CLAIM": {"rollouts_claim"},
    "CLAIM_OF_AGENT": {"rollouts_claim"},
    "CLAIM_OF_AGENTS": {"rollouts_claim", "rollouts_pkey"},
    "DUE": {"rollouts_due"},
    "DUE_NAMESPACES": {"rollouts_due"},
    "DUE_IN_LINES": {"rollouts_due"},
    "PROMOTE_DUE": {"rollouts_due"},
    "HEADS_OF_LINES": {"rollouts_behind"},
    "OVERDUE": {"attempts_check"},
    "HAS_OVERDUE": {"attempts_check"},
    "OVERDUE_NAMESPACES": {"attempts_check"},
    "OVERDUE_ROLLOUTS": {"attempts_check"},
    "BY_IDEMPOTENCY_KEY": {"rollouts_idempotency"},
    "LOAD_ROLLOUTS": {"rollouts_pkey"},
    "TRY_ROLLOUTS": {"rollouts_pkey"},
    "LOAD_ATTEMPTS": {"attempts_pkey"},
    "COMPLETE_ROLLOUTS": {"rollouts_pkey"},
    "COMPLETE_ATTEMPTS": {"attempts_pkey"},
    "GET_ROLLOUTS": {"rollouts_pkey"},
    "GET_ENDED": {"rollouts_pkey"},
    "PRESENT": {"rollouts_pkey"},
    "ENDED_AMONG": {"rollouts_pkey"},
    "ROLLOUT_EXISTS": {"rollouts_pkey"},
    "GET_LATEST_ATTEMPTS": {"rollouts_pkey", "attempts_pkey"},
    "MOVE_ROLLOUTS": {"rollouts_pkey"},
    "MOVE_ATTEMPTS": {"attempts_pkey"},
    "EDIT_ROLLOUT": {"rollouts_pkey"},
    "HEARTBEAT": {"attempts_pkey"},
    "PROMOTE": {"rollouts_pkey"},
    "known spans": {"spans_pkey"},
    "COUNT_BY_STATUS": {"rollout_counts_pkey"},
    "LATEST_RESOURCES_ID": {"resources_latest"},
    "READY_BY_QUEUE": {"rollouts_claim"},
    "BEHIND_BY_QUEUE": {"rollouts_behind"},
    "prelude": {"attempts_check", "rollouts_due"},
}
SMALL = {"COUNT_BY_STATUS", "LATEST_RESOURCES_ID"}
"""Statements on small tables, which may be read whole where the planner likes that better."""
MANY = {"PROMOTE_DUE", "DUE_BY_QUEUE", "HAS_FUTURE_ATTEMPTS", "ANY_RESOURCES"}
"""Statements on hundreds of rows at once: of fifty thousand, those may be cheaper to find by reading all.

One looks at all live attempts, once in a process; the last one ends at the first row.
"""


# --- fifty thousand rows ----------------------------------------------------------------------------------


def _ahead(number: int) -> int:
    """Most deadlines are an hour away; a few have passed."""
    return -MICROS if number % 4000 < 60 else 3600 * MICROS


def rollout_id(number: int) -> str:
    return f"ro-{number:012x}"


def _rollout(number: int, ns: int, now: int) -> tuple[Any, ...]:
    status = STATUSES[number % len(STATUSES)]
    start = now - (ROLLOUTS - number) * MICROS
    line = f"line-{number % LINES:04}" if number % 4 == 0 else None
    waiting = status == "queuing"
    delayed = waiting and number % 60 in (17, 36)
    return row_of(
        tables.ROLLOUTS,
        ns=ns,
        id=rollout_id(number),
        kind="task",
        queue="default" if number % 3 else "other",
        agent=f"agent-{number % 9}" if number % 3 == 0 else None,
        status=status,
        position=start,
        ready=start if waiting and line is None and not delayed else None,
        due_at=now + _ahead(number) if delayed else None,
        behind=start if waiting and line is not None and not delayed else None,
        line=line,
        attempts=0 if waiting else 1,
        start_time=start,
        end_time=start + MICROS if status in ("succeeded", "failed") else None,
        idempotency_key=f"key-{number}" if number % 10 == 0 else None,
        config="{}",
        metadata="{}",
        input='{"number": ' + str(number) + "}",
    )


def _attempt(number: int, ns: int, now: int) -> tuple[Any, ...] | None:
    status = STATUSES[number % len(STATUSES)]
    if status == "queuing":
        return None
    return row_of(
        tables.ATTEMPTS,
        ns=ns,
        rollout_id=rollout_id(number),
        sequence_id=1,
        id=f"at-{number:08x}",
        status=status,
        start_time=now - number,
        check_at=now + _ahead(number) if status == "running" else None,
        kind="task",
        born=now - (ROLLOUTS - number) * MICROS,
    )


def _span(number: int, ns: int, now: int) -> tuple[Any, ...]:
    owner = number % 5000
    return row_of(
        span_tables.SPANS,
        ns=ns,
        born=now - (ROLLOUTS - owner) * MICROS,
        rollout_id=rollout_id(owner),
        attempt_id=f"at-{owner:08x}",
        span_id=f"{number:016x}",
        sequence_id=number // 5000 + 1,
        trace_id=f"{owner:032x}",
        name="step",
        status_code="OK",
        format="json",
        body=b'{"status":"OK","attributes":{}}',
    )


def _chunks(ns: int, now: int) -> Iterator[tuple[Table, list[tuple[Any, ...]]]]:
    makers = ((tables.ROLLOUTS, _rollout), (tables.ATTEMPTS, _attempt), (span_tables.SPANS, _span))
    for table, make in makers:
        for start in range(0, ROLLOUTS, CHUNK):
            rows = [make(number, ns, now) for number in range(start, start + CHUNK)]
            yield table, [row for row in rows if row is not None]
    total = {status: STATUSES.count(status) * ROLLOUTS // len(STATUSES) for status in set(STATUSES)}
    counts = [
        row_of(tables.COUNTS, ns=ns, kind="task", status=status, total=n) for status, n in total.items()
    ]
    yield tables.COUNTS, counts
    holders = [(f"line-{number:04}", rollout_id(number)) for number in range(LINES)]
    yield tables.LINES, [row_of(tables.LINES, ns=ns, line=line, holder=holder) for line, holder in holders]


async def _insert(tx: Tx, table: Table, rows: list[tuple[Any, ...]]) -> None:
    await tx.insert_many(table, rows)


async def _now(tx: Tx) -> int:
    return tx.now


async def fill(store: DatabaseLightningStore) -> None:
    storage, ns = store.rollouts.storage, await store.rollouts.ns("write")
    for table, rows in _chunks(ns, await storage.read(_now)):
        await storage.run(_insert, table, rows)


# --- what a store is asked for ----------------------------------------------------------------------------


async def use_the_queue(store: DatabaseLightningStore) -> None:
    limited = RolloutConfig(timeout_seconds=60, unresponsive_seconds=20, max_attempts=2)
    await store.add_resources({})
    await store.enqueue_rollout("once", idempotency_key="key-10")
    await store.enqueue_rollout("new", idempotency_key="new", priority=1)
    await store.enqueue_rollout("later", not_before=1.0)
    started = await store.start_rollout("now", config=limited, worker_id="worker")
    spans = [make_span(started, number) for number in range(1, 4)]
    for batch in (spans, spans, [make_span(started, 9)]):
        await store.add_many_spans(batch)
    claimed = await store.dequeue_many_rollouts(limit=3, worker_id="worker")
    assert len(claimed) == 3
    for each in claimed:
        await store.add_span(make_span(each))
        await store.update_attempt(each.rollout_id, each.attempt.attempt_id, status="succeeded")
    await store.start_attempt(claimed[0].rollout_id)
    await store.update_rollout(claimed[1].rollout_id, status="cancelled", metadata={"edited": True})
    await store.get_next_span_sequence_id(claimed[0].rollout_id, "any")
    for agents in (["agent-3"], ["agent-3", "agent-0", "nobody"]):
        terms = ([Claim("worker", 3)], ["other"], ["task"], store.rollouts.kinds, agents)
        (share,) = await store.storage.run(claim, *terms, ns=await store.rollouts.ns())
        assert len(share) == 3
    await use_lines(store)


async def use_lines(store: DatabaseLightningStore) -> None:
    rollouts = store.rollouts
    for line in ("line-0000", "fresh", "fresh"):
        await rollouts.enqueue_new(
            NewRollout(input='"x"', config="{}", metadata="{}", line=line, queue="lined")
        )
    await rollouts.enqueue_new(
        NewRollout(input='"x"', config="{}", metadata="{}", line="fresh", queue="lined", not_before=1)
    )
    claimed = await store.dequeue_rollout(queue="lined")
    assert claimed is not None
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
    new = [
        NewRollout(input='"x"', config="{}", metadata="{}", line="left by all", queue="lined")
        for _ in range(3)
    ]
    leaving = [(await rollouts.enqueue_new(each)).rollout_id for each in new]
    changes = [RolloutChange(each, status="cancelled") for each in leaving]
    await rollouts.write(change_rollouts, changes, "task", rollouts.kinds)
    await rollouts.watchdog.sweep()


async def read(store: DatabaseLightningStore) -> None:
    ended = [rollout_id(number) for number in range(0, 1000, 20)]
    await store.get_rollout_by_id(ended[0])
    await store.get_latest_attempt(ended[1])
    await store.wait_for_rollouts(rollout_ids=ended, timeout=0)
    watch = store.rollouts.storage.signals.watch(ENDED_CHANNEL, [ended_key(1, ended[0])])
    await store.rollouts.watchdog.poll_ends()
    watch.close()
    await store.query_rollouts(rollout_id_in=ended)
    for order in ("asc", "desc"):
        await store.query_rollouts(sort_by="start_time", sort_order=order, limit=100)
        await store.query_rollouts(status_in=["queuing"], sort_by="start_time", sort_order=order, limit=100)
        statuses: list[RolloutStatus] = ["succeeded", "failed", "running"]
        await store.query_rollouts(
            status_in=statuses, sort_by="start_time", sort_order=order, limit=50, offset=50
        )
    await read_after_cursors(store.rollouts, ended[0])
    await store.query_rollouts(limit=10)
    await store.query_attempts(ended[0])
    await store.query_attempts(ended[0], limit=1)
    await read_spans(store.rollouts, ended[0])
    await store.get_latest_resources()
    await store.get_worker_by_id("worker")
    await store.query_workers(limit=10)
    counts = await Overview(store.storage).counts(None)
    assert {queue.queue for queue in counts.queues} >= {"default", "other"}


async def read_after_cursors(rollouts: Rollouts, rollout: str) -> None:
    """The pages after a cursor, of any status and of one, forwards and backwards."""
    orders: tuple[Literal["asc", "desc"], ...] = ("asc", "desc")
    for order in orders:
        page = await rollouts.search(sort_order=order, limit=50)
        second = await rollouts.search(sort_order=order, limit=50, cursor=page.next)
        assert not {each.rollout_id for each in page} & {each.rollout_id for each in second}
        page = await rollouts.search(status=["queuing"], sort_order=order, limit=50)
        await rollouts.search(status=["queuing"], sort_order=order, limit=50, cursor=page.next)
    spans = await rollouts.spans(rollout, limit=1)
    await rollouts.spans(rollout, limit=1, cursor=spans.next)


async def read_spans(rollouts: Rollouts, rollout: str) -> None:
    named = FilterCondition("name", "contains", "st")
    traced = FilterCondition("trace_id", "exact", f"{0:032x}")
    for attempt in (None, "latest", f"at-{0:08x}"):
        rows = await rollouts.query_spans(rollout, attempt, Query(sort_by="sequence_id"))
        assert len(rows) == ROLLOUTS // 5000
        await rollouts.query_spans(rollout, attempt, Query((named,), sort_by="name", limit=5))
        await rollouts.query_spans(rollout, attempt, Query((traced,), sort_by="start_time", limit=5))


SUBJECT = Subject(
    (sql, claim_sql, completion_sql, tables),
    frozenset({"rollouts", "attempts", "spans"}),
    EXPECTED,
    any_index=frozenset(SMALL),
    may_scan=frozenset(MANY),
)


async def test_plans(new_engine_url: str) -> None:
    async with open_store(new_engine_url, watchdog_interval=None) as store:

        async def prepare(storage: Storage) -> None:
            await fill(store)

        async def ask(storage: Storage) -> None:
            await use_the_queue(store)
            await read(store)

        await plans_of(store.storage, new_engine_url, SUBJECT, prepare, ask)
