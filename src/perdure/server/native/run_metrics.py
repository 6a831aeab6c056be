"""Metrics of runs: queue, workers, connection pools and deliveries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from perdure.diagnostics.model import NamespaceStats, OpenApprovals, read_pools
from perdure.kernel.errors import StorageError
from perdure.server.http.routes import Call
from perdure.threads.model import AGENTS_QUEUE

PLACES = ("max", "active", "available")
DELIVERIES = ("delivered", "failed", "dead")


class RunMetrics(msgspec.Struct, frozen=True):
    """Values that a scrape reads of runs."""

    stats: Mapping[str, NamespaceStats]
    pools: Mapping[str, Mapping[str, int]]
    redis: str | None
    deliveries: Mapping[str, int]
    approvals: Mapping[str, OpenApprovals]
    sweep_time: float | None
    backup_time: float | None


async def read_run_metrics(call: Call) -> RunMetrics:
    """Read the statistics of runs, or leave them empty if the database does not answer."""
    diagnostics = call.app.services.diagnostics
    health = await diagnostics.storage.health()
    stats: Mapping[str, NamespaceStats] = {}
    approvals: Mapping[str, OpenApprovals] = {}
    # A scrape works without the database; perdure_database_up shows that it does not answer.
    with suppress(StorageError):
        stats = await diagnostics.by_namespace(call.caller.namespaces)
        approvals = await diagnostics.open_approvals(call.caller.namespaces)
    counts = dict(call.app.services.deliveries.counts)
    sweep_time = call.app.services.upkeep.sweep_time
    backup_time = None if call.app.backup is None else call.app.backup.success_time
    redis = health.get("redis")
    return RunMetrics(stats, read_pools(health), redis, counts, approvals, sweep_time, backup_time)


def run_families(metrics: RunMetrics | None) -> Iterator[Metric]:
    """Yield the metric families of runs under our own names."""
    if metrics is None:
        return
    runs = GaugeMetricFamily("perdure_runs", "Runs that have not ended.", labels=("namespace", "status"))
    ages = GaugeMetricFamily(
        "perdure_runs_pending_age_seconds",
        "How long runs have waited: the oldest, and the one in the middle.",
        labels=("namespace", "which"),
    )
    places = GaugeMetricFamily(
        "perdure_worker_places", "How many runs the living workers take.", labels=("namespace", "state")
    )
    alive = GaugeMetricFamily("perdure_workers_alive", "Workers that are alive.", labels=("namespace",))
    for namespace, (queue, workers) in metrics.stats.items():
        runs.add_metric((namespace, "pending"), queue.n_pending)
        runs.add_metric((namespace, "running"), queue.n_running)
        ages.add_metric((namespace, "oldest"), queue.min_age_secs or 0.0)
        ages.add_metric((namespace, "median"), queue.med_age_secs or 0.0)
        alive.add_metric((namespace,), workers.alive)
        for state in PLACES:
            places.add_metric((namespace, state), getattr(workers, state))
    yield from (runs, ages, places, alive)
    yield from _approvals(metrics.approvals)
    yield from _outside(metrics)


def _approvals(approvals: Mapping[str, OpenApprovals]) -> Iterator[Metric]:
    pending = GaugeMetricFamily(
        "perdure_approvals_pending", "Approvals that wait for an answer.", labels=("namespace",)
    )
    age = GaugeMetricFamily(
        "perdure_approval_age_seconds", "How long the oldest of them has waited.", labels=("namespace",)
    )
    for namespace, open_approvals in approvals.items():
        pending.add_metric((namespace,), open_approvals.pending)
        age.add_metric((namespace,), open_approvals.oldest_age_seconds)
    yield from (pending, age)


def _outside(metrics: RunMetrics) -> Iterator[Metric]:
    if metrics.backup_time is not None:
        yield GaugeMetricFamily(
            "perdure_backup_last_success_timestamp_seconds",
            "When this process last made a scheduled backup.",
            metrics.backup_time,
        )
    if metrics.sweep_time is not None:
        yield GaugeMetricFamily(
            "perdure_retention_last_run_timestamp_seconds",
            "When this process last deleted what is too old.",
            metrics.sweep_time,
        )
    deliveries = CounterMetricFamily(
        "perdure_webhook_deliveries", "What this process delivered, by result.", labels=("result",)
    )
    for result in DELIVERIES:
        deliveries.add_metric((result,), metrics.deliveries.get(result, 0))
    yield deliveries
    if metrics.redis is not None:
        yield GaugeMetricFamily("perdure_redis_up", "Whether Redis answers.", float(metrics.redis == "ok"))
    for name, count in metrics.pools.get("redis", {}).items():
        yield GaugeMetricFamily(f"perdure_redis_pool_{name}", "Connections to Redis.", count)


def summary(metrics: RunMetrics | None, families: Iterable[Metric]) -> dict[str, Any]:
    """Summarize the queue, the workers and the requests in the form of LangGraph's server."""
    stats = list(metrics.stats.values()) if metrics is not None else []
    queues, forces = [queue for queue, _ in stats], [workers for _, workers in stats]
    by_name = {family.name: family.samples for family in families}
    ready = [
        sample.value
        for sample in by_name.get("perdure_queue_oldest_age_seconds", ())
        if sample.labels["queue"] == AGENTS_QUEUE
    ]
    requests = by_name.get("perdure_http_requests", ())
    return {
        "queue": {
            "n_pending": sum(queue.n_pending for queue in queues),
            "n_running": sum(queue.n_running for queue in queues),
            "pending_runs_wait_time_max_secs": _largest(queue.min_age_secs for queue in queues),
            "pending_runs_wait_time_med_secs": _largest(queue.med_age_secs for queue in queues),
            "pending_unblocked_runs_wait_time_max_secs": max(ready, default=None),
        },
        "workers": {state: sum(getattr(workers, state) for workers in forces) for state in PLACES},
        "api": {
            "http_requests_total": [
                {**sample.labels, "value": sample.value}
                for sample in requests
                if sample.name.endswith("_total")
            ]
        },
    }


