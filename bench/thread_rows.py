"""Claiming runs: the time of a claim must not grow with the waiting runs or the blocked threads."""

import time
from functools import partial
from statistics import median

from bench import ours, seed, seed_threads
from bench.host import Host
from bench.http_servers import ENGINES, Engine
from bench.measures import Figures, Measure, Row
from bench.seed import FREE_SHARE, PENDING_A_LINE
from bench.sizes import Sizes, label
from perdure import Perdure
from perdure.runs.queue import RunQueue


def measures(sizes: Sizes) -> list[Measure]:
    return [_of(sizes, engine) for engine in ENGINES]


def _of(sizes: Sizes, engine: Engine) -> Measure:
    few, threads = label(sizes.pending), label(sizes.thread_lines)
    many = label(sizes.thread_lines * PENDING_A_LINE)
    rows = (
        Row(f"threads/{engine}_claim_few", f"claim one run of {few}, no thread blocked", "ms", "lower"),
        Row(
            f"threads/{engine}_claim_many",
            f"claim one run of {many} on {threads} threads, 9 of 10 blocked",
            "ms",
            "lower",
        ),
        Row(f"threads/{engine}_claim_growth", "claim of a run: many / few", "times", "lower", target=1.5),
    )
    return Measure(rows, partial(_figures, engine=engine))


async def _figures(host: Host, engine: Engine) -> list[Figures]:
    few, many = await ours.new_place(host, engine), await ours.new_place(host, engine)
    free = host.sizes.thread_lines // FREE_SHARE
    await _seed(engine, few, runs=1, free=host.sizes.pending)
    await _seed(engine, many, runs=PENDING_A_LINE, free=free, held=host.sizes.thread_lines - free)
    if engine == "postgres":
        await seed.settle_postgres(few)
        await seed.settle_postgres(many)
    short, long = await _claim_times(engine, few, many, host.sizes.claim_samples)
    return [{"ours": short}, {"ours": long}, {"ours": long / short}]


def _open(engine: Engine, place: str) -> Perdure:
    """Open without a watchdog, because no lease must expire here."""
    return Perdure(f"sqlite:///{place}" if engine == "sqlite" else place, watchdog_interval=None)


async def _seed(engine: Engine, place: str, *, runs: int, free: int, held: int = 0) -> None:
    """Create free and blocked threads with `runs` waiting runs each."""
    made = []
    async with _open(engine, place) as perdure:
        await seed_threads.register(perdure)
        # Create the blocked thread first, because its run is claimed while nothing else waits.
        for name, count in (("held", held), ("free", free)):
            if count:
                ids = await seed_threads.make_thread(perdure, name, runs, held=name == "held")
                made.append((ids, count))
    await seed_threads.multiply(engine, place, made)


async def _claim_times(engine: Engine, few: str, many: str, samples: int) -> tuple[float, float]:
    taken: dict[str, list[float]] = {few: [], many: []}
    async with _open(engine, few) as one, _open(engine, many) as other:
        for _ in range(ours.WARM_CLAIMS + samples):
            taken[few].append(await _claim_time(one))
            taken[many].append(await _claim_time(other))
    return median(taken[few][ours.WARM_CLAIMS :]), median(taken[many][ours.WARM_CLAIMS :])


async def _claim_time(perdure: Perdure) -> float:
    queue = RunQueue.beside(perdure.threads)
    started = time.perf_counter()
    claimed = await queue.claim(seed_threads.WORKER, [seed_threads.AGENT], 1, 0.0)
    taken = (time.perf_counter() - started) * 1000
    if not claimed:
        raise RuntimeError("the queue ran dry before the samples were taken")
    return taken
