"""The part of `perdure dev --demo` beyond rollouts, so that every screen shows data.

Its agents are a scripted guide, a writer, and one that fails.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perdure.agents.context import Context
from perdure.agents.records import RecordedSpan
from perdure.cli.demo.agents import MODEL
from perdure.threads.records import RunRequest
from perdure.worker import execution
from perdure.worker.registry import Agents
from perdure.workflows.definition import Workflow
from perdure.workflows.loading import load_text

if TYPE_CHECKING:
    from perdure.runtime.services import Services

# --- agents -----------------------------------------------------------------------------------------------


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


# --- data -------------------------------------------------------------------------------------------------


WORKFLOW = "demo-release"
SCHEDULE = "demo-morning"
SECONDS = 10.0
"""Maximum seconds for the runs of the demo's assistant."""
_LOOK_SECONDS = 0.05
_DEFINITION = f"""
name: {WORKFLOW}
description: Writes the notes of a release, and asks before it goes out
phases:
  - name: notes
    assistant: {WRITER}
    prompt: Write the notes of {{{{title}}}}.
    output_var: notes
  - name: release
    type: approval
    approval_gate_message: "Release {{{{title}}}}? {{{{notes}}}}"
    assignees: [you]
  - name: announce
    assistant: {WRITER}
    prompt: "Announce: {{{{notes}}}}"
final_message: "{{{{title}}}} is out."
"""
TALKS = (
    ("How does a retry work?", "And what about memory?"),
    ("Plan a trip to the sea.",),
)
"""Messages of a person to the guide; the last question stays open."""


def load_workflow(services: Services) -> None:
    """Add the demo's workflow to the server."""
    definition = load_text(_DEFINITION, WORKFLOW).definition
    assert isinstance(definition, Workflow)
    services.definitions.add(definition)


async def play_scene(services: Services) -> list[str]:
    """Talk to the guide, fail a run, and let a workflow wait for a person. Return commands to try next."""
    load_workflow(services)
    with _quietly():
        for talk in TALKS:
            thread = await services.threads.create_thread()
            for text in talk:
                message = {"role": "user", "content": text}
                await _run(services, GUIDE, thread.thread_id, {"messages": [message]})
        thread = await services.threads.create_thread()
        failed = await _run(services, FORECAST, thread.thread_id, {"place": "Atlantis"})
        started = await services.workflows.run(WORKFLOW, context={"title": "1.2"}, trigger_id="demo")
        await _schedule(services)
        await _until_it_waits(services, started.workflow_run_id or "")
    return [
        f"perdure chat {GUIDE}",
        f"perdure why {failed}",
        f"perdure workflow show {started.workflow_run_id}",
    ]


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence the log of runs, because one of them fails on purpose and would disturb the report."""
    log = logging.getLogger(execution.__name__)
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


async def _run(services: Services, agent: str, thread_id: str, input: object) -> str:
    request = RunRequest(assistant_id=agent, thread_id=thread_id, input=input)
    run_id = (await services.threads.create_run(request)).run_id
    await services.rollouts.wait([run_id], timeout=SECONDS)
    return run_id


async def _schedule(services: Services) -> None:
    """Create the schedule unless an earlier demo on the database did."""
    if not any(schedule.name == SCHEDULE for schedule in (await services.schedules.search(limit=1000)).items):
        payload = {"input": {"messages": [{"role": "user", "content": "What about memory?"}]}}
        await services.schedules.create(
            "0 7 * * 1-5", name=SCHEDULE, assistant_id=GUIDE, timezone="Europe/Vienna", payload=payload
        )


async def _until_it_waits(services: Services, workflow_run_id: str) -> None:
    """Wait for the approval; give up after a while, because a demo is not a test."""
    for _ in range(round(SECONDS / _LOOK_SECONDS)):
        if (await services.workflows.get(workflow_run_id)).waiting_approvals:
            return
        await asyncio.sleep(_LOOK_SECONDS)
