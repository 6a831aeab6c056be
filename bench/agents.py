"""The agents whose runs are measured: one that does nothing, one that says when it began, one that talks."""

import asyncio
import time
from pathlib import Path
from typing import Any

from perdure import Agents

PATH = f"{Path(__file__).resolve()}:agents"
"""Names these agents to `perdure serve` and `perdure worker`."""

agents = Agents()


@agents.agent("noop")
async def noop(ctx: Any, input: Any) -> Any:
    return input


@agents.agent("begin")
async def begin(ctx: Any, input: Any) -> Any:
    """Gives the time at which it began."""
    return {"began": time.time()}


@agents.agent("talk")
async def talk(ctx: Any, input: Any) -> Any:
    """Tells many events, as soon as a named pipe says that everybody listens."""
    await asyncio.to_thread(Path(input["go"]).read_bytes)
    for number in range(input["events"]):
        await ctx.emit({"number": number, "token": "a word or two"})
    return {"told": input["events"]}
