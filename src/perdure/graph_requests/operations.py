"""Operations on requests to workers: ask, claim, renew, answer, end and remove."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.assistants.operations import known_agents
from perdure.graph_requests import sql
from perdure.graph_requests.model import (
    GRAPH_REQUEST,
    GRAPHS_QUEUE,
    LIMITS,
    GraphAnswerRow,
    NewAnswer,
    RequestRow,
)
from perdure.graph_requests.records import RequestLease
from perdure.kernel.errors import Conflict, Fenced, InvalidInput, NotFound
from perdure.kernel.storage.port import Tx
from perdure.rollouts import sql as rollouts_sql
from perdure.rollouts.model import ATTEMPT, CANCELLED, ENDED, LIVE, SUCCEEDED, Kinds, reported, set_to
from perdure.rollouts.operations.claim import Claim, claim
from perdure.rollouts.operations.conditions import NOT_OVERDUE
from perdure.rollouts.operations.enqueue import NewRollout, enqueue
from perdure.rollouts.operations.lines import lock_lines
from perdure.rollouts.operations.remove import remove_rollouts
from perdure.rollouts.operations.report import save_all
from perdure.rollouts.operations.work import LockedRollouts
from perdure.rollouts.operations.workers import WorkerChanges
from perdure.rollouts.rows import HeartbeatRow
from perdure.service.audit import add_entry
from perdure.service.conditions import requires
from perdure.threads.operations.graphs import Steps
from perdure.threads.operations.settle import load_threads
from perdure.threads.operations.states import change_graph, latest_states
from perdure.threads.rows import StateRow

REMOVE_ROWS = 100


async def ask(tx: Tx, request: RequestRow, lifetime: int, kinds: Kinds) -> None:
    """Enqueue a request for the workers of an agent; it expires after `lifetime` microseconds."""
    if request.agent not in await known_agents(tx, [request.agent]):
        raise NotFound(f"Agent {request.agent} not found: no worker has registered it")
    await tx.write(sql.ADD_REQUESTS.of([request._replace(expires_at=tx.now + lifetime)]))
    rollout = NewRollout(
        input="null",
        config=LIMITS,
        metadata="{}",
        kind=GRAPH_REQUEST,
        queue=GRAPHS_QUEUE,
        agent=request.agent,
        rollout_id=request.id,
    )
    await enqueue(tx, [rollout], kinds)


class ClaimedRequest(NamedTuple):
    """A claimed request, the latest state of its thread, and the time of the database."""

    attempt_id: str
    request: RequestRow
    state: StateRow | None
    now: int


@requires(NOT_OVERDUE)
async def claim_requests(
    tx: Tx, claims: Sequence[Claim], agents: Sequence[str], kinds: Kinds
) -> list[list[ClaimedRequest]]:
    """Return the next requests of these agents for each claim. Expired requests are ended, not executed."""
    shares = await claim(tx, claims, [GRAPHS_QUEUE], [GRAPH_REQUEST], kinds, agents)
    claimed = [pair.rollout.id for share in shares for pair in share]
    if not claimed:
        return [[] for _ in claims]
    requests = {row.id: row for row in await tx.all(sql.GET_REQUESTS, ids=claimed)}
    live = {id: row for id, row in requests.items() if row.expires_at > tx.now}
    if len(live) < len(claimed):
        await _cancel(tx, [id for id in claimed if id not in live], kinds)
    threads = await load_threads(tx, [row.thread_id for row in live.values()])
    states = await latest_states(tx, list(threads.values()))
    return [
        [
            ClaimedRequest(pair.attempt.id, request, states.get(request.thread_id), tx.now)
            for pair in share
            if (request := live.get(pair.rollout.id)) is not None
        ]
        for share in shares
    ]


async def renew(tx: Tx, held: Sequence[RequestLease], kinds: Kinds) -> list[bool]:
    """Renew leases; return for each whether it still holds."""
    work = LockedRollouts(tx, kinds)
    await work.load([lease.request_id for lease in held], [GRAPH_REQUEST], lined=False)
    requests = await tx.all(sql.GET_REQUESTS, ids=list(work.rollouts)) if work.rollouts else []
    expired = {row.id for row in requests if row.expires_at <= tx.now}
    kept = [_holds(work, lease) and lease.request_id not in expired for lease in held]
    latest = [work.latest(lease.request_id) for lease, holds in zip(held, kept, strict=True) if holds]
    rows = [HeartbeatRow(a.rollout_id, a.sequence_id, tx.now) for a in latest if a is not None]
    await tx.write(rollouts_sql.HEARTBEAT.of(rows))
    return kept


def _holds(work: LockedRollouts, held: RequestLease) -> bool:
    """Return whether an attempt still executes its request."""
    rollout = work.rollouts.get(held.request_id)
    latest = None if rollout is None else work.latest(held.request_id)
    if rollout is None or latest is None:
        return False
    return latest.id == held.attempt_id and latest.status in LIVE and rollout.status in LIVE


class GraphChange(NamedTuple):
    """A request's change of its thread's state; applied if the latest state is still `after`."""

    thread_id: str
    steps: Steps
    after: str | None


async def answer(
    tx: Tx, held: RequestLease, reply: NewAnswer, change: GraphChange | None, kinds: Kinds
) -> None:
    """Store the answer of a request and its change in one transaction.

    Raise Fenced if another attempt executes the request now, or if it has expired. A repeated answer does
    nothing.
    """
    request = await _request(tx, held)
    if change is not None:
        # Lines are locked before rollouts.
        await lock_lines(tx, [request.thread_id])
    work = LockedRollouts(tx, kinds)
    await work.load([request.id], [GRAPH_REQUEST], lined=False)
    if await tx.one(sql.ANSWERED_BY, id=request.id) == held.attempt_id:
        return
    if change is not None and change.thread_id != request.thread_id:
        raise InvalidInput(
            f"request {request.id} is about thread {request.thread_id}, not {change.thread_id}"
        )
    if not _holds(work, held) or request.expires_at <= tx.now:
        raise Fenced(f"attempt {held.attempt_id} holds request {held.request_id} no longer; stop")
    if change is not None:
        try:
            await change_graph(tx, request.thread_id, change.steps, change.after)
        except (Conflict, NotFound) as error:
            change = None
            reply = reply._replace(error_code=error.code, error=error.message, answer=None)
    rollout, attempt = work.rollouts[request.id], work.attempt(work.rollouts[request.id], held.attempt_id)
    attempt.status, attempt.end_time = ATTEMPT.step(attempt.status, reported(SUCCEEDED)), tx.now
    attempt.watch(rollout.limits)
    work.move(rollout, reported(SUCCEEDED), SUCCEEDED)
    await tx.write(sql.ADD_ANSWERS.of([reply]))
    await save_all(work, WorkerChanges(tx), False)
    if change is not None and request.actor is not None:
        # The audit names the caller of the request, not the worker.
        await add_entry(tx, request.actor, "update_state", [request.thread_id])


async def _request(tx: Tx, held: RequestLease) -> RequestRow:
    request = await get_request(tx, held.request_id)
    if request is None:
        raise Fenced(f"request {held.request_id} was removed; stop")
    return request


async def get_request(tx: Tx, request_id: str) -> RequestRow | None:
    """Return a request, or None after it was removed."""
    return await tx.one(sql.GET_REQUESTS, ids=[request_id])


async def get_answer(tx: Tx, request_id: str) -> GraphAnswerRow | None:
    """Return the answer of a request, or None before its end."""
    row = await tx.one(sql.GET_ANSWER, id=request_id)
    return row if row is not None and row.status in ENDED else None


async def end(tx: Tx, request_id: str, kinds: Kinds) -> GraphAnswerRow | None:
    """Cancel a request that no caller waits for. If it was answered earlier, return the answer."""
    await _cancel(tx, [request_id], kinds)
    return await tx.one(sql.GET_ANSWER, id=request_id)


async def _cancel(tx: Tx, request_ids: Sequence[str], kinds: Kinds) -> None:
    work = LockedRollouts(tx, kinds)
    await work.load(request_ids, [GRAPH_REQUEST], lined=False)
    for rollout in work.rollouts.values():
        if rollout.status not in ENDED:
            work.move(rollout, set_to(CANCELLED))
    await save_all(work, WorkerChanges(tx), False)


async def remove_expired(tx: Tx, linger: int) -> int:
    """Delete some of the requests that expired `linger` microseconds ago or earlier, in every namespace."""
    rows = await tx.all(sql.EXPIRED, before=tx.now - linger, n=REMOVE_ROWS)
    here = tx.ns
    try:
        for ns in sorted({row.ns for row in rows}):
            tx.ns = ns
            ids = sorted(row.id for row in rows if row.ns == ns)
            await remove_rollouts(tx, ids, GRAPH_REQUEST)
            await tx.execute(sql.DROP_ANSWERS, ids=ids)
            await tx.execute(sql.DROP_REQUESTS, ids=ids)
    finally:
        tx.ns = here
    return len(rows)
