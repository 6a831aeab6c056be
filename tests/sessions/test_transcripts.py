"""Transcripts of each kind as messages, and their usage."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from perdure.eventlog.port import LogName
from perdure.kernel.codec import decode_json
from perdure.sessions.model import sum_totals
from perdure.sessions.records import Message, Usage
from perdure.sessions.transcripts.files import find_name, read_objects
from perdure.sessions.transcripts.reading import find_format, parse_messages

FOLDER = Path(__file__).parent / "transcripts"

EXPECTED = {
    "claude_stored": """
        user: The date test fails. Fix it.
        assistant: [Read the test first.]
        assistant: Read({"file_path": "test_date.py"})
        tool toolu_1: assert day == 31
        user: Also run it.
        assistant: The month has 30 days: 世界.
        system error: API Error: overloaded
        """,
    "claude_stream": """
        assistant: Looking. Bash({"command": "ls"})
        tool t1 error: No such file
        result: Done.
        result: Done again.
        """,
    "codex_exec": """
        assistant: command_execution({"command": "ls"})
        tool item_0 error: a.py
        assistant: [The folder is odd.]
        assistant: It has one file.
        result:
        system error: quota
        """,
    "codex_stored": """
        user: Count the files
        assistant: [Use ls.]
        assistant: shell({"command": ["ls"]})
        tool call_1: a.py
        result:
        assistant: One file.
        result:
        """,
    "pi_stream": """
        user: Say hello
        assistant: [Easy.] Hello bash({"command": "date"})
        tool c1: Sunday
        system error: out of tokens
        """,
    "pi_stored": """
        user: Say hello
        assistant: Hello
        tool c1 error: ok
        """,
    "openai_agents": """
        user: What is the weather?
        assistant: weather({"city": "Rome"})
        tool call_9: Sunny
        assistant: Sunny in Rome.
        """,
    "openai_traces": """
        assistant: Sunny
        tool span_2 error: Sunny
        """,
}
USAGE = {
    "claude_stored": Usage(300, 50, 50, 7),
    "claude_stream": Usage(3, 5, 0, 0, 0.03),
    "codex_exec": Usage(40, 12, 60),
    "codex_stored": Usage(70, 9, 20),
    "pi_stream": Usage(10, 4, 2, 1, 0.002),
    "pi_stored": Usage(10, 4),
    "openai_agents": Usage(),
    "openai_traces": Usage(7, 2),
}
NAMES = {
    "claude_stored": LogName("-srv-shop", "5f1c"),
    "claude_stream": LogName("-work-dir", "9a9a"),
    "codex_exec": LogName("-app", "0199-aa"),
    "codex_stored": LogName("-srv-shop", "0199-bb"),
    "pi_stream": LogName("-srv-agent-workspace", "pi-1"),
    "pi_stored": LogName("-srv-agent-workspace", "pi-2"),
    "openai_agents": LogName("-app", "openai_agents"),
}


def read(name: str) -> list[Message]:
    lines = (FOLDER / f"{name}.jsonl").read_bytes().splitlines()
    return [message for line in lines for message in parse_messages(line)]


def written(message: Message) -> str:
    head = " ".join(
        part for part in (message.role, message.tool_call_id, "error" if message.is_error else None) if part
    )
    parts = [f"[{thought}]" for thought in message.reasoning]
    parts += [message.text.strip()] if message.text else []
    parts += [f"{each.name}({json.dumps(each.input)})" for each in message.tool_calls]
    return f"{head}: {' '.join(parts)}".rstrip()


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_transcript_is_read_as_messages_of_one_form(name: str) -> None:
    shown = [written(message) for message in read(name) if message.role != "event"]
    assert shown == [line.strip() for line in EXPECTED[name].strip().splitlines()]


@pytest.mark.parametrize("name", sorted(USAGE))
def test_usage_is_counted_once_a_message_and_a_cumulative_cost_is_taken_last(name: str) -> None:
    assert sum_totals(read(name)).usage == USAGE[name]


def lines(*records: dict[str, object]) -> list[Message]:
    return [message for record in records for message in parse_messages(json.dumps(record))]


def said(tokens: int, **more: object) -> dict[str, object]:
    usage = {"input_tokens": tokens, "output_tokens": 4}
    return {"type": "assistant", "message": {"role": "assistant", "content": "x", "usage": usage}, **more}


def stated(**more: object) -> dict[str, object]:
    return {"type": "result", "subtype": "success", **more}


def test_the_last_stated_total_wins_field_by_field() -> None:
    first = stated(total_input_tokens=90, total_cache_read_input_tokens=7, num_turns=9)
    totals = sum_totals(lines(said(20), first, said(1), stated(total_input_tokens=100, num_turns=3)))
    assert (totals.usage, totals.turns) == (Usage(100, 8, 7), 3)
    # Zero is a valid total.
    assert sum_totals(lines(said(20), stated(total_input_tokens=0))).usage == Usage(0, 4)
    # The figures of attempts are added, whether an attempt states totals or not.
    second = said(5, runId="r-2")
    totals = sum_totals(lines(said(20, runId="r-1"), stated(total_input_tokens=100, runId="r-1"), second))
    assert (totals.usage, totals.turns) == (Usage(105, 8), 2)


def test_a_file_tells_its_session_and_its_directory() -> None:
    for name, expected in NAMES.items():
        assert find_name(FOLDER / f"{name}.jsonl") == expected, name


def test_every_line_is_recognised_or_kept_as_an_event() -> None:
    for file in sorted(FOLDER.glob("*.jsonl")):
        formats = {find_format(record) for _, record in read_objects(file)} - {None}
        assert len(formats) == 1, (file.name, formats)
        assert file.name.startswith(str(formats.pop()).split("-")[0])
    (event,) = parse_messages(b'{"type":"some-new-type","payload":1}')
    assert (event.role, event.kind) == ("event", "some-new-type")


def test_times_are_read_in_every_form() -> None:
    stored = [message.time for message in read("pi_stream") if message.role == "user"]
    assert stored == [1772359201.0]
    assert read("claude_stored")[2].time == 1772359201.0


def test_broken_lines_never_raise() -> None:
    """Lines that are truncated, of other types, or with any value in any field."""
    chance = random.Random(3)
    values: list[object] = [None, True, -1, 1e400, "x", [], [1, None, "a"], {}, {"type": 1}, {"text": ["y"]}]
    for file in sorted(FOLDER.glob("*.jsonl")):
        for line in file.read_bytes().splitlines():
            for cut in range(0, len(line), 7):
                parse_messages(line[:cut])
            record = decode_json(line)
            for key in list(record):
                for value in values:
                    parse_messages(json.dumps({**record, key: value}))
    for _ in range(200):
        parse_messages(chance.randbytes(chance.randint(0, 60)))
