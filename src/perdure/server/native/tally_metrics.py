"""Metrics of operations in this process: ends, waits and durations of rollouts, and schedule firings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from perdure.executions.model import PHASE
from perdure.jobs.model import JOB
from perdure.kernel.tally import Tally
from perdure.rollouts.model import TASK
from perdure.rollouts.operations.work import EXECUTED, LEASE_LOST, ROLLOUT_ENDED, WAITED
from perdure.schedules.operations.fire import CRON_FIRED, FIRING_RESULTS
from perdure.threads.model import LIVE_STATUSES, RUN
from perdure.threads.operations.settle import RUN_ENDED
from perdure.threads.records import RunStatus

ENDS = [status for status in get_args(RunStatus) if status not in LIVE_STATUSES]
KINDS = (TASK, RUN, PHASE, JOB)
COUNTERS = {
    RUN_ENDED: (
        "perdure_runs",
        "Runs that ended, by status.",
        "status",
        ENDS,
    ),
    LEASE_LOST: ("perdure_lease_lost", "Attempts whose worker fell silent, by kind.", "kind", KINDS),
    CRON_FIRED: (
        "perdure_cron_fires",
        "Times of schedules that came, by what they led to.",
        "result",
        FIRING_RESULTS,
    ),
}
"""The metric of each count, its label, and the label values shown before anything is counted."""
DURATIONS = {
    WAITED: ("perdure_queue_wait_seconds", "How long rollouts waited for their first claim.", "queue"),
    EXECUTED: (
        "perdure_run_duration_seconds",
        "How long the last attempt of a rollout took, by kind: run, phase, task or job.",
        "kind",
    ),
}


def tally_families(tally: Tally) -> Iterator[Metric]:
    """Yield the counts of this process since its start."""
    ended = CounterMetricFamily(
        "perdure_rollouts", "Rollouts that ended, by kind and status.", labels=("kind", "status")
    )
    for label, count in sorted(tally.counts(ROLLOUT_ENDED).items()):
        ended.add_metric(label.split("/", 1), count)
    yield ended
    for name, (metric, about, label, values) in COUNTERS.items():
        counter = CounterMetricFamily(metric, about, labels=(label,))
        for value, count in sorted({**dict.fromkeys(values, 0), **tally.counts(name)}.items()):
            counter.add_metric((value,), count)
        yield counter
    for name, (metric, about, label) in DURATIONS.items():
        histogram = HistogramMetricFamily(metric, about, labels=(label,))
        for value, durations in sorted(tally.durations(name).items()):
            histogram.add_metric((value,), durations.cumulative(), durations.total)
        yield histogram
