"""Workers, whose status follows from their claims and the ends of their attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from perdure.kernel import changes
from perdure.kernel.storage.dialect import Write
from perdure.kernel.storage.port import Tx
from perdure.rollouts import hold_sql, sql
from perdure.rollouts.model import IDLE, LIVE, WORKER, Kinds, worker_event
from perdure.rollouts.rows import AttemptRow, WorkerRow, new_worker


class WorkerAttempt(NamedTuple):
    """An attempt of a worker, with its current status."""

    worker_id: str
    rollout_id: str
    id: str
    kind: str
    status: str


class WorkerChanges:
    """Changes of workers; a missing worker is created.

    Methods collect changes. `changed` locks the workers and applies them, so that workers are locked after
    rollouts, attempts and the rows of kinds' handlers.
    """

    def __init__(self, tx: Tx, kinds: Kinds | None = None) -> None:
        self._tx = tx
        self._kinds = kinds
        self._rows: dict[str, WorkerRow] = {}
        self._stored: set[str] = set()
        self._touched: set[str] = set()
        self._changes: list[tuple[str, Callable[[], None]]] = []

    async def load(self, ids: Iterable[str]) -> None:
        """Lock and read the workers that are not loaded yet."""
        wanted = sorted({worker_id for worker_id in ids if worker_id not in self._rows})
        self._rows.update((worker_id, new_worker(worker_id)) for worker_id in wanted)
        if wanted:
            for row in await self._tx.all(sql.LOAD_WORKERS, ids=wanted):
                self._rows[row.id] = row
                self._stored.add(row.id)

    async def idle_among(self, ids: Iterable[str | None]) -> frozenset[str]:
        """Return the workers that are idle or hold an attempt: an empty claim does not change them. No worker
        is locked, because the result only saves writes."""
        wanted = sorted({worker_id for worker_id in ids if worker_id})
        rows = await self._tx.all(sql.GET_WORKERS, ids=wanted) if wanted else []
        return frozenset(row.id for row in rows if row.held or row.status == IDLE)

    def __getitem__(self, worker_id: str) -> WorkerRow:
        """Return a worker to change."""
        self._touched.add(worker_id)
        return self._rows[worker_id]

    def is_known(self, worker_id: str) -> bool:
        return worker_id in self._stored

    def follow(self, attempt: AttemptRow) -> None:
        """Update the worker of an attempt from the attempt's current status.

        The end of an attempt only affects the worker that holds it, or that holds nothing.
        """
        if attempt.worker_id:
            self.follow_attempt(
                WorkerAttempt(
                    attempt.worker_id, attempt.rollout_id, attempt.id, attempt.kind, attempt.status
                ),
            )

    def follow_attempt(self, attempt: WorkerAttempt) -> None:
        """Update a worker from an attempt that is not loaded here."""
        self._changes.append((attempt.worker_id, partial(self._follow, attempt)))

    def _follow(self, attempt: WorkerAttempt) -> None:
        if attempt.status not in LIVE and not self._held_last(attempt):
            return
        worker = self[attempt.worker_id]
        worker.status = WORKER.step(worker.status, worker_event(attempt.status))
        if attempt.status in LIVE:
            self._busy(worker, attempt.rollout_id, attempt.id)
        else:
            self._idle(worker)

    def _held_last(self, attempt: AttemptRow | WorkerAttempt) -> bool:
        """Return whether an ended attempt was all that its worker held."""
        worker = self._rows[attempt.worker_id or ""]
        if self._kinds is None or not self._kinds[attempt.kind].counted:
            return not worker.held and worker.current_attempt_id in (None, attempt.id)
        self._touched.add(worker.id)
        worker.held = max((worker.held or 0) - 1, 0)
        if worker.held and worker.current_attempt_id == attempt.id:
            worker.current_rollout_id = worker.current_attempt_id = None
        return not worker.held

    def claimed(
        self, worker_id: str | None, rollout_id: str, attempt_id: str, *, dequeued: bool, runs: int = 0
    ) -> None:
        """Record that a worker got rollouts, this one last; `runs` is the number that count as held."""
        if worker_id:
            change = partial(self._claimed, worker_id, rollout_id, attempt_id, dequeued, runs)
            self._changes.append((worker_id, change))

    def _claimed(self, worker_id: str, rollout_id: str, attempt_id: str, dequeued: bool, runs: int) -> None:
        worker = self[worker_id]
        worker.status = WORKER.step(worker.status, "assigned")
        worker.stopped_at = None
        if runs:
            worker.held = (worker.held or 0) + runs
        if dequeued:
            worker.last_dequeue_time = self._tx.now
        self._busy(worker, rollout_id, attempt_id)

    def found_nothing(self, worker_id: str | None) -> None:
        """Record that a worker's claim got no rollouts."""
        if worker_id:
            self._changes.append((worker_id, partial(self._found_nothing, worker_id)))

    def _found_nothing(self, worker_id: str) -> None:
        worker = self[worker_id]
        worker.last_dequeue_time = self._tx.now
        if worker.held:
            return
        was, worker.status = worker.status, WORKER.step(worker.status, "found nothing")
        if worker.status != was:
            self._idle(worker)

    def released(self, attempt: AttemptRow) -> None:
        """Record that a claim was reverted before its worker got the answer."""
        if attempt.worker_id:
            self._changes.append((attempt.worker_id, partial(self._released, attempt.worker_id, attempt)))

    def _released(self, worker_id: str, attempt: AttemptRow) -> None:
        if self._held_last(attempt):
            self._found_nothing(worker_id)

    def stopped(self, worker_id: str) -> None:
        """Record that a worker claims no more. It is busy until its runs have ended."""
        self._changes.append((worker_id, partial(self._stopped, worker_id)))

    def _stopped(self, worker_id: str) -> None:
        worker = self[worker_id]
        worker.stopped_at = self._tx.now
        if not worker.held:
            worker.status = WORKER.step(worker.status, "stopped")
            self._idle(worker)

    def _busy(self, worker: WorkerRow, rollout_id: str, attempt_id: str) -> None:
        worker.last_busy_time = self._tx.now
        worker.current_rollout_id = rollout_id
        worker.current_attempt_id = attempt_id

    def _idle(self, worker: WorkerRow) -> None:
        worker.last_idle_time = self._tx.now
        worker.current_rollout_id = worker.current_attempt_id = None

    @property
    def has_changes(self) -> bool:
        """Whether a worker is to be changed."""
        return bool(self._changes)

    async def changed(self) -> tuple[Write, Write]:
        """Lock the workers and apply the changes; return the writes.

        If 2 transactions create the same worker, the second runs again.
        """
        await self.load([worker_id for worker_id, _ in self._changes])
        for _, change in self._changes:
            change()
        self._changes = []
        touched = [self._rows[worker_id] for worker_id in sorted(self._touched)]
        changes.tell(self._tx, "worker", ((row.id, row.status) for row in touched))
        stored = [row for row in touched if row.id in self._stored]
        new = [row for row in touched if row.id not in self._stored]
        return sql.SAVE_WORKERS.of(stored), sql.ADD_WORKERS.of(new)


