"""`perdure demo` on a terminal and in a script."""

import asyncio
import json
import logging
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from perdure import open_store
from perdure.cli.commands.spans import span_duration
from perdure.cli.demo import play as demo
from perdure.cli.demo.agents import CONFIG, DemoPlan

from .command import COLOR, Terminal, new_perdure, perdure, run_here, start

FEW = ("--rollouts", "3")


def assert_tells_the_story(text: str) -> None:
    assert "stops sending heartbeats during ro-" in text
    assert "the watchdog got no heartbeat for 1 s" in text
    assert re.search(r"of 3 rollouts succeeded.* \d+ attempts, \d+ of them retries", text)
    assert re.search(r"attempt 1 by worker-\d: unresponsive", text)
    assert re.search(r"└── attempt \d by worker-\d: (succeeded|failed), in \d", text)
    assert re.search(r"invoke_agent trivia  [\d.]+ m?s", text)
    assert re.search(r"├── chat gpt-4o-mini  [\d.]+ m?s  (\d+ in, )?\d+ out", text)
    assert "Memory, asked 'what did the agents do today':" in text
    assert re.search(r"The agent of worker-\d (answered|could not answer)", text)
    assert re.search(r"events: [0-9A-Z]{26}", text)
    assert "From Python:  store = perdure.open_store(" in text


def test_without_a_terminal_it_prints_plain_lines(tmp_path: Path) -> None:
    ended = perdure(tmp_path, "demo", *FEW)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\x1b" not in ended.stdout
    assert re.search(
        r"^ +\d\.\d s  queued \d, running \d, succeeded \d, failed \d", ended.stdout, re.MULTILINE
    )
    assert_tells_the_story(ended.stdout)


@pytest.mark.parametrize(
    ("arguments", "more", "colored"),
    [((), {}, True), (("--no-color",), {}, False), ((), {"NO_COLOR": "1"}, False)],
    ids=["colors", "--no-color", "NO_COLOR"],
)
def test_on_a_terminal_it_draws_a_table(
    tmp_path: Path, arguments: tuple[str, ...], more: Mapping[str, str], colored: bool
) -> None:
    terminal = Terminal(tmp_path, "demo", *FEW, *arguments, more=more)
    assert terminal.end() == 0
    assert bool(COLOR.search(terminal.output)) is colored
    assert re.search(r"worker-1 +(busy|idle|unknown)", terminal.text)
    assert re.search(r"queued \d+ +running \d+ +succeeded \d+ +failed \d+ +retries \d+", terminal.text)
    assert_tells_the_story(terminal.text)
    assert_cursor_is_shown(terminal)


def test_on_a_terminal_that_cannot_move_it_prints_lines(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "demo", *FEW, more={"TERM": "dumb"})
    assert terminal.end() == 0
    assert "\x1b" not in terminal.output
    assert_tells_the_story(terminal.text)


def test_on_a_narrow_terminal_it_still_works(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "demo", *FEW, columns=30)
    assert terminal.end() == 0


def assert_cursor_is_shown(terminal: Terminal) -> None:
    assert terminal.output.rfind("\x1b[?25h") > terminal.output.rfind("\x1b[?25l")


def test_a_terminal_without_unicode_gets_other_characters(tmp_path: Path) -> None:
    ended = new_perdure(tmp_path, "demo", *FEW, more={"PYTHONIOENCODING": "ascii"})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.isascii()


async def assert_holds_what_the_demo_said(document: dict[str, Any], url: str) -> None:
    async with open_store(url, namespace=document["namespace"]) as store:
        assert (await store.statistics())["total_attempts"] == document["statistics"]["total_attempts"]
        rollout = document["trace"]["rollout"]
        stored = await store.get_rollout_by_id(rollout["rollout_id"])
        assert stored is not None
        assert stored.model_dump(mode="json") == rollout
        spans = await store.query_spans(rollout["rollout_id"])
        assert [span.model_dump(mode="json") for span in spans] == document["trace"]["spans"]


def assert_is_whole(document: dict[str, Any]) -> None:
    rollouts, trace = document["rollouts"], document["trace"]
    assert rollouts["total"] == rollouts["succeeded"] + rollouts["failed"]
    assert document["statistics"]["total_attempts"] == rollouts["total"] + rollouts["retries"]
    assert sum(worker["silent"] for worker in document["workers"]) == 1
    assert trace["attempts"][0]["status"] == "unresponsive"
    assert len(trace["attempts"]) > 1
    by_id = {span["span_id"]: span for span in trace["spans"]}
    parents = {by_id[span["parent_id"]]["name"] for span in trace["spans"] if span["parent_id"] in by_id}
    assert parents == {"invoke_agent trivia"}


