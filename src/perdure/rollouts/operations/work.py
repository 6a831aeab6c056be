"""A unit of work: rows read under their locks, changed by the transition tables, and written back in bulk.

Locks are taken in one order everywhere, rows of a table in the order of their keys: schedules, lines,
rollouts, attempts, admission, workflow_runs, workflow_nodes, approvals, executions, execution_stats,
chat_threads, messaging_sessions, jobs, workers, counts and totals, stream heads, outbox. The tables
between attempts and workers belong to the handlers of kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from perdure.kernel import changes
from perdure.kernel.clock import to_seconds
from perdure.kernel.errors import Conflict, NotFound
from perdure.kernel.storage.dialect import Write
from perdure.kernel.storage.port import Tx
from perdure.rollouts import sql
from perdure.rollouts.model import (
    ATTEMPT,
    ENDED,
    FAILED,
    QUEUED,
    RELEASED,
    ROLLOUT,
    UNRESPONSIVE,
    AttemptEnd,
    EndedRollout,
    EndReport,
    Kinds,
    RolloutEnds,
    RolloutKind,
    compute_outcome,
    reported,
)
from perdure.rollouts.operations.conditions import LINES_LOCKED
from perdure.rollouts.rows import AttemptRow as AttemptRow
from perdure.rollouts.rows import RolloutCountRow, TotalRow
from perdure.rollouts.rows import RolloutRow as RolloutRow
from perdure.service.conditions import Unmet

LATEST = "latest"
"""Alias of the latest attempt of a rollout."""
ENDED_CHANNEL = "rollouts.ended"
READY_CHANNEL = "rollouts.ready"
ATTEMPTS_TOTAL, SPANS_TOTAL, BYTES_TOTAL = "attempts", "spans", "span_bytes"
"""Names of totals."""
ROLLOUT_ENDED = "rollouts.ended"
ENDED_IN_QUEUE = {status: "rollouts.ended_in_queue." + status for status in ENDED}
EXECUTED = "rollouts.executed"
WAITED = "rollouts.waited"
LEASE_LOST = "rollouts.lease_lost"
"""Names of counters: ends by kind and by queue, durations, waits, lost leases."""


def ready_key(queue: str, agent: str | None) -> str:
    """Return the key that is published when a rollout is ready: only workers with its agent are woken."""
    return queue if agent is None else queue + "/" + agent


def ended_key(ns: int | None, rollout_id: str) -> str:
    """Return the key that is published when a rollout ends."""
    return str(ns) + "/" + rollout_id


class LockedRollouts:
    """Loaded and locked rollouts with their attempts."""

    def __init__(self, tx: Tx, kinds: Kinds) -> None:
        self.tx = tx
        self.kinds = kinds
        self.rollouts: dict[str, RolloutRow] = {}
        self.attempts: dict[str, list[AttemptRow]] = {}
        self.counts: dict[tuple[str, str], int] = {}
        self.reports: dict[str, EndReport] = {}
        """Reports for the handlers of kinds, by rollout."""
        self.holders: dict[str, str | None] = {}
        """Holders of the locked lines."""
        self.stopped: list[RolloutRow] = []
        """Rollouts that ended earlier, whose executors have now stopped as well."""
        self._queued = 0

    async def load(self, ids: Iterable[str], kinds: Sequence[str], *, lined: bool) -> None:
        """Lock and read the rollouts and all their attempts."""
        wanted = sorted(set(ids))
        if lined:
            self.holders.update(await self.tx.all(sql.LOCK_LINES_OF, ids=wanted))
        for rollout in await self.tx.all(sql.LOAD_ROLLOUTS, ids=wanted, kinds=list(kinds)):
            if rollout.line is not None and not lined:
                raise Unmet(LINES_LOCKED)
            self.rollouts[rollout.id] = rollout
            self.attempts[rollout.id] = []
        if self.rollouts:
            await self.load_attempts(list(self.rollouts))

    async def try_load(self, ids: Iterable[str]) -> bool:
        """Lock and read rollouts after their attempts; return False if a row is missing or has changed.

        This is against the order of locks, so it skips locked rows instead of waiting.
        An attempt that has started meanwhile may be missing from the attempts that were read.
        """
        wanted = sorted(ids)
        rollouts = await self.tx.all(sql.TRY_ROLLOUTS, ids=wanted)
        self.rollouts = {rollout.id: rollout for rollout in rollouts}
        return len(rollouts) == len(wanted) and all(
            rollout.line is None and rollout.attempts == self.attempts[rollout.id][-1].sequence_id
            for rollout in rollouts
        )

    async def load_attempts(self, rollout_ids: Sequence[str]) -> None:
        """Lock and read the attempts of rollouts."""
        for attempt in await self.tx.all(sql.LOAD_ATTEMPTS, ids=sorted(rollout_ids)):
            self.attempts.setdefault(attempt.rollout_id, []).append(attempt)

    def rollout(self, rollout_id: str) -> RolloutRow:
        rollout = self.rollouts.get(rollout_id)
        if rollout is None:
            raise NotFound(f"Rollout {rollout_id} not found")
        return rollout

    def attempt(self, rollout: RolloutRow, attempt_id: str) -> AttemptRow:
        """Return an attempt by its id, or the latest for the id `latest`."""
        attempts = self.attempts[rollout.id]
        if not attempts:
            raise NotFound(f"No attempts found for rollout {rollout.id}")
        if attempt_id == LATEST:
            return attempts[-1]
        for attempt in attempts:
            if attempt.id == attempt_id:
                return attempt
        raise NotFound(f"Attempt {attempt_id} not found for rollout {rollout.id}")

    def is_latest(self, attempt: AttemptRow) -> bool:
        return attempt is self.attempts[attempt.rollout_id][-1]

    def latest(self, rollout_id: str) -> AttemptRow | None:
        attempts = self.attempts[rollout_id]
        return attempts[-1] if attempts else None

    def tries(self, attempt: AttemptRow) -> int:
        """Return the number of attempts that count, including this one."""
        uncharged = sum(1 for row in self.attempts[attempt.rollout_id] if not row.charged)
        return attempt.sequence_id - uncharged

    def lapses(self, rollout_id: str) -> int:
        """Return the number of earlier attempts that became unresponsive without being counted."""
        return sum(
            1 for row in self.attempts[rollout_id] if row.was_status == UNRESPONSIVE and not row.charged
        )

    def move(
        self,
        rollout: RolloutRow,
        event: str,
        attempt_status: str | None = None,
        *,
        delay: int = 0,
        keeps_place: bool = False,
    ) -> None:
        """Apply an event to a rollout: set its status, its position in the queue and its end.

        A rollout that returns to the queue is ready after `delay` microseconds.
        """
        if not ROLLOUT.moves(rollout.status, event):
            return
        was, rollout.status = rollout.status, ROLLOUT.step(rollout.status, event)
        rollout.dirty = True
        if rollout.status in QUEUED:
            self._enter_queue(rollout, was, delay, keeps_place)
        else:
            rollout.ready = rollout.due_at = rollout.behind = None
        if rollout.status not in ENDED:
            rollout.end_time = rollout.outcome = None
        elif rollout.status != was:
            rollout.end_time = self.tx.now
            rollout.outcome = compute_outcome(rollout.status, attempt_status)
        elif rollout.status == FAILED:
            rollout.outcome = compute_outcome(rollout.status, attempt_status)

    def _enter_queue(self, rollout: RolloutRow, was: str, delay: int, keeps_place: bool) -> None:
        """Set when a rollout is ready. It moves to the tail; in a line it keeps its position."""
        if was in QUEUED:
            return
        if rollout.line is None and not keeps_place:
            rollout.position = self.tx.now + self._queued
            self._queued += 1
        rollout.ready, rollout.due_at = (None, self.tx.now + delay) if delay else (rollout.position, None)

    def release(self, rollout: RolloutRow, attempt: AttemptRow) -> None:
        """End a live attempt without an executor. It does not count, and its rollout keeps its position."""
        attempt.status = ATTEMPT.step(attempt.status, reported(FAILED))
        attempt.end_time, attempt.reason, attempt.charged = self.tx.now, RELEASED, 0
        attempt.check_at, attempt.dirty = None, True
        if rollout.status not in ENDED:
            self.move(rollout, "reported failure, retry", FAILED, keeps_place=True)
        elif self.kinds[rollout.kind].final:
            self.stopped.append(rollout)

    def count(self, kind: str, status: str, more: int) -> None:
        self.counts[kind, status] = self.counts.get((kind, status), 0) + more

    def add_counts(self) -> None:
        """Update the counts of rollouts; their rows are locked last."""
        for rollout in self.rollouts.values():
            if rollout.status != rollout.was_status:
                self.count(rollout.kind, rollout.was_status, -1)
                self.count(rollout.kind, rollout.status, 1)
        add_counts(self.tx, self.counts)
        self.counts = {}

    @property
    def has_listeners(self) -> bool:
        """Whether a handler of these rollouts' kinds is called for ends."""
        kinds = [self.kinds[name] for name in {rollout.kind for rollout in self.rollouts.values()}]
        return any(kind.tells_of_ends for kind in kinds)

    async def save(self, *later: Write) -> list[int]:
        """Write back all changes, then `later`, in the order of locks; return the counts of `later`.

        This is one statement, unless a handler in between reads the changes.
        """
        ended_by_kind = self._collect_ends()
        rollouts = [rollout for rollout in self.rollouts.values() if rollout.dirty]
        attempts = [row for rows in self.attempts.values() for row in rows if row.dirty]
        for moves in (sql.MOVE_ROLLOUTS.of(rollouts), sql.MOVE_ATTEMPTS.of(attempts)):
            await self.tx.expect(moves, _refuse_change)
        self._hint()
        self._count_ends()
        for kind, ends in ended_by_kind.items():
            if kind.on_ends is not None:
                await kind.on_ends(self.tx, ends)
        for kind, ends in ended_by_kind.items():
            if kind.on_ended is not None and ends.rollouts:
                await kind.on_ended(self.tx, ends.rollouts)
        return await self.tx.write(*later)

    def _collect_ends(self) -> dict[RolloutKind, RolloutEnds]:
        """Collect the ended attempts and rollouts of each kind that has a handler for them."""
        by_kind: dict[RolloutKind, RolloutEnds] = {}
        for rollout in self.rollouts.values():
            kind = self.kinds[rollout.kind]
            if not kind.tells_of_ends:
                continue
            listens = kind.on_ends is not None
            attempts = [row for row in self.attempts[rollout.id] if row.has_ended] if listens else []
            if attempts or rollout.has_ended:
                ends = by_kind.setdefault(kind, RolloutEnds([], []))
                ends.attempts.extend(self._end(rollout, attempt) for attempt in attempts)
                if rollout.has_ended:
                    ends.rollouts.append(self._ended(rollout))
        return by_kind

    def _end(self, rollout: RolloutRow, attempt: AttemptRow) -> AttemptEnd:
        return AttemptEnd(
            rollout_id=rollout.id,
            attempt_id=attempt.id,
            sequence_id=attempt.sequence_id,
            status=attempt.status,
            reason=attempt.reason,
            charged=bool(attempt.charged),
            worker_id=attempt.worker_id,
            start_time=attempt.start_time,
            rollout_status=rollout.status,
            outcome=rollout.outcome,
            queue=rollout.queue,
            line=rollout.line,
            parent=rollout.parent,
            report=self.reports.get(rollout.id),
        )

    def _ended(self, rollout: RolloutRow) -> EndedRollout:
        return EndedRollout(
            rollout_id=rollout.id,
            status=rollout.status,
            outcome=rollout.outcome,
            attempts=rollout.attempts,
            queue=rollout.queue,
            line=rollout.line,
            parent=rollout.parent,
            end_time=rollout.end_time,
            report=self.reports.get(rollout.id),
        )

    def _count_ends(self) -> None:
        """Count the ended rollouts, and the durations of their last attempts."""
        for rollout in self.rollouts.values():
            ends = [row for row in self.attempts[rollout.id] if row.has_ended]
            for attempt in ends:
                if attempt.status == UNRESPONSIVE:
                    self.tx.count(LEASE_LOST, rollout.kind)
            if rollout.has_ended:
                self.tx.count(ROLLOUT_ENDED, rollout.kind + "/" + rollout.status)
                if self.kinds[rollout.kind].unreported:
                    # It was in no queue, and its times come from its spans.
                    continue
                self.tx.count(ENDED_IN_QUEUE[rollout.status], rollout.queue)
                for attempt in ends[-1:]:
                    took = to_seconds(max(self.tx.now - attempt.start_time, 0))
                    self.tx.count(EXECUTED, rollout.kind, took)

    def _hint(self) -> None:
        moved = (r for r in self.rollouts.values() if r.status != r.was_status)
        changes.tell(self.tx, "rollout", ((rollout.id, rollout.status) for rollout in moved))
        for rollout in self.rollouts.values():
            if rollout.has_ended:
                self.tx.hint(ENDED_CHANNEL, ended_key(self.tx.ns, rollout.id))
            elif rollout.dirty and rollout.ready is not None:
                self.tx.hint(READY_CHANNEL, ready_key(rollout.queue, rollout.agent))


def add_counts(tx: Tx, counts: Mapping[tuple[str, str], int]) -> None:
    """Add to the counts of rollouts by kind and status; their rows are locked last."""
    tx.add(
        sql.ADD_COUNTS,
        [RolloutCountRow(kind, status, tx.shard, more) for (kind, status), more in counts.items()],
    )


def add_total(tx: Tx, name: str, more: int) -> None:
    """Add to a total of rows that belong to rollouts. The total's row is locked last, like rows of counts."""
    if more:
        tx.add(sql.ADD_TOTALS, [TotalRow(name, tx.shard, more)])


async def _refuse_change() -> None:
    raise Conflict("a rollout or an attempt changed while it was locked")
