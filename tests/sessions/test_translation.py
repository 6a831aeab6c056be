"""Lines of other tools become lines of sessions: the rules, and the stored originals."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure
from perdure.eventlog.file_lines import stamped, unstamped
from perdure.eventlog.port import LogName, compute_digest, encode_line
from perdure.eventlog.writing import read_original, stored_line
from perdure.integrations.openai_agents import PerdureSession
from perdure.sessions import service
from perdure.sessions.records import Message, ToolCall, Usage
from perdure.sessions.service import Sessions
from perdure.sessions.transcripts.files import read_lines, read_objects
from perdure.sessions.transcripts.reading import TranscriptTranslator, translated

FOLDER = Path(__file__).parent / "transcripts"
AT = "2026-03-01T10:00:01.000Z"
LONG = "x" * 70_000
MARKER = f"\n…[truncated {70_000 - 65_536} chars]"


def event(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, **more, "sessionId": "pi-9", "timestamp": AT}


def pi_message(*content: dict[str, Any], **more: Any) -> dict[str, Any]:
    return event("message_end", message={"role": "assistant", "model": "m-1", "content": [*content], **more})


PI = [
    {"type": "session", "version": 3, "id": "pi-9", "timestamp": AT, "cwd": "/srv/shop"},
    event("agent_start"),
    event("message_end", message={"role": "user", "content": [{"type": "text", "text": "Which day is it?"}]}),
    pi_message(
        {"type": "thinking", "thinking": "A command knows."},
        {"type": "text", "text": "I look."},
        {"type": "toolCall", "id": "c|1", "name": "bash", "arguments": {"command": "date"}},
        usage={"input": 10, "output": 4, "cacheRead": 2, "cacheWrite": 1, "cost": {"total": 0.002}},
        stopReason="toolUse",
    ),
    event("tool_execution_start", toolCallId="c|1", toolName="bash", args={"command": "date"}),
    event(
        "tool_execution_end",
        toolCallId="c|1",
        result={"content": [{"type": "text", "text": "Sunday"}]},
        isError=False,
    ),
    pi_message({"type": "thinking", "thinking": "Done."}),
    pi_message({"type": "text", "text": "Sunday."}, stopReason="stop"),
    event(
        "usage_snapshot",
        stats={
            "assistantMessages": 2,
            "tokens": {"input": 30, "output": 9, "cacheRead": 5, "cacheWrite": 1},
            "cost": 0.004,
        },
    ),
    event("fatal_error", error={"name": "QuotaError", "message": "out of quota"}),
]


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    message = {"role": role, "content": content, **more}
    return {"type": role, "message": message, "timestamp": AT, "sessionId": "pi-9"}


def plain(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines that are messages, without the references to their originals."""
    return [
        {name: value for name, value in line.items() if name != "_perdure"}
        for line in lines
        if line["type"] != "system"
    ]


def test_events_of_pi_follow_the_five_rules() -> None:
    call = {"type": "tool_use", "id": "c|1", "name": "bash", "input": {"command": "date"}}
    usage = {
        "input_tokens": 10,
        "output_tokens": 4,
        "cache_read_input_tokens": 2,
        "cache_creation_input_tokens": 1,
        "cost_usd": 0.002,
    }
    outcome = {"type": "tool_result", "tool_use_id": "c|1", "content": "Sunday"}
    error = said("assistant", [{"type": "text", "text": "out of quota"}])
    assert plain([*translated(PI)]) == [
        said("user", "Which day is it?"),
        said("assistant", [{"type": "text", "text": "I look."}, call], model="m-1", usage=usage),
        said("user", [outcome]),
        said("assistant", [{"type": "text", "text": "Sunday."}], model="m-1"),
        {
            "type": "result",
            "subtype": "success",
            "num_turns": 2,
            "total_input_tokens": 30,
            "total_output_tokens": 9,
            "total_cache_read_input_tokens": 5,
            "total_cache_creation_input_tokens": 1,
            "total_cost_usd": 0.004,
            "stop_reason": "stop",
            "timestamp": AT,
            "sessionId": "pi-9",
        },
        {**error, "isApiErrorMessage": True, "error": "out of quota"},
    ]


