"""Sessions of agents: in this process, in their own process, as a command, and behind a server."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.server.native.support import Worker as Claimer
from tests.server.native.support import housed
from tests.worker import session_graphs
from tests.worker.session_agents import LONG, elsewhere, talker
from tests.worker.worker_support import House

from perdure import Perdure
from perdure.agents.commands import Command, isolated
from perdure.agents.context import Retriable
from perdure.client.run_queue import RemoteRunQueue
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import Fenced, InvalidInput, OutcomeUnknown, StorageUnavailable
from perdure.runtime.stores import open_store
from perdure.sessions.service import Sessions
from perdure.threads.records import Run, RunRequest
from perdure.threads.work import Lease, SessionLines
from perdure.worker.options import WorkerOptions
from perdure.worker.registry import Agents
from perdure.worker.worker import RunWorker

ROOT = Path(__file__).parents[2]
INPUT = {"text": "Where is Rome?"}
SCRIPT = Path(__file__).with_name("session_command.py")

Runs = Callable[..., Any]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/runs.db"
    return str(request.getfixturevalue("database_url"))


def command(way: str) -> Command:
    return Command([sys.executable, str(SCRIPT), way])


def agents() -> Agents:
    made = Agents()
    made.register("talker", talker)
    made.register("elsewhere", elsewhere)
    for way in ("talker", "elsewhere"):
        made.register(f"isolated-{way}", isolated(f"tests.worker.session_agents:{way}", directory=ROOT))
    made.register("command-talker", command("talker"))
    return made


@asynccontextmanager
async def local(url: str, made: Agents, **options: Any) -> AsyncIterator[tuple[Runs, Sessions]]:
    async with Perdure(url, agents=made, **options) as perdure:

        async def run(name: str, input: Any = None, **more: Any) -> Run:
            return (await perdure.run(name, input, **more)).run

        yield run, perdure.sessions


@asynccontextmanager
async def remote(url: str, made: Agents) -> AsyncIterator[tuple[Runs, Sessions]]:
    async with open_store(url) as store, housed(store) as house:
        worker = RunWorker(
            RemoteRunQueue(house.visitor.url), made, WorkerOptions(heartbeat=5.0, interval=1.0)
        )
        await worker.start()

        async def run(name: str, input: Any = None, **more: Any) -> Run:
            asked = RunRequest(assistant_id=name, input=input, **more)
            created = await house.client.create_run(asked)
            return (await house.client.join_run(created.run_id)).run

        try:
            yield run, house.client.sessions
        finally:
            await worker.stop()


async def check_talk(run: Runs, sessions: Sessions, agent: str) -> None:
    """Execute a run on a thread, and check its session."""
    thread = {"thread_id": f"thread-{agent}", "if_not_exists": "create"}
    ended: Run = await run(agent, INPUT, **thread)
    session_id = f"thread-{agent}"
    assert (ended.status, ended.session_id) == ("success", session_id)
    session = await sessions.get(session_id)
    assert (session.kind, session.messages, session.tool_calls, session.turns) == ("chat", 6, 1, 2)
    assert (session.first_message, session.last_message) == ("Where is Rome?", "In Italy.")
    assert session.usage is not None
    assert (session.usage.cost_usd, session.usage.input_tokens, session.model) == (0.25, 5, "m-1")
    page = await sessions.messages(session_id)
    asked, called, cut, failed, said, result = page.items
    assert {each.run_id for each in page.items} == {ended.run_id}
    assert [each.role for each in (asked, called, cut, failed, said, result)] == [
        *("user", "assistant", "tool", "tool", "assistant", "result")
    ]
    assert [(each.id, each.name, each.input) for each in called.tool_calls] == [
        ("t-1", "search", {"q": "Rome"})
    ]
    assert cut.text == "x" * 65_536 + f"\n…[truncated {LONG - 65_536} chars]"
    assert cut.blob is not None
    assert (await sessions.blob(session_id, cut.blob)).content == "x" * LONG
    assert (failed.text, failed.is_error, failed.blob) == ('{"no":"such tool"}', True, None)
    lines = [json.loads(line) for line in (await sessions.lines(session_id)).items]
    assert {line["sessionId"] for line in lines} == {session_id}
    assert all(line["timestamp"].endswith("Z") for line in lines)
    del lines[-1]["timestamp"]
    assert lines[-1] == {
        "type": "result",
        "subtype": "success",
        "num_turns": 2,
        "total_input_tokens": 5,
        "total_output_tokens": 7,
        "total_cost_usd": 0.25,
        "stop_reason": "end_turn",
        "sessionId": session_id,
        "runId": ended.run_id,
    }


async def test_what_agents_say_is_in_their_session(url: str) -> None:
    async with local(url, agents()) as (run, sessions):
        for agent in ("talker", "isolated-talker", "command-talker"):
            await check_talk(run, sessions, agent)
        # A second run on the thread continues its session, and its cost is added.
        again = await run("talker", INPUT, thread_id="thread-talker")
        session = await sessions.get(again.session_id)
        assert (again.session_id, session.messages) == ("thread-talker", 12)
        assert session.usage is not None
        assert session.usage.cost_usd == 0.5
        # A run without a thread gets one, whose id its session has. If that thread is deleted at the end, the
        # session has the id of the run. A thread id with other characters is changed to a valid session id.
        threadless = await run("talker", INPUT)
        assert threadless.session_id == threadless.thread_id
        deleted = await run("talker", INPUT, on_completion="delete")
        assert deleted.session_id == deleted.run_id
        odd = await run("talker", INPUT, thread_id="a thread/№ 1", if_not_exists="create")
        assert odd.session_id.startswith("a-thread---1-")
        assert (await sessions.get(odd.session_id)).messages == 6


async def test_what_agents_of_a_remote_worker_say_comes_through_the_server(url: str) -> None:
    async with remote(url, agents()) as (run, sessions):
        for agent in ("talker", "isolated-talker"):
            await check_talk(run, sessions, agent)


async def test_an_agent_names_its_session_and_directory(url: str) -> None:
    async with local(url, agents()) as (run, sessions):
        for agent in ("elsewhere", "isolated-elsewhere"):
            thread = {"thread_id": f"thread-{agent}", "if_not_exists": "create"}
            ended = await run(agent, **thread)
            assert (ended.status, ended.session_id) == ("success", "review-7")
        assert (await sessions.get("thread-elsewhere")).messages == 1
        there = await sessions.get("review-7")
        assert (there.project, there.cwd, there.messages) == ("-srv-shop", "/srv/shop", 2)


async def test_a_batch_that_is_sent_twice_is_written_once_and_a_late_one_is_fenced(url: str) -> None:
    async with open_store(url) as store, housed(store) as house:
        run = await house.run(thread_id="t", if_not_exists="create")
        claimed = await house.worker.claim()
        queue = RemoteRunQueue(house.visitor.url)
        lines = ['{"n":1}', '{"n":2}']
        batch = SessionLines(claimed.held, "s", "-app", lines, 1)
        (first,) = await queue.log_all([batch])
        (second,) = await queue.log_all([batch])
        assert first == second
        overlapping = SessionLines(claimed.held, "s", "-app", ['{"n":2}', '{"n":3}'], 2)
        other = Claimer(house.worker.queue, "worker-2")
        mistaken = SessionLines(Lease("x", "t", claimed.held.attempt_id), "s", "-app", lines, 4)
        (third, refused) = await queue.log_all([overlapping, mistaken])
        assert isinstance(third, int)
        assert isinstance(refused, Fenced)
        assert (await house.client.sessions.lines("s")).items == ['{"n":1}', '{"n":2}', '{"n":3}']
        assert (await house.client.get_run(run.run_id)).session_id == "s"
        for bad in (
            SessionLines(claimed.held, "../s", "-app", lines, 4),
            SessionLines(claimed.held, "s", "..", lines, 4),
            SessionLines(claimed.held, "s", "-app", ["{no json}"], 4),
        ):
            with pytest.raises(InvalidInput):
                await queue.log_all([bad])
        (broken,) = await queue.log_all([SessionLines(claimed.held, "s", "-app", ['{"a":\n1}'], 4)])
        assert isinstance(broken, InvalidInput)
        # A cancelled attempt may write lines until it confirms the stop.
        await house.client.cancel_run(run.run_id, wait=False)
        (last,) = await queue.log_all([SessionLines(claimed.held, "s", "-app", ['{"n":4}'], 4)])
        assert isinstance(last, int)
        await other.queue.hand_back([claimed.held])
        (late,) = await queue.log_all([SessionLines(claimed.held, "s", "-app", ['{"n":5}'], 5)])
        assert isinstance(late, Fenced)
        assert len((await house.client.sessions.lines("s")).items) == 4
        await queue.close()


async def test_messages_of_a_graph_are_written_by_themselves(url: str) -> None:
    made = Agents()
    made.register("graph", session_graphs.builder)
    made.register("isolated-graph", isolated("tests.worker.session_graphs:builder", directory=ROOT))
    asked = {"messages": [{"role": "user", "content": "Where is Rome?"}]}
    async with local(url, made) as (run, sessions):
        for agent in ("graph", "isolated-graph"):
            thread = {"thread_id": f"thread-{agent}", "if_not_exists": "create"}
            for times in (1, 2):
                # The second run writes only the messages that it adds.
                ended = await run(agent, asked, **thread)
                assert (ended.status, ended.session_id) == ("success", f"thread-{agent}")
                page = await sessions.messages(f"thread-{agent}")
                assert len(page.items) == 4 * times
            question, called, found, answer = page.items[4:]
            assert (question.role, question.text) == ("user", "Where is Rome?")
            assert (called.role, called.text, called.model) == ("assistant", "I look.", "m-1")
            assert [(each.id, each.input) for each in called.tool_calls] == [("t-1", {"q": "Rome"})]
            assert called.usage is not None
            assert (called.usage.input_tokens, called.usage.cache_read_input_tokens) == (5, 7)
            assert (found.role, found.text, found.is_error) == ("tool", "Rome: Italy", True)
            assert answer.text == "In Italy."


# --- without a database -----------------------------------------------------------------------------------


@pytest.fixture
def house() -> House:
    return House()


def logged(house: House) -> list[Any]:
    """Return the lines that reached the queue, in order and without repetitions."""
    batches = [batch for name, batch in house.queue.calls if name == "log_all"]
    numbered = {number: line for batch in batches for number, line in enumerate(batch.lines, batch.first)}
    assert list(numbered) == list(range(1, len(numbered) + 1))
    return [decode_json(line) for line in numbered.values()]


async def test_a_flood_travels_in_batches_and_in_order(house: House) -> None:
    @house.agents.agent("flood")
    async def flood(ctx: Any, input: Any) -> None:
        for number in range(5000):
            await ctx.message("user", str(number))

    async with house.working():
        await house.queue.ended(house.queue.add("flood"))
    assert [line["message"]["content"] for line in logged(house)] == [str(number) for number in range(5000)]
    assert len([1 for name, _ in house.queue.calls if name == "log_all"]) < 500


async def test_lost_answers_and_outages_lose_and_double_nothing(house: House) -> None:
    @house.agents.agent("speaker")
    async def speaker(ctx: Any, input: Any) -> None:
        await ctx.message("user", "one")
        await ctx.message("user", "two")

    house.queue.faults["log_all"] = [StorageUnavailable("away"), OutcomeUnknown("who knows")]
    async with house.working():
        row = await house.queue.ended(house.queue.add("speaker"))
    assert row.run.status == "success"
    assert [line["message"]["content"] for line in logged(house)] == ["one", "two"]


async def test_a_log_that_cannot_be_written_fails_no_run(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    @house.agents.agent("speaker")
    async def speaker(ctx: Any, input: Any) -> str:
        await ctx.message("user", "one")
        return "done"

    house.queue.faults["log_all"] = [InvalidInput("not like that")]
    async with house.working():
        row = await house.queue.ended(house.queue.add("speaker"))
    assert row.run.status == "success"
    assert "1 lines of session" in caplog.text


async def test_a_retry_says_which_attempt_it_is_and_a_step_speaks_once(house: House) -> None:
    @house.agents.agent("again")
    async def again(ctx: Any, input: Any) -> None:
        await ctx.step("greet", lambda: ctx.message("user", "hello"))
        await ctx.message("assistant", f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise Retriable(after=0)

    async with house.working():
        await house.queue.ended(house.queue.add("again"))
    said = [
        (each.get("attempt"), each["message"]["content"])
        for name, batch in house.queue.calls
        if name == "log_all"
        for each in map(decode_json, batch.lines)
    ]
    text = {"type": "text"}
    assert said == [
        (None, "hello"),
        (None, [{**text, "text": "attempt 1"}]),
        (2, [{**text, "text": "attempt 2"}]),
    ]


async def test_settings_leave_out_content_or_everything(house: House) -> None:
    house.agents.register("talker", talker)
    async with house.working(session_content=False):
        await house.queue.ended(house.queue.add("talker", INPUT))
    lines = logged(house)
    assert "Rome" not in json.dumps(lines)
    assert "Italy" not in json.dumps(lines)
    assert [line["type"] for line in lines] == [*("user", "assistant", "user", "user", "assistant", "result")]
    _, call = lines[1]["message"]["content"]
    assert call == {"type": "tool_use", "id": "t-1", "name": "search", "input": {}}
    assert lines[1]["message"]["usage"] == {"input_tokens": 5, "output_tokens": 7}
    house.queue.calls.clear()
    async with house.working(session_log=False):
        row = await house.queue.ended(house.queue.add("talker", INPUT))
    assert (row.run.status, logged(house)) == ("success", [])


async def test_mistakes_are_told_to_the_agent(house: House) -> None:
    refused: list[str] = []

    @house.agents.agent("mistaken")
    async def mistaken(ctx: Any, input: Any) -> None:
        mistakes: tuple[Callable[[], Any], ...] = (
            lambda: ctx.message("tool", "x"),
            lambda: ctx.message("user", 7),
            lambda: ctx.message("assistant", [{"no": "type"}]),
            lambda: ctx.message("assistant", "x", usage={"input_tokens": -1}),
            lambda: ctx.tool_result("", "x"),
            lambda: ctx.usage(),
            lambda: ctx.usage(cost_usd=-1),
            lambda: ctx.usage(cost_usd=float("nan")),
            lambda: ctx.usage(tokens=3),
            lambda: ctx.session("../up"),
            lambda: ctx.session("x", cwd="a\0b"),
        )
        for attempt in mistakes:
            try:
                await attempt()
            except InvalidInput as error:
                refused.append(error.message)

    async with house.working():
        row = await house.queue.ended(house.queue.add("mistaken"))
    assert (row.run.status, len(refused), logged(house)) == ("success", 11, [])


async def test_what_a_cancelled_agent_said_is_logged(house: House) -> None:
    @house.agents.agent("waits")
    async def waits(ctx: Any, input: Any) -> None:
        await ctx.message("user", "last words")
        house.begun.set()
        await asyncio.Event().wait()

    async with house.working():
        run_id = house.queue.add("waits")
        await house.began()
        house.queue.cancel(run_id)
        await house.queue.ended(run_id)
    assert [line["message"]["content"] for line in logged(house)] == ["last words"]