@dataclass(frozen=True, slots=True)
class Beat:
    """A worker's heartbeat, with its statistics as JSON; None keeps the last statistics."""

    worker_id: str
    stats: str | None


@dataclass(frozen=True, slots=True)
class WorkerRegistration:
    """A worker that starts to claim, and its process, if that has the database open itself."""

    worker_id: str
    stats: str
    process: str | None


async def start(tx: Tx, registration: WorkerRegistration) -> None:
    """Record that a worker starts to claim."""
    workers = WorkerChanges(tx)
    await workers.load([registration.worker_id])
    worker = workers[registration.worker_id]
    worker.last_heartbeat_time, worker.stopped_at = tx.now, None
    worker.heartbeat_stats, worker.process = registration.stats, registration.process
    if not worker.held:
        worker.status = WORKER.step(worker.status, "registered")
    await tx.write(*await workers.changed())
    await tx.execute(hold_sql.DROP_HOLD, kind="worker", name=registration.worker_id)


async def stop(tx: Tx, worker_id: str) -> None:
    """Record that a worker claims no more; an unknown worker is ignored."""
    workers = WorkerChanges(tx)
    await workers.load([worker_id])
    if workers.is_known(worker_id):
        workers.stopped(worker_id)
        await tx.write(*await workers.changed())
        await tx.execute(hold_sql.DROP_HOLD, kind="worker", name=worker_id)


async def beat(tx: Tx, beats: Sequence[Beat]) -> list[WorkerRow]:
    """Record heartbeats, and return the row of each worker."""
    workers = WorkerChanges(tx)
    await workers.load([item.worker_id for item in beats])
    for item in beats:
        worker = workers[item.worker_id]
        worker.last_heartbeat_time = tx.now
        if item.stats is not None:
            worker.heartbeat_stats = item.stats
    await tx.write(*await workers.changed())
    return [workers[item.worker_id] for item in beats]
