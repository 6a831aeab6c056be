"""A unit of work: rows read under their locks, moved by the transition tables, and written back in bulk.

Locks are taken in one order everywhere: lines, rollouts, attempts, workers, counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from perdure.kernel import changes
from perdure.kernel.errors import Conflict, NotFound
from perdure.kernel.storage.port import Tx
from perdure.rollouts import sql
from perdure.rollouts.model import (
    ENDED,
    FAILED,
    LIVE,
    QUEUED,
    ROLLOUT,
    Kinds,
    Limits,
    deadline_of,
    limits_of,
    outcome_of,
)

ENDED_CHANNEL = "rollouts.ended"
READY_CHANNEL = "rollouts.ready"


def ended_key(ns: int | None, rollout_id: str) -> str:
    """What the end of a rollout is published as."""
    return str(ns) + "/" + rollout_id


class LinesNeeded(Exception):
    """A rollout stands in a line, whose lock comes first: run the operation again with lines."""


class RolloutRow(msgspec.Struct):
    """What the rules read and write of a rollout."""

    id: str
    kind: str
    queue: str
    status: str
    outcome: str | None
    priority: int
    position: int
    ready: int | None
    due_at: int | None
    behind: int | None
    line: str | None
    queued_as: str | None
    attempts: int
    end_time: int | None
    config: str
    start_time: int
    was: str = ""
    dirty: bool = False

    def __post_init__(self) -> None:
        self.was = self.status

    @property
    def limits(self) -> Limits:
        return limits_of(self.config)

    @property
    def identity(self) -> tuple[str, str, int, str]:
        """What an attempt takes over: id, kind, birth and config."""
        return self.id, self.kind, self.start_time, self.config


class AttemptRow(msgspec.Struct):
    """A row of attempts."""

    rollout_id: str
    sequence_id: int
    id: str
    status: str
    start_time: int
    end_time: int | None
    worker_id: str | None
    last_heartbeat_time: int | None
    metadata: str | None
    check_at: int | None
    reason: str | None
    charged: int
    kind: str
    born: int
    was: str = ""
    dirty: bool = False

    def __post_init__(self) -> None:
        self.was = self.status

    def hear(self, time: int | None, limits: Limits) -> None:
        """Set the heartbeat; the watchdog's time stays, unless the attempt is now overdue before it."""
        self.last_heartbeat_time = time
        deadline = deadline_of(limits, self.start_time, time)
        if self.check_at is not None and deadline is not None and deadline < self.check_at:
            self.check_at, self.dirty = deadline, True

    def watch(self, limits: Limits) -> None:
        """Set when the watchdog looks at this attempt next."""
        live = self.status in LIVE
        self.check_at = deadline_of(limits, self.start_time, self.last_heartbeat_time) if live else None
        self.dirty = True


