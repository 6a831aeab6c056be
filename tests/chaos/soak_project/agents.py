"""The agents of the soak: one writes events, one blocks, one fails, and one executes phases."""

from typing import Any


async def echo(ctx: Any, input: Any) -> Any:
    """Write events, a session line and usage, and keep the turns of the thread."""
    for number in range(int(input.get("events", 3))):
        await ctx.emit({"number": number, "text": "token " * 8})
    noted = await ctx.step("note", lambda: f"noted {input.get('text', '')}")
    await ctx.message("assistant", noted)
    await ctx.usage(input_tokens=120, output_tokens=40, cost_usd=0.001)
    values = await ctx.load() or {}
    turns = [*values.get("turns", []), noted][-20:]
    await ctx.save({"turns": turns})
    return {"turns": turns}


def blocking(ctx: Any, input: Any) -> Any:
    """Return at once, in a thread of the worker."""
    return {"length": len(str(input))}


async def failing(ctx: Any, input: Any) -> Any:
    """Fail with a message that no other run has."""
    raise ValueError(f"failed as planned: {input.get('text', '')}")


async def phase(ctx: Any, input: Any) -> Any:
    """Answer the prompt of a phase."""
    await ctx.message("assistant", f"done: {input['prompt'][:40]}")
    await ctx.usage(input_tokens=30, output_tokens=10, cost_usd=0.0005)
    return "VERDICT: APPROVED"
