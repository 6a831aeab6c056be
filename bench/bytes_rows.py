"""Database size: a run of a graph with its trace, and a span compared with its attributes."""

import asyncio
import json
from functools import partial
from pathlib import Path
from types import ModuleType

import apsw

from bench import ours, work
from bench.host import Host
from bench.measures import Figures, Measure, Row
from bench.run_servers import GRAPH
from bench.sizes import Sizes
from bench.timing import spread
from perdure import Agents, Perdure, SqliteLightningStore

MOST = 6_000
MOST_OF_ATTRIBUTES = 1.3
WARM = 20


def measures(sizes: Sizes) -> list[Measure]:
    what = f"database of a no-op graph run on a new thread, {work.HTTP_CALLERS} callers"
    rows = (
        Row("bytes/graph_run", f"{what}: the file grows", "bytes", "lower", target=MOST),
        Row("bytes/graph_run_data", f"{what}: in tables and indexes", "bytes", "lower"),
        Row(
            "bytes/span",
            "a span in tables and indexes, against its attributes as JSON",
            "times",
            "lower",
            target=MOST_OF_ATTRIBUTES,
        ),
    )
    return [Measure(rows, partial(_figures, runs=sizes.graph_runs, spans=sizes.spans))]


async def _figures(host: Host, runs: int, spans: int) -> list[Figures]:
    path = host.new_file()
    await _run(path, WARM)
    file, data = path.stat().st_size, _stored(path)
    await _run(path, runs)
    grown, held = path.stat().st_size - file, _stored(path) - data
    return [{"ours": grown / runs}, {"ours": held / runs}, {"ours": await _span(host, spans)}]


async def _run(path: Path, count: int) -> None:
    """Run the graph `count` times. Everything is stored when this returns."""
    made = ModuleType("graph")
    exec(GRAPH, made.__dict__)
    agents = Agents()
    agents.register("noop", made.graph)
    async with Perdure(f"sqlite:///{path}", agents=agents, jobs_per_worker=work.HTTP_CALLERS) as perdure:

        async def one(number: int) -> None:
            thread = await perdure.threads.create_thread()
            await perdure.run("noop", {"number": number}, thread_id=thread.thread_id)

        await spread(work.HTTP_CALLERS, count, one)


async def _span(host: Host, count: int) -> float:
    path = host.new_file()
    async with SqliteLightningStore(str(path)) as store:
        await work.add_many_spans(store, ours.KIT, work.BATCH)
    before = await asyncio.to_thread(_stored, path)
    async with SqliteLightningStore(str(path)) as store:
        await work.add_many_spans(store, ours.KIT, count)
    stored = max(count // work.BATCH, 1) * work.BATCH
    attributes = len(json.dumps(work.span_attributes(0), separators=(",", ":")))
    return (_stored(path) - before) / stored / attributes


def _stored(path: Path) -> int:
    """Return the bytes of all rows and index entries, without free space in pages."""
    with apsw.Connection(str(path)) as database:
        ((size,),) = database.execute("SELECT sum(payload) FROM dbstat")
    return int(size)
