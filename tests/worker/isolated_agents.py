"""Agents for tests, in their own processes."""

import asyncio
import os
import signal
import time
from typing import Any

from perdure.errors import InvalidInput


async def worker(ctx: Any, input: Any) -> Any:
    print("this must not disturb anybody")
    ctx.logger.info("at work in %d", os.getpid())
    await ctx.emit({"attempt": ctx.attempt, "pid": os.getpid() != input})
    first = await ctx.step("once", lambda: ctx.attempt)
    again = await ctx.step("once", lambda: ctx.attempt * 10)
    await ctx.save({"at": ctx.attempt}, state=b"\x00own", metadata={"a": 1})
    assert ctx.checkpoint.state == b"\x00own"
    if ctx.attempt == 1:
        raise ConnectionError("once more")
    return {"steps": [first, again], "loaded": await ctx.load(), "key": ctx.idempotency_key("x")[-2:]}


def blocking(ctx: Any, input: Any) -> None:
    ctx.call(lambda: ctx.emit("begun"))
    time.sleep(60)


async def blocking_loop(ctx: Any, input: Any) -> None:
    await ctx.emit("begun")
    time.sleep(60)  # noqa: ASYNC251 - it is the point


async def waiting(ctx: Any, input: Any) -> None:
    await ctx.emit("begun")
    await asyncio.Event().wait()


def killing(ctx: Any, input: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leaving(ctx: Any, input: Any) -> None:
    os._exit(3)


async def asking(ctx: Any, input: Any) -> Any:
    return {"answer": await ctx.interrupt("well?")}


async def odd(ctx: Any, input: Any) -> Any:
    await ctx.emit(object())


async def remembering(ctx: Any, input: Any) -> Any:
    await ctx.items.put(["by", input], "k", {"by": input})
    found = await ctx.items.get(["by", input], "k")
    assert found is not None
    named = await ctx.items.search(["by"], filter={"by": input})
    await ctx.items.delete(["by", input], "none")
    assert ("by", input) in await ctx.items.list_namespaces(prefix=["by"])
    try:
        await ctx.items.search(["by"], limit=-1)
    except InvalidInput:
        return [found.value, [item.namespace[1] for item in named], "refused"]
    return None


async def overlapping(ctx: Any, input: Any) -> Any:
    """Steps of the same name: two concurrent ones, of which the second ends first, and one inside another."""
    ended = asyncio.Event()

    async def first() -> str:
        await ended.wait()
        return f"first of attempt {ctx.attempt}"

    async def second() -> str:
        return f"second of attempt {ctx.attempt}"

    async def quick() -> Any:
        result = await ctx.step("fetch", second)
        if ctx.attempt == 1 and input == "half":
            raise ConnectionError("before the first has ended")
        ended.set()
        return result

    async def outer() -> list[Any]:
        return ["outer", await ctx.step("plan", lambda: f"inner of attempt {ctx.attempt}")]

    slow = asyncio.create_task(ctx.step("fetch", first))
    await asyncio.sleep(0)
    fetched = await asyncio.gather(slow, quick())
    planned = await ctx.step("plan", outer)
    after = await ctx.step("plan", lambda: f"after of attempt {ctx.attempt}")
    if ctx.attempt == 1:
        raise ConnectionError("once more")
    return [*fetched, planned, after]
