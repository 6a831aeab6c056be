"""The amount of work of each measure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Counts of the work of one run, the same for us and for peers."""

    rounds: int
    enqueues: int
    cycles: int
    spans: int
    claims: int
    postgres_spans: int
    rollouts: tuple[int, int, int]
    queries: int
    grown_rollouts: int
    grown_events: int
    pending: int
    lines: int
    thread_lines: int
    claim_samples: int
    waited: int
    stored_spans: int
    http_enqueues: int
    http_cycles: int
    otlp_spans: int
    served_spans: int
    runs: int
    lone_runs: int
    idle_workers: int
    idle_runs: int
    graph_runs: int
    graph_firsts: int
    grown_steps: int
    jobs: int
    starts: int
    polled_starts: int
    events: int
    listeners: int
    heard_events: int
    crowd: int
    crowd_events: int
    first_events: int
    imports: int
    session_lines: int
    line_phases: int
    parallel_phases: int
    workflow_runs: int
    synced_lines: int
    sessions: int
    tails: int
    memory_events: int
    memory_batches: int
    memory_stored: int
    memory_vectors: int
    memory_queries: int
    fed_runs: int
    schedules: int
    schedule_seconds: float
    due_at_once: int
    page_spans: int
    kept_batches: int


FULL = Sizes(
    rounds=5,
    enqueues=20_000,
    cycles=1_000,
    spans=10_000,
    claims=8_000,
    postgres_spans=20_000,
    rollouts=(1_000, 10_000, 100_000),
    queries=30,
    grown_rollouts=1_000_000,
    grown_events=1_000_000,
    pending=1_000,
    lines=100_000,
    thread_lines=10_000,
    claim_samples=200,
    waited=1_000,
    stored_spans=1_000_000,
    http_enqueues=3_000,
    http_cycles=300,
    otlp_spans=20_480,
    served_spans=1_000_000,
    runs=1_000,
    lone_runs=200,
    idle_workers=1_000,
    idle_runs=200,
    graph_runs=200,
    graph_firsts=30,
    grown_steps=500,
    jobs=8_000,
    starts=200,
    polled_starts=10,
    events=10_000,
    listeners=200,
    heard_events=2_000,
    crowd=10_000,
    crowd_events=50,
    first_events=100,
    imports=5,
    session_lines=200_000,
    line_phases=100,
    parallel_phases=1000,
    workflow_runs=100_000,
    synced_lines=4_000,
    sessions=400,
    tails=100,
    memory_events=5_000,
    memory_batches=60,
    memory_stored=60_000,
    memory_vectors=100_000,
    memory_queries=100,
    fed_runs=1_000,
    schedules=10_000,
    schedule_seconds=20.0,
    due_at_once=1_000,
    page_spans=30_000,
    kept_batches=20,
)
QUICK = Sizes(
    rounds=1,
    enqueues=500,
    cycles=50,
    spans=500,
    claims=400,
    postgres_spans=500,
    rollouts=(50, 100, 200),
    queries=3,
    grown_rollouts=200,
    grown_events=2_000,
    pending=50,
    lines=200,
    thread_lines=200,
    claim_samples=5,
    waited=50,
    stored_spans=2_000,
    http_enqueues=100,
    http_cycles=20,
    otlp_spans=1_024,
    served_spans=5_120,
    runs=40,
    lone_runs=10,
    idle_workers=20,
    idle_runs=20,
    graph_runs=20,
    graph_firsts=3,
    grown_steps=30,
    jobs=400,
    starts=5,
    polled_starts=1,
    events=500,
    listeners=10,
    heard_events=100,
    crowd=50,
    crowd_events=10,
    first_events=5,
    imports=1,
    session_lines=2_000,
    line_phases=5,
    parallel_phases=10,
    workflow_runs=1_000,
    synced_lines=200,
    sessions=4,
    tails=3,
    memory_events=100,
    memory_batches=2,
    memory_stored=200,
    memory_vectors=500,
    memory_queries=5,
    fed_runs=20,
    schedules=100,
    schedule_seconds=2.0,
    due_at_once=20,
    page_spans=2_000,
    kept_batches=2,
)


def label(count: int) -> str:
    """Format 1000 as "1k", 1000000 as "1m", 50 as "50"."""
    for unit, mark in ((1_000_000, "m"), (1_000, "k")):
        if count >= unit and count % unit == 0:
            return f"{count // unit}{mark}"
    return str(count)
