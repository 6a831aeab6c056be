"""Search by meaning: what is compared, what is nearest, and what cannot be compared."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.embeddings import Embeddings
from langgraph.store.base import get_text_at_path
from langgraph.store.memory import InMemoryStore
from tests.items.support import age

from perdure.errors import InvalidInput
from perdure.integrations.langgraph import PerdureStore
from perdure.items import service
from perdure.items.service import Items
from perdure.items.vectors import ItemIndex, texts_at
from perdure.kernel.storage.port import Storage

LETTERS = "abcdefgh"


def embed(texts: Sequence[str]) -> list[list[float]]:
    """How often each of some letters stands in a text."""
    return [[float(text.count(letter)) for letter in LETTERS] for text in texts]


async def embed_later(texts: Sequence[str]) -> list[list[float]]:
    return embed(texts)


class Model(Embeddings):
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return embed(texts)

    def embed_query(self, text: str) -> list[float]:
        return embed([text])[0]


def indexed(storage: Storage, fields: Sequence[str] = ("text",), by: Any = embed) -> Items:
    return Items(storage, index=ItemIndex(by, dims=len(LETTERS), fields=fields))


async def nearest(items: Items, query: str, *prefix: str, **terms: Any) -> list[str]:
    return [item.key for item in await items.search(prefix, query=query, **terms)]


@pytest.mark.parametrize("by", [embed, embed_later, Model()], ids=["function", "coroutine", "model"])
async def test_the_nearest_comes_first(storage: Storage, by: Any) -> None:
    items = indexed(storage, by=by)
    for key, text in (("a", "aaa"), ("ab", "aabb"), ("b", "bbb"), ("c", "cc"), ("none", "zz")):
        await items.put(["docs", key], key, {"text": text})
    await items.put(["docs"], "bare", {"title": "no text"})
    await items.put(["docs"], "left out", {"text": "a"}, index=False)
    found = await items.search(["docs"], query="aaaab", limit=3)
    assert [item.key for item in found] == ["a", "ab", "b"]
    assert [round(item.score or 0.0, 3) for item in found] == [0.97, 0.857, 0.243]
    assert (await nearest(items, "aaaab", "docs"))[5:] == ["left out", "bare"]
    assert await nearest(items, "c", "docs", limit=2, offset=5) == ["left out", "bare"]
    assert await nearest(items, "c", "docs", limit=2, offset=4) == ["a", "left out"]
    assert await nearest(items, "b", "docs", "b") == ["b"]
    assert await nearest(items, "", "docs", limit=1) == ["left out"]
    assert [item.score for item in await items.search(["docs"], limit=1)] == [None]


async def test_each_part_of_a_list_counts(storage: Storage) -> None:
    items = indexed(storage, fields=["parts[*].text", "title"])
    await items.put(["a"], "many", {"parts": [{"text": "a"}, {"text": "bbb"}], "title": "c"})
    await items.put(["a"], "one", {"parts": [{"text": "ab"}]})
    await items.put(["a"], "own", {"other": "b", "title": "ddd"}, index=["other"])
    assert await nearest(items, "bb") == ["own", "many", "one"]
    assert await nearest(items, "c", limit=1) == ["many"]
    assert [item.score for item in await items.search(query="d", limit=1)] == [0.0]


async def test_what_changes_or_goes_is_not_found_by_what_it_was(storage: Storage) -> None:
    items = indexed(storage)
    await items.put(["x"], "k", {"text": "a"})
    await items.put(["x"], "l", {"text": "b"})
    await items.put(["x"], "k", {"text": "c"})
    assert await nearest(items, "a", limit=1) == ["l"]
    await items.delete(["x"], "l")
    assert await nearest(items, "b") == ["k"]
    await items.put(["x"], "short", {"text": "b"}, ttl_minutes=1)
    assert await nearest(items, "b", refresh_ttl=False) == ["short", "k"]
    await age(storage, 2)
    assert await nearest(items, "b") == ["k"]
    assert await items.expire() == 1
    assert await nearest(items, "b") == ["k"]


async def test_a_filter_goes_with_a_query(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "SCAN_VECTORS", 3)
    items = indexed(storage, fields=["text", "more"])
    for number in range(10):
        text = "a" * (number + 1) + "b" * (10 - number)
        await items.put(["x", str(number % 2)], str(number), {"text": text, "more": "c", "n": number})
    assert await nearest(items, "a", limit=3) == ["9", "8", "7"]
    assert await nearest(items, "a", filter={"n": {"$lt": 5}}, limit=3) == ["4", "3", "2"]
    assert await nearest(items, "a", "x", "0", limit=2, offset=1) == ["6", "4"]
    assert len(await nearest(items, "a", limit=100)) == 10


async def test_the_same_order_as_in_memory(storage: Storage) -> None:
    chance = random.Random(7)
    texts = list({"".join(chance.choices(LETTERS, k=12)) for _ in range(60)})
    index: Any = {"dims": len(LETTERS), "embed": embed, "fields": ["text"]}
    theirs, ours = InMemoryStore(index=index), PerdureStore(storage, index=index)
    for number, text in enumerate(texts):
        for store in (theirs, ours):
            await store.aput(("docs", str(number % 3)), str(number), {"text": text, "n": number % 5})
    for query, n in itertools.product(("abcabc", "hhhg", "e"), (None, 2)):
        terms: dict[str, Any] = {"query": query, "limit": 8, "filter": None if n is None else {"n": n}}
        expected, found = await theirs.asearch(("docs",), **terms), await ours.asearch(("docs",), **terms)
        wanted = [item.score for item in expected]
        assert [item.score for item in found] == pytest.approx(wanted, abs=1e-5)
    await ours.aclose()


WRONG: list[tuple[Callable[[Sequence[str]], Any], str]] = [
    (lambda texts: [[1.0]], "of 1 numbers"),
    (lambda texts: [], "0 vectors for 1 texts"),
    (lambda texts: [[float("nan")] * 8 for _ in texts], "NaN or Infinity"),
]


async def test_a_function_that_does_something_else_is_told_of(storage: Storage) -> None:
    for wrong, message in WRONG:
        items = indexed(storage, by=wrong)
        with pytest.raises(InvalidInput, match=message):
            await items.put(["a"], "k", {"text": "a"})
    assert (await Items(storage).search()).items == []
    with pytest.raises(InvalidInput, match="a function"):
        ItemIndex(7)


async def test_without_an_index_a_query_lists(storage: Storage) -> None:
    items = Items(storage)
    await items.put(["a"], "k", {"text": "a"}, index=["text"])
    assert await nearest(items, "b") == ["k"]


async def test_vectors_of_another_function_are_not_near(storage: Storage) -> None:
    await indexed(storage).put(["a"], "old", {"text": "a"})
    other = Items(storage, index=ItemIndex(lambda texts: [[1.0, 2.0] for _ in texts], fields=["text"]))
    await other.put(["a"], "new", {"text": "a"})
    assert [(item.key, item.score) for item in await other.search(query="x")] == [
        ("new", pytest.approx(1.0)),
        ("old", 0.0),
    ]


TREES = st.recursive(
    st.one_of(st.integers(-2, 2), st.booleans(), st.none(), st.sampled_from(["x", "ü"])),
    lambda inside: st.one_of(st.lists(inside, max_size=3), st.dictionaries(st.sampled_from("abc"), inside)),
    max_leaves=8,
)
STEPS = st.sampled_from(["a", "b", "[0]", "[-1]", "[*]", "[x]", "*", "{a,b}", "{a, b.c}"])


@given(TREES, st.lists(STEPS, min_size=1, max_size=4))
def test_paths_name_what_they_name_in_langgraph(value: Any, steps: list[str]) -> None:
    path = ""
    for step in steps:
        path += step if step.startswith("[") or not path else "." + step
    assert texts_at(value, path) == get_text_at_path(value, path)


def test_the_whole_value_is_its_json() -> None:
    assert texts_at({"b": 1, "a": "ü"}, "$") == ['{"a": "ü", "b": 1}']