async def test_json_is_one_document_about_a_file_that_stays(tmp_path: Path) -> None:
    ended = perdure(tmp_path, "demo", "--json", "--rollouts", "6", "--seed", "5")
    assert (ended.returncode, ended.stderr) == (0, "")
    document = json.loads(ended.stdout)
    assert_is_whole(document)
    assert (document["seed"], document["rollouts"]["total"]) == (5, 6)
    assert (document["namespace"], urlsplit(document["database"]).scheme) == ("default", "sqlite")
    assert str(tmp_path) in document["database"]
    await assert_holds_what_the_demo_said(document, document["database"])


def test_json_on_a_terminal_is_json_too(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "demo", "--json", *FEW)
    assert terminal.end() == 0
    assert terminal.output.startswith("{"), terminal.output
    assert_is_whole(json.loads(terminal.output))


def test_a_warning_stays_out_of_what_the_demo_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example the warning of a clock change, which may come at any moment."""
    log, play = logging.getLogger("perdure.kernel.storage"), demo.play

    async def warning_play(*arguments: Any) -> demo.DemoReport:
        log.warning("the clock was set")
        log.error("the disk is full")
        return await play(*arguments)

    monkeypatch.setattr(demo, "play", warning_play)
    # Remove pytest's handlers, as in a process of the command.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    ended = run_here(tmp_path, "demo", "--json", "--rollouts", "1", "--database", "memory:")
    assert (ended.returncode, ended.stderr) == (0, "the disk is full\n")
    assert_is_whole(json.loads(ended.stdout))


async def test_on_postgresql_in_a_namespace_of_its_own(tmp_path: Path, database_url: str) -> None:
    ended = perdure(tmp_path, "demo", "--json", *FEW, "--database", database_url)
    assert (ended.returncode, ended.stderr) == (0, "")
    document = json.loads(ended.stdout)
    assert_is_whole(document)
    assert document["namespace"].startswith("demo-")
    password = urlsplit(database_url).password
    assert password is None or password not in ended.stdout
    await assert_holds_what_the_demo_said(document, database_url)
    async with open_store(database_url) as store:
        assert (await store.query_rollouts()).total == 0


def test_in_memory_it_says_that_nothing_stays(tmp_path: Path) -> None:
    ended = perdure(tmp_path, "demo", "--rollouts", "1", "--database", "memory:")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "The database was in memory and is gone" in ended.stdout
    assert list(tmp_path.iterdir()) == []


async def assert_kept(tmp_path: Path, output: str) -> None:
    path = re.search(r"Stopped\. The data is in (\S+demo\.db)", output)
    assert path is not None, output
    assert Path(path[1]).is_relative_to(tmp_path)
    async with open_store(path[1]) as store:
        assert (await store.query_rollouts()).total == 24


async def test_ctrl_c_on_a_terminal_ends_it_cleanly(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "demo", columns=300)
    terminal.read_until("worker-1")
    terminal.press_ctrl_c()
    assert terminal.end() == 130
    assert "Traceback" not in terminal.output
    assert_cursor_is_shown(terminal)
    await assert_kept(tmp_path, terminal.text)


def test_an_interrupt_without_a_terminal_ends_it_cleanly(tmp_path: Path) -> None:
    process = start(tmp_path, "demo", more={"PYTHONUNBUFFERED": "1"})
    with process:
        assert process.stdout is not None
        while not re.search(r"enqueued \d+ rollouts", process.stdout.readline()):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
    assert (process.returncode, errors) == (130, "")
    asyncio.run(assert_kept(tmp_path, output))


def test_a_seed_decides_what_fails() -> None:
    def fates(seed: int) -> list[float]:
        plan = DemoPlan(rollouts=24, seed=seed)
        return [plan.chance(number, attempt).random() for number in range(24) for attempt in (1, 2, 3)]

    assert fates(1) == fates(1)
    assert fates(1) != fates(2)


@pytest.mark.parametrize("rollouts", [1, 2, 3, 24, 10_000])
def test_exactly_one_attempt_falls_silent(rollouts: int) -> None:
    plan = DemoPlan(rollouts=rollouts, seed=1)
    attempts = [(number, attempt) for number in range(rollouts) for attempt in (1, 2, 3)]
    assert sum(plan.falls_silent(*each) for each in attempts) == 1
    assert len(plan.inputs()) == rollouts


def test_durations_have_a_unit_that_suits_them() -> None:
    assert [span_duration(seconds) for seconds in (0.0012, 0.5, 1.0, 75.5)] == [
        "1 ms",
        "500 ms",
        "1.00 s",
        "75.50 s",
    ]


def test_silence_is_retried() -> None:
    assert CONFIG.unresponsive_seconds is not None
    assert "unresponsive" in CONFIG.retry_condition
