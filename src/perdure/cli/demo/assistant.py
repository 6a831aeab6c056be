"""The agents of `perdure dev --demo`: a scripted guide, a writer, and one that fails."""

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
    """Messages of a caller to the guide."""

    messages: list[dict[str, Any]] = field(default_factory=list)


@AGENTS.agent(GUIDE, description="A scripted guide: answers, and asks back when it plans.")
async def guide(ctx: Context, input: GuideConversation) -> dict[str, Any]:
    """Answer word by word. The conversation is the state of the thread."""
    state = await ctx.load() or {}
    given = input.messages if ctx.command is None else []
    new_messages = [_named(message, f"{ctx.run_id}-{number}") for number, message in enumerate(given)]
    messages = [*state.get("messages", ()), *new_messages]
    if new_messages:
        await ctx.save({"messages": messages}, next=(GUIDE,))
    question = next(
        (str(message["content"]) for message in reversed(messages) if message["role"] == "user"), ""
    )
    if new_messages:
        await ctx.message("user", question)
    answer = await _answer(ctx, question, messages)
    reply = {"id": f"{ctx.run_id}-answer", "role": "assistant", "content": answer}
    await _stream(ctx, reply, messages)
    return {"messages": [*messages, reply]}


def _named(message: dict[str, Any], id: str) -> dict[str, Any]:
    """Return a message with an id and a role, as the page and LangGraph clients send it."""
    role = message.get("role") or {"human": "user", "ai": "assistant"}.get(str(message.get("type")), "user")
    return {"id": message.get("id") or id, "role": role, "content": message.get("content", "")}


async def _answer(ctx: Context, question: str, messages: Sequence[dict[str, Any]]) -> str:
    asked = question.lower()
    if _ASKING in asked:
        day = await ctx.interrupt(QUESTION)
        return f"Then you leave on {day} at 9:14 and are back at 20:46. I keep this on the thread."
    text = next((text for word, text in _ANSWERS.items() if word in asked), _OTHERWISE)
    before = [str(message["content"]) for message in messages[:-1] if message["role"] == "user"]
    return f"{text} Before, you asked: {before[-1]!r}." if before else text


async def _stream(ctx: Context, reply: dict[str, Any], messages: Sequence[dict[str, Any]]) -> None:
    start = time.time()
    words = str(reply["content"]).split(" ")
    for number, word in enumerate(words):
        piece = {"type": "AIMessageChunk", "id": reply["id"], "content": (" " if number else "") + word}
        await ctx.emit([piece, {"langgraph_node": GUIDE}], event="messages")
        await asyncio.sleep(_WORD_SECONDS)
    usage = {"input_tokens": 40 + 25 * len(messages), "output_tokens": 2 * len(words)}
    await ctx.message("assistant", reply["content"], model=MODEL, usage=usage)
    _record_call(ctx, start, messages, reply["content"], usage)


def _record_call(
    ctx: Context, start: float, messages: Sequence[dict[str, Any]], answer: str, usage: dict[str, int]
) -> None:
    """Record the span of a simulated model call."""
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
    """Fail like a tool with an unknown place."""
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