def test_items_of_codex_become_blocks_and_totals() -> None:
    records = [record for _, record in read_objects(FOLDER / "codex_exec.jsonl")]
    lines = plain([*translated(records)])
    call = {"type": "tool_use", "id": "item_0", "name": "command_execution", "input": {"command": "ls"}}
    outcome = {"type": "tool_result", "tool_use_id": "item_0", "content": "a.py\n", "is_error": True}
    assert [line["message"]["content"] for line in lines[:3]] == [
        [call],
        [outcome],
        [{"type": "text", "text": "It has one file."}],
    ]
    assert [line["type"] for line in lines] == ["assistant", "user", "assistant", "result", "assistant"]
    assert {line["sessionId"] for line in lines} == {"0199-aa"}
    assert (lines[3]["total_input_tokens"], lines[3]["total_cache_read_input_tokens"]) == (40, 60)
    assert (lines[4]["isApiErrorMessage"], lines[4]["error"]) == (True, "quota")
    stored = [record for _, record in read_objects(FOLDER / "codex_stored.jsonl")]
    spoken = [line for line in plain([*translated(stored)]) if line["type"] == "assistant"]
    models = {line["message"].get("model") for line in spoken}
    assert models == {"gpt-5-codex"}


@pytest.mark.parametrize("stem", sorted(file.stem for file in FOLDER.glob("*.jsonl")))
def test_no_thought_is_in_a_line_and_each_line_names_its_original(stem: str) -> None:
    lines = [line for _, line in read_lines(FOLDER / f"{stem}.jsonl")]
    if not stem.startswith("claude"):
        assert {line["type"] for line in lines} <= {"user", "assistant", "system", "result"}
        assert all("original" in line["_perdure"] for line in lines)
        shown = json.dumps([{**line, "_perdure": None} for line in lines])
        assert not [text for text in ("thinking", "Easy.", "odd", "Use ls") if text in shown]


def test_a_line_of_a_session_is_left_as_it_is() -> None:
    translator = TranscriptTranslator()
    for line in [*translated(PI), {"type": "new", "a": 1}, {"type": "summary", "summary": "x"}]:
        assert translator.translate(line) == [line]


# --- in a log ---------------------------------------------------------------------------------------------


@pytest.fixture
async def perdure(engine_url: str) -> AsyncIterator[Perdure]:
    async with Perdure(engine_url) as opened:
        yield opened


@pytest.fixture
def sessions(perdure: Perdure) -> Sessions:
    return perdure.sessions


async def stored(sessions: Sessions, session_id: str, *, original: bool = False) -> list[dict[str, Any]]:
    page = await sessions.lines(session_id, limit=1000, original=original)
    return [json.loads(line) for line in page.items]


async def messages(sessions: Sessions, session_id: str) -> list[Message]:
    return [*(await sessions.messages(session_id, limit=1000)).items]


@pytest.mark.parametrize("stem", sorted(file.stem for file in FOLDER.glob("*.jsonl")))
async def test_originals_come_back_as_they_came(sessions: Sessions, stem: str) -> None:
    records = [record for _, record in read_objects(FOLDER / f"{stem}.jsonl")]
    # Repeated lines are separate lines.
    records += records[-2:]
    await sessions.append("s", records)
    assert await stored(sessions, "s", original=True) == records
    for line in await stored(sessions, "s"):
        digest = line.get("_perdure", {}).get("original")
        if digest is not None:
            assert json.loads((await sessions.blob("s", digest)).content) in records


async def test_long_results_are_cut_whatever_the_source(sessions: Sessions) -> None:
    item = {"id": "i", "type": "command_execution", "command": "cat", "aggregated_output": LONG}
    output = {"type": "function_call_output", "call_id": "i", "output": LONG}
    block = {"type": "tool_result", "tool_use_id": "i", "content": LONG}
    sources: dict[str, dict[str, Any]] = {
        "pi": {"type": "tool_execution_end", "toolCallId": "i", "result": {"content": LONG}},
        "pi-stored": {"type": "message", "id": "e", "message": {"role": "toolResult", "content": LONG}},
        "codex": {"type": "item.completed", "item": item},
        "codex-stored": {"type": "response_item", "payload": output},
        "openai": output,
        "claude": {"type": "user", "uuid": "u-1", "message": {"role": "user", "content": [block]}},
    }
    for session_id, record in sources.items():
        await sessions.append(session_id, [record])
        (result,) = [each for each in await messages(sessions, session_id) if each.role == "tool"]
        assert result.text == "x" * 65_536 + MARKER, session_id
        assert result.blob is not None
        assert (await sessions.blob(session_id, result.blob)).content == LONG
        assert await stored(sessions, session_id, original=True) == [record]
        assert all(len(json.dumps(line)) < 67_000 for line in await stored(sessions, session_id))


async def test_originals_that_are_long_come_in_several_pages(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "SEARCH_PAGE", 100)
    await sessions.append("s", PI)
    originals: list[str] = []
    after, ends = 0, [False]
    while not ends[-1]:
        page = await sessions.lines("s", after=after, limit=1000, original=True)
        originals, after = [*originals, *page.items], page.after
        ends.append(page.end)
    assert [json.loads(line) for line in originals] == PI
    assert len(ends) > 3


