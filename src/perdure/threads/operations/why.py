"""Reading what is known of something whose standing is asked for, all in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.kernel.codec import decode_json
from perdure.kernel.errors import NotFound
from perdure.kernel.storage.dialect import Statement
from perdure.kernel.storage.port import Row, Tx
from perdure.rollouts.model import CANCELLED, ENDED, QUEUED, Kinds, limits_of
from perdure.threads import sql
from perdure.threads.facts import (
    AttemptFacts,
    AuditMatch,
    LineFacts,
    RolloutFacts,
    RunFacts,
    ThreadFacts,
    WorkerFacts,
)
from perdure.threads.model import RUN
from perdure.threads.operations.live_workers import counted, serves, workers
from perdure.threads.operations.settle import load_runs, load_threads
from perdure.threads.records import Failure, Interrupt
from perdure.threads.rows import RunRow, ThreadRow, failure_of, run_limits
from perdure.threads.why import MANY, Why, explain_rollout, explain_thread

STOPPING = ("interrupt", "rollback")
CANCELLING = ("cancel_run", "delete_run", "delete_thread", "create_run", "update_rollout")
A_MOMENT = 1000
"""Within so many microseconds after a change its entry in the audit has its id."""


async def why(tx: Tx, id: str, kinds: Kinds, alive: int) -> Why:
    """Why a rollout, a run or a thread stands where it stands; a worker is alive if heard within `alive`."""
    reading = _Reading(tx, kinds, alive)
    rollout = await reading.rollout(id)
    if rollout is not None:
        return explain_rollout(rollout, tx.now)
    thread = (await load_threads(tx, [id])).get(id)
    if thread is None:
        raise NotFound(f"There is no rollout, run or thread {id} in this namespace")
    return explain_thread(await reading.thread(thread), tx.now)


class _Reading:
    """Reads facts, each where the situation needs it."""

    def __init__(self, tx: Tx, kinds: Kinds, alive: int) -> None:
        self._tx = tx
        self._kinds = kinds
        self._alive = alive

    async def rollout(self, rollout_id: str) -> RolloutFacts | None:
        row = await self._tx.one(sql.WHY_ROLLOUTS, ids=[rollout_id])
        if row is None:
            return None
        (
            id,
            kind,
            queue,
            status,
            outcome,
            priority,
            ready,
            due_at,
            behind,
            line,
            attempts,
            start,
            end,
            config,
        ) = row
        run = (await load_runs(self._tx, [id])).get(id) if kind == RUN else None
        found = RolloutFacts(
            id=id,
            kind=kind,
            known=kind in self._kinds,
            queue=queue,
            status=status,
            outcome=outcome,
            ready=ready,
            due_at=due_at,
            behind=behind,
            line=line,
            start_time=start,
            end_time=end,
            limits=limits_of(config),
            attempts=attempts,
            uncharged=await self._uncharged(id),
            latest=await self._latest(id),
            run=None if run is None else _run_facts(run),
        )
        return msgspec.structs.replace(found, **await self._surroundings(found, priority))

    async def _surroundings(self, facts: RolloutFacts, priority: int) -> dict[str, Any]:
        """What holds it: its line, the queue and its workers, or who ended it."""
        if facts.status in ENDED:
            return {"deed": await self._end_of(facts)}
        if facts.status not in QUEUED:
            return {}
        if facts.behind is not None and facts.line is not None:
            return {"in_line": await self._line(facts.line, priority, facts.behind)}
        return {
            "ahead": await self._ahead_in_queue(facts, priority),
            "workers": await self._workers(facts.kind, facts.queue),
        }

    async def _latest(self, rollout_id: str) -> AttemptFacts | None:
        row = await self._tx.one(sql.WHY_ATTEMPTS, ids=[rollout_id])
        if row is None:
            return None
        _, number, id, status, start, end, worker_id, heard, check_at, reason, _, metadata = row
        return AttemptFacts(
            number, id, status, start, end, worker_id or None, heard, check_at, reason, _failure_in(metadata)
        )

    async def _uncharged(self, rollout_id: str) -> int:
        row = await self._tx.one(sql.UNCHARGED, ids=[rollout_id])
        return 0 if row is None else row.total

    # --- what it waits for --------------------------------------------------------------------------------

    async def _line(self, line: str, priority: int, place: int) -> LineFacts:
        row = await self._tx.one(sql.WHY_LINE, line=line)
        holder, release_by = (None, None) if row is None else row
        held = await self._tx.one(sql.RUN_STATUSES, ids=[holder]) if holder is not None else None
        terms = {"line": line, "priority": priority}
        ahead = await self._count(sql.ABOVE_IN_LINE, **terms)
        ahead += await self._count(sql.AHEAD_IN_LINE, **terms, place=place)
        return LineFacts(holder, None if held is None else held.status, release_by, ahead)

    async def _ahead_in_queue(self, facts: RolloutFacts, priority: int) -> int:
        if facts.ready is None:
            return 0
        terms = {"queue": facts.queue, "priority": priority}
        ahead = await self._count(sql.ABOVE_IN_QUEUE, **terms)
        return ahead + await self._count(sql.AHEAD_IN_QUEUE, **terms, place=facts.ready)

    async def _count(self, query: Statement[Row], **terms: Any) -> int:
        row = await self._tx.one(query, **terms, n=MANY + 1)
        return int(row[0]) if row else 0

    async def _workers(self, kind: str, queue: str) -> WorkerFacts:
        serving = [worker for worker in await workers(self._tx) if serves(worker, kind, queue)]
        alive = [worker for worker in serving if worker.heard >= self._tx.now - self._alive]
        if not alive:
            last = max(serving, key=lambda worker: worker.heard, default=None)
            return WorkerFacts() if last is None else WorkerFacts(last_id=last.id, last_heard=last.heard)
        if any(worker.places is None for worker in alive):
            return WorkerFacts(len(alive))
        force = await counted(self._tx, alive, kind)
        return WorkerFacts(force.alive, force.max, force.available)

    # --- who ended it -------------------------------------------------------------------------------------

    async def _end_of(self, facts: RolloutFacts) -> AuditMatch:
        run = facts.run
        if run is not None and run.gone_at is not None and not run.temporary:
            return await self._deed(run.gone_at, (facts.id, run.thread_id), ("delete_run", "delete_thread"))
        if facts.status != CANCELLED or facts.end_time is None:
            return AuditMatch()
        about = [facts.id] if run is None else [facts.id, run.thread_id]
        if run is not None:
            terms = {
                "since": facts.end_time,
                "until": facts.end_time + A_MOMENT,
                "strategies": list(STOPPING),
            }
            row = await self._tx.one(sql.MADE_WAY_FOR, thread_id=run.thread_id, **terms)
            if row is not None and row[0] != facts.id:
                deed = await self._deed(facts.end_time, (row[0],), ("create_run",))
                return msgspec.structs.replace(deed, instead=row[0], strategy=row[1])
        return await self._deed(facts.end_time, about, CANCELLING)

    async def _deed(self, time: int, about: Sequence[str], actions: Sequence[str]) -> AuditMatch:
        """Who did it, if that is on record: what has no actor leaves no entry."""
        rows = await self._tx.all(sql.WHO_DID, since=time, until=time + A_MOMENT, n=50)
        for actor, action, objects, count in rows:
            named = objects.split(",")
            if action in actions and (count > len(named) or not set(named).isdisjoint(about)):
                return AuditMatch(actor, action)
        return AuditMatch()

    # --- threads ------------------------------------------------------------------------------------------

    async def thread(self, thread: ThreadRow) -> ThreadFacts:
        tx = self._tx
        live = [row.id for row in await tx.all(sql.LIVE_RUNS, thread_ids=[thread.id])]
        line = await tx.one(sql.WHY_LINE, line=thread.id)
        holder = line[0] if line is not None and line[0] is not None else None
        busy = holder or (live[0] if live else None)
        last = await tx.one(sql.LAST_RUN, thread_id=thread.id)
        run = None if last is None else (await load_runs(tx, [last[0]])).get(last[0])
        asked = None
        if thread.checkpoint_id is not None:
            asked = await tx.one(sql.ASKED, thread_id=thread.id, id=thread.checkpoint_id)
        return ThreadFacts(
            id=thread.id,
            status=thread.status,
            gone_at=thread.gone_at,
            failure=failure_of(thread.error),
            busy=None if busy is None else await self.rollout(busy),
            live=len(set(live) | ({holder} if holder else set())),
            last_run=None if run is None else run.id,
            last_status=None if run is None else run.status,
            last_end=None if run is None else run.end_time,
            interrupts=[] if asked is None else [Interrupt(**each) for each in decode_json(asked[0])],
            next=[] if asked is None else decode_json(asked[1]),
            deed=await self._thread_end(thread),
        )

    async def _thread_end(self, thread: ThreadRow) -> AuditMatch:
        if thread.gone_at is None:
            return AuditMatch()
        return await self._deed(thread.gone_at, [thread.id], ["delete_thread"])


def _run_facts(run: RunRow) -> RunFacts:
    return RunFacts(
        thread_id=run.thread_id,
        agent=run.agent,
        strategy=run.strategy,
        timeout=run_limits(run).run_timeout,
        gone_at=run.gone_at,
        temporary=run.temporary is not None,
        failure=failure_of(run.error),
    )


def _failure_in(metadata: str | None) -> Failure | None:
    """What an attempt of a run failed with; other metadata is its caller's own."""
    found = None if metadata is None else decode_json(metadata)
    if not isinstance(found, dict) or set(found) != {"error", "message"}:
        return None
    return Failure(error=str(found["error"]), message=str(found["message"]))
