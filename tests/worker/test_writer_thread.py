"""The writer thread of SQLite encodes and decodes no JSON: an operation delays every other caller.

The profiler of that thread records each call of a JSON function, whatever it is called by.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import BuiltinFunctionType, FrameType
from typing import Any

import msgspec
import pytest
from langgraph.graph import START, StateGraph
from tests.kernel.support import until_true
from tests.worker.graph_agents import Graphs
from typing_extensions import TypedDict

from perdure.embedding.perdure import Perdure
from perdure.kernel.storage import dialect
from perdure.rollouts.records import EnqueueRolloutRequest

WRITER = "perdure-writer"
CODECS = (msgspec.json.Encoder, msgspec.json.Decoder)
FUNCTIONS = frozenset({msgspec.json.encode, msgspec.json.decode})
PYTHON_FUNCTIONS = frozenset({json.dumps.__code__, json.loads.__code__})
LISTS = dialect.__file__
"""SQLite takes a list of keys as JSON: the driver binds parameters where the statement runs."""
LISTS_IN_PIECES = {
    "decode_ranges": "where a log has the items of a list, which only its locked row says",
    "ranges_text": "the same for the next version, whose items follow those of the log",
}
PHASES = {
    "limits_of_phase": "limits of a phase, built from a locked node; cached, so once for each set of limits",
    "text": "input of a phase, built from a locked node",
}
"""Functions that the start of a phase needs, with the reasons."""
WORKFLOW = """
name: build
phases:
  - {name: make, type: command, command: echo 1}
  - {name: test, type: command, command: echo 2}
"""


class Answer(TypedDict, total=False):
    answer: str


class WriterTrace:
    """JSON calls in the writer thread, each as the names of its callers, the nearest first."""

    def __init__(self) -> None:
        self._calls: list[list[str]] = []
        self.other = 0
        """Number of other calls, to show that the thread is traced."""

    def _trace(self, frame: FrameType, event: str, argument: Any) -> None:
        if threading.current_thread().name != WRITER:
            sys.setprofile(None)
        elif event == "c_call" and _is_json(argument):
            self._add(frame)
        elif event == "call" and frame.f_code in PYTHON_FUNCTIONS:
            self._add(frame.f_back)
        else:
            self.other += 1

    def _add(self, frame: FrameType | None) -> None:
        if frame is None or frame.f_code.co_filename == LISTS:
            return
        callers: list[str] = []
        while frame is not None:
            callers.append(frame.f_code.co_name)
            frame = frame.f_back
        self._calls.append(callers)

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace the writer threads that start in the block."""
        threading.setprofile(self._trace)
        try:
            yield
        finally:
            threading.setprofile(None)

    def take(self) -> list[list[str]]:
        """Return the calls since the last time."""
        assert self.other > 0
        calls, self._calls, self.other = self._calls, [], 0
        return calls


def _is_json(function: Any) -> bool:
    return isinstance(function, BuiltinFunctionType) and (
        function in FUNCTIONS or isinstance(function.__self__, CODECS)
    )


@pytest.fixture
def trace() -> Iterator[WriterTrace]:
    trace = WriterTrace()
    with trace.tracing():
        yield trace


async def _plain(ctx: Any, input: Any) -> Any:
    async def one() -> Any:
        return {"a": 1}

    await ctx.emit({"n": await ctx.step("one", one)})
    return {"b": 2}


def _build_no_op() -> Any:
    builder: Any = StateGraph(Answer)
    builder.add_node("nothing", lambda state: {"answer": "x"})
    builder.add_edge(START, "nothing")
    return builder


@pytest.fixture
async def perdure(trace: WriterTrace, tmp_path: Path) -> AsyncIterator[Perdure]:
    agents = Graphs().agents
    agents.register("plain", _plain)
    agents.register("nothing", _build_no_op())
    folder = tmp_path / "workflows"
    folder.mkdir()
    (folder / "build.yaml").write_text(WORKFLOW)
    async with Perdure(str(tmp_path / "p.db"), agents=agents, workflow_dir=str(folder)) as opened:
        # The agents are registered by then.
        await opened.run("plain")
        trace.take()
        yield opened


def test_the_trace_sees_json(trace: WriterTrace) -> None:
    def write() -> None:
        decoder = msgspec.json.Decoder(list[int])
        decoder.decode(json.dumps(msgspec.json.decode(msgspec.json.encode([1]))))

    thread = threading.Thread(target=write, name=WRITER)
    thread.start()
    thread.join()
    assert [callers[0] for callers in trace.take()] == ["write"] * 4