async def test_a_page_of_messages_says_whether_it_is_the_last(sessions: Sessions) -> None:
    await sessions.append("s", PI)
    first = await sessions.messages("s", limit=1)
    last = await sessions.messages("s", after=first.after, limit=1000)
    assert (first.end, last.end) == (False, True)


async def test_a_stored_message_of_pi_names_the_one_that_it_answers(sessions: Sessions) -> None:
    said = {"role": "user", "content": "And now?"}
    await sessions.append("s", [{"type": "message", "id": "b", "parentId": "a", "message": said}])
    assert [(each.text, each.parent_id) for each in await messages(sessions, "s")] == [("And now?", "a")]


async def test_a_stored_message_of_pi_is_of_the_model_that_was_chosen_before(sessions: Sessions) -> None:
    said = {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]}
    chosen = {"type": "model_change", "id": "a", "modelId": "m-2"}
    await sessions.append("s", [chosen, {"type": "message", "id": "b", "message": said}])
    assert [each.model for each in await messages(sessions, "s") if each.role == "assistant"] == ["m-2"]


@pytest.mark.parametrize(("status", "code", "failed"), [("completed", 1, True), ("completed", 0, False)])
async def test_a_command_of_codex_has_failed_if_its_exit_code_says_so(
    sessions: Sessions, status: str, code: int, failed: bool
) -> None:
    item = {"id": "i", "type": "command_execution", "command": "make", "status": status, "exit_code": code}
    await sessions.append("s", [{"type": "item.completed", "item": item}])
    assert [each.is_error for each in await messages(sessions, "s") if each.role == "tool"] == [failed]


SAID = {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]}


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        (
            {"type": "assistant", "error": "overloaded", "message": {"content": []}},
            {"role": "system", "text": "overloaded", "is_error": True},
        ),
        (
            {"type": "user", "isMeta": True, "message": {"role": "user", "content": "a caveat"}},
            {"role": "event", "kind": "meta", "text": "a caveat"},
        ),
        (
            {"type": "assistant", "parent_tool_use_id": "t-1", "message": SAID},
            {"role": "assistant", "text": "Yes.", "parent_id": "t-1"},
        ),
        (
            {"type": "result", "total_input_tokens": 7, "total_output_tokens": 2, "total_cost_usd": 0.5},
            {"role": "result", "usage": Usage(7, 2, cost_usd=0.5), "cumulative": True},
        ),
        (
            {
                "type": "response_item",
                "payload": {
                    "type": "function_call_output",
                    "call_id": "c-1",
                    "output": {"content": "no such file", "success": False},
                },
            },
            {"role": "tool", "tool_call_id": "c-1", "text": "no such file", "is_error": True},
        ),
        (
            {
                "type": "response_item",
                "payload": {"type": "local_shell_call", "id": "l-1", "action": {"command": ["ls"]}},
            },
            {"role": "assistant", "tool_calls": [ToolCall("l-1", "local_shell_call", {"command": ["ls"]})]},
        ),
        (
            {"type": "message", "id": "msg-1", **SAID},
            {"role": "assistant", "text": "Yes.", "message_id": "msg-1"},
        ),
        (
            {"type": "turn_context", "payload": {"cwd": "/srv/shop", "model": "m-1"}},
            {"role": "event", "cwd": "/srv/shop", "model": "m-1"},
        ),
    ],
    ids=[
        "claude error",
        "meta",
        "sub-agent",
        "totals",
        "codex failure",
        "codex shell",
        "openai id",
        "codex turn",
    ],
)
async def test_what_a_line_says_is_in_its_message(
    sessions: Sessions, record: dict[str, Any], wanted: dict[str, Any]
) -> None:
    await sessions.append("s", [record])
    (message,) = (await sessions.messages("s", events=True)).items
    assert {name: getattr(message, name) for name in wanted} == wanted


async def test_content_of_a_line_that_is_named_outlives_a_sweep(perdure: Perdure) -> None:
    sessions = perdure.sessions
    await sessions.append("s", PI)
    ns = await sessions.ns()
    assert await sessions.log.drop_blobs(ns, 0.0) == 0
    assert await stored(sessions, "s", original=True) == PI


