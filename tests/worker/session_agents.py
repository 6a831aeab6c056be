"""Agent that writes every kind of session line, in this process or in its own."""

from typing import Any

USAGE = {"input_tokens": 5, "output_tokens": 7}
LONG = 70_000


async def talker(ctx: Any, input: Any) -> str:
    await ctx.message("user", input["text"])
    call = {"type": "tool_use", "id": "t-1", "name": "search", "input": {"q": "Rome"}}
    await ctx.message("assistant", [{"type": "text", "text": "I look."}, call], model="m-1", usage=USAGE)
    await ctx.tool_result("t-1", "x" * LONG)
    await ctx.tool_result("t-2", {"no": "such tool"}, is_error=True)
    await ctx.message("assistant", "In Italy.", "m-1")
    await ctx.usage(cost_usd=0.25, input_tokens=5, output_tokens=7, turns=2, stop_reason="end_turn")
    return str(ctx.session_id)


async def elsewhere(ctx: Any, input: Any) -> list[str]:
    first = ctx.session_id
    await ctx.message("user", "here")
    named = await ctx.session("review-7", cwd="/srv/shop")
    await ctx.message("assistant", "there")
    return [first, named, ctx.session_id]
