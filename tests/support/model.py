"""A model of the rollouts in a few dictionaries: the behaviour of any store, written from its contract.

It knows neither tables nor transactions. A call takes the ids that the store under test returned, follows the
contract, and returns the answer that the store must give; if the contract leaves an order open, any is
accepted. Times are seconds on the model's own clock, which the test moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.support.model_records import (
    Diverged,
    ModelAttempt,
    ModelConfig,
    ModelResources,
    ModelRollout,
    ModelWorker,
    Unknown,
    expect,
)

__all__ = [
    "FINISHED",
    "LIVE",
    "QUEUED",
    "Diverged",
    "Model",
    "ModelAttempt",
    "ModelConfig",
    "ModelResources",
    "ModelRollout",
    "ModelWorker",
    "Unknown",
    "expect",
]

QUEUED = ("queuing", "requeuing")
LIVE = ("preparing", "running")
FINISHED = ("succeeded", "failed", "cancelled")


class Model:
    """One namespace of a store."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rollouts: dict[str, ModelRollout] = {}
        self.workers: dict[str, ModelWorker] = {}
        self.resources: dict[str, ModelResources] = {}
        self.latest_resources: str | None = None
        self.sequences: dict[str, int] = {}
        self._calls = 0
        self._held = False

    # --- new rollouts -------------------------------------------------------------------------------------

    def start_rollout(
        self, rollout_id: str, attempt_id: str, worker_id: str | None = None, **fields: Any
    ) -> ModelRollout:
        """Start a rollout that bypasses the queue, with its first attempt."""
        self.watchdog()
        rollout = self._new(rollout_id, fields)
        rollout.status = "preparing"
        self._begin(rollout, attempt_id, worker_id)
        return rollout

    def enqueue(self, requests: Sequence[dict[str, Any]], rollout_ids: Sequence[str]) -> list[ModelRollout]:
        """Add rollouts to the tail of their queues; a known key returns the rollout that had it first."""
        self.watchdog()
        answers = []
        for request, rollout_id in zip(requests, rollout_ids, strict=True):
            rollout = self._with_key(request.get("key"))
            if rollout is None:
                rollout = self._new(rollout_id, request)
                self._calls += 1
                rollout.place = (self.now, self._calls)
                if rollout.not_before is not None and rollout.not_before > self.now:
                    # Rollouts that become due together may come in any order.
                    rollout.place = (rollout.not_before, 0)
            expect(rollout_id, rollout.rollout_id, "the rollout of an enqueue")
            answers.append(rollout)
        return answers

    def _with_key(self, key: str | None) -> ModelRollout | None:
        known = [rollout for rollout in self.rollouts.values() if key is not None and rollout.key == key]
        return known[0] if known else None

    def _new(self, rollout_id: str, fields: dict[str, Any]) -> ModelRollout:
        if rollout_id in self.rollouts:
            raise Diverged(f"{rollout_id} was given out twice")
        rollout = ModelRollout(rollout_id, self.now, **fields)
        if rollout.resources_id is None:
            rollout.resources_id = self.latest_resources
        self.rollouts[rollout_id] = rollout
        return rollout

    # --- attempts -----------------------------------------------------------------------------------------

    def dequeue(
        self, claimed: Sequence[tuple[str, str]], limit: int, worker_id: str | None, queue: str
    ) -> list[ModelRollout]:
        """Claim the first rollouts in the queue, at most `limit`, as (rollout_id, attempt_id)."""
        if limit <= 0:
            expect([], list(claimed), "a claim of nothing")
            return []
        self.watchdog()
        expect(min(limit, len(self.waiting(queue))), len(claimed), f"how many are claimed from {queue}")
        answers = [self._claim(*pair, worker_id, queue) for pair in claimed]
        if worker_id:
            worker = self._worker(worker_id)
            worker.last_dequeue_time = self.now
            if not claimed and worker.status != "idle":
                self._free(worker, "idle")
        return answers

    def _claim(self, rollout_id: str, attempt_id: str, worker_id: str | None, queue: str) -> ModelRollout:
        waiting = self.waiting(queue)
        first = min(_order(rollout) for rollout in waiting)
        allowed = [rollout.rollout_id for rollout in waiting if _order(rollout) == first]
        if rollout_id not in allowed:
            raise Diverged(f"{rollout_id} was claimed from {queue} before {allowed}")
        rollout = self.rollouts[rollout_id]
        rollout.status = "preparing"
        self._begin(rollout, attempt_id, worker_id)
        return rollout

    def waiting(self, queue: str) -> list[ModelRollout]:
        """Return the claimable rollouts, in no particular order."""
        return [
            rollout
            for rollout in self.rollouts.values()
            if rollout.queue == queue
            and rollout.status in QUEUED
            and (rollout.not_before is None or rollout.not_before <= self.now)
        ]

    def start_attempt(self, rollout_id: str, attempt_id: str, worker_id: str | None) -> ModelRollout:
        """Start another attempt, in any status of the rollout and after any number of attempts."""
        self.watchdog()
        rollout = self.rollout(rollout_id)
        self._set(rollout, "preparing")
        self._begin(rollout, attempt_id, worker_id)
        return rollout

    def _begin(self, rollout: ModelRollout, attempt_id: str, worker_id: str | None) -> None:
        attempt = ModelAttempt(attempt_id, len(rollout.attempts) + 1, self.now, worker_id or None)
        rollout.attempts.append(attempt)
        if worker_id:
            self._occupy(self._worker(worker_id), rollout, attempt)

    def update_attempt(self, rollout_id: str, attempt_id: str, **said: Any) -> ModelAttempt:
        """Set the given fields; the latest attempt's new status decides its rollout's."""
        self.watchdog()
        rollout = self.rollout(rollout_id)
        attempt = rollout.attempt(attempt_id)
        for name in ("last_heartbeat_time", "metadata"):
            if name in said:
                setattr(attempt, name, said[name])
        if "worker_id" in said:
            attempt.worker_id = said["worker_id"]
        if said.get("status", attempt.status) != attempt.status:
            attempt.status = said["status"]
            attempt.end_time = self.now if attempt.status in FINISHED else None
            if attempt is rollout.latest and rollout.status != "cancelled":
                self._follow(rollout, attempt)
        if attempt.worker_id and ("status" in said or "worker_id" in said):
            self._sync(self._worker(attempt.worker_id), rollout, attempt)
        return attempt

    def _follow(self, rollout: ModelRollout, attempt: ModelAttempt) -> None:
        """Set the rollout's status by its latest attempt's."""
        if attempt.status in ("preparing", "running", "succeeded"):
            self._set(rollout, attempt.status)
        elif (
            attempt.status in rollout.config.retry_condition
            and attempt.sequence_id < rollout.config.max_attempts
        ):
            self._set(rollout, "requeuing")
        else:
            self._set(rollout, "failed")
            rollout.silenced = attempt.status == "unresponsive"

    def _set(self, rollout: ModelRollout, status: str) -> None:
        """Set a rollout's status; its end and its place in the queue follow."""
        if status not in FINISHED:
            rollout.end_time = None
        elif status != rollout.status:
            rollout.end_time = self.now
        if status in QUEUED and rollout.status not in QUEUED:
            rollout.place = (self.now, self._calls)
            rollout.not_before = None
        rollout.status = status
        rollout.silenced = False

    # --- explicit changes ---------------------------------------------------------------------------------

    def update_rollout(self, rollout_id: str, **said: Any) -> ModelRollout:
        """Set the given fields, without further conditions."""
        self.watchdog()
        rollout = self.rollout(rollout_id)
        for name in ("input", "mode", "resources_id", "config", "metadata"):
            if name in said:
                setattr(rollout, name, said[name])
        if "status" in said:
            self._set(rollout, said["status"])
        return rollout

    def rollout(self, rollout_id: str) -> ModelRollout:
        if rollout_id not in self.rollouts:
            raise Unknown(rollout_id)
        return self.rollouts[rollout_id]

    # --- the watchdog -------------------------------------------------------------------------------------

    def watchdog(self) -> None:
        """End the latest attempts that took too long or became unresponsive; their running rollouts follow.

        Attempts that expire together return to the queue at one place, so in any order, before later ones.
        """
        self._calls += 1
        if self._held:
            return
        for rollout in self.rollouts.values():
            if rollout.attempts and rollout.latest.status in LIVE:
                lapse = self._lapse(rollout.config, rollout.latest)
                if lapse is not None:
                    self._end(rollout, lapse)
        self._calls += 1

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Merge calls as a store does: the watchdog runs only before the first of them."""
        self.watchdog()
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def _lapse(self, config: ModelConfig, attempt: ModelAttempt) -> str | None:
        heard = attempt.start_time if attempt.last_heartbeat_time is None else attempt.last_heartbeat_time
        if config.timeout_seconds is not None and self.now - attempt.start_time > config.timeout_seconds:
            return "timeout"
        if config.unresponsive_seconds is not None and self.now - heard > config.unresponsive_seconds:
            return "unresponsive"
        return None

    def _end(self, rollout: ModelRollout, lapse: str) -> None:
        attempt = rollout.latest
        attempt.status = lapse
        if rollout.status in LIVE:
            self._follow(rollout, attempt)
        if attempt.worker_id:
            self._sync(self._worker(attempt.worker_id), rollout, attempt)

    # --- spans --------------------------------------------------------------------------------------------

    def add_spans(self, spans: Iterable[tuple[str, str, str, int | None]]) -> list[int | None]:
        """Store (rollout_id, attempt_id, span_id, sequence_id). Return numbers, None for an existing span.

        An unknown rollout or attempt refuses the whole call. The watchdog does not run.
        """
        call = list(spans)
        for rollout_id, attempt_id, _, _ in call:
            if attempt_id == "latest":
                raise Unknown(attempt_id)
            self.rollout(rollout_id).attempt(attempt_id)
        return [self._add_span(*span) for span in call]

    def _add_span(self, rollout_id: str, attempt_id: str, span_id: str, number: int | None) -> int | None:
        rollout = self.rollouts[rollout_id]
        attempt = rollout.attempt(attempt_id)
        if (attempt_id, span_id) in rollout.spans:
            return None
        number = self.next_sequence_id(rollout_id) if number is None else number
        self.sequences[rollout_id] = max(self.sequences.get(rollout_id, 0), number)
        rollout.spans[attempt_id, span_id] = number
        attempt.last_heartbeat_time = self.now
        if attempt.status in ("preparing", "unresponsive"):
            was, attempt.status = attempt.status, "running"
            if attempt is rollout.latest:
                self._speak(rollout, was)
        return number

    def _speak(self, rollout: ModelRollout, was: str) -> None:
        """Record the latest attempt's first sign of life, or one after a silence."""
        back = was == "unresponsive" and rollout.status == "failed" and rollout.silenced
        if rollout.status in ("queuing", "preparing", "requeuing") or back:
            self._set(rollout, "running")

    def next_sequence_id(self, rollout_id: str) -> int:
        """Return the rollout's next number; the rollout need not exist."""
        self.sequences[rollout_id] = self.sequences.get(rollout_id, 0) + 1
        return self.sequences[rollout_id]

    # --- workers ------------------------------------------------------------------------------------------

    def update_worker(self, worker_id: str, **said: Any) -> ModelWorker:
        """Record a heartbeat, and nothing else."""
        worker = self._worker(worker_id)
        worker.last_heartbeat_time = self.now
        if "heartbeat_stats" in said:
            worker.heartbeat_stats = said["heartbeat_stats"]
        return worker

    def _worker(self, worker_id: str) -> ModelWorker:
        return self.workers.setdefault(worker_id, ModelWorker())

    def _occupy(self, worker: ModelWorker, rollout: ModelRollout, attempt: ModelAttempt) -> None:
        worker.status, worker.last_busy_time = "busy", self.now
        worker.current_rollout_id, worker.current_attempt_id = rollout.rollout_id, attempt.attempt_id

    def _free(self, worker: ModelWorker, status: str) -> None:
        worker.status, worker.last_idle_time = status, self.now
        worker.current_rollout_id = worker.current_attempt_id = None

    def _sync(self, worker: ModelWorker, rollout: ModelRollout, attempt: ModelAttempt) -> None:
        """Update the worker of an attempt; the end of an attempt that it no longer holds changes nothing."""
        if attempt.status in LIVE:
            self._occupy(worker, rollout, attempt)
        elif worker.current_attempt_id in (None, attempt.attempt_id):
            self._free(worker, "idle" if attempt.status in FINISHED else "unknown")

    # --- resources ----------------------------------------------------------------------------------------

    def add_resources(self, resources_id: str, resources: Any) -> ModelResources:
        if resources_id in self.resources:
            raise Diverged(f"{resources_id} was given out twice")
        return self._keep(resources_id, resources)

    def update_resources(self, resources_id: str, resources: Any) -> ModelResources:
        """Store the next version, or the first one of an unknown id."""
        self.watchdog()
        return self._keep(resources_id, resources)

    def _keep(self, resources_id: str, resources: Any) -> ModelResources:
        known = self.resources.get(resources_id)
        version, created = (known.version + 1, known.create_time) if known else (1, self.now)
        self.resources[resources_id] = ModelResources(version, created, self.now, resources)
        self.latest_resources = resources_id
        return self.resources[resources_id]

    # --- counting -----------------------------------------------------------------------------------------

    def statistics(self) -> dict[str, int]:
        return {
            "total_rollouts": len(self.rollouts),
            "total_attempts": sum(len(rollout.attempts) for rollout in self.rollouts.values()),
            "total_spans": sum(len(rollout.spans) for rollout in self.rollouts.values()),
            "total_resources": len(self.resources),
            "total_workers": len(self.workers),
        }


def _order(rollout: ModelRollout) -> tuple[int, tuple[float, int]]:
    return (-rollout.priority, rollout.place)