class Work:
    """Rollouts and their attempts, loaded and locked."""

    def __init__(self, tx: Tx, kinds: Kinds) -> None:
        self.tx = tx
        self.kinds = kinds
        self.rollouts: dict[str, RolloutRow] = {}
        self.attempts: dict[str, list[AttemptRow]] = {}
        self.counts: dict[tuple[str, str], int] = {}
        self._queued = 0

    async def load(self, ids: Iterable[str], kinds: Sequence[str], *, lined: bool) -> None:
        """Lock and read the rollouts and all their attempts."""
        wanted = sorted(set(ids))
        if lined:
            await self.tx.all(sql.LOCK_LINES_OF, ids=wanted)
        for row in await self.tx.all(sql.LOAD_ROLLOUTS, ids=wanted, kinds=list(kinds)):
            rollout = RolloutRow(*row)
            if rollout.line is not None and not lined:
                raise LinesNeeded
            self.rollouts[rollout.id] = rollout
            self.attempts[rollout.id] = []
        if self.rollouts:
            await self.load_attempts(list(self.rollouts))

    async def load_attempts(self, rollout_ids: Sequence[str]) -> None:
        """Lock and read the attempts of rollouts."""
        for row in await self.tx.all(sql.LOAD_ATTEMPTS, ids=sorted(rollout_ids)):
            self.attempts.setdefault(row[0], []).append(AttemptRow(*row))

    def rollout(self, rollout_id: str) -> RolloutRow:
        rollout = self.rollouts.get(rollout_id)
        if rollout is None:
            raise NotFound(f"Rollout {rollout_id} not found")
        return rollout

    def attempt(self, rollout: RolloutRow, attempt_id: str) -> AttemptRow:
        """An attempt by its id, or the latest one by the word `latest`."""
        attempts = self.attempts[rollout.id]
        if not attempts:
            raise NotFound(f"No attempts found for rollout {rollout.id}")
        if attempt_id == "latest":
            return attempts[-1]
        for attempt in attempts:
            if attempt.id == attempt_id:
                return attempt
        raise NotFound(f"Attempt {attempt_id} not found for rollout {rollout.id}")

    def is_latest(self, attempt: AttemptRow) -> bool:
        return attempt is self.attempts[attempt.rollout_id][-1]

    def move(self, rollout: RolloutRow, event: str, attempt_status: str | None = None) -> None:
        """Apply an event to a rollout: its status, its place in the queue and its end follow."""
        if not ROLLOUT.moves(rollout.status, event):
            return
        was, rollout.status = rollout.status, ROLLOUT.step(rollout.status, event)
        rollout.dirty = True
        if rollout.status in QUEUED:
            self._enter_queue(rollout, was)
        else:
            rollout.ready = rollout.due_at = rollout.behind = None
        if rollout.status not in ENDED:
            rollout.end_time = rollout.outcome = None
        elif rollout.status != was:
            rollout.end_time = self.tx.now
            rollout.outcome = outcome_of(rollout.status, attempt_status)
        elif rollout.status == FAILED:
            rollout.outcome = outcome_of(rollout.status, attempt_status)

    def _enter_queue(self, rollout: RolloutRow, was: str) -> None:
        """One entry a rollout; outside a line it goes to the tail, in a line it keeps its place."""
        if was in QUEUED:
            return
        if rollout.line is None:
            rollout.position = self.tx.now + self._queued
            self._queued += 1
        rollout.ready = rollout.position

    def count(self, kind: str, status: str, more: int) -> None:
        self.counts[kind, status] = self.counts.get((kind, status), 0) + more

    async def save(self) -> None:
        """Write back what has changed."""
        changed = [rollout for rollout in self.rollouts.values() if rollout.dirty]
        await self._save_rollouts(changed)
        await self._save_attempts()
        for rollout in changed:
            if rollout.status != rollout.was:
                self.count(rollout.kind, rollout.was, -1)
                self.count(rollout.kind, rollout.status, 1)
        await self._tell(changed)

    async def _save_rollouts(self, changed: Sequence[RolloutRow]) -> None:
        ns = self.tx.ns
        rows = [
            (
                r.status,
                r.outcome,
                r.position,
                r.ready,
                r.due_at,
                r.behind,
                r.attempts,
                r.end_time,
                ns,
                r.id,
                r.was,
            )
            for r in changed
        ]
        if rows and await self.tx.update_many(sql.MOVE_ROLLOUTS, rows) != len(rows):
            raise Conflict("a rollout changed while it was locked")

    async def _save_attempts(self) -> None:
        rows = [
            (
                a.status,
                a.end_time,
                a.worker_id,
                a.last_heartbeat_time,
                a.check_at,
                a.reason,
                a.charged,
                a.metadata,
                self.tx.ns,
                a.rollout_id,
                a.sequence_id,
                a.was,
            )
            for attempts in self.attempts.values()
            for a in attempts
            if a.dirty
        ]
        if rows and await self.tx.update_many(sql.MOVE_ATTEMPTS, rows) != len(rows):
            raise Conflict("an attempt changed while it was locked")

    async def _tell(self, changed: Sequence[RolloutRow]) -> None:
        """Hand ended rollouts to their kinds and publish the hints."""
        changes.tell(self.tx, "rollout", ((r.id, r.status) for r in changed if r.status != r.was))
        ended: dict[str, list[tuple[str, str]]] = {}
        for rollout in changed:
            if rollout.status in ENDED and rollout.status != rollout.was:
                ended.setdefault(rollout.kind, []).append((rollout.id, rollout.status))
                self.tx.hint(ENDED_CHANNEL, ended_key(self.tx.ns, rollout.id))
            elif rollout.ready is not None:
                self.tx.hint(READY_CHANNEL, rollout.queue)
        for kind, rollouts in ended.items():
            handler = self.kinds[kind].on_ended
            if handler is not None:
                await handler(self.tx, rollouts)


async def save_counts(tx: Tx, counts: dict[tuple[str, str], int]) -> None:
    """Add to the counts of rollouts by kind and status; their rows are locked last."""
    rows = [
        {"kind": kind, "status": status, "shard": tx.shard, "more": more}
        for (kind, status), more in sorted(counts.items())
        if more
    ]
    if rows:
        await tx.execute_many(sql.ADD_COUNT, rows)
