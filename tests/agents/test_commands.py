"""Agents that are commands: real processes, well-behaved and not."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.agents.support import PATIENCE, MemoryContext, Thread, run, start

from perdure.agents.commands import Command
from perdure.agents.context import Agent, AgentError, Cancelled, Interrupted
from perdure.kernel.config import secret_variables
from perdure.kernel.errors import InvalidInput
from perdure.worker.registry import Agents

TRANSCRIPTS = Path(__file__).parents[1] / "sessions" / "transcripts"
SPEAKER = str(Path(__file__).with_name("speaker.py"))


def speaker(way: str, **options: Any) -> Agent:
    return Agents().register("speaker", Command([sys.executable, SPEAKER, way], **options))


async def gone(pid: int) -> None:
    """Wait until a process is no more, or only its exit code is left of it."""
    async with asyncio.timeout(PATIENCE):
        while _lives(pid):  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.005)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def test_a_process_talks_and_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    ctx = MemoryContext()
    with caplog.at_level(logging.INFO):
        answer = await run(speaker("talks"), ctx, {"x": 1})
    assert ctx.events == [("custom", {"input": {"x": 1}}), ("values", {"n": 1})]
    assert answer == {
        "saved": {"type": "saved", "checkpoint_id": "checkpoint-0", "id": 7},
        "kept": {"type": "step", "name": "pay", "result": "paid"},
    }
    assert ctx.checkpoint is not None
    assert (ctx.checkpoint.values, ctx.checkpoint.next) == ({"n": 1}, ("more",))
    assert ("tests.agent", logging.WARNING, "careful") in caplog.record_tuples


async def test_it_is_told_all_of_its_run() -> None:
    thread = Thread()
    await MemoryContext(thread).save({"before": 1})
    await MemoryContext(thread).step("one", lambda: 1)
    ctx = MemoryContext(
        thread, attempt=2, config={"a": 1}, context={"b": 2}, command={"resume": 3}, options={"o": 4}
    )
    assert await run(speaker("echoes"), ctx, ["in"]) == {
        "type": "start",
        "run_id": ctx.run_id,
        "thread_id": ctx.thread_id,
        "assistant_id": ctx.assistant_id,
        "attempt": 2,
        "input": ["in"],
        "command": {"resume": 3},
        "config": {"a": 1},
        "context": {"b": 2},
        "metadata": {"given": "metadata"},
        "options": {"o": 4},
        "stream_mode": ["values"],
        "values": {"before": 1},
        "steps": {"one": 1},
        "idempotency_key": ctx.run_id,
        "session_id": ctx.thread_id,
        "traceparent": None,
        "trace_content": True,
        "phase": None,
    }


async def test_it_writes_to_its_session() -> None:
    ctx = MemoryContext()
    answer = await run(speaker("speaks"), ctx)
    assert answer == {"type": "session", "session_id": "s-1", "id": 1}
    assert ctx.logged == [
        ("session", "s-1", "/srv"),
        ("message", "user", "hello", None, None),
        ("tool_result", "t", "out", True),
        ("usage", {"cost_usd": 0.5, "output_tokens": 3}),
    ]


async def test_lines_of_known_tools_are_logged_as_they_are(tmp_path: Path) -> None:
    for name in ("claude_stream", "codex_exec", "pi_stream", "pi_stored", "claude_stored"):
        file = TRANSCRIPTS / f"{name}.jsonl"
        ctx = MemoryContext()
        await run(speaker("prints_file"), ctx, str(file))
        written = [json.loads(line) for line in file.read_text().splitlines() if line.startswith('{"')]
        assert [line for kind, line in ctx.logged if kind == "transcript"] == written
    own = tmp_path / "own.jsonl"
    for line, reason in (
        ('{"type": "nobody knows"}', "Invalid value 'nobody knows'"),
        ('{"type": "error", "message": "it broke"}', "it broke"),
        ('{"type": "message", "role": "user"}', "content"),
        ('{"type": 7}', "is not a message"),
    ):
        own.write_text(line + "\n")
        with pytest.raises(AgentError, match=reason):
            await run(speaker("prints_file"), MemoryContext(), str(own))
    codex = '{"type": "thread.started", "thread_id": "t"}\n{"type": "error", "message": "reconnecting"}\n'
    own.write_text(codex)
    ctx = MemoryContext()
    await run(speaker("prints_file"), ctx, str(own))
    assert len(ctx.logged) == 2


async def test_it_asks_a_person() -> None:
    with pytest.raises(Interrupted) as asked:
        await run(speaker("asks"), MemoryContext())
    assert asked.value.interrupts == [{"id": "0", "value": "really?"}]
    answer = await run(speaker("asks"), MemoryContext(answers=["yes"]))
    assert answer == {"answer": {"type": "answer", "value": "yes"}}


async def test_what_it_inherits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in secret_variables():
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("OF_THE_WORKER", "seen")
    agent = speaker("shows_environment", cwd=tmp_path, env={"OF_THE_AGENT": "given", "REDIS_URL": "its own"})
    shown = await run(agent, MemoryContext())
    assert shown["cwd"] == str(tmp_path)
    environment = shown["environment"]
    assert (environment["OF_THE_WORKER"], environment["OF_THE_AGENT"]) == ("seen", "given")
    assert environment["REDIS_URL"] == "its own"
    assert "secret" not in environment.values()
    assert {"PERDURE_API_KEY", "DATABASE_URL", "PERDURE_DATABASE_URL_FILE", "PERDURE_TOKEN"} < set(
        secret_variables()
    )


async def test_to_end_well_is_enough() -> None:
    ctx = MemoryContext()
    assert await run(speaker("ends_well"), ctx) is None
    assert await ctx.load() == {"n": 1}


async def test_stray_output_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert await run(speaker("prints"), MemoryContext()) == {"fine": True}
    assert "hello, I print" in caplog.text


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("fails", "exited with 3; its last output:\nfirst\nit broke"),
        ("kills_itself", "was killed by SIGKILL"),
        ("garbage", "line 1 of .* is not a message"),
        ("unknown_type", "is not a message: Invalid value 'dance'"),
        ("bad_field", "missing required field `values`"),
        ("binary", "line 2 of .* is not a message"),
        ("nonsense", "exited with 1; its last output:\n(.*\n)*.*KeyError"),
    ],
)
async def test_a_bad_process_is_a_readable_error(way: str, words: str) -> None:
    with pytest.raises(AgentError, match=words) as failed:
        await run(speaker(way), MemoryContext())
    assert not failed.value.retriable


async def test_an_error_says_whether_to_try_again() -> None:
    with pytest.raises(AgentError, match="later") as failed:
        await run(speaker("errors"), MemoryContext())
    assert (failed.value.error, failed.value.retriable) == ("RateLimited", True)


async def test_a_line_that_never_ends() -> None:
    with pytest.raises(AgentError, match="a line of more than 65536 bytes"):
        await run(speaker("long_line", max_line=1 << 16), MemoryContext())
    ctx = MemoryContext()
    assert await run(speaker("long_line"), ctx) is None
    assert len(ctx.events[0][1]) == 200_000


async def test_a_flood_waits_for_its_reader() -> None:
    ctx = MemoryContext()
    assert await run(speaker("floods"), ctx) == {"sent": 20_000}
    assert [data for _, data in ctx.events] == list(range(20_000))


async def test_a_flood_of_errors_does_not_hold_it_up() -> None:
    assert await run(speaker("floods_stderr"), MemoryContext()) == {"fine": True}


async def test_a_process_that_never_reads_its_answers() -> None:
    with pytest.raises(AgentError, match="does not read its answers"):
        await run(speaker("never_reads", max_line=1 << 16), MemoryContext())


async def test_large_input_to_a_process_that_does_not_read_it() -> None:
    agent = Agents().register("deaf", Command([sys.executable, "-c", "raise SystemExit(4)"]))
    with pytest.raises(AgentError, match="exited with 4"):
        await run(agent, MemoryContext(), "x" * 2_000_000)


async def test_a_process_without_stdin() -> None:
    assert await run(speaker("closes_stdin"), MemoryContext()) == {"fine": True}


@pytest.mark.parametrize("argv", [["no-such-program"], ["nul\0"], [SPEAKER]])
async def test_what_cannot_be_started(argv: list[str]) -> None:
    with pytest.raises(AgentError, match="cannot start"):
        await run(Agents().register("x", Command(argv)), MemoryContext())


async def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="cannot start"):
        await run(speaker("echoes", cwd=tmp_path / "nowhere"), MemoryContext())


def test_what_is_no_command() -> None:
    bad: list[Any] = [[], "text", [1], [None]]
    for argv in bad:
        with pytest.raises(InvalidInput, match="list of strings"):
            Command(argv)
    with pytest.raises(InvalidInput, match="env"):
        Command(["x"], env={"A": 1})  # type: ignore[dict-item]


async def test_a_cancel_is_told(caplog: pytest.LogCaptureFixture) -> None:
    ctx = MemoryContext()
    with caplog.at_level(logging.INFO):
        task = start(speaker("obeys", grace=PATIENCE), ctx)
        await ctx.until("ready")
        ctx.action = "rollback"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert "told to stop: rollback" in caplog.text


async def test_who_does_not_stop_is_killed_with_its_children() -> None:
    ctx = MemoryContext()
    task = start(speaker("ignores", grace=0.05), ctx)
    await ctx.until("ready")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for pid in ctx.events[0][1]:
        await gone(pid)


async def test_a_cancel_met_in_the_middle_of_a_flood() -> None:
    ctx = MemoryContext()
    task = start(speaker("floods", grace=0.05), ctx)
    await ctx.until("custom")
    ctx.action = "interrupt"
    with pytest.raises(Cancelled):
        await task


async def test_who_is_cancelled_twice_ends_at_once() -> None:
    ctx = MemoryContext()
    task = start(speaker("ignores", grace=600.0), ctx)
    await ctx.until("ready")
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait({task})
    for pid in ctx.events[0][1]:
        await gone(pid)


async def test_what_a_process_leaves_behind_ends_with_it() -> None:
    answer = await run(speaker("leaves_child"), MemoryContext())
    await gone(answer["child"])
    answer = await run(speaker("lingers", grace=0.05), MemoryContext())
    await gone(answer["pid"])


async def test_nothing_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for way in ("talks", "fails", "garbage", "leaves_child"):
        await asyncio.gather(run(speaker(way), MemoryContext()), return_exceptions=True)
    assert len(os.listdir("/proc/self/fd")) <= before + 2
