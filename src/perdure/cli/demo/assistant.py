"""The agents that `perdure dev --demo` has: a scripted guide to talk to, a writer, and one that fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.agents.context import Context
from perdure.agents.records import RecordedSpan
from perdure.cli.demo.agents import MODEL
from perdure.worker.registry import Agents

GUIDE, WRITER, FORECAST = "demo-guide", "demo-writer", "demo-forecast"
_WORD_SECONDS = 0.01
_ANSWERS = {
    "memory": "I keep what you say on this thread: stop the server, start it again, and go on here.",
    "retry": "A run that loses its worker is claimed by another one. It goes on after its last step.",
    "weather": "I am a script and see no sky. The assistant demo-forecast shows what a failure looks like.",
}
_OTHERWISE = "I am a scripted guide: ask me about memory, a retry, the weather, or let me plan a trip."
_ASKING = "plan"
QUESTION = {"question": "Which day do you want to travel?", "options": ["Saturday", "Sunday"]}


AGENTS = Agents()
"""The agents of the demo, which need no network."""


@dataclass
class GuideConversation:
    """What a caller says to the guide."""

    messages: list[dict[str, Any]] = field(default_factory=list)


@AGENTS.agent(GUIDE, description="A scripted guide: answers, and asks back when it plans.")
async def guide(ctx: Context, input: GuideConversation) -> dict[str, Any]:
    """Answer word by word. The conversation is the state of the thread."""
    state = await ctx.load() or {}
    given = input.messages if ctx.command is None else []
    told = [_named(each, f"{ctx.run_id}-{number}") for number, each in enumerate(given)]
    messages = [*state.get("messages", ()), *told]
    if told:
        await ctx.save({"messages": messages}, next=(GUIDE,))
    question = next((str(each["content"]) for each in reversed(messages) if each["role"] == "user"), "")
    if told:
        await ctx.message("user", question)
    answer = await _answer(ctx, question, messages)
    said = {"id": f"{ctx.run_id}-answer", "role": "assistant", "content": answer}
    await _stream(ctx, said, messages)
    return {"messages": [*messages, said]}


def _named(message: dict[str, Any], id: str) -> dict[str, Any]:
    """A message with an id and a role, as the page and clients of LangGraph send it."""
    role = message.get("role") or {"human": "user", "ai": "assistant"}.get(str(message.get("type")), "user")
    return {"id": message.get("id") or id, "role": role, "content": message.get("content", "")}


async def _answer(ctx: Context, question: str, messages: Sequence[dict[str, Any]]) -> str:
    asked = question.lower()
    if _ASKING in asked:
        day = await ctx.interrupt(QUESTION)
        return f"Then you leave on {day} at 9:14 and are back at 20:46. I keep this on the thread."
    found = next((text for word, text in _ANSWERS.items() if word in asked), _OTHERWISE)
    before = [str(each["content"]) for each in messages[:-1] if each["role"] == "user"]
    return f"{found} Before, you asked: {before[-1]!r}." if before else found


async def _stream(ctx: Context, said: dict[str, Any], messages: Sequence[dict[str, Any]]) -> None:
    start = time.time()
    words = str(said["content"]).split(" ")
    for number, word in enumerate(words):
        piece = {"type": "AIMessageChunk", "id": said["id"], "content": (" " if number else "") + word}
        await ctx.emit([piece, {"langgraph_node": GUIDE}], event="messages")
        await asyncio.sleep(_WORD_SECONDS)
    usage = {"input_tokens": 40 + 25 * len(messages), "output_tokens": 2 * len(words)}
    await ctx.message("assistant", said["content"], model=MODEL, usage=usage)
    _record_call(ctx, start, messages, said["content"], usage)


def _record_call(
    ctx: Context, start: float, messages: Sequence[dict[str, Any]], answer: str, usage: dict[str, int]
) -> None:
    """The span of a simulated model call."""
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": MODEL,
        **{f"gen_ai.usage.{name}": count for name, count in usage.items()},
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": answer,
    }
    for number, message in enumerate(messages):
        attributes[f"gen_ai.prompt.{number}.role"] = message["role"]
        attributes[f"gen_ai.prompt.{number}.content"] = str(message["content"])
    span = RecordedSpan(
        name=f"chat {MODEL}", start_time=start, end_time=time.time(), status="OK", attributes=attributes
    )
    ctx.record_span(span)


@AGENTS.agent(WRITER, description="Writes the notes of the demo's release.")
async def write(ctx: Context, input: Any) -> str:
    """Write, as a model would."""
    notes = "Notes of 1.2: retries are shown with their cause; two bugs are gone."
    usage = {"input_tokens": 310, "output_tokens": 28}
    _record_call(ctx, time.time(), [{"role": "user", "content": "Write the notes."}], notes, usage)
    return notes


@AGENTS.agent(FORECAST, description="Fails, and says why.")
async def forecast(ctx: Context, input: Any) -> None:
    """Fail like a tool that does not know a place."""
    start = time.time()
    await asyncio.sleep(0.05)
    place = input.get("place", "Vienna") if isinstance(input, dict) else "Vienna"
    error = f"the weather service has no station in {place!r}"
    ctx.record_span(
        RecordedSpan(
            name="execute_tool weather",
            start_time=start,
            end_time=time.time(),
            status="ERROR",
            description=error,
            attributes={"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "weather"},
        )
    )
    raise LookupError(error)
