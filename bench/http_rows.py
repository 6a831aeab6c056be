"""Measures through a server: our client and the peer's, OTLP, and the server's memory."""

import subprocess
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from bench import ours, work
from bench.cpu import SETTLE_SECONDS, Meter, own_seconds, seconds_of, seconds_of_tree
from bench.host import Host
from bench.http_otlp import BATCH, Exporter, exporter_to
from bench.http_servers import our_server, peer_server
from bench.measures import Figures, Measure, Row
from bench.sizes import Sizes, label
from bench.timing import Side, interleave
from perdure import LightningStoreClient
from perdure.testing.serving import ServerProcess

EARLY_SHARE = 10
CHUNK = 64
"""Batches built at a time, because all of them would take too much memory."""


def measures(sizes: Sizes) -> list[Measure]:
    cycle = "dequeue + 10 spans {} + complete, 16 callers"
    cycle_64 = f"dequeue + 10 spans one by one + complete, {work.CALLERS} callers"
    works = (
        ("enqueue", sizes.http_enqueues, "enqueue one by one, 16 callers", "rollouts/s", 8.0),
        ("cycle", sizes.http_cycles, cycle.format("one by one"), "cycles/s", 10.0),
        ("cycle_64", sizes.http_cycles, cycle_64, "cycles/s", 15.0),
        ("cycle_many", sizes.http_cycles, cycle.format("at once"), "cycles/s", 15.0),
    )
    return [
        *(_by_our_client(*each) for each in works),
        *(_by_peers_client(*each[:-1]) for each in works if each[0] != "cycle_64"),
        _otlp(sizes),
        _memory(sizes),
    ]


# --- clients ----------------------------------------------------------------------------------------------


def _by_our_client(name: str, size: int, what: str, unit: str, target: float) -> Measure:
    row = Row(f"http/{name}", f"{what}, each by its own client", unit, target_peer=target)
    return Measure((row,), partial(_client_figures, name=name, size=size))


async def _client_figures(host: Host, name: str, size: int) -> list[Figures]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(our_server(host))
        client = await stack.enter_async_context(LightningStoreClient(server.url))
        meter, beside = served_meter(server), None
        sides: dict[str, Side] = {"ours": meter.around(partial(work.HTTP_RATES[name], client, ours.KIT))}
        if peer := await host.peer():
            theirs = await stack.enter_async_context(peer_server())
            beside = Meter({"peer": partial(seconds_of_tree, theirs.pid)}, SETTLE_SECONDS)
            sides["peer"] = beside.around(partial(peer.do, name, url=theirs.url))
        found = await interleave(size, host.sizes.rounds, sides)
        return [{**found, **meter.figures(), **(beside.figures() if beside else {})}]


def served_meter(server: ServerProcess) -> Meter:
    """Build a meter of our server, and of this process as its client."""
    return Meter({"server": partial(seconds_of, server.pid), "client": own_seconds}, SETTLE_SECONDS)


def _by_peers_client(name: str, size: int, what: str, unit: str) -> Measure:
    row = Row(f"http/peer_{name}", f"{what}, the peer's client on both servers", unit, target_peer=1.0)
    return Measure((row,), partial(_peers_client_figures, name=name, size=size), needs_peer=True)


async def _peers_client_figures(host: Host, name: str, size: int) -> list[Figures]:
    peer = await host.peer()
    assert peer is not None
    async with our_server(host) as server, peer_server() as theirs:
        mine = Meter({"server": partial(seconds_of, server.pid)}, SETTLE_SECONDS)
        beside = Meter({"peer": partial(seconds_of_tree, theirs.pid)}, SETTLE_SECONDS)
        sides: dict[str, Side] = {
            "ours": mine.around(partial(peer.do, name, url=server.url)),
            "peer": beside.around(partial(peer.do, name, url=theirs.url)),
        }
        found = await interleave(size, host.sizes.rounds, sides)
        return [{**found, **mine.figures(), **beside.figures()}]


# --- OTLP -------------------------------------------------------------------------------------------------


def _otlp(sizes: Sizes) -> Measure:
    row = Row("http/otlp", f"OTLP in batches of {BATCH}, protobuf, 4 callers", "spans/s", target_peer=4.0)
    return Measure((row,), partial(_otlp_figures, size=sizes.otlp_spans))


async def _otlp_figures(host: Host, size: int) -> list[Figures]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(our_server(host))
        exporter = await stack.enter_async_context(exporter_to(server.url))
        await exporter.check_resending()
        meter, beside = served_meter(server), None
        sides: dict[str, Side] = {"ours": meter.around(exporter.rate)}
        if await host.peer():
            theirs = await stack.enter_async_context(peer_server())
            beside = Meter({"peer": partial(seconds_of_tree, theirs.pid)}, SETTLE_SECONDS)
            exported = (await stack.enter_async_context(exporter_to(theirs.url))).rate
            sides["peer"] = beside.around(exported)
        found = await interleave(size, host.sizes.rounds, sides)
        return [{**found, **meter.figures(), **(beside.figures() if beside else {})}]


# --- memory -----------------------------------------------------------------------------------------------


def _memory(sizes: Sizes) -> Measure:
    early, late = label(sizes.served_spans // EARLY_SHARE), label(sizes.served_spans)
    rows = (
        Row(f"http/memory_{early}", f"memory of the server after {early} spans by OTLP", "MiB", "lower"),
        Row(f"http/memory_{late}", f"memory of the server after {late} spans by OTLP", "MiB", "lower"),
        Row("http/memory_growth", f"memory of the server: {late} / {early}", "times", "lower", target=1.2),
    )
    return Measure(rows, _memory_figures)


async def _memory_figures(host: Host) -> list[Figures]:
    spans = host.sizes.served_spans
    async with our_server(host) as server, exporter_to(server.url) as exporter:
        await _ingest(exporter, spans // EARLY_SHARE)
        early = resident_mebibytes(server.pid)
        await _ingest(exporter, spans - spans // EARLY_SHARE)
        late = resident_mebibytes(server.pid)
    return [{"ours": early}, {"ours": late}, {"ours": late / early}]


async def _ingest(exporter: Exporter, spans: int) -> None:
    batches = -(-spans // BATCH)
    for start in range(0, batches, CHUNK):
        await exporter.send_all(await exporter.make_batches(min(CHUNK, batches - start)))


def resident_mebibytes(pid: int, *, most: bool = False) -> float:
    """Return the resident memory of a process, or its peak if the system reports it."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM" if most else "VmRSS"].split()[0]) / 1024
    answer = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
    return int(answer.stdout) / 1024
