"""The agent of the chaos of workers: it says of everything it does, outside the database, that it did it."""

import asyncio
import secrets
from functools import partial
from typing import Any

from tests.support.history import Recorder

from perdure.agents.context import Context, Retriable
from perdure.worker.registry import Agents

AGENT = "chaos"
TOKENS = "tokens"
RETRY_SECONDS = 0.05


class Planned(Exception):
    """The failure that a run was asked for."""


def make_agents(recorder: Recorder) -> Agents:
    """The agents of one worker, with what they write to."""
    agents = Agents()

    @agents.agent(AGENT)
    async def work(ctx: Context, input: Any) -> Any:
        """Does some steps, each with a pause, adds its token to the thread's values, and ends as planned."""
        tell = partial(recorder.did, run=ctx.run_id, thread=ctx.thread_id, number=ctx.attempt)
        tell("begin")
        for number, pause in enumerate(input["pauses"]):
            await ctx.emit({"token": input["token"], "part": number, "attempt": ctx.attempt})
            await asyncio.sleep(pause)
            name = f"part {number}"
            tell("kept", step=name, value=await ctx.step(name, partial(_execute, tell, name)))
        values = {TOKENS: _added(input["token"], await ctx.load())}
        if input["saves"]:
            tell("saved", id=await ctx.save(values))
            await asyncio.sleep(input["pauses"][0])
        tell("end")
        if input["fate"] == "retry" and ctx.attempt <= input["fails"]:
            raise Retriable("as planned", after=RETRY_SECONDS)
        if input["fate"] == "error":
            raise Planned
        return values

    return agents


def _execute(tell: Any, name: str) -> str:
    """A step with an outward effect, and a result that no other execution of it has."""
    value = secrets.token_hex(8)
    tell("step", step=name, value=value)
    return value


def _added(token: str, values: Any) -> list[str]:
    known = list((values or {}).get(TOKENS, ()))
    return known if token in known else [*known, token]
