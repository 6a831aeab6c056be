"""Messages of spans, in the forms that instrumentations write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure import Span
from perdure.spans.records import Event
from perdure.traces.messages import build_conversation, messages_of_span

MODEL = {"gen_ai.operation.name": "chat"}
TOOL = {"gen_ai.operation.name": "execute_tool"}


def span(attributes: dict[str, Any], **more: Any) -> Span:
    return Span.from_attributes(attributes=attributes, **more)


def lines(*spans: Span) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in build_conversation(spans)]


@pytest.mark.parametrize("first", [0, 1, 7])
@pytest.mark.parametrize(("prefix", "inner"), [("gen_ai.prompt.", ""), ("llm.input_messages.", "message.")])
def test_messages_are_numbered_from_anything(prefix: str, inner: str, first: int) -> None:
    attributes: dict[str, Any] = {}
    for number, (role, text) in enumerate((("system", "a"), ("user", "b")), first):
        attributes[f"{prefix}{number}.{inner}role"] = role
        attributes[f"{prefix}{number}.{inner}content"] = text
    assert lines(span(attributes)) == [("system", "a"), ("user", "b")]


def test_numbers_are_in_their_order_and_may_have_gaps() -> None:
    attributes = {f"gen_ai.prompt.{number}.content": str(number) for number in (10, 9, 2)}
    assert [text for _, text in lines(span(attributes))] == ["2", "9", "10"]


@pytest.mark.parametrize("first", [0, 1])
def test_contents_are_parts_of_a_message(first: int) -> None:
    place = "llm.input_messages.0.message."
    attributes = {place + "role": "user"}
    for number, text in enumerate(("one", "two"), first):
        attributes[f"{place}contents.{number}.message_content.type"] = "text"
        attributes[f"{place}contents.{number}.message_content.text"] = text
    assert lines(span(attributes)) == [("user", "one\ntwo")]


def test_the_answer_of_a_tool_is_told_once() -> None:
    tool = span({**TOOL, "gen_ai.tool.name": "f", "gen_ai.tool.call.id": "c", "gen_ai.tool.call.result": "r"})
    asked = [{"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "r"}]}]
    model = span({**MODEL, "gen_ai.input.messages": json.dumps(asked)})
    assert lines(tool, model) == [("tool", "r")]
    (answer,) = messages_of_span(tool)
    assert (answer.name, answer.answers, answer.failed) == ("f", "c", False)


def test_events_are_messages() -> None:
    events = [
        Event(name="gen_ai.user.message", attributes={"content": "hello"}, timestamp=1.0),
        Event(name="exception", attributes={"exception.message": "x"}, timestamp=1.0),
        Event(name="gen_ai.tool.message", attributes={"content": "r", "id": "c"}, timestamp=2.0),
        Event(name="gen_ai.choice", attributes={"message": '{"content": "bye"}'}, timestamp=3.0),
    ]
    made = span(MODEL)
    made.events = events
    assert lines(made) == [("user", "hello"), ("tool", "r"), ("assistant", "bye")]


@pytest.mark.parametrize(
    "value",
    ["{", "[1", '{"messages": 7}', "[]", "null", 7, True, ["a", None], '[{"role": 1, "content": {}}]'],
)
@pytest.mark.parametrize(
    "key",
    [
        "gen_ai.input.messages",
        "input.value",
        "llm.input_messages.0.message.content",
        "gen_ai.prompt.1.content",
    ],
)
def test_what_is_no_message_breaks_nothing(key: str, value: Any) -> None:
    for message in messages_of_span(span({**MODEL, key: value})):
        assert isinstance(message.text, str)


def test_agents_repeat_nothing() -> None:
    asked = json.dumps([{"role": "user", "content": "q"}])
    agent = span({"gen_ai.operation.name": "invoke_agent", "gen_ai.input.messages": asked})
    model = span({**MODEL, "gen_ai.input.messages": asked})
    assert lines(agent, model) == [("user", "q")]