# Inherited metadata is merged in the transaction (ADR 34).
@pytest.mark.parametrize("inherits", [False, True])
async def test_a_run_of_a_graph(perdure: Perdure, trace: WriterTrace, inherits: bool) -> None:
    thread = (await perdure.threads.create_thread(metadata={"a": 1})).thread_id
    assert trace.take() == []
    for number in range(3):
        metadata = {"run": number, "text": "x" * 300}
        stream = perdure.stream(
            "nothing", {"answer": ""}, thread_id=thread, metadata=metadata, inherit_metadata=inherits
        )
        events = [event.event async for event in stream]
        calls = [callers for callers in trace.take() if "inherit" not in callers]
        assert (events[-1], calls) == ("end", [])
    inherited = (await perdure.threads.list_thread_runs(thread))[0].metadata
    assert ("a" in inherited, "graph_id" in inherited) == (inherits, inherits)


@pytest.mark.parametrize("options", [{}, {"thread_id": "new", "if_not_exists": "create"}])
async def test_a_run_of_a_graph_on_a_new_thread(
    perdure: Perdure, trace: WriterTrace, options: dict[str, Any]
) -> None:
    stream = perdure.stream("nothing", {"answer": ""}, metadata={"c": 1}, **options)
    events = [event.event async for event in stream]
    assert (events[-1], trace.take()) == ("end", [])


async def test_a_list_that_grows(perdure: Perdure, trace: WriterTrace) -> None:
    thread = (await perdure.threads.create_thread()).thread_id
    for _ in range(4):
        await perdure.run("talks", {"said": ["0"]}, thread_id=thread)
        assert {callers[0] for callers in trace.take()} <= LISTS_IN_PIECES.keys()


async def test_an_answer_to_a_graph(perdure: Perdure, trace: WriterTrace) -> None:
    thread = (await perdure.threads.create_thread()).thread_id
    await perdure.run("asks", {"said": []}, thread_id=thread)
    end = await perdure.run("asks", command={"resume": "well"}, thread_id=thread)
    assert (end.values["answer"], trace.take()) == ("well", [])


async def test_a_run_of_an_agent_with_a_step(perdure: Perdure, trace: WriterTrace) -> None:
    events = [event.event async for event in perdure.stream("plain", {"x": 1}, metadata={"c": 1})]
    assert (events, trace.take()) == (["metadata", "custom", "values", "end"], [])


async def test_metadata_of_a_thread(perdure: Perdure, trace: WriterTrace) -> None:
    thread = (await perdure.threads.create_thread(metadata={"a": 1})).thread_id
    assert (await perdure.threads.update_thread(thread, metadata={"b": 2})).metadata == {"a": 1, "b": 2}
    copy = await perdure.threads.copy_thread(thread)
    found = await perdure.threads.search_threads(metadata={"b": 2})
    assert {each.thread_id for each in found.items} == {thread, copy.thread_id}
    assert trace.take() == []


async def test_a_rollout(perdure: Perdure, trace: WriterTrace) -> None:
    rollouts = perdure.services.rollouts
    config: Any = {"timeout_seconds": 123.25, "max_attempts": 2, "retry_condition": ["failed"]}
    request = EnqueueRolloutRequest(input={"a": 1}, metadata={"k": "v"}, config=config)
    enqueued = await rollouts.enqueue(request)
    for status in ("failed", "succeeded"):
        (claimed,) = await rollouts.claim()
        assert claimed.rollout_id == enqueued.rollout_id
        await rollouts.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status=status)
    assert (await rollouts.get(enqueued.rollout_id)).status == "succeeded"
    assert trace.take() == []


async def test_the_end_of_a_phase(perdure: Perdure, trace: WriterTrace) -> None:
    workflows = perdure.services.workflows
    calls: list[list[str]] = []
    # The first run parses the definition, which stays in memory.
    for _ in range(2):
        run_id = str((await workflows.run("build")).workflow_run_id)

        async def has_ended(run_id: str = run_id) -> bool:
            return (await workflows.get(run_id)).status == "succeeded"

        await until_true(has_ended)
        calls = trace.take()
    # The start of the run executes its first phase, and the end of the first phase executes the second.
    assert [callers[0] for callers in calls if callers[0] not in PHASES] == []
    assert len(calls) <= 2, calls
