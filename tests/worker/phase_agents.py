"""Agents of phases, in the worker's process or in their own process."""

import asyncio
from typing import Any

from perdure.agents.context import AgentError


async def describes(ctx: Any, input: Any) -> dict[str, Any]:
    phase = ctx.phase
    await ctx.message("assistant", "I plan.", "m-1", {"input_tokens": 5, "output_tokens": 7})
    await ctx.usage(cost_usd=0.25, turns=3, api_duration_ms=40)
    told = [phase.label, phase.iteration, phase.prompt, phase.previous_output, phase.outputs]
    return {"output": {"told": told, "workspace": phase.workspace is not None}}


async def fails_softly(ctx: Any, input: Any) -> Any:
    raise AgentError("the answer was cut", stop_reason="error_truncated", output="half of it")


async def is_cut(ctx: Any, input: Any) -> str:
    await ctx.usage(input_tokens=1, stop_reason="max_tokens")
    return "half of it"


async def chats(ctx: Any, input: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}


async def asks(ctx: Any, input: Any) -> str:
    return f"you said {await ctx.interrupt('Really?')}"


async def waits(ctx: Any, input: Any) -> None:
    await asyncio.sleep(60)


async def counts(ctx: Any, input: Any) -> str:
    await ctx.message("assistant", "In Italy.", "m-1", {"input_tokens": 20, "output_tokens": 4})
    await ctx.usage(input_tokens=90, cache_read_input_tokens=7, cache_creation_input_tokens=3, turns=2)
    await ctx.usage(input_tokens=100, output_tokens=50)
    return "In Italy."


def answers(ctx: Any, input: Any) -> str:
    return "Rome is in Italy."


def breaks(ctx: Any, input: Any) -> str:
    raise ValueError("no map of Rome")
