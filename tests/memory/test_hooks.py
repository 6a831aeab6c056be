"""What hooks of coding agents tell, as events."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import InvalidInput
from perdure.memory.hooks import MAX_HOOK_TEXT, hook_to_event
from perdure.memory.model import check_event

NOW = 1_705_312_800_000


def told(**fields: Any) -> Any:
    return hook_to_event({"session_id": "s", **fields}, NOW)


def test_each_hook_is_an_event_of_its_type() -> None:
    expected = {
        "SessionStart": ("session_start", "system"),
        "UserPromptSubmit": ("user_message", "user"),
        "AssistantResponse": ("assistant_message", "assistant"),
        "PreToolUse": ("tool_result", "tool"),
        "PostToolUse": ("tool_result", "tool"),
        "Stop": ("session_end", "system"),
        "SessionEnd": ("session_end", "system"),
        "SubagentStart": ("subagent_start", "system"),
        "SubagentStop": ("subagent_stop", "system"),
        "SomethingNew": ("user_message", "user"),
    }
    found = {name: told(hook_event_name=name) for name in expected}
    assert {name: (event.event_type, event.role) for name, event in found.items()} == expected


def test_the_text_is_the_message_or_what_the_tool_got() -> None:
    assert told(message="hello", tool_input={"a": 1}).text == "hello"
    tool = told(hook_event_name="PreToolUse", tool_name="Bash", tool_input={"command": "ls"}, cwd="src")
    assert tool.text == '{"command":"ls"}'
    assert tool.metadata == {"tool_name": "Bash", "cwd": "src", "hook": "PreToolUse"}
    assert told().text == ""


def test_the_same_hook_has_the_same_id_and_another_another() -> None:
    stamped = {"message": "yes", "timestamp": "2024-01-15T10:00:00Z"}
    assert told(**stamped) == hook_to_event({"session_id": "s", **stamped}, NOW + 10**9)
    assert (
        told(message="yes").event_id == hook_to_event({"session_id": "s", "message": "yes"}, NOW + 5).event_id
    )
    others = [told(message="no"), told(message="yes", session_id="t"), told(message="yes", timestamp=NOW + 1)]
    assert told(message="yes").event_id not in {each.event_id for each in others}


@pytest.mark.parametrize("time", ["soon", "", -5, 1e300, float("nan"), True, [], "9999-12-31T23:59:59Z"])
def test_a_time_that_is_none_is_now(time: Any) -> None:
    assert told(timestamp=time).timestamp_ms == NOW


def test_times() -> None:
    for time in ("2024-01-15T10:00:00Z", "2024-01-15T11:00:00+01:00", NOW, NOW / 1000, "2024-01-15T10:00:00"):
        assert told(timestamp=time).timestamp_ms == NOW


def test_whatever_a_hook_says_can_be_stored() -> None:
    for text in ("👨‍👩‍👧" * 100_000, "a\ud83d\0", "x" * (MAX_HOOK_TEXT + 1)):
        event = told(message=text, cwd=text, agent="Claude")
        assert len(check_event(event).text.body.encode()) <= MAX_HOOK_TEXT


@pytest.mark.parametrize("wrong", [None, 5, [], "x", {}, {"session_id": ""}])
def test_what_is_no_hook_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        hook_to_event(wrong, NOW)
