"""A worker that answers for servers without its graphs: failures, late answers and large answers."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
import pytest_asyncio
from langgraph.graph import START, StateGraph
from msgspec.structs import replace
from tests.kernel.support import until, until_true
from typing_extensions import TypedDict

from perdure.agents.context import AgentError
from perdure.embedding.perdure import Perdure
from perdure.graph_requests import service
from perdure.kernel.clock import boottime
from perdure.kernel.errors import AgentUnavailable, InvalidInput, NotFound, NotSupported
from perdure.langgraph.descriptions import build_drawing, build_schemas, build_subgraphs, describe, fitting
from perdure.langgraph.views import NamespaceGraphs
from perdure.runtime.app import App
from perdure.runtime.components import build_worker
from perdure.runtime.stores import open_store
from perdure.threads.records import RunRequest
from perdure.worker import graph_requests, health
from perdure.worker.registry import Agents, make_agent


class Gate:
    """Point where the reducer of a graph waits."""

    def __init__(self) -> None:
        self.reached = 0
        self.open = threading.Event()

    def reduce(self, before: str, given: str) -> str:
        if given == "fail":
            raise RuntimeError("a secret of the graph")
        if given == "wait":
            self.reached += 1
            self.open.wait(30)
        return given


def graphs_of(gate: Gate) -> Agents:
    fields = {"said": Annotated[list[str], operator.add], "gate": Annotated[str, gate.reduce]}
    state: Any = TypedDict("State", fields, total=False)  # type: ignore[misc]

    def chain(**nodes: Any) -> Any:
        builder: Any = StateGraph(state)
        last = START
        for name, node in nodes.items():
            builder.add_node(name, node)
            builder.add_edge(last, name)
            last = name
        return builder.compile()

    def broken() -> Any:
        raise RuntimeError("a secret of the factory")

    agents = Agents()
    agents.register("gated", chain(one=lambda state: {"said": ["one"]}))
    inner = chain(deepest=lambda state: {})
    agents.register("deep", chain(outer=chain(middle=inner)))
    agents.register("broken", broken)
    return agents


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest_asyncio.fixture
async def perdure(tmp_path: Path, gate: Gate) -> AsyncIterator[Perdure]:
    async with Perdure(f"sqlite:///{tmp_path}/graphs.db", agents=graphs_of(gate)) as opened:
        await until_true(lambda: opened.assistants.description("gated"))
        yield opened
        gate.open.set()


@pytest.fixture
def views(perdure: Perdure) -> NamespaceGraphs:
    """Views of a process without graphs."""
    services = perdure.services
    return NamespaceGraphs(
        None, services.threads, services.assistants, services.graph_requests, services.items
    )


async def thread_of(perdure: Perdure) -> str:
    return (await perdure.threads.create_thread(metadata={"graph_id": "gated"})).thread_id


async def test_a_graph_that_fails_is_not_told_in_detail(
    perdure: Perdure, views: NamespaceGraphs, caplog: pytest.LogCaptureFixture
) -> None:
    thread = await thread_of(perdure)
    with pytest.raises(AgentError, match="the graph failed with RuntimeError") as caught:
        await views.update_state(thread, {"gate": "fail"}, as_node="one")
    assert "secret" not in caught.value.message
    assert "a secret of the graph" in caplog.text
    with pytest.raises(InvalidInput, match="refuses the update"):
        await views.update_state(thread, {"gate": "x"}, as_node="nowhere")
    assert await views.history(thread) == []


async def test_a_graph_that_takes_too_long_changes_nothing(
    perdure: Perdure, views: NamespaceGraphs, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "DEADLINE_SECONDS", 0.3)
    thread = await thread_of(perdure)
    with pytest.raises(AgentUnavailable, match=r"the agent 'gated' within 0\.3 s"):
        await views.update_state(thread, {"gate": "wait"}, as_node="one")
    assert gate.reached == 1
    gate.open.set()
    monkeypatch.setattr(service, "DEADLINE_SECONDS", 10.0)
    # The worker continues with other requests, and the late update is not applied.
    await views.update_state(thread, {"said": ["later"]}, as_node="one")
    assert [each["values"]["said"] for each in await views.history(thread)] == [["later"]]


async def test_a_frozen_worker_does_not_begin_a_request_after_its_lease(
    perdure: Perdure,
    views: NamespaceGraphs,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As if the process had been stopped while the answer to its claim was being sent."""
    monkeypatch.setattr(service, "DEADLINE_SECONDS", 1.0)
    gate.open.set()
    frozen, claim = [0.0], service.GraphRequests.claim

    async def freezing(*given: Any) -> Any:
        claimed = await claim(*given)
        frozen[0] += 60.0 * len(claimed)
        return claimed

    for module in (graph_requests, health):
        monkeypatch.setattr(module, "boottime", lambda: boottime() + frozen[0])
    monkeypatch.setattr(service.GraphRequests, "claim", freezing)
    # The pending claim is the one before the freeze.
    thread = await thread_of(perdure)
    await views.update_state(thread, {"gate": "wait"}, as_node="one")
    with pytest.raises(AgentUnavailable):
        await views.update_state(thread, {"gate": "wait"}, as_node="one")
    assert gate.reached == 1
    assert "its lease is over" in caplog.text
    assert len(await views.history(thread)) == 1