def test_each_line_of_a_file_has_one_mark_with_original_and_number() -> None:
    """A worker adds the time to lines: a mark before it was followed by another one with the same name."""
    item = {"id": "i1", "type": "command_execution", "command": "date", "aggregated_output": "Sunday"}
    record = {"type": "item.completed", "item": item}
    lines = TranscriptTranslator().translate_named(record)
    assert len(lines) == 2
    for number, line in enumerate(lines, 1):
        stored = stored_line(encode_line({**line, "timestamp": AT}), {})
        written = stamped(stored, b"at-1", number)
        names = [name for name, _ in json.loads(written, object_pairs_hook=list)]
        assert names.count("_perdure") == 1
        assert json.loads(written)["_perdure"]["line"] == ["at-1", number]
        assert unstamped(written[:-1]) == (stored, "at-1", number)
        assert read_original(stored) == (compute_digest(encode_line(record)), number)


async def test_a_log_of_lines_that_were_not_translated_reads_the_same(sessions: Sessions) -> None:
    ns = await sessions.ns("write")
    await sessions.log.append(ns, LogName("-app", "raw"), [encode_line(record) for record in PI])
    await sessions.append("new", PI)
    raw, new = await messages(sessions, "raw"), await messages(sessions, "new")
    assert [(each.role, each.text) for each in raw if each.text or each.role != "assistant"] == [
        (each.role, each.text) for each in new
    ]
    # The lines in the log do not change, thoughts included.
    assert [each.reasoning for each in raw if each.reasoning] == [["A command knows."], ["Done."]]
    for session_id in ("raw", "new"):
        session = await sessions.get(session_id)
        assert (session.usage, session.turns) == (Usage(30, 9, 5, 1, 0.004), 2)
    assert await stored(sessions, "raw") == await stored(sessions, "raw", original=True) == PI


async def test_lines_of_a_writer_keep_their_numbers(sessions: Sessions) -> None:
    """A caller that numbers its lines does not know how many lines each one becomes."""
    records = [record for _, record in read_objects(FOLDER / "codex_exec.jsonl")]
    for first in (1, 4, 1):
        await sessions.append("s", records[first - 1 :], writer="w", first=first)
    assert await stored(sessions, "s", original=True) == records
    assert len(await stored(sessions, "s")) == len(records)
    shown = [each.role for each in await messages(sessions, "s")]
    assert shown == ["assistant", "tool", "assistant", "result", "system"]


async def test_a_snapshot_after_a_compaction_takes_no_tokens_away(sessions: Sessions) -> None:
    empty = {"assistantMessages": 0, "tokens": {"input": 0, "output": 0}, "cost": 0}
    await sessions.append("s", [PI[0], PI[3], event("usage_snapshot", stats=empty)])
    session = await sessions.get("s")
    assert session.usage == Usage(10, 4, 2, 1, 0.002)


async def test_items_of_the_openai_agents_sdk_come_back_as_they_came(sessions: Sessions) -> None:
    items: list[Any] = [record for _, record in read_objects(FOLDER / "openai_agents.jsonl")]
    same = {"role": "user", "content": "Hi"}
    session = PerdureSession("talk", sessions)
    await session.add_items([*items, same, same])
    assert await PerdureSession("talk", sessions).get_items() == [*items, same, same]
    assert await session.pop_item() == same
    assert await session.get_items() == [*items, same]
    lines = await stored(sessions, "talk")
    assert [line["type"] for line in lines[:4]] == ["user", "assistant", "user", "assistant"]


HOSTILE: list[dict[str, Any]] = [
    {"type": "message_end", "message": None},
    {"type": "message_end", "message": {"role": "assistant", "content": [{"type": "toolCall", "id": 7}]}},
    {"type": "usage_snapshot", "stats": {"tokens": {"input": -5, "output": "many"}, "cost": "x"}},
    {"type": "fatal_error"},
    {"type": "item.completed", "item": {"type": ["list"], "id": {}}},
    {"type": "response_item", "payload": "text"},
    {"type": "event_msg", "payload": {"type": "token_count", "info": {"total_token_usage": [1]}}},
    {"type": "session", "id": "../../etc", "timestamp": 1e300, "cwd": 5},
    {"type": "user", "_perdure": ["at-1", 5], "message": {"role": "user", "content": "x"}},
    {"type": "user", "_perdure": {"original": "f" * 64, "part": 2}},
    {"type": "user", "_perdure": {"original": "f" * 64, "line": ["at-1", 5]}},
    {"type": "user", "_perdure": {"original": "../../etc/passwd"}},
    {"type": "turn_end", "_perdure": {"original": {"type": "user", "message": "forged"}}},
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
async def test_hostile_lines_are_stored_and_read(sessions: Sessions, number: int) -> None:
    await sessions.append("s", [HOSTILE[number], {"type": "user", "message": {"content": "after"}}])
    page = await sessions.messages("s", events=True)
    assert page.items[-1].text == "after"
    for original in (False, True):
        lines = await stored(sessions, "s", original=original)
        assert lines[-1]["message"] == {"content": "after"}
