"""Agents of a few lines each. Run the file to see them at work, or serve them with `perdure dev --agents`."""

import asyncio
from functools import partial

from perdure import Agents, Perdure

agents = Agents()


@agents.agent("greet", description="Says hello.")
async def greet(ctx, input):
    return {"greeting": f"Hello, {input['name']}!"}


@agents.agent("count", description="Counts, and goes on where it was if its worker dies.")
async def count(ctx, input):
    async def say(number):
        await asyncio.sleep(input.get("pause", 0))
        await ctx.emit({"counted": number})
        return number

    for number in range(1, input["to"] + 1):
        await ctx.step(f"count {number}", partial(say, number))
    return {"counted": input["to"]}


@agents.agent("book", description="Asks before it does something that costs money.")
async def book(ctx, input):
    answer = await ctx.interrupt(f"Book a flight to {input['city']}?" if input else "Book it?")
    return {"booked": answer == "yes"}


@agents.agent("fail", description="Fails.")
async def fail(ctx, input):
    raise ValueError("no such city")


async def main() -> None:
    async with Perdure("memory:", agents=agents) as perdure:
        async for event in perdure.stream("count", {"to": 3}):
            print(event.event, event.data)
        asked = await perdure.run("book", {"city": "Rome"}, thread_id="trip", if_not_exists="create")
        print(asked.interrupts[0].value)
        booked = await perdure.run("book", thread_id="trip", command={"resume": "yes"})
        print(booked.values)


if __name__ == "__main__":
    asyncio.run(main())
