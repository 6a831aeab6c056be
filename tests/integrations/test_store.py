"""`PerdureStore` in a LangGraph program: how it is opened, shared, closed, and used by a graph."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore, GetOp, InvalidNamespaceError, PutOp
from tests.items.support import age

from perdure import InMemoryLightningStore, Perdure
from perdure.errors import InvalidInput, StorageClosed
from perdure.integrations.langgraph import PerdureSaver, PerdureStore


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/memory.db"
    return str(request.getfixturevalue("database_url"))


def test_what_is_kept_is_there_when_it_is_opened_again(place: str) -> None:
    with PerdureStore(place) as store:
        store.put(("users", "ada"), "theme", {"dark": True})
        store.put(("users", "bob"), "theme", {"dark": False})
        store.delete(("users", "bob"), "theme")
    with PerdureStore(place) as store:
        item = store.get(("users", "ada"), "theme")
        assert item is not None
        assert (item.namespace, item.key, item.value) == (("users", "ada"), "theme", {"dark": True})
        assert item.created_at == item.updated_at
        assert abs(datetime.now(UTC) - item.created_at) < timedelta(minutes=5)
        assert store.get(("users", "bob"), "theme") is None
        assert store.list_namespaces() == [("users", "ada")]
        (found,) = store.search(("users",), filter={"dark": True})
        assert (found.key, found.score) == ("theme", None)


async def test_the_same_in_an_event_loop(place: str) -> None:
    async with PerdureStore(place) as store:
        await store.aput(("a",), "k", {"n": 1})
        item = await store.aget(("a",), "k")
        assert item is not None
        assert item.value == {"n": 1}
        # Without waiting in the loop, too: the thread of the store does it.
        same = store.get(("a",), "k")
        assert same == item
        assert [found.key for found in await store.asearch(())] == ["k"]
        await store.adelete(("a",), "k")
        assert await store.alist_namespaces() == []


async def test_a_saver_and_a_store_share_a_file(tmp_path: Path) -> None:
    file = tmp_path / "both.db"
    saver, store = PerdureSaver(file), PerdureStore(f"sqlite:///{file}")
    await store.aput(("a",), "k", {})
    await saver.aclose()
    assert await store.aget(("a",), "k") is not None
    await store.aclose()
    with pytest.raises(StorageClosed):
        await store.aget(("a",), "k")
    async with PerdureStore(file) as again:
        assert await again.aget(("a",), "k") is not None


async def test_what_is_open_already_stays_open(tmp_path: Path) -> None:
    async with Perdure(f"sqlite:///{tmp_path}/p.db") as perdure:
        async with PerdureStore(perdure) as store:
            await store.aput(("a",), "k", {"n": 1})
        found = await perdure.items.get(["a"], "k")
        assert found is not None
        assert found.value == {"n": 1}
    async with InMemoryLightningStore() as opened, PerdureStore(opened, namespace="other") as store:
        await store.aput(("a",), "k", {})
        assert store.items.namespace == "other"


async def test_how_long_items_last() -> None:
    async with PerdureStore("memory:", ttl={"default_ttl": 5, "refresh_on_read": False}) as store:
        storage = store.items.storage
        await store.aput(("a",), "usual", {})
        await store.aput(("a",), "own", {}, ttl=20)
        await store.aput(("a",), "ever", {}, ttl=None)
        await age(storage, 4)
        assert await store.aget(("a",), "usual") is not None
        await age(storage, 2)
        assert {item.key for item in await store.asearch(("a",))} == {"own", "ever"}
        assert await store.asweep_ttl() == 1
        await store.aget(("a",), "own", refresh_ttl=True)
        await age(storage, 15)
        assert await store.aget(("a",), "own") is not None
    with pytest.raises(InvalidInput, match="default_ttl"):
        PerdureStore("memory:", ttl={"default_ttl": -1})


def test_what_langgraph_refuses_is_refused() -> None:
    with PerdureStore("memory:") as store:
        for namespace in ((), ("a.b",), ("",), ("langgraph", "x")):
            with pytest.raises(InvalidNamespaceError):
                store.put(namespace, "k", {})
        wrong: Any = [PutOp(("a.b",), "k", {}), GetOp("abc", "k")]  # type: ignore[arg-type]
        for op in wrong:
            with pytest.raises(ValueError, match=r"label|namespace"):
                store.batch([PutOp(("ok",), "k", {}), op])
        assert store.search(()) == []


class State(TypedDict, total=False):
    seen: int


async def count(state: State, *, store: BaseStore) -> State:
    known = await store.aget(("counts",), "runs")
    seen = 1 + (known.value["n"] if known else 0)
    await store.aput(("counts",), "runs", {"n": seen})
    return {"seen": seen}


async def test_a_graph_remembers_between_threads(place: str) -> None:
    graph = StateGraph(State)
    graph.add_node("count", count)
    graph.add_edge(START, "count")
    async with PerdureSaver(place) as saver, PerdureStore(place) as store:
        compiled = graph.compile(checkpointer=saver, store=store)
        for number, thread in enumerate(("one", "two"), 1):
            ended = await compiled.ainvoke({}, {"configurable": {"thread_id": thread}})
            assert ended == {"seen": number}
