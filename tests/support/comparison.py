"""Compares a store's records with the model's: every field, times within a tolerance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.support.model import (
    Diverged,
    Model,
    ModelAttempt,
    ModelConfig,
    ModelResources,
    ModelRollout,
    ModelWorker,
    expect,
)

from perdure.rollouts.contract import LightningStore
from perdure.rollouts.records import Attempt, AttemptedRollout, Rollout, RolloutConfig, Worker
from perdure.rollouts.resources import ResourcesUpdate

__all__ = ["Comparison"]

_ROLLOUT = ("rollout_id", "input", "mode", "resources_id", "status", "metadata")
_ATTEMPT = ("attempt_id", "sequence_id", "status", "worker_id", "metadata")
_WORKER = ("status", "heartbeat_stats", "current_rollout_id", "current_attempt_id")
_WORKER_TIMES = ("last_heartbeat_time", "last_dequeue_time", "last_busy_time", "last_idle_time")


class Comparison:
    """Compares with a model whose time 0 is `start` on the store's clock."""

    def __init__(self, model: Model, start: float, tolerance: float) -> None:
        self.model = model
        self.start = start
        self.tolerance = tolerance

    def _times(self, wanted: Any, found: Any, names: Iterable[str], whose: str) -> None:
        for name in names:
            self._time(getattr(wanted, name), getattr(found, name), f"{name} of {whose}")

    def _time(self, wanted: float | None, found: float | None, what: str) -> None:
        if wanted is None or found is None:
            expect(wanted, found, what)
        elif abs(found - self.start - wanted) > self.tolerance:
            raise Diverged(f"{what}: the model says {wanted}, the store {found - self.start}")

    def rollout(self, wanted: ModelRollout, found: Rollout | None) -> None:
        """Compare a rollout with its latest attempt, if any."""
        what = f"rollout {wanted.rollout_id}"
        if found is None:
            raise Diverged(f"{what} is missing")
        expect(AttemptedRollout if wanted.attempts else Rollout, type(found), f"the type of {what}")
        self.fields(wanted, found)
        if isinstance(found, AttemptedRollout):
            self.attempt(wanted.latest, found.attempt)

    def fields(self, wanted: ModelRollout, found: Rollout) -> None:
        """Compare a rollout's own fields."""
        what = f"rollout {wanted.rollout_id}"
        for name in _ROLLOUT:
            expect(getattr(wanted, name), getattr(found, name), f"{name} of {what}")
        expect(wanted.config, _config(found.config), f"config of {what}")
        self._times(wanted, found, ("start_time", "end_time"), what)

    def attempt(self, wanted: ModelAttempt, found: Attempt) -> None:
        what = f"attempt {wanted.attempt_id}"
        for name in _ATTEMPT:
            expect(getattr(wanted, name), getattr(found, name), f"{name} of {what}")
        self._times(wanted, found, ("start_time", "end_time", "last_heartbeat_time"), what)

    def worker(self, wanted: ModelWorker, found: Worker) -> None:
        what = f"worker {found.worker_id}"
        for name in _WORKER:
            expect(getattr(wanted, name), getattr(found, name), f"{name} of {what}")
        self._times(wanted, found, _WORKER_TIMES, what)

    def resources(self, wanted: ModelResources, found: ResourcesUpdate) -> None:
        what = f"resources {found.resources_id}"
        expect(wanted.version, found.version, f"version of {what}")
        expect(wanted.resources, found.resources, f"content of {what}")
        self._times(wanted, found, ("create_time", "update_time"), what)

    # --- the whole store ----------------------------------------------------------------------------------

    async def rollouts(self, store: LightningStore) -> None:
        """Compare every rollout with its latest attempt, and their number."""
        self.model.watchdog()
        found = {rollout.rollout_id: rollout for rollout in await store.query_rollouts()}
        expect(set(self.model.rollouts), set(found), "which rollouts there are")
        for rollout_id, wanted in self.model.rollouts.items():
            self.rollout(wanted, found[rollout_id])

    async def everything(self, store: LightningStore) -> None:
        """Compare the whole store."""
        await self.rollouts(store)
        for rollout in self.model.rollouts.values():
            attempts = await store.query_attempts(rollout.rollout_id)
            expect(len(rollout.attempts), len(attempts), f"attempts of {rollout.rollout_id}")
            for wanted, attempt in zip(rollout.attempts, attempts, strict=True):
                self.attempt(wanted, attempt)
            await self._spans(store, rollout)
        await self.workers(store)
        await self._all_resources(store)
        statistics = dict(await store.statistics())
        wanted_statistics = self.model.statistics()
        expect(wanted_statistics, {name: statistics[name] for name in wanted_statistics}, "statistics")

    async def workers(self, store: LightningStore) -> None:
        workers = {worker.worker_id: worker for worker in await store.query_workers()}
        expect(set(self.model.workers), set(workers), "which workers there are")
        for worker_id, wanted in self.model.workers.items():
            self.worker(wanted, workers[worker_id])

    async def _spans(self, store: LightningStore, rollout: ModelRollout) -> None:
        found = {
            (s.attempt_id, s.span_id): s.sequence_id for s in await store.query_spans(rollout.rollout_id)
        }
        expect(rollout.spans, found, f"spans of {rollout.rollout_id}")
        expect(sorted(found.values()), list(found.values()), f"the order of spans of {rollout.rollout_id}")

    async def _all_resources(self, store: LightningStore) -> None:
        found = {update.resources_id: update for update in await store.query_resources()}
        expect(list(self.model.resources), list(found), "which resources there are, in their order")
        for resources_id, wanted in self.model.resources.items():
            self.resources(wanted, found[resources_id])
        latest = await store.get_latest_resources()
        expect(self.model.latest_resources, latest and latest.resources_id, "the latest resources")


def _config(config: RolloutConfig) -> ModelConfig:
    return ModelConfig(
        config.timeout_seconds,
        config.unresponsive_seconds,
        config.max_attempts,
        tuple(config.retry_condition),
    )