async def test_requests_do_not_wait_for_a_slot(tmp_path: Path, gate: Gate) -> None:
    agents = graphs_of(gate)
    begun = threading.Event()

    @agents.agent("busy")
    def busy(ctx: Any, input: Any) -> Any:
        begun.set()
        gate.open.wait(30)

    async with Perdure(f"sqlite:///{tmp_path}/graphs.db", agents=agents, jobs_per_worker=1) as perdure:
        run = await perdure.threads.create_run(RunRequest(assistant_id="busy"))
        await until(begun.is_set)
        services = perdure.services
        views = NamespaceGraphs(None, services.threads, services.assistants, services.graph_requests)
        await views.update_state(await thread_of(perdure), {"said": ["x"]}, as_node="one")
        assert (await perdure.threads.get_run(run.run_id)).status == "running"
        gate.open.set()


async def test_the_last_registration_of_an_agent_counts(perdure: Perdure) -> None:
    """Two workers may have different versions of a graph."""
    (found,) = (await perdure.assistants.search(agent="gated")).items
    queue, old = perdure.services.run_queue, await perdure.assistants.description("gated")
    assert old is not None
    for version in (replace(old, subgraphs={"new": {}}), old):
        await queue.describe([version])
        assert await perdure.assistants.description("gated") == version
    with pytest.raises(NotFound, match="Agent nobody not found"):
        await queue.describe([replace(old, agent="nobody")])
    with pytest.raises(InvalidInput, match="at most 1,048,576 are allowed"):
        await queue.describe([replace(old, problem="x" * (1 << 20))])
    assert (await perdure.assistants.get(found.assistant_id)) == found


async def test_an_answer_that_is_too_large(
    perdure: Perdure, views: NamespaceGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_requests, "MAX_ANSWER", 20)
    with pytest.raises(
        NotSupported, match=r"the answer has \d+ characters, and a worker's answer may have 20"
    ):
        await views.update_state(await thread_of(perdure), {"said": ["x"]}, as_node="one")


async def test_a_worker_that_stops_leaves_its_request_to_another(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_requests, "STOP_SECONDS", 0.05)
    store = open_store(f"sqlite:///{tmp_path}/graphs.db")
    app, other = App(store), Gate()
    other.open.set()
    first, second = build_worker(app, graphs_of(gate)), build_worker(app, graphs_of(other))
    await first.start()
    services = app.services
    views = NamespaceGraphs(None, services.threads, services.assistants, services.graph_requests)
    thread = (await services.threads.create_thread(metadata={"graph_id": "gated"})).thread_id
    updating = asyncio.ensure_future(views.update_state(thread, {"gate": "wait"}, as_node="one"))
    await until(lambda: gate.reached == 1)
    await second.start()
    stopping = asyncio.ensure_future(first.stop())
    await updating
    assert other.reached == 1
    gate.open.set()
    await stopping
    assert len(await views.history(thread)) == 1
    await second.stop()
    await services.close()


async def test_a_factory_that_fails_is_described_as_such(perdure: Perdure, views: NamespaceGraphs) -> None:
    (broken,) = (await perdure.assistants.search(agent="broken")).items
    for shown in (views.graph, views.schemas, views.subgraphs):
        with pytest.raises(NotSupported, match=r"of agent 'broken': .* RuntimeError; see the worker's log"):
            await shown(broken.assistant_id)
    (gated,) = (await perdure.assistants.search(agent="gated")).items
    assert (await views.schemas(gated.assistant_id))["graph_id"] == "gated"


async def test_levels_of_subgraphs(perdure: Perdure, views: NamespaceGraphs) -> None:
    (deep,) = (await perdure.assistants.search(agent="deep")).items
    here = NamespaceGraphs(
        graphs_of(Gate()), perdure.threads, perdure.assistants, perdure.services.graph_requests
    )
    for xray in (False, True, 0, 1, 2, 3, 9):
        assert await views.graph(deep.assistant_id, xray=xray) == await here.graph(
            deep.assistant_id, xray=xray
        ), xray
    for namespace in (None, "outer", "outer|middle", "none"):
        for recurse in (False, True):
            wanted: Any = {"namespace": namespace, "recurse": recurse}
            assert await views.subgraphs(deep.assistant_id, **wanted) == await here.subgraphs(
                deep.assistant_id, **wanted
            ), wanted


async def test_a_description_keeps_what_fits() -> None:
    whole = await describe(graphs_of(Gate())["deep"])
    assert (len(whole.drawings), whole.drawn, whole.problem) == (3, True, None)
    lengths = []
    for limit in (10_000, 4_000, 3_000, 2_000, 500):
        part = fitting(whole, limit)
        lengths.append((len(part.drawings), part.subgraphs is not None, part.schemas is not None))
        assert part.problem is None or "larger than" in part.problem
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == (0, False, False)
    nothing = fitting(whole, 500)
    shows: list[Callable[[], Any]] = [
        lambda: build_drawing(nothing, False),
        lambda: build_schemas(nothing),
        lambda: build_subgraphs(nothing, None, False),
    ]
    for show in shows:
        with pytest.raises(NotSupported, match="it is larger than 500 characters"):
            show()


async def test_an_agent_without_a_graph_is_described() -> None:
    async def run(ctx: Any, input: Any) -> Any: ...

    found = await describe(make_agent("plain", run))
    assert (found.kind, found.subgraphs, len(found.drawings[0]["nodes"])) == ("function", {}, 3)
