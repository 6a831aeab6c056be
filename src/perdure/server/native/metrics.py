"""Metrics of this process and of the database, for Prometheus or as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.responses import Response

from perdure.kernel.errors import StorageError
from perdure.rollouts.model import TIMEOUT, UNRESPONSIVE
from perdure.rollouts.overview import Counts, Overview
from perdure.server.http.bodies import encode
from perdure.server.http.routes import Call
from perdure.server.native import wire
from perdure.server.native.run_metrics import (
    RunMetrics,
    aliases,
    langgraph_families,
    read_run_metrics,
    run_families,
    summary,
)
from perdure.server.native.tally_metrics import tally_families

STATES = ("ready", "delayed", "waiting")
WATCHED = (TIMEOUT, UNRESPONSIVE)

_process = ProcessCollector(registry=CollectorRegistry())


class CollectedFamilies(Collector):
    """Metric families that have been read."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


async def metrics(call: Call) -> Response:
    """Return the counters of this process, and the counts of the namespaces that the caller may see."""
    runs = await read_run_metrics(call)
    families = await list_families(call, runs)
    if call.query.format == "json":
        plain = {**summary(runs, families), "families": [_plain(family) for family in families]}
        return Response(encode(plain), media_type="application/json")
    return Response(
        generate_latest(CollectedFamilies(families)), headers={"Content-Type": CONTENT_TYPE_LATEST}
    )


async def list_families(call: Call, runs: RunMetrics | None) -> list[Metric]:
    """Collect all families that the query asks for."""
    own = list(call.app.metrics.registry.collect())
    families = [*own, *_process.collect(), *await _read_database(call)]
    families += tally_families(call.app.services.storage.tally)
    families += run_families(runs)
    families += langgraph_families(runs, own)
    if call.query.aliases or call.query.format == "prometheus":
        families += aliases(runs, own)
    return families


def _plain(family: Metric) -> wire.MetricFamily:
    samples = [
        wire.Sample(name=sample.name, labels=dict(sample.labels), value=float(sample.value))
        for sample in family.samples
    ]
    return wire.MetricFamily(name=family.name, type=family.type, help=family.documentation, samples=samples)


async def _read_database(call: Call) -> list[Metric]:
    """Read the metrics of the database. If it does not answer, `perdure_database_up` is 0."""
    store = call.app.services.store
    up = GaugeMetricFamily("perdure_database_up", "Whether the database answers.")
    families: list[Metric] = [up, _transitions(store.watchdog.ended)]
    try:
        counts = await Overview(store.storage).counts(call.caller.namespaces)
        families += _families(counts)
        up.add_metric((), 1)
    except StorageError:
        up.add_metric((), 0)
    families += _connections((await store.health()).get("connections"))
    return families


def _transitions(ended: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(
        "perdure_watchdog_transitions", "Attempts that the watchdog of this process ended.", labels=("to",)
    )
    for status in WATCHED:
        family.add_metric((status,), ended.get(status, 0))
    return family


def _families(counts: Counts) -> Iterator[Metric]:
    yield _by_state("perdure_rollouts", "Rollouts, by status.", "status", counts.rollouts)
    yield _by_state("perdure_workers", "Workers, by state.", "state", counts.workers)
    depth = GaugeMetricFamily(
        "perdure_queue_depth", "Rollouts that wait, by queue.", labels=("namespace", "queue", "state")
    )
    age = GaugeMetricFamily(
        "perdure_queue_oldest_age_seconds",
        "How long the oldest claimable rollout has waited.",
        labels=("namespace", "queue"),
    )
    for queue in counts.queues:
        for state in STATES:
            depth.add_metric((queue.namespace, queue.queue, state), getattr(queue, state))
        age.add_metric((queue.namespace, queue.queue), queue.oldest_age_seconds or 0.0)
    yield depth
    yield age


def _by_state(name: str, about: str, label: str, states: Mapping[str, Mapping[str, int]]) -> Metric:
    family = GaugeMetricFamily(name, about, labels=("namespace", label))
    for namespace, counted in states.items():
        for state, count in counted.items():
            family.add_metric((namespace, state), count)
    return family


def _connections(connections: Mapping[str, int] | None) -> Iterator[Metric]:
    for name, count in (connections or {}).items():
        yield GaugeMetricFamily(f"perdure_db_pool_{name}", f"Connections to the database: {name}.", count)
