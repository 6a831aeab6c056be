"""Cost of a long conversation: the size of its checkpoints, and the time to read its state."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial

from bench.environments import LANGGRAPH_SQLITE
from bench.growth import grow, read
from bench.host import Host
from bench.measures import Figures, Measure, Row
from bench.peer import PeerProcess
from bench.sizes import Sizes
from perdure.integrations.langgraph import PerdureSaver

FEW = 30
"""Steps of a short thread, whose state is as large as that of a long one."""


def measures(sizes: Sizes) -> list[Measure]:
    steps, peer = sizes.grown_steps, LANGGRAPH_SQLITE.title.replace("==", " ")
    rows = (
        Row(
            "graphs/growth",
            f"database of a thread of {steps} steps, a message each; peer: {peer}",
            "KiB",
            "lower",
            target_peer=1 / 3,
        ),
        Row("graphs/state_read", f"read the state after {steps} steps; peer: {peer}", "ms", "lower"),
        Row(
            "graphs/state_read_growth",
            f"the same state after {steps} steps / after {FEW}",
            "times",
            "lower",
            target=1.5,
        ),
    )
    return [Measure(rows, partial(_figures, steps=steps))]


async def _figures(host: Host, steps: int) -> list[Figures]:
    size: Figures = {"ours": await asyncio.to_thread(_size, host, steps)}
    late, early = await asyncio.to_thread(_reads, host, steps)
    reading: Figures = {"ours": late}
    async with AsyncExitStack() as stack:
        process = PeerProcess(LANGGRAPH_SQLITE, ("bench.peer_growth",))
        if peer := await host.try_peer(stack, process):
            size["peer"] = await peer.do("grow", steps, str(host.new_file()))
            reading["peer"] = await peer.do("read", steps, str(host.new_file()))
    return [size, reading, {"ours": late / early}]


def _size(host: Host, steps: int) -> float:
    path = host.new_file()
    with PerdureSaver(path) as saver:
        grow(saver, steps)
    return path.stat().st_size / 1024


def _reads(host: Host, steps: int) -> tuple[float, float]:
    with PerdureSaver(host.new_file()) as saver:
        return read(saver, steps), read(saver, FEW)
