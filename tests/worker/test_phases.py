"""Phases on a worker: the input of agents, their outputs, and their executions and sessions."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.support import until
from tests.server.native.support import housed
from tests.support.kinds import KINDS
from tests.worker import phase_agents

from perdure.agents.commands import Command, isolated
from perdure.client.run_queue import RemoteRunQueue
from perdure.eventlog.file_log import FileEventLog
from perdure.executions.model import ExecutionSeed, NewPhase, PhaseInput, PhaseOrder
from perdure.executions.records import ExecutionDetail
from perdure.executions.service import Executions
from perdure.kernel.errors import InvalidInput
from perdure.runs.queue import RunQueue
from perdure.runtime.phases import ThreadPhases
from perdure.runtime.stores import open_store
from perdure.sessions.envelopes import TOKENS
from perdure.sessions.service import Sessions
from perdure.threads.policy import Policy
from perdure.threads.service import Threads
from perdure.threads.work import MAX_OUTPUT
from perdure.worker.built_in import find_interpreter
from perdure.worker.options import WorkerOptions
from perdure.worker.phase import bounded, format_output
from perdure.worker.registry import Agents
from perdure.worker.session_writer import parse_stop_reason
from perdure.worker.worker import RunWorker

ROOT = Path(__file__).parents[2]
PI_COMMAND = Path(__file__).with_name("pi_command.py")
RUN_ID = "01a1e7ec-run"
AGENTS = ("describes", "fails_softly", "is_cut", "chats", "asks", "waits", "counts", "answers", "breaks")


class AsItIs:
    """Render the stored input unchanged."""

    async def render(self, ns: int, orders: Sequence[PhaseOrder]) -> list[PhaseInput]:
        return [PhaseInput(input=order.input) for order in orders]


def agents() -> Agents:
    made = Agents()
    for name in AGENTS:
        made.register(name, getattr(phase_agents, name))
    for way in ("whole", "dies"):
        made.register(f"pi-{way}", Command([sys.executable, str(PI_COMMAND), way]))
    made.register("isolated", isolated("tests.worker.phase_agents:describes", directory=ROOT))
    made.register("isolated-soft", isolated("tests.worker.phase_agents:fails_softly", directory=ROOT))

    @made.callable("add")
    def add(numbers: list[int]) -> int:
        return sum(numbers)

    @made.callable("where")
    async def where(ctx: Any, input: Any) -> str:
        return f"{ctx.phase.label}: {input}"

    return made


class Bench:
    """Database with a worker, whose phases are created by hand."""

    def __init__(self, storage: Any, folder: Path) -> None:
        self.threads = Threads(storage, KINDS, policy=Policy(timeout=20.0, lease=10.0, grace=5.0))
        log = FileEventLog(folder / "agent-sessions", sync=False)
        self.queue = RunQueue.beside(self.threads, log=log, inputs=AsItIs())
        self.phases = ThreadPhases(KINDS, self.threads.policy)
        self.executions = Executions(storage)
        self.sessions = Sessions(storage, log)
        self.folder = folder

    @property
    def workspace(self) -> Path:
        return self.folder / "workspaces" / RUN_ID

    async def create(self, agent: str, input: Any, **fields: Any) -> str:
        seed = ExecutionSeed(
            trigger_type="api", trigger_id="t", skill=f"w:{agent}", label="plan", workflow_run_id=RUN_ID
        )
        given: dict[str, Any] = {
            "parent": RUN_ID,
            "execution": seed,
            "input": json.dumps(input),
            "agent": agent,
        }
        (made,) = await self.queue.write(self.phases.create, [NewPhase(**(given | fields))])
        assert isinstance(made, str)
        return made

    async def run(self, agent: str, input: Any = None, **fields: Any) -> ExecutionDetail:
        """Execute a phase to its end, and return its execution."""
        await self.threads.join_run(await self.create(agent, input or {}, **fields), 30)
        return await self.latest()

    async def latest(self) -> ExecutionDetail:
        (last,) = (await self.executions.list(limit=1)).items
        return await self.executions.get(last.execution_id)

    async def lines(self, execution: ExecutionDetail) -> list[dict[str, Any]]:
        page = await self.sessions.lines(execution.session_id or "")
        return [json.loads(line) for line in page.items]


@asynccontextmanager
async def working(bench: Bench, queue: RunQueue | None = None, **options: Any) -> AsyncIterator[RunWorker]:
    given: dict[str, Any] = {"heartbeat": 5.0, "interval": 1.0, "concurrency": 4, "cancel_grace": 3.0}
    folder = str(bench.folder / "workspaces")
    worker = RunWorker(queue or bench.queue, agents(), WorkerOptions(workspaces=folder, **(given | options)))
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


@pytest.fixture
async def bench(engine_url: str, tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_store(engine_url) as store:
        yield Bench(store.storage, tmp_path)


# --- agents -----------------------------------------------------------------------------------------------

GIVEN = {
    "label": "plan",
    "iteration": 2,
    "prompt": "Plan it.",
    "previous_output": "before",
    "outputs": {"a": "1"},
}
TOLD = {"told": ["plan", 2, "Plan it.", "before", {"a": "1"}], "workspace": True}


async def check_description(bench: Bench, agent: str) -> None:
    done = await bench.run(agent, GIVEN)
    assert json.loads(done.output_text or "") == TOLD
    assert (done.success, done.stop_reason, done.turns, done.api_duration_ms) == (True, "success", 3, 40)
    assert (done.cost_usd, done.input_tokens, done.output_tokens) == (0.25, 5, 7)
    first, said, _, result = await bench.lines(done)
    assert (first["type"], first["message"]["content"]) == ("user", "Plan it.")
    assert said["cwd"] == str(bench.workspace)
    assert (result["type"], result["subtype"], result["total_cost_usd"]) == ("result", "success", 0.25)


async def test_an_agent_is_told_of_its_phase_and_what_it_took_is_in_its_execution(bench: Bench) -> None:
    async with working(bench):
        for agent in ("describes", "isolated"):
            await check_description(bench, agent)


async def test_phases_of_a_remote_worker_come_through_the_server(engine_url: str, tmp_path: Path) -> None:
    async with open_store(engine_url) as store, housed(store) as house:
        bench = Bench(store.storage, tmp_path)
        # These phases have no workflow run, whose definition the server would render.
        house.visitor.app.services.run_queue._inputs = AsItIs()
        async with working(bench, RemoteRunQueue(house.visitor.url)):
            await bench.threads.join_run(await bench.create("perdure.command", {"command": "echo hi"}), 30)
            done = await bench.latest()
            assert (done.success, done.output_text, done.stop_reason) == (True, "hi\n", "success")


async def test_outputs_and_stop_reasons_of_agents(bench: Bench) -> None:
    async with working(bench):
        for agent in ("fails_softly", "isolated-soft"):
            soft = await bench.run(agent)
            assert (soft.success, soft.stop_reason, soft.output_text) == (
                False,
                "error_truncated",
                "half of it",
            )
            assert soft.error == "AgentError: the answer was cut"
        cut = await bench.run("is_cut")
        assert (cut.success, cut.stop_reason, cut.output_text) == (False, "error_truncated", "half of it")
        chat = await bench.run("chats")
        assert (chat.output_text, chat.success) == ("hello", True)
        asked = await bench.run("asks")
        assert (asked.output_text, asked.success) == ("Really?", True)
        thread_id = (await bench.threads.get_run(asked.rollout_id or "")).thread_id
        seed = ExecutionSeed(trigger_type="api", trigger_id="t", skill="w:asks")
        new = NewPhase(input="{}", agent="asks", execution=seed, thread_id=thread_id, resume='"yes"')
        (again,) = await bench.queue.write(bench.phases.enter, [new])
        await bench.threads.join_run(str(again), 30)
        answered = await bench.latest()
        assert (answered.output_text, answered.session_id) == ("you said yes", asked.session_id)


async def test_totals_that_an_agent_states_win_over_the_sum_of_its_messages(bench: Bench) -> None:
    async with working(bench):
        done = await bench.run("counts", {"prompt": "Where is Rome?"})
        stated = (100, 50, 7, 3)
        assert _tokens(done) == stated
        assert done.turns == 2
        session = await bench.sessions.get(done.session_id or "")
        assert session.usage is not None
        assert (_tokens(session.usage), session.turns) == (stated, 2)
        *_, last = await bench.lines(done)
        assert last["subtype"] == "success"
        assert [last[f"total_{name}"] for name in TOKENS] == [*stated]
        # A message that the assistant has already written is not written again.
        page = await bench.sessions.messages(done.session_id or "")
        assert [each.role for each in page.items] == ["user", "assistant", "result", "result", "result"]


def _tokens(record: Any) -> tuple[int, ...]:
    return tuple(getattr(record, name) for name in TOKENS)


async def test_the_answer_of_a_function_is_said_by_the_assistant(bench: Bench) -> None:
    async with working(bench):
        done = await bench.run("answers", {"prompt": "Where is Rome?"})
        assert (done.output_text, done.turns) == ("Rome is in Italy.", 1)
        asked, said, result = await bench.lines(done)
        assert asked["message"]["content"] == "Where is Rome?"
        assert said["type"] == "assistant"
        assert said["message"]["content"] == [{"type": "text", "text": "Rome is in Italy."}]
        assert (result["type"], result["num_turns"]) == ("result", 1)
        assert (await bench.sessions.get(done.session_id or "")).turns == 1


async def test_an_error_is_a_message_of_its_session(bench: Bench) -> None:
    async with working(bench):
        failed = await bench.run("breaks", {"prompt": "Where is Rome?"})
        _, error, result = await bench.lines(failed)
        text = "no map of Rome"
        assert (error["type"], error["isApiErrorMessage"], error["error"]) == ("assistant", True, text)
        assert error["message"] == {"role": "assistant", "content": [{"type": "text", "text": text}]}
        assert result["is_error"]
        page = await bench.sessions.messages(failed.session_id or "")
        assert [(each.role, each.text, each.is_error) for each in page.items[1:2]] == [("system", text, True)]


async def test_events_of_pi_are_lines_of_the_session_of_their_phase(bench: Bench) -> None:
    async with working(bench):
        done = await bench.run("pi-whole", {"prompt": "Where is Rome?"})
        assert (done.session_id, done.turns, done.cost_usd) == ("pi-7", 2, 0.5)
        assert _tokens(done) == (100, 50, 7, 3)
        lines = await bench.lines(done)
        spoken = [line for line in lines if line["type"] != "system"]
        kinds = ["user", "assistant", "user", "assistant", "result"]
        assert [line["type"] for line in spoken] == kinds
        assert spoken[0]["message"]["content"] == "Where is Rome?"
        assert (spoken[-1]["num_turns"], spoken[-1]["stop_reason"]) == (2, "stop")
        assert "A tool knows." not in json.dumps(lines)
        (cut,) = spoken[2]["message"]["content"]
        assert cut["content"].endswith("…[truncated 4464 chars]")
        originals = [line for line in lines if "_perdure" in line]
        assert len(originals) == len(lines) - 1, "all but the prompt come from the program"
        page = await bench.sessions.lines("pi-7", original=True)
        events = [json.loads(line)["type"] for line in page.items]
        assert events == [
            *("session", "agent_start", "user", "message_end", "tool_execution_end"),
            *("message_end", "usage_snapshot"),
        ]
        session = await bench.sessions.get("pi-7")
        assert session.usage is not None
        assert (_tokens(session.usage), session.turns) == ((100, 50, 7, 3), 2)


async def test_the_session_of_a_tool_that_died_ends_with_the_error_and_its_totals(bench: Bench) -> None:
    async with working(bench):
        failed = await bench.run("pi-dies", {"prompt": "Where is Rome?"})
        assert (failed.success, failed.stop_reason, failed.input_tokens) == (False, "error_exit_3", 20)
        *_, error, result = await bench.lines(failed)
        assert error["isApiErrorMessage"]
        assert error["message"]["content"] == [{"type": "text", "text": error["error"]}]
        assert (result["subtype"], result["total_input_tokens"]) == ("error_exit_3", 20)
        session = await bench.sessions.get("pi-7")
        assert session.usage is not None
        assert (session.usage.input_tokens, session.turns) == (20, 1)


async def test_a_session_without_content_has_neither_answers_nor_errors(bench: Bench) -> None:
    async with working(bench, session_content=False):
        for agent in ("answers", "breaks"):
            done = await bench.run(agent, {"prompt": "Where is Rome?"})
            lines = await bench.lines(done)
            assert [line["type"] for line in lines] == ["user", "assistant", "result"]
            assert "Rome" not in json.dumps(lines)


async def test_a_phase_that_takes_too_long_or_is_cancelled_is_closed(bench: Bench) -> None:
    async with working(bench):
        late = await bench.run("waits", timeout_seconds=0.2)
        assert (late.success, late.stop_reason) == (False, "error_fatal")
        assert "longer than 0.2 s" in (late.error or "")
        last = (await bench.lines(late))[-1]
        assert (last["subtype"], last["is_error"]) == ("error_fatal", True)


# --- commands ---------------------------------------------------------------------------------------------


async def test_a_command_runs_in_the_workspace_without_secrets(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_API_KEY", "secret")
    command = (
        "pwd; cat kept 2>/dev/null; echo one > kept; echo $PERDURE_OUT_PLAN/$PERDURE_API_KEY/$PERDURE_PHASE"
    )
    given = {"command": command, "env": {"PERDURE_OUT_PLAN": "the plan"}, "label": "test"}
    async with working(bench):
        done = await bench.run("perdure.command", given)
        assert (done.output_text, done.success) == (f"{bench.workspace}\nthe plan//test\n", True)
        again = await bench.run("perdure.command", given)
        assert "one\n" in (again.output_text or "")
    assert oct(bench.workspace.stat().st_mode & 0o777) == "0o700"
    called, result, end = await bench.lines(done)
    assert called["message"]["content"][0]["input"] == {"command": command}
    assert result["message"]["content"][0]["content"] == done.output_text
    assert (end["subtype"], done.turns) == ("success", None)


async def test_a_command_that_fails_says_its_exit_code(bench: Bench) -> None:
    async with working(bench):
        done = await bench.run("perdure.command", {"command": "echo half; echo wrong >&2; exit 3"})
        assert (done.success, done.stop_reason, done.output_text) == (False, "error_exit_3", "half\n")
        assert done.error == "CommandFailed: the command exited with 3: wrong"
        killed = await bench.run("perdure.command", {"command": "kill -9 $$"})
        assert killed.stop_reason == "error_exit_137"
        empty = await bench.run("perdure.command", {"prompt": "no command"})
        assert (empty.success, empty.stop_reason) == (False, "error_fatal")
        assert empty.session_id is not None
        bad = await bench.run("perdure.command", {"command": "true", "env": {"A B": "x"}})
        assert "cannot be a variable" in (bad.error or "")


async def test_a_command_is_killed_with_its_children(bench: Bench) -> None:
    command = "sleep 300 & echo $! > child; echo begun; wait"
    async with working(bench):
        done = await bench.run("perdure.command", {"command": command}, timeout_seconds=2.0)
        assert (done.success, done.stop_reason) == (False, "error_fatal")
        child = int((bench.workspace / "child").read_text())
        assert await _is_gone(child)
        left = await bench.run("perdure.command", {"command": "sleep 300 & echo $! > child; echo done"})
        assert (left.success, left.output_text) == (True, "done\n")
        assert await _is_gone(int((bench.workspace / "child").read_text()))


async def _is_gone(pid: int) -> bool:
    await until(lambda: _is_zombie(pid))
    return True


def _is_zombie(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or " Z " in status.read_text()


async def test_a_long_output_keeps_its_beginning_and_its_end(bench: Bench) -> None:
    script = "import sys; sys.stdout.write('first' + 'x' * 3_000_000 + 'last')"
    async with working(bench):
        done = await bench.run("perdure.script", {"script": script, "runtime": "python"})
        text = done.output_text or ""
        assert (text[:5], text[-4:], "…[truncated " in text) == ("first", "last", True)
        assert len(text.encode()) <= MAX_OUTPUT


async def test_scripts_name_their_runtime(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async with working(bench):
        done = await bench.run("perdure.script", {"script": "echo $PERDURE_ITERATION", "iteration": 4})
        assert done.output_text == "4\n"
        unknown = await bench.run("perdure.script", {"script": "x", "runtime": "cobol"})
        assert "there is no runtime 'cobol'; there are python, js, ts, sh" in (unknown.error or "")
    assert find_interpreter("python") == ([sys.executable], ".py")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(Exception, match="a ts script needs bun or deno or tsx or ts-node, which this worker"):
        find_interpreter("ts")


async def test_a_check_has_run_whatever_it_says(bench: Bench) -> None:
    async with working(bench):
        met = await bench.run("perdure.check", {"command": "true"})
        assert (met.success, met.stop_reason, met.output_text) == (True, "condition_met", "$ true\n")
        red = await bench.run("perdure.check", {"command": "echo not yet; false"})
        assert (red.success, red.stop_reason) == (True, "condition_not_met")
        assert red.output_text == "$ echo not yet; false\nnot yet\n"
        late = await bench.run("perdure.check", {"command": "sleep 60", "timeout_seconds": 0.2})
        assert (late.success, late.stop_reason) == (False, "error_fatal")


async def test_callables_are_those_that_code_has_registered(bench: Bench) -> None:
    async with working(bench):
        added = await bench.run("perdure.callable", {"callable": "add", "input": [1, 2]})
        assert (added.output_text, added.success) == ("3", True)
        where = await bench.run("perdure.callable", {"callable": "where", "input": "x", "label": "plan"})
        assert where.output_text == "plan: x"
        missing = await bench.run("perdure.callable", {"callable": "os.system", "input": "id"})
        assert "this worker has no callable 'os.system'; it has add, where" in (missing.error or "")


class _Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(500 if self.path == "/broken" else 429 if self.path == "/busy" else 200)
        self.end_headers()
        self.wfile.write(b"got " + body)

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    await asyncio.to_thread(server.shutdown)
    server.server_close()


async def test_requests_go_where_webhooks_may(bench: Bench, address: str) -> None:
    async with working(bench):
        refused = await bench.run("perdure.http", {"url": address + "/x", "method": "POST"})
        assert (refused.success, "not a public address" in (refused.error or "")) == (False, True)
    async with working(bench, http_allow_private=True):
        done = await bench.run("perdure.http", {"url": address, "method": "post", "body": {"a": 1}})
        assert (done.success, done.output_text) == (True, 'got {"a":1}')
        broken = await bench.run("perdure.http", {"url": address + "/broken", "method": "POST"})
        assert (broken.stop_reason, broken.output_text) == ("error_tool", "got ")
        busy = await bench.run("perdure.http", {"url": address + "/busy", "method": "POST"})
        assert busy.stop_reason == "error_quota"
        wrong = await bench.run("perdure.http", {"url": address, "headers": {"A": "b\r\nc: d"}})
        assert "cannot be a header" in (wrong.error or "")


# --- rules ------------------------------------------------------------------------------------------------


def test_what_an_output_is() -> None:
    assert format_output(None) == ""
    assert format_output("text") == "text"
    assert format_output({"output": {"a": 1}}) == '{"a":1}'
    blocks = [{"type": "text", "text": "a"}, {"type": "tool_use"}, {"type": "text", "text": "b"}]
    assert (
        format_output({"messages": [{"type": "ai", "content": blocks}, {"type": "human", "content": "x"}]})
        == "a\nb"
    )
    assert format_output([1, 2]) == "[1,2]"
    assert bounded("a\0b") == "a\N{REPLACEMENT CHARACTER}b"
    long = bounded("ü" * MAX_OUTPUT)
    assert len(long.encode()) <= MAX_OUTPUT
    assert long.endswith(" chars]")


def test_what_stop_reasons_mean() -> None:
    told = ("end_turn", "max_tokens", "error_max_turns", "error_quota", "error_exit_7", "whatever", None)
    assert [parse_stop_reason(each) for each in told] == [
        "success",
        "error_truncated",
        "error_truncated",
        "error_quota",
        "error_exit_7",
        None,
        None,
    ]


def test_names_of_built_in_agents_are_reserved() -> None:
    with pytest.raises(InvalidInput, match="built-in"):
        Agents().register("perdure.command", phase_agents.chats)
