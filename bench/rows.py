"""The table of all measures."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from bench import (
    bytes_rows,
    command_rows,
    event_growth_rows,
    facts_rows,
    graph_rows,
    growth_rows,
    grpc_rows,
    http_rows,
    kept_rows,
    list_growth_rows,
    list_rows,
    memory_rows,
    ours,
    page_rows,
    queue_rows,
    raw_postgres,
    raw_sqlite,
    run_rows,
    schedule_rows,
    session_rows,
    start_rows,
    stream_rows,
    thread_rows,
    tracing_rows,
    work,
    workflow_rows,
)
from bench.cpu import Meter, own_seconds, with_raw
from bench.host import Host
from bench.http_servers import Engine
from bench.measures import Figures, Measure, Row
from bench.sizes import Sizes, label
from bench.timing import Side, interleave

POSTGRES_OF_RAW = {"claim_complete": 0.55, "add_many_spans": 0.5}


def all_measures(sizes: Sizes) -> list[Measure]:
    return [
        *_sqlite_rates(sizes),
        _queries(sizes, "sqlite"),
        _queries(sizes, "postgres"),
        _postgres_rate("claim_complete", sizes.claims, "claim 100 + complete them, 4 callers", "rollouts/s"),
        _postgres_rate("add_many_spans", sizes.postgres_spans, "spans, batches of 100, 4 callers", "spans/s"),
        _claims(sizes, "sqlite"),
        _claims(sizes, "postgres"),
        _waits(sizes, "sqlite"),
        _waits(sizes, "postgres"),
        _opening(sizes),
        *bytes_rows.measures(sizes),
        *command_rows.measures(sizes),
        *http_rows.measures(sizes),
        *run_rows.measures(sizes),
        *graph_rows.measures(sizes),
        *growth_rows.measures(sizes),
        *queue_rows.measures(sizes),
        *schedule_rows.measures(sizes),
        *grpc_rows.measures(sizes),
        *memory_rows.measures(sizes),
        *session_rows.measures(sizes),
        *start_rows.measures(sizes),
        *stream_rows.measures(sizes),
        *thread_rows.measures(sizes),
        *tracing_rows.measures(sizes),
        *kept_rows.measures(sizes),
        *facts_rows.measures(sizes),
        *list_rows.measures(sizes),
        *page_rows.measures(sizes),
        *list_growth_rows.measures(sizes),
        *event_growth_rows.measures(sizes),
        *workflow_rows.measures(sizes),
        _import(),
    ]


def _sqlite_rates(sizes: Sizes) -> list[Measure]:
    raw = {"enqueue": raw_sqlite.enqueue, "enqueue_many": raw_sqlite.enqueue_many}
    rows = (
        ("enqueue", sizes.enqueues, "enqueue one by one, 64 callers", "rollouts/s", None, 0.6),
        ("enqueue_many", sizes.enqueues, "enqueue in batches of 100, 4 callers", "rollouts/s", None, None),
        ("cycle", sizes.cycles, "dequeue + 10 spans + complete, 64 callers", "cycles/s", 4.5, None),
        ("add_span", sizes.spans, "spans one by one, 64 callers", "spans/s", None, None),
        ("add_many_spans", sizes.spans, "spans in batches of 100, 4 callers", "spans/s", None, None),
    )
    return [
        Measure(
            (Row(f"sqlite/{name}", what, unit, target_peer=target_peer, target_raw=target_raw),),
            partial(_sqlite_rate, name=name, size=size, raw=raw.get(name)),
        )
        for name, size, what, unit, target_peer, target_raw in rows
    ]


async def _sqlite_rate(
    host: Host, name: str, size: int, raw: Callable[..., Awaitable[float]] | None
) -> list[Figures]:
    meter, beside = Meter({"client": own_seconds}), Meter({"client": own_seconds})
    sides: dict[str, Side] = {"ours": meter.around(partial(ours.rate, host, name))}
    if raw is not None:
        sides["raw"] = beside.around(lambda count: raw(host.new_file(), count))
    theirs: Meter | None = None
    if peer := await host.peer():
        theirs = Meter({"peer": peer.seconds})
        sides["peer"] = theirs.around(partial(peer.do, name))
    found = await interleave(size, host.sizes.rounds, sides)
    costs = theirs.figures() if theirs else {}
    return [{**found, **meter.figures(), **with_raw(beside), **costs}]


def _queries(sizes: Sizes, engine: Engine) -> Measure:
    what = "100 newest by status"
    rows = [
        Row(f"{engine}/query_{label(size)}", f"{what}, of {label(size)}", "ms", "lower")
        for size in sizes.rollouts
    ]
    growth = f"{what}: {label(sizes.rollouts[-1])} / {label(sizes.rollouts[0])}"
    rows.append(Row(f"{engine}/query_growth", growth, "times", "lower", target=2.0))
    return Measure(tuple(rows), partial(_query_times, engine=engine))


async def _query_times(host: Host, engine: Engine) -> list[Figures]:
    peer = await host.peer()
    sizes = host.sizes
    async with AsyncExitStack() as stack:
        stores = await ours.seeded_for_queries(host, engine, stack)
        database = await host.database_clock() if engine == "postgres" else None
        meters = {size: Meter({"client": own_seconds, "database": database}) for size in stores}
        sides: dict[str, Side] = {
            f"ours {size}": meters[size].around(partial(_query_side, store, sizes.queries), sizes.queries)
            for size, store in stores.items()
        }
        if peer:
            for size in stores:
                await peer.do("seed_queries", size)
                sides[f"peer {size}"] = _fixed(partial(peer.do, "query", size))
        medians = await interleave(1, sizes.rounds, sides)
    figures = [_figures_of(medians, str(size)) for size in stores]
    growth = {side: figures[-1][side] / figures[0][side] for side in figures[0]}
    return [
        *({**found, **meters[size].figures()} for size, found in zip(stores, figures, strict=True)),
        growth,
    ]


async def _query_side(store: Any, times: int, _size: int) -> float:
    return await work.query(store, times)


def _fixed(call: Callable[[], Awaitable[float]]) -> Side:
    """Build a side whose work does not depend on the round's size."""
    return lambda _size: call()


