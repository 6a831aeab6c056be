"""The journeys of docs/architecture.md are recorded: the page names calls that happen, in their order."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypedDict

import aiohttp
import pytest
import pytest_asyncio
from docs import journeys
from langgraph.graph import END, START, StateGraph
from tests.kernel.support import until, until_true

import perdure
from perdure import Agents, Perdure

PACKAGE = Path(perdure.__file__).parent
WORKFLOW = """
name: greeting
phases:
  - name: greet
    type: command
    command: echo hello
"""
ULID = "01M7TYPRWH35TKAC5DKEAAQXHQ"


class Recorder:
    """Calls of functions of perdure, in their order, on this thread and those that start later."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._records = False
        self._names: dict[CodeType, str] = {}

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and self._records:
            name = self._names.get(frame.f_code)
            if name is None:
                name = self._names[frame.f_code] = self._name(frame.f_code)
            if name:
                self.calls.append(name)

    @staticmethod
    def _name(code: CodeType) -> str:
        path = Path(code.co_filename)
        if not path.is_relative_to(PACKAGE):
            return ""
        return ".".join(path.relative_to(PACKAGE).with_suffix("").parts) + ":" + code.co_qualname

    @contextmanager
    def recording(self) -> Iterator[None]:
        self.calls.clear()
        self._records = True
        sys.setprofile(self.see)
        try:
            yield
        finally:
            sys.setprofile(None)
            self._records = False


class GraphState(TypedDict):
    """State of the graph."""

    n: int


def build_agents() -> Agents:
    graph = StateGraph(GraphState)
    graph.add_node("add", lambda state: {"n": state["n"] + 1})
    graph.add_edge(START, "add")
    graph.add_edge("add", END)
    agents = Agents()
    agents.register("graph", graph.compile())
    return agents


class Traveller:
    """A server with a worker in this process, and a client that makes the journeys."""

    def __init__(self, url: str, session: aiohttp.ClientSession, recorder: Recorder) -> None:
        self._url = url
        self._session = session
        self.recorder = recorder

    async def ask(self, method: str, path: str, **options: Any) -> Any:
        async with self._session.request(method, self._url + path, **options) as response:
            assert response.status < 300, await response.text()
            if response.content_type == "text/event-stream":
                return await response.text()
            return await response.json()

    async def graph(self) -> None:
        thread = await self.ask("POST", "/threads", json={})
        run = {"assistant_id": "graph", "input": {"n": 1}, "stream_mode": ["values"]}
        frames = await self.ask("POST", f"/threads/{thread['thread_id']}/runs/stream", json=run)
        assert '"n":2' in frames.replace(" ", "")
        await self.until("threads.operations.settle:settle_runs")

    async def queue(self) -> None:
        queues = "/v1/agl/queues/rollouts"
        await self.ask("POST", queues + "/enqueue", json={"rollouts": [{"input": {"n": 1}}]})
        claimed = await self.ask("POST", queues + "/dequeue", json={"limit": 1, "worker_id": "w"})
        assert claimed

    async def phase(self) -> None:
        run = await self.ask("POST", "/api/v1/workflows/greeting/runs", json={})
        path = "/api/v1/workflow-runs/" + run["workflow_run_id"]
        await self.until("workflows.operations.work:RunWork.finish")
        await until_true(lambda: self.has_succeeded(path))

    async def has_succeeded(self, path: str) -> bool:
        return bool((await self.ask("GET", path))["status"] == "succeeded")

    async def span(self) -> None:
        now = time.time_ns()
        ids = {"traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331"}
        times = {"startTimeUnixNano": str(now), "endTimeUnixNano": str(now + 1_000_000)}
        span = {**ids, **times, "name": "chat"}
        await self.ask("POST", "/v1/traces", json={"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
        traces = await self.ask("GET", "/api/v1/traces")
        assert ids["traceId"] in [trace["trace_id"] for trace in traces["items"]]

    async def memory(self) -> None:
        event = {"event_id": ULID, "session_id": "s", "text": "The cat sleeps"}
        await self.ask("POST", "/api/v1/memory/events", json=event)
        # The index takes the event in the background, before or after somebody searches.
        await self.until("outbox.delivery:Deliverer._keep_claiming")
        await until_true(self.has_hit)

    async def has_hit(self) -> bool:
        hits = await self.ask("GET", "/api/v1/memory/search", params={"query": "cat"})
        return [hit["id"] for hit in hits["items"]] == [ULID]

    async def until(self, call: str) -> None:
        await until(lambda: call in self.recorder.calls)


@pytest_asyncio.fixture
async def traveller(tmp_path: Path) -> AsyncIterator[Traveller]:
    (tmp_path / "workflows").mkdir()
    (tmp_path / "workflows" / "greeting.yaml").write_text(WORKFLOW)
    recorder = Recorder()
    threading.setprofile(recorder.see)
    try:
        url, folder = f"sqlite:///{tmp_path}/journeys.db", str(tmp_path / "workflows")
        options: Any = {"keep_traces": True, "workflow_dir": folder}
        async with (
            Perdure(url, agents=build_agents(), serve=0, **options) as opened,
            aiohttp.ClientSession() as session,
        ):
            yield Traveller(str(opened.url), session, recorder)
    finally:
        threading.setprofile(None)


@pytest.mark.parametrize("journey", journeys.JOURNEYS, ids=lambda journey: journey.key)
async def test_a_journey_makes_the_calls_of_the_page(journey: journeys.Journey, traveller: Traveller) -> None:
    with traveller.recorder.recording():
        await getattr(traveller, journey.key)()
    calls = iter(list(traveller.recorder.calls))
    missing = [step for step in journey.steps if f"{step.module}:{step.name}" not in calls]
    assert not missing, "change docs/journeys.py, then run docs/regenerate.py"


def test_every_step_of_a_journey_exists() -> None:
    names = {journey.key for journey in journeys.JOURNEYS}
    assert names <= set(vars(Traveller))
    for journey in journeys.JOURNEYS:
        for step in journey.steps:
            path = PACKAGE / (step.module.replace(".", "/") + ".py")
            assert f"def {step.name.rpartition('.')[2]}(" in path.read_text(), step


def test_the_drawing_is_made_of_the_layers_and_the_journeys() -> None:
    """If this fails: python docs/regenerate.py"""
    assert (journeys.ROOT / "docs" / journeys.DRAWING).read_text(encoding="utf-8") == journeys.draw()
