"""Items over HTTP: the same as on the database."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.native.support import API, House

from perdure.errors import InvalidInput
from perdure.items.records import DeleteItem, GetItem, ListNamespaces, PutItem, SearchItems


async def test_an_item_is_kept_found_and_removed(house: House) -> None:
    items = house.client.items
    assert await items.get(["users", "ada"], "theme") is None
    await items.put(["users", "ada"], "theme", {"dark": True, "n": 1})
    await items.put(["users", "bob/é"], "the key?", {"dark": False, "n": 2}, ttl_minutes=5)
    await items.put(["other"], "k", {}, ttl_minutes=None)
    found = await items.get(["users", "ada"], "theme")
    assert found is not None
    assert (found.namespace, found.value) == (["users", "ada"], {"dark": True, "n": 1})
    lasting = await items.get(["users", "bob/é"], "the key?", refresh_ttl=True)
    assert lasting is not None
    assert lasting.expires_at is not None
    assert [item.key for item in await items.search(["users"])] == ["the key?", "theme"]
    assert [item.key for item in await items.search(filter={"n": {"$lt": 2}})] == ["theme"]
    assert (await items.search(limit=0)).items == []
    assert (await items.list_namespaces()).items == [("other",), ("users", "ada"), ("users", "bob/é")]
    assert (await items.list_namespaces(prefix=["users"], max_depth=1)).items == [("users",)]
    assert (await items.list_namespaces(suffix=["ada"], limit=5)).items == [("users", "ada")]
    await items.delete(["users", "ada"], "theme")
    await items.delete(["users", "ada"], "theme")
    assert await items.get(["users", "ada"], "theme") is None


async def test_a_batch_is_all_or_nothing(house: House) -> None:
    items = house.client.items
    results = await items.batch(
        [
            PutItem(namespace=["a"], key="k", value={"n": 1}, ttl_minutes=3),
            PutItem(namespace=["a"], key="l", value={"n": 2}),
            GetItem(namespace=["a"], key="k"),
            DeleteItem(namespace=["a"], key="m"),
            SearchItems(namespace_prefix=["a"]),
            ListNamespaces(),
        ]
    )
    assert [result.item for result in results] == [None] * 6
    assert (results[4].items, results[5].namespaces) == ([], [])
    (again,) = await items.batch([SearchItems(filter={"n": 1})])
    assert [item.key for item in again.items or []] == ["k"]
    with pytest.raises(InvalidInput):
        await items.batch([PutItem(namespace=["b"], key="k", value={}), GetItem(namespace=["x.y"], key="k")])
    assert (await items.search(["b"])).items == []


async def test_pages_are_bounded(quick: House) -> None:
    items = quick.client.items
    for number in range(8):
        await items.put(["a", str(number)], "k", {"n": number})
    assert [item.value["n"] for item in await items.search(limit=7)] == [7, 6, 5, 4, 3, 2, 1]
    assert [item.value["n"] for item in await items.search(limit=3, offset=6)] == [1, 0]
    assert (await items.list_namespaces(offset=1, limit=100)).items == [("a", str(n)) for n in range(1, 8)]
    with pytest.raises(InvalidInput):
        await items.search(limit=1001)


WORK = "/work"
BAD: list[tuple[str, str, Any]] = [
    ("PUT", "/items", {"namespace": [], "key": "k", "value": {}}),
    ("PUT", "/items", {"namespace": ["a.b"], "key": "k", "value": {}}),
    ("PUT", "/items", {"namespace": ["langgraph"], "key": "k", "value": {}}),
    ("PUT", "/items", {"namespace": ["a"], "key": "k", "value": 1}),
    ("PUT", "/items", {"namespace": ["a"], "key": "k", "value": {}, "ttl_minutes": 0}),
    ("PUT", "/items", {"namespace": ["a"], "key": "k", "value": {}, "ttl_minutes": 1e300}),
    ("PUT", "/items", {"namespace": ["a"], "key": "k", "value": {}, "tll": 1}),
    ("GET", "/items?namespace=a..b&key=k", None),
    ("GET", "/items?namespace=a", None),
    ("DELETE", "/items?key=k", None),
    ("POST", "/items/search", {"limit": -1}),
    ("POST", "/items/search", {"limit": 1001}),
    ("POST", "/items/search", {"filter": {"a": {"$x": 1}}}),
    ("POST", "/items/search", {"namespace_prefix": "a"}),
    ("GET", "/items/namespaces?max_depth=0", None),
    ("POST", "/items/batch", {"ops": [{"op": "search", "limit": 100_000}]}),
    ("POST", "/items/batch", {"ops": [{"op": "leap"}]}),
    ("POST", f"{WORK}/items", {"ops": [{"op": "get", "namespace": ["a"]}]}),
]


async def test_bad_input_is_refused(quick: House) -> None:
    for method, path, body in BAD:
        answer = await quick.visitor.ask(method, API + path, json=body)
        assert (answer.status, method, path, body) == (422, method, path, body)
    assert (await quick.visitor.ask("GET", API + "/items?namespace=a&key=k")).status == 404
    assert (await quick.client.items.search()).items == []