def _largest(ages: Iterable[float | None]) -> float | None:
    return max((age for age in ages if age is not None), default=None)


def langgraph_families(metrics: RunMetrics | None, own: Iterable[Metric]) -> Iterator[Metric]:
    """Yield the slots of workers and the requests, under the names that LangGraph's server documents."""
    if metrics is None:
        return
    for name, value in _places(metrics).items():
        yield GaugeMetricFamily(
            name, "Runs that the living workers take at once, over all namespaces.", value
        )
    yield from _renamed(own, {"perdure_http_requests": ("http_requests",)})


def _places(metrics: RunMetrics) -> dict[str, int]:
    forces = [workers for _, workers in metrics.stats.values()]
    return {f"workers_{state}": sum(getattr(workers, state) for workers in forces) for state in PLACES}


def aliases(metrics: RunMetrics | None, own: Iterable[Metric]) -> Iterator[Metric]:
    """Yield totals of the caller's namespaces, under the names that dashboards of LangGraph's server read."""
    if metrics is None:
        return
    queues = [queue for queue, _ in metrics.stats.values()]
    values: dict[str, Any] = {
        "num_pending_runs": sum(queue.n_pending for queue in queues),
        "num_running_runs": sum(queue.n_running for queue in queues),
        "pending_runs_wait_time_max": max((queue.min_age_secs or 0.0 for queue in queues), default=0.0),
        "pending_runs_wait_time_med": max((queue.med_age_secs or 0.0 for queue in queues), default=0.0),
    }
    values |= _places(metrics)
    for pool, name in (("database", "pg"), ("redis", "redis")):
        values |= _pool(name, metrics.pools.get(pool))
    for name, value in values.items():
        yield GaugeMetricFamily(f"lg_api_{name}", "An alias.", value)
    yield from _renamed(own, _REQUESTS)


def _pool(name: str, pool: Mapping[str, int] | None) -> dict[str, int]:
    if pool is None:
        return {}
    idle, used = pool["idle_connections"], pool["in_use_connections"]
    return {
        f"{name}_pool_max": pool["max_connections"],
        f"{name}_pool_size": idle + used,
        f"{name}_pool_available": idle,
    }


_REQUESTS = {
    "perdure_http_requests": ("lg_api_http_requests",),
    "perdure_http_request_seconds": ("lg_api_http_requests_latency_seconds",),
}


def _renamed(own: Iterable[Metric], names: Mapping[str, tuple[str, ...]]) -> Iterator[Metric]:
    for family in own:
        for name in names.get(family.name, ()):
            renamed = Metric(name, "An alias.", family.type)
            for sample in family.samples:
                suffix = sample.name.removeprefix(family.name)
                renamed.add_sample(name + suffix, sample.labels, sample.value)
            yield renamed
