"""Vectors in memory: made by an embedder, compared exactly, fused with words, and optional."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from tests.memory.conftest import DAY, World, ms

from perdure.kernel import vectors as kernel_vectors
from perdure.kernel.config import Settings
from perdure.kernel.errors import InvalidInput
from perdure.kernel.vectors import Embedder, VectorTable, hashed, nearness, packed
from perdure.memory import vector_search
from perdure.memory.model import build_document_range
from perdure.memory.operations import maintenance
from perdure.memory.operations import search as search_operations
from perdure.memory.records import SearchMode
from perdure.memory.vector_search import MemoryVectors
from perdure.memory.wiring import build_vectors

TOPICS = ("cat", "dog", "fish")


def by_topic(texts: Sequence[str]) -> list[list[float]]:
    """Near where texts are about the same, in whatever words."""
    known = {"cat": 0, "feline": 0, "dog": 1, "hound": 1, "fish": 2, "trout": 2}
    made = []
    for text in texts:
        vector = [0.0, 0.0, 0.0, 0.01]
        for word in text.lower().split():
            if word in known:
                vector[known[word]] += 1.0
        made.append(vector)
    return made


def with_vectors(world: World, embed: Any = by_topic) -> MemoryVectors:
    vectors = MemoryVectors(world.storage, Embedder(embed))
    world.memory.vectors = world.work.indexer.vectors = vectors
    return vectors


async def test_what_is_meant_is_found_in_other_words(world: World) -> None:
    with_vectors(world)
    await world.ingest(
        world.event("the feline sleeps"), world.event("a hound barks"), world.event("a trout swims")
    )
    assert await world.found("cat", mode="vector", limit=1) == ["the feline sleeps"]
    assert await world.found("cat", mode="text") == []
    found = await world.memory.search("dog barks")
    assert (found.mode_used, found.vector_available) == ("hybrid", True)
    assert found.items[0].text == "a hound barks"
    assert found.items[0].events
    assert len({hit.id for hit in found.items}) == len(found.items)


async def test_vectors_go_with_the_documents_that_are_replaced(world: World) -> None:
    with_vectors(world)
    await world.arrive(world.event("the feline sleeps"))
    await world.build()
    await world.index()
    await world.arrive(world.event("a hound barks at it", f"{DAY} 10:01"))
    await world.build()
    await world.index()
    stats = await world.memory.stats()
    assert 0 < stats.vectors == stats.indexed


async def test_weights_say_how_much_words_and_vectors_count(world: World) -> None:
    with_vectors(world)
    await world.ingest(world.event("the sleeping report"), world.event("a feline"))
    assert (await world.found("cat sleeping"))[0] == "the sleeping report"
    assert (await world.found("cat sleeping", text_weight=0.001, vector_weight=1))[0] == "a feline"
    assert await world.found("cat sleeping", vector_weight=0) == ["the sleeping report"]
    for text, vector in ((0, 0), (-1, 1), (float("nan"), 1), (1, 1001)):
        with pytest.raises(InvalidInput):
            await world.memory.search("cat", text_weight=text, vector_weight=vector)


async def test_without_vectors_words_are_searched_and_the_answer_says_so(world: World) -> None:
    await world.ingest(world.event("the feline sleeps"))
    for mode in ("text", "vector", "hybrid"):
        found = await world.memory.search("feline", mode=mode)
        assert (found.mode_used, found.vector_available, len(found.items)) == ("text", False, 1)
    # An embedder that came later makes the vectors of what was there before.
    with_vectors(world)
    await world.index()
    assert (await world.memory.search("cat")).mode_used == "hybrid"
    assert (await world.memory.stats()).vectors == 1


async def test_filters_and_namespaces_hold_for_vectors_too(world: World) -> None:
    with_vectors(world)
    await world.ingest(
        world.event("cat one", "2024-01-15 10:00", agent="claude"),
        world.event("cat two", "2024-01-16 10:00", agent="pi"),
    )
    other = world.memory.in_namespace(world.memory.namespace + " other")
    await other.ingest(world.event("cat of others"))
    await world.work.indexer.index(await other.ns())
    assert await world.found("feline", mode="vector", agent="pi") == ["cat two"]
    assert await world.found("feline", mode="vector", agent="x") == []
    assert await world.found("feline", mode="vector", until_ms=ms("2024-01-15 12:00")) == ["cat one"]
    assert await world.found("feline", mode="vector", kind="node") == []
    assert set(await world.found("feline", mode="vector")) == {"cat one", "cat two"}


async def test_what_is_new_or_gone_is_seen_by_the_next_search(world: World) -> None:
    with_vectors(world)
    events = [world.event("cat one", "2024-01-15 10:00"), world.event("cat two", "2024-01-15 10:01")]
    await world.arrive(events[0])
    await world.build()
    await world.index()
    assert await world.found("feline", mode="vector", kind="node", limit=5)
    await world.arrive(events[1])
    await world.build()
    await world.index()
    nodes = (await world.memory.search("feline", mode="vector", kind="node", limit=20)).items
    assert len({hit.id for hit in nodes}) == len(nodes) == 5
    assert any("two" in hit.text for hit in nodes)


@pytest.mark.parametrize("mode", ["text", "vector", "hybrid"])
async def test_a_search_is_one_read_transaction(world: World, mode: SearchMode) -> None:
    with_vectors(world)
    events = [world.event(f"the feline number{place} sleeps", f"{DAY} 10:0{place}") for place in range(5)]
    await world.arrive(*events)
    await world.build()
    await world.index()
    before = await world.memory.search("feline", mode=mode)
    await world.ingest(world.event("a cat and a feline that is new", f"{DAY} 11:00"))
    reads = count_reads(world)
    found = await world.memory.search("feline", mode=mode, limit=50)
    assert reads == ["search_documents"]
    assert {hit.kind for hit in found.items} == {"event", "node", "grip"}
    assert all(hit.events for hit in found.items)
    assert len(found.items) > len(before.items)
    assert any("new" in hit.text for hit in found.items)


@pytest.mark.parametrize("mode", ["text", "vector", "hybrid"])
async def test_a_search_may_be_confined_to_several_kinds(world: World, mode: SearchMode) -> None:
    with_vectors(world)
    await world.arrive(world.event("the feline sleeps"), world.event("a feline eats", agent="pi"))
    await world.build()
    await world.index()
    found = await world.memory.search_kinds("feline", ["node", "grip"], mode=mode, limit=50)
    every = await world.memory.search("feline", mode=mode, limit=50)
    assert {hit.id for hit in found.items} == {hit.id for hit in every.items if hit.kind != "event"}
    assert {hit.kind for hit in found.items} == {"node", "grip"}
    mine = await world.memory.search_kinds("feline", ["node", "event"], mode=mode, agent="pi", limit=50)
    assert {hit.kind for hit in mine.items} == {"node", "event"}
    assert {hit.agent for hit in mine.items} == {"pi"}


async def test_many_new_vectors_and_those_of_replaced_documents_are_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_operations, "NEW_VECTORS", 2)
    monkeypatch.setattr(vector_search, "NEW_VECTORS", 2)
    with_vectors(world)
    await world.ingest(world.event("cat zero"))
    assert await world.found("feline", mode="vector") == ["cat zero"]
    await world.ingest(*(world.event(f"cat {number}") for number in range(1, 8)))
    assert len(await world.found("feline", mode="vector")) == 8
    ns = await world.memory.ns()
    first, _ = build_document_range(ns)
    while await world.storage.run(maintenance.index_again, first + 8, ns=ns):
        pass
    await world.index()
    assert len(await world.found("feline", mode="vector")) == 8


def count_reads(world: World) -> list[str]:
    """Return the names of the read transactions from now on."""
    reads: list[str] = []
    read = world.storage.read

    async def reading(operation: Any, *args: Any, **options: Any) -> Any:
        reads.append(operation.__name__)
        return await read(operation, *args, **options)

    world.storage.read = reading  # type: ignore[method-assign]
    return reads


async def test_an_embedder_that_fails_holds_up_no_words(world: World) -> None:
    def broken(texts: Sequence[str]) -> list[list[float]]:
        raise ConnectionError("the model is away")

    with_vectors(world, broken)
    await world.memory.ingest(world.event("plain words"))
    with pytest.raises(ConnectionError):
        await world.index()
    assert await world.found("plain", mode="text") == ["plain words"]
    with_vectors(world)
    await world.index()
    assert (await world.memory.search("plain")).mode_used == "hybrid"


@pytest.mark.parametrize("numpy", [True, False], ids=["numpy", "plain"])
def test_the_nearest_are_found_exactly(monkeypatch: pytest.MonkeyPatch, numpy: bool) -> None:
    if not numpy:
        monkeypatch.setattr(kernel_vectors, "numpy", lambda: None)
    chance = random.Random(1)
    made = [[chance.gauss(0, 1) for _ in range(8)] for _ in range(3000)]
    table = VectorTable(8)
    table.add((n, packed(v), [f"t{n % 3}", "all"], n) for n, v in enumerate(made[:2000]))
    table.add((n, packed(v), [f"t{n % 3}", "all"], n) for n, v in enumerate(made))
    assert len(table) == 3000
    query = [chance.gauss(0, 1) for _ in range(8)]
    scores = sorted(
        ((sum(a * b for a, b in zip(query, v, strict=True)), n) for n, v in enumerate(made)), reverse=True
    )
    assert [n for _, n in table.nearest(query, 10)] == [n for _, n in scores[:10]]
    narrowed = [n for _, n in scores if n % 3 == 1 and 100 <= n <= 2500]
    assert [n for _, n in table.nearest(query, 5, ["all", "t1"], 100, 2500)] == narrowed[:5]
    table.remove([scores[0][1]])
    assert [n for _, n in table.nearest(query, 2)] == [n for _, n in scores[1:3]]
    assert table.nearest([1.0], 5) == table.nearest(query, 0) == VectorTable(8).nearest(query, 1) == []
    assert nearness([1.0, 0.0], [packed([1.0, 0.0]), b"short"]) == [1.0, 0.0]


def test_hashed_vectors_are_near_where_words_are_alike() -> None:
    one, same, other = (
        Embedder(hashed)._check(each)
        for each in hashed(["deploying services", "deployed service", "a red apple"])
    )
    near = nearness(one, [packed(same), packed(other)])
    assert near[0] > 0.3 > near[1]


async def test_the_settings_name_the_embedder(world: World) -> None:
    assert build_vectors(world.storage, Settings()) is None
    made = build_vectors(world.storage, Settings(memory_embedder="hashed"))
    assert made is not None
    assert len(await made.embedder.of_query("some words")) == 384
    named = build_vectors(world.storage, Settings(memory_embedder="tests.memory.test_vectors:by_topic"))
    assert named is not None
    with pytest.raises(ValueError, match="cannot be loaded"):
        build_vectors(world.storage, Settings(memory_embedder="nowhere.py:nothing"))
