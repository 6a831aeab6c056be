"""What traces cost: CPU time of a run with tracing on, against the same with tracing off."""

import asyncio
import gc
import time
from contextlib import AsyncExitStack
from functools import partial
from statistics import median

from bench import agents
from bench.host import Host
from bench.http_servers import ENGINES
from bench.measures import Figures, Measure, Row
from bench.sizes import Sizes
from bench.timing import spread
from bench.work import HTTP_CALLERS
from perdure import Perdure
from perdure.threads.records import RunRequest

MOST = 1.1
SETTLE_SECONDS = 1.0
"""How long the spans of the last runs may take to be stored; that time counts too."""


def measures(sizes: Sizes) -> list[Measure]:
    what = "CPU of a no-op run with tracing on; raw: with tracing off"
    return [
        Measure(
            (Row(f"tracing/{engine}", f"{what}, {engine}", "ms", "lower", target_raw=MOST),),
            partial(_figures, engine=engine, size=sizes.runs),
        )
        for engine in ENGINES
    ]


async def _figures(host: Host, engine: str, size: int) -> list[Figures]:
    taken: dict[str, list[float]] = {"ours": [], "raw": []}
    async with AsyncExitStack() as stack:
        sides = {}
        for name, share in (("ours", 1.0), ("raw", 0.0)):
            url = await host.new_database() if engine == "postgres" else f"sqlite:///{host.new_file()}"
            perdure = Perdure(url, agents=agents.agents, trace_sample=share, jobs_per_worker=HTTP_CALLERS)
            sides[name] = await stack.enter_async_context(perdure)
            await _cpu(sides[name], max(size // 10, 1))
        for _ in range(host.sizes.rounds):
            for name, perdure in sides.items():
                gc.collect()
                taken[name].append(await _cpu(perdure, size))
    return [{name: median(figures) for name, figures in taken.items()}]


async def _cpu(perdure: Perdure, size: int) -> float:
    """Milliseconds of CPU a run, of everything in this process."""
    began = time.process_time()
    await spread(HTTP_CALLERS, size, partial(_run, perdure))
    await asyncio.sleep(SETTLE_SECONDS)
    return (time.process_time() - began) * 1000 / size


async def _run(perdure: Perdure, number: int) -> None:
    run = await perdure.threads.create_run(RunRequest(assistant_id="noop", input={"number": number}))
    await perdure.threads.join_run(run.run_id)