def _figures_of(medians: Figures, key: str) -> Figures:
    return {name.split()[0]: figure for name, figure in medians.items() if name.split()[1] == key}


def _postgres_rate(name: str, size: int, what: str, unit: str) -> Measure:
    row = Row(f"postgres/{name}", what, unit, target_raw=POSTGRES_OF_RAW[name])
    return Measure((row,), partial(_postgres_figures, name=name, size=size))


async def _postgres_figures(host: Host, name: str, size: int) -> list[Figures]:
    mine = {"claim_complete": work.claim_complete, "add_many_spans": work.add_many_spans}[name]
    theirs = {"claim_complete": raw_postgres.claim_complete, "add_many_spans": raw_postgres.add_many_spans}[
        name
    ]
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(ours.new_store(host, "postgres"))
        pool = await stack.enter_async_context(await raw_postgres.open_pool(await host.new_database()))
        clocks = {"client": own_seconds, "database": await host.database_clock()}
        meter, beside = Meter(clocks), Meter(clocks)
        sides: dict[str, Side] = {
            "ours": meter.around(partial(mine, store, ours.KIT)),
            "raw": beside.around(partial(theirs, pool)),
        }
        found = await interleave(size, host.sizes.rounds, sides)
        return [{**found, **meter.figures(), **with_raw(beside)}]


def _claims(sizes: Sizes, engine: Engine) -> Measure:
    deep, lines = label(sizes.lines * 10), label(sizes.lines)
    rows = (
        Row(f"{engine}/claim_shallow", f"claim one of {label(sizes.pending)}, no lines", "ms", "lower"),
        Row(
            f"{engine}/claim_deep", f"claim one of {deep} over {lines} lines, 9 of 10 blocked", "ms", "lower"
        ),
        Row(f"{engine}/claim_growth", "claim: deep / shallow", "times", "lower", target=1.5),
    )
    return Measure(rows, partial(_claim_figures, engine=engine))


async def _claim_figures(host: Host, engine: Engine) -> list[Figures]:
    shallow, deep = await ours.claim_times(host, engine)
    return [{"ours": shallow}, {"ours": deep}, {"ours": deep / shallow}]


def _waits(sizes: Sizes, engine: Engine) -> Measure:
    count = label(sizes.waited)
    rows = (
        Row(
            f"{engine}/wait_threads",
            f"threads added by waits on {count} rollouts",
            "threads",
            "lower",
            target=0.0,
        ),
        Row(
            f"{engine}/wait_wake_up", f"completion to return of waits on {count}", "ms", "lower", target=50.0
        ),
    )
    return Measure(rows, partial(_wait_figures, engine=engine))


async def _wait_figures(host: Host, engine: Engine) -> list[Figures]:
    threads, latency = await ours.waiting(host, engine)
    return [{"ours": threads}, {"ours": latency}]


def _opening(sizes: Sizes) -> Measure:
    count = label(sizes.stored_spans)
    rows = (
        Row("sqlite/open", f"open a file of {count} spans", "ms", "lower", target=1000.0),
        Row(
            "sqlite/newest",
            f"first list of the 100 newest rollouts of {count} spans",
            "ms",
            "lower",
            target=10.0,
        ),
    )
    return Measure(rows, _opening_figures)


async def _opening_figures(host: Host) -> list[Figures]:
    opened, listed = await ours.opening(host)
    return [{"ours": opened}, {"ours": listed}]


def _import() -> Measure:
    row = Row("import", 'python -c "import perdure", whole process', "ms", "lower", target=150.0)
    return Measure((row,), _import_figures)


async def _import_figures(host: Host) -> list[Figures]:
    return [{"ours": await ours.import_time(host)}]
