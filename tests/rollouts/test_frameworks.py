"""Recorded exports of frameworks: traces, tokens, costs and messages of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.server.otlp_support import ENGINES, opened
from tests.server.support import Visitor, serving

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "frameworks"
FRAMEWORKS = (
    "agno",
    "autogen",
    "crewai",
    "langgraph",
    "llama_index",
    "openai_agents",
    "pydantic_ai",
    "smolagents",
)
QUESTION, ANSWER, RESULT = "What is the weather in Rome?", "It is sunny in Rome.", "sunny in Rome"
TOKENS = (31, 8)


def recorded(framework: str) -> dict[str, Any]:
    """Return an export request with all spans of one question: a tool call and an answer."""
    request: dict[str, Any] = json.loads((FIXTURES / f"{framework}.json").read_text())
    return request


async def sent(visitor: Visitor, framework: str) -> dict[str, Any]:
    """Send the spans of a framework; return the trace with the model calls."""
    answer = await visitor.post("/v1/traces", json=recorded(framework))
    assert (answer.status, answer.body) == (200, {})
    traces = (await visitor.get("/api/v1/traces")).body["items"]
    found: dict[str, Any] = max(traces, key=lambda trace: trace["spans"])
    return found


def said(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return roles and texts; a tool call is shown as its name and arguments."""
    lines = []
    for message in messages:
        calls = [f"{call['name']}({call['arguments']['city']})" for call in message["calls"]
                 if "city" in (call["arguments"] or {})]  # fmt: skip
        lines.append((message["role"], " ".join([*filter(None, [message["text"].strip()]), *calls])))
    return lines


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_framework(
    framework: str, engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with (
        opened(engine, request, tmp_path) as store,
        serving(store, keep_traces=True) as visitor,
    ):
        trace = await sent(visitor, framework)
        assert (trace["input_tokens"], trace["output_tokens"]) == TOKENS
        assert trace["cost"] == pytest.approx((31 * 2.5 + 8 * 10) / 10**6)
        assert trace["errors"] == 0
        path = f"/api/v1/traces/{trace['trace_id']}"
        answer = await visitor.get(path + "/messages")
        assert answer.body["total"] == trace["spans"]
        lines = said(answer.body["items"])
        texts = [text for _, text in lines]
        assert any(role == "user" and QUESTION in text for role, text in lines), lines
        assert ("assistant", "weather(Rome)") in lines, lines
        assert sum(role == "tool" and RESULT in text and ANSWER not in text for role, text in lines) == 1, (
            lines
        )
        final = [text for text in texts if ANSWER in text]
        assert final, lines
        order = [
            next(place for place, (role, text) in enumerate(lines) if role == "user" and QUESTION in text),
            [text for _, text in lines].index("weather(Rome)"),
            [role for role, _ in lines].index("tool"),
        ]
        assert order == sorted(order)
        kept = (await visitor.get(f"/api/v1/rollouts/{trace['rollout_id']}")).body
        assert (kept["status"], "incomplete" in kept["metadata"]) == ("succeeded", False)
        assert kept["end_time"] - kept["start_time"] == pytest.approx(trace["end_time"] - trace["start_time"])


@pytest.mark.parametrize("framework", ["agno", "langgraph", "pydantic_ai"])
async def test_traces_are_found_by_their_conversation(
    framework: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    for engine in ENGINES:
        async with (
            opened(engine, request, tmp_path) as store,
            serving(store, keep_traces=True) as visitor,
        ):
            trace = await sent(visitor, framework)
            assert trace["session_id"] == "talk-1"
            found = await visitor.get("/api/v1/traces", params={"session_id": "talk-1"})
            assert [each["trace_id"] for each in found.body["items"]] == [trace["trace_id"]]
            other = await visitor.get("/api/v1/traces", params={"session_id": "talk-2"})
            assert other.body["items"] == []


async def test_a_model_call_has_the_agent_of_the_span_above_it(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    for engine in ENGINES:
        async with (
            opened(engine, request, tmp_path) as store,
            serving(store, keep_traces=True) as visitor,
        ):
            for framework in ("agno", "autogen", "crewai", "openai_agents", "pydantic_ai"):
                trace = await sent(visitor, framework)
                steps = await visitor.get(f"/api/v1/traces/{trace['trace_id']}/steps")
                calls = [step for step in steps.body["items"] if step["kind"] == "llm"]
                assert {step["agent"] for step in calls} == {"guide"}, framework
                assert len(calls) == 2
            usage = await visitor.get("/api/v1/stats/usage", params={"by": "agent"})
            assert usage.status == 200


async def test_messages_of_one_span_are_those_of_the_trace(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with (
        opened("sqlite", request, tmp_path) as store,
        serving(store, keep_traces=True) as visitor,
    ):
        trace = await sent(visitor, "crewai")
        path = f"/api/v1/traces/{trace['trace_id']}/messages"
        everything = (await visitor.get(path)).body["items"]
        spans = {message["span_id"] for message in everything}
        for span_id in spans:
            own = (await visitor.get(path, params={"span_id": span_id})).body["items"]
            assert [each for each in everything if each["span_id"] == span_id] == [
                each for each in own if each in everything
            ]
        missing = await visitor.get(path, params={"span_id": "0" * 16})
        assert (missing.status, missing.body["code"]) == (404, "not_found")
