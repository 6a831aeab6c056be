"""The measured agents: one does nothing, one returns its start time, one emits events."""

import asyncio
import time
from pathlib import Path
from typing import Any

from perdure import Agents

PATH = f"{Path(__file__).resolve()}:agents"
"""Name of these agents for `perdure serve` and `perdure worker`."""

agents = Agents()


@agents.agent("noop")
async def noop(ctx: Any, input: Any) -> Any:
    return input


@agents.agent("begin")
async def begin(ctx: Any, input: Any) -> Any:
    """Return the start time."""
    return {"began": time.time()}


@agents.agent("talk")
async def talk(ctx: Any, input: Any) -> Any:
    """Emit many events after a named pipe signals that all readers are connected."""
    await asyncio.to_thread(Path(input["go"]).read_bytes)
    for number in range(input["events"]):
        await ctx.emit({"number": number, "token": "a word or two"})
    return {"told": input["events"]}
