"""PostgreSQL's raw limit: hand-written SQL on asyncpg, the rows that ours writes, without layers.

The tables are as narrow as possible, and the connection prepares every statement. Ids and JSON are created
while the clock runs, as in ours.
"""

import secrets
import time
from collections.abc import Sequence
from typing import Any

import asyncpg
import msgspec

from bench.timing import spread
from bench.work import BATCH, BATCH_CALLERS, span_attributes, task_input

SCHEMA = """
CREATE TABLE rollouts (
    id text PRIMARY KEY, queue text NOT NULL, status text NOT NULL, priority int NOT NULL, ready bigint,
    attempts int NOT NULL, start_time bigint NOT NULL, end_time bigint, config text, input text NOT NULL)
    WITH (fillfactor = 85);
CREATE INDEX rollouts_ready ON rollouts (queue, priority DESC, ready) WHERE ready IS NOT NULL;
CREATE INDEX rollouts_newest ON rollouts (status, start_time);
CREATE TABLE attempts (
    id text NOT NULL, rollout_id text NOT NULL, sequence_id int NOT NULL, status text NOT NULL,
    start_time bigint NOT NULL, end_time bigint, check_at bigint, PRIMARY KEY (rollout_id, id))
    WITH (fillfactor = 85);
CREATE INDEX attempts_check ON attempts (check_at) WHERE check_at IS NOT NULL;
CREATE TABLE spans (
    day int NOT NULL, rollout_id text NOT NULL, attempt_id text NOT NULL, span_id text NOT NULL,
    trace_id text NOT NULL, parent_id text, name text NOT NULL, start_time bigint, end_time bigint,
    status_code text NOT NULL, sequence_id bigint NOT NULL, size int NOT NULL, body bytea NOT NULL,
    UNIQUE (day, rollout_id, attempt_id, span_id));
CREATE INDEX spans_sequence ON spans (rollout_id, sequence_id);
CREATE INDEX spans_trace ON spans (trace_id);
"""
ENQUEUE = """
INSERT INTO rollouts (id, queue, status, priority, ready, attempts, start_time, input)
SELECT id, 'default', 'queuing', 0, ready, 0, ready, input FROM unnest($1::text[], $2::bigint[], $3::text[])
AS rows (id, ready, input)
"""
CLAIM = """
WITH c AS MATERIALIZED (
    SELECT id FROM rollouts WHERE queue = 'default' AND ready IS NOT NULL
    ORDER BY priority DESC, ready LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED)
UPDATE rollouts SET status = 'preparing', ready = NULL, attempts = attempts + 1 FROM c
WHERE rollouts.id = c.id RETURNING rollouts.*
"""
START = """
INSERT INTO attempts (id, rollout_id, sequence_id, status, start_time)
SELECT id, rollout_id, sequence_id, 'preparing', $4
FROM unnest($1::text[], $2::text[], $3::int[]) AS rows (id, rollout_id, sequence_id)
"""
END_ATTEMPTS = """
UPDATE attempts SET status = 'succeeded', end_time = $3
FROM unnest($1::text[], $2::text[]) AS rows (attempt_id, of_rollout)
WHERE attempts.rollout_id = rows.of_rollout AND attempts.id = rows.attempt_id
"""
END_ROLLOUTS = "UPDATE rollouts SET status = 'succeeded', end_time = $2 WHERE id = ANY($1::text[])"
ADD_SPANS = """
INSERT INTO spans (day, rollout_id, attempt_id, span_id, trace_id, parent_id, name, start_time, end_time,
                   status_code, sequence_id, size, body)
SELECT * FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
                     $8::bigint[], $9::bigint[], $10::text[], $11::bigint[], $12::int[], $13::bytea[])
"""

Pool = Any
Span = dict[str, Any]
SPAN_NAME = "chat a-model-of-middling-size"


def micros() -> int:
    return time.time_ns() // 1000


def encoded(value: object) -> str:
    return msgspec.json.encode(value).decode()


async def open_pool(dsn: str, connections: int = BATCH_CALLERS) -> Pool:
    pool = await asyncpg.create_pool(dsn, min_size=connections, max_size=connections)
    await pool.execute(SCHEMA)
    return pool


async def fill(pool: Pool, count: int) -> None:
    for start in range(0, count, 500):
        await _enqueue(pool, range(start, min(start + 500, count)))


async def _enqueue(pool: Pool, numbers: Sequence[int]) -> None:
    ids = [f"ro-{secrets.token_hex(6)}" for _ in numbers]
    now = micros()
    await pool.execute(ENQUEUE, ids, [now + n for n in numbers], [encoded(task_input(n)) for n in numbers])


async def claim_complete(pool: Pool, size: int) -> float:
    await fill(pool, size)
    return BATCH * await spread(BATCH_CALLERS, max(size // BATCH, 1), lambda _number: _claim_complete(pool))


async def _claim_complete(pool: Pool, count: int = BATCH) -> None:
    """Claim `count` rows, read their inputs, and complete them; each step is a transaction."""
    async with pool.acquire() as connection:
        async with connection.transaction():
            rows = await connection.fetch(CLAIM, count)
            ids = [row["id"] for row in rows]
            attempts = [f"at-{secrets.token_hex(4)}" for _ in rows]
            await connection.execute(START, attempts, ids, [row["attempts"] for row in rows], micros())
        for row in rows:
            msgspec.json.decode(row["input"])
        async with connection.transaction():
            now = micros()
            await connection.execute(END_ATTEMPTS, attempts, ids, now)
            await connection.execute(END_ROLLOUTS, ids, now)


async def runs(pool: Pool, size: int, callers: int) -> float:
    """Do the minimum of a run: store, claim and complete a row, each acknowledged separately."""

    async def call(number: int) -> None:
        await _enqueue(pool, [number])
        await _claim_complete(pool, 1)

    return await spread(callers, size, call)


def spans_of(trace: int) -> list[Span]:
    """Build one batch as ours gets it: objects, with nothing encoded yet."""
    names = {"rollout_id": f"ro-{secrets.token_hex(6)}", "attempt_id": f"at-{secrets.token_hex(4)}"}
    status = {"status_code": "OK", "description": None}
    empty: Span = {"events": [], "links": [], "context": None, "parent": None, "parent_id": None}
    return [
        {
            **names, "trace_id": f"{trace:032x}", "span_id": f"{number:016x}", "sequence_id": number,
            "name": SPAN_NAME, "status": status, "attributes": span_attributes(number), **empty,
        }
        for number in range(1, BATCH + 1)
    ]  # fmt: skip


def span_row(span: Span) -> tuple[Any, ...]:
    body = msgspec.json.encode(span)
    now = micros()
    return (
        now // 86_400_000_000, span["rollout_id"], span["attempt_id"], span["span_id"], span["trace_id"],
        None, span["name"], now, now + 250_000, "OK", span["sequence_id"], len(body), body,
    )  # fmt: skip


async def add_many_spans(pool: Pool, size: int) -> float:
    batches = [spans_of(trace) for trace in range(max(size // BATCH, 1))]

    async def call(trace: int) -> None:
        await pool.execute(ADD_SPANS, *zip(*map(span_row, batches[trace]), strict=True))

    return BATCH * await spread(BATCH_CALLERS, len(batches), call)
