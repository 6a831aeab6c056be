"""Items on every engine: what is kept, found, refused, and gone when its time is over."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from tests.items.support import age, audit_of, rows_of
from tests.kernel.support import until_true

from perdure.errors import InvalidInput
from perdure.items import operations, service
from perdure.items.records import (
    DeleteItem,
    GetItem,
    ItemOp,
    ItemPolicy,
    ListNamespaces,
    NamespaceMatch,
    PutItem,
    SearchItems,
)
from perdure.items.service import Items
from perdure.kernel.storage.port import Storage
from perdure.service.callers import Caller


async def keys(items: Items, prefix: tuple[str, ...] = (), **terms: Any) -> list[str]:
    return [item.key for item in await items.search(prefix, **terms)]


async def test_an_item_is_kept_changed_and_removed(items: Items) -> None:
    assert await items.get(["users", "ada"], "theme") is None
    await items.put(["users", "ada"], "theme", {"dark": True, "sizes": [1, 2.5, None], "who": "Ada ☃"})
    first = await items.get(("users", "ada"), "theme")
    assert first is not None
    assert (first.namespace, first.key) == (["users", "ada"], "theme")
    assert first.value == {"dark": True, "sizes": [1, 2.5, None], "who": "Ada ☃"}
    assert first.created_at == first.updated_at
    assert (first.expires_at, first.score) == (None, None)
    await items.put(["users", "ada"], "theme", {"dark": False})
    second = await items.get(["users", "ada"], "theme")
    assert second is not None
    assert second.value == {"dark": False}
    assert (second.created_at, second.updated_at > first.updated_at) == (first.created_at, True)
    assert await items.get(["users"], "theme") is None
    assert await items.get(["users", "ada", "x"], "theme") is None
    await items.delete(["users", "ada"], "theme")
    await items.delete(["users", "ada"], "theme")
    assert await items.get(["users", "ada"], "theme") is None


async def test_namespaces_of_perdure_do_not_see_each_other(items: Items) -> None:
    other = items.in_namespace("other")
    await items.put(["a"], "k", {"of": "default"})
    await other.put(["a"], "k", {"of": "other"})
    await other.delete(["a"], "x")
    found = [await each.search() for each in (items, other)]
    assert [[item.value["of"] for item in each] for each in found] == [["default"], ["other"]]


async def test_who_changed_an_item_is_on_record(storage: Storage, items: Items) -> None:
    ada = items.acting_as(Caller.trusted("ada"))
    await ada.put(["users", "ada"], "theme", {})
    await ada.batch([PutItem(namespace=["b"], key=key, value={}) for key in "xy"])
    await ada.delete(["users", "ada"], "theme")
    await items.put(["c"], "k", {})
    assert await audit_of(storage) == [
        ("ada", "put_items", 1, "users.ada/theme"),
        ("ada", "put_items", 2, "b/x,b/y"),
        ("ada", "delete_items", 1, "users.ada/theme"),
    ]


# --- searching --------------------------------------------------------------------------------------------


async def fill(items: Items) -> None:
    for number, namespace in enumerate((["a"], ["a", "b"], ["a", "b", "c"], ["a!"], ["ab"], ["b"])):
        await items.put(namespace, f"k{number}", {"n": number, "even": number % 2 == 0})


async def test_a_search_is_at_or_below_a_namespace_the_last_changed_first(items: Items) -> None:
    await fill(items)
    assert await keys(items) == ["k5", "k4", "k3", "k2", "k1", "k0"]
    assert await keys(items, ("a",)) == ["k2", "k1", "k0"]
    assert await keys(items, ("a", "b")) == ["k2", "k1"]
    assert await keys(items, ("a", "b", "c")) == ["k2"]
    assert await keys(items, ("a", "c")) == []
    await items.put(["a"], "k0", {"n": 0})
    assert await keys(items, ("a",)) == ["k0", "k2", "k1"]


PREFIXES: list[tuple[str, ...]] = [("many",), ("many", "0"), ()]
FILTERS: list[dict[str, Any] | None] = [None, {"kind": "x"}, {"n": {"$gte": 0}}]


async def test_pages_of_a_search_give_each_item_once(items: Items, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "SCAN_ROWS", 2)
    monkeypatch.setattr(service, "MOST_ROWS", 4)
    monkeypatch.setattr(service, "PAGE_ROWS", 3)
    puts: list[ItemOp] = [
        PutItem(namespace=["many", str(n % 2)], key=f"k{n:02}", value={"n": n, "kind": "x"})
        for n in range(22)
    ]
    await items.batch(puts)
    await items.put(["many", "0"], "other", {"kind": "y", "m": 1})
    for prefix, filter in itertools.product(PREFIXES, FILTERS):
        whole = await keys(items, prefix, filter=filter, limit=100)
        assert len(whole) == len(set(whole)) == {("many", "0"): 11}.get(prefix, 22) + (filter is None)
        paged = []
        for offset in range(0, 30, 5):
            paged += await keys(items, prefix, filter=filter, limit=5, offset=offset)
        assert paged == whole
        assert await keys(items, prefix, filter=filter, limit=0) == []


PEOPLE: dict[str, dict[str, Any]] = {
    "ada": {
        "age": 36,
        "name": "Ada",
        "tags": ["x", "y"],
        "at": {"city": "London", "zip": 1},
        "since": "2024-01",
    },
    "bob": {"age": 41.5, "name": 'Bob "B"', "tags": ["x"], "at": {"city": "Paris"}, "since": "2025-06"},
    "cyd": {"age": "40", "name": None, "tags": [], "at": "nowhere", "flag": True},
    "dee": {"name": "Ada"},
}
CASES: list[tuple[dict[str, Any], str]] = [
    ({}, "ada bob cyd dee"),
    ({"name": "Ada"}, "ada dee"),
    ({"name": 'Bob "B"'}, "bob"),
    ({"name": None}, "cyd"),
    ({"age": None}, "dee"),
    ({"name": {"$eq": "Ada"}}, "ada dee"),
    ({"name": {"$ne": "Ada"}}, "bob cyd"),
    ({"age": {"$gt": 36}}, "bob cyd"),
    ({"age": {"$gte": 36}}, "ada bob cyd"),
    ({"age": {"$lt": 40}}, "ada"),
    ({"age": {"$lte": 40}}, "ada cyd"),
    ({"age": {"$gt": 36, "$lt": 41}}, "cyd"),
    ({"age": 36.0}, "ada"),
    ({"flag": 1}, "cyd"),
    ({"since": {"$gte": "2024-06"}}, "bob"),
    ({"at": {"city": "London"}}, "ada"),
    ({"at": {"zip": {"$lt": 2}}}, "ada"),
    ({"at": {"$eq": {"city": "Paris"}}}, "bob"),
    ({"at": "nowhere"}, "cyd"),
    ({"tags": ["x"]}, "bob"),
    ({"tags": ["x", "y"]}, "ada"),
    ({"tags": []}, "cyd"),
    ({"name": "Ada", "age": {"$gt": 1}}, "ada"),
    ({"name": "Ada", "age": {"$gt": 99}}, ""),
    ({"city": "London"}, ""),
]


async def test_filters(items: Items) -> None:
    await items.batch([PutItem(namespace=["p"], key=key, value=value) for key, value in PEOPLE.items()])
    found = [(each, " ".join(sorted(await keys(items, ("p",), filter=each)))) for each, _ in CASES]
    assert found == CASES


# --- namespaces -------------------------------------------------------------------------------------------


async def spaces(items: Items, **terms: Any) -> list[str]:
    return [".".join(each) for each in await items.list_namespaces(**terms)]


async def test_namespaces_are_listed(items: Items) -> None:
    await fill(items)
    await items.put(["a", "x", "c"], "k", {})
    assert await spaces(items) == ["a", "a.b", "a.b.c", "a.x.c", "a!", "ab", "b"]
    assert await spaces(items, prefix=["a"]) == ["a", "a.b", "a.b.c", "a.x.c"]
    assert await spaces(items, prefix=["*", "b"]) == ["a.b", "a.b.c"]
    assert await spaces(items, prefix=["a", "*", "c"]) == ["a.b.c", "a.x.c"]
    assert await spaces(items, suffix=["c"]) == ["a.b.c", "a.x.c"]
    assert await spaces(items, suffix=["b", "*"]) == ["a.b.c"]
    assert await spaces(items, prefix=["a", "x"], suffix=["c"]) == ["a.x.c"]
    assert await spaces(items, max_depth=1) == ["a", "a!", "ab", "b"]
    assert await spaces(items, max_depth=2) == ["a", "a.b", "a.x", "a!", "ab", "b"]
    assert await spaces(items, suffix=["c"], max_depth=2) == ["a.b", "a.x"]
    assert await spaces(items, limit=2, offset=1) == ["a.b", "a.b.c"]
    assert await spaces(items, limit=0) == []
    assert await spaces(items, prefix=["none"]) == []
    await items.delete(["a", "b"], "k1")
    assert await spaces(items, prefix=["a", "b"]) == ["a.b.c"]


async def test_many_namespaces_are_listed_in_parts(items: Items, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "WALK_PATHS", 3)
    labels = [[f"u{n:02}", kind] for n in range(10) for kind in ("x", "y")]
    await items.batch([PutItem(namespace=each, key=key, value={}) for each in labels for key in "12"])
    assert await spaces(items) == [".".join(each) for each in labels]
    assert await spaces(items, max_depth=1) == [f"u{n:02}" for n in range(10)]
    assert await spaces(items, suffix=["y"], offset=8) == ["u08.y", "u09.y"]


async def test_labels_with_odd_characters_keep_their_order(items: Items) -> None:
    odd = [
        ("a",),
        ("a", "\x01"),
        ("a", "\x01", "b"),
        ("a", "\x02"),
        ("a", "\x02\x01"),
        ("a", " "),
        ("a\x01",),
    ]
    odd += [("a\x01", "b"), ("a\x02", "\U0010ffff"), ("a*",), ("a/",), ("\U0010ffff",)]
    for each in odd:
        await items.put(each, "k", {})
    assert (await items.list_namespaces()).items == sorted(odd)
    for each in odd:
        below = [space for space in sorted(odd) if space[: len(each)] == each]
        assert sorted(tuple(item.namespace) for item in await items.search(each, limit=99)) == below


# --- time -------------------------------------------------------------------------------------------------


async def test_what_has_expired_is_out_of_sight_at_once(storage: Storage, items: Items) -> None:
    await items.put(["a"], "short", {"n": 1}, ttl_minutes=10)
    await items.put(["b"], "long", {"n": 2}, ttl_minutes=30)
    await items.put(["c"], "ever", {"n": 3}, ttl_minutes=None)
    found = await items.get(["a"], "short", refresh_ttl=False)
    assert found is not None
    assert found.expires_at == pytest.approx(found.updated_at + 600)
    await age(storage, 11)
    assert await items.get(["a"], "short") is None
    assert await keys(items, refresh_ttl=False) == ["ever", "long"]
    assert await keys(items, filter={"n": {"$lt": 3}}, refresh_ttl=False) == ["long"]
    assert await spaces(items) == ["b", "c"]
    assert len(await rows_of(storage)) == 3
    assert await items.expire() == 1
    assert [row[1] for row in await rows_of(storage)] == ["long", "ever"]
    await age(storage, 20)
    assert await keys(items) == ["ever"]


async def test_reading_keeps_an_item_longer_if_that_is_wanted(storage: Storage, items: Items) -> None:
    for key in ("got", "found", "left"):
        await items.put(["a"], key, {}, ttl_minutes=10)
    await age(storage, 6)
    await items.get(["a"], "got")
    await items.get(["a"], "left", refresh_ttl=False)
    await items.search(["a"], limit=10, refresh_ttl=False)
    await age(storage, 6)
    assert await keys(items, refresh_ttl=True) == ["got"]
    await age(storage, 6)
    assert await keys(items) == ["got"]
    lazy = Items(storage, policy=ItemPolicy(refresh_on_read=False))
    await lazy.get(["a"], "got")
    await age(storage, 6)
    assert await keys(lazy) == ["got"]
    await lazy.get(["a"], "got", refresh_ttl=True)
    await age(storage, 9)
    assert await keys(lazy) == ["got"]
    await age(storage, 2)
    assert await keys(lazy) == []


async def test_the_policy_says_how_long_items_last(storage: Storage) -> None:
    items = Items(storage, policy=ItemPolicy(default_ttl=5))
    await items.put(["a"], "usual", {})
    await items.put(["a"], "own", {}, ttl_minutes=20)
    await items.put(["a"], "ever", {}, ttl_minutes=None)
    await age(storage, 6)
    assert sorted(await keys(items)) == ["ever", "own"]


async def test_what_takes_the_place_of_an_expired_item_is_new(storage: Storage, items: Items) -> None:
    await items.put(["a"], "k", {"n": 1}, ttl_minutes=1)
    await age(storage, 2)
    await items.put(["a"], "k", {"n": 2})
    found = await items.get(["a"], "k")
    assert found is not None
    assert (found.value, found.created_at) == ({"n": 2}, found.updated_at)
    assert found.expires_at is None


async def test_expiry_goes_on_until_nothing_is_left(
    storage: Storage, items: Items, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "EXPIRE_ROWS", 3)
    other = items.in_namespace("other")
    for each in (items, other):
        await each.batch([PutItem(namespace=["a"], key=str(n), value={}, ttl_minutes=1) for n in range(5)])
    await age(storage, 2)
    assert await items.expire() == 10
    assert await rows_of(storage) == []


async def test_what_has_expired_is_removed_by_itself(storage: Storage) -> None:
    items = Items(storage, policy=ItemPolicy(sweep_interval_minutes=0.0002))
    await items.put(["a"], "k", {}, ttl_minutes=1)
    await items.put(["a"], "ever", {})
    items.start_timers()
    await age(storage, 2)

    async def gone() -> bool:
        return [row[1] for row in await rows_of(storage)] == ["ever"]

    await until_true(gone)


# --- many at once -----------------------------------------------------------------------------------------


async def test_a_batch_reads_what_was_there_before_it_writes(items: Items) -> None:
    await items.put(["a"], "old", {"n": 1})
    results = await items.batch(
        [
            PutItem(namespace=["a"], key="new", value={"n": 2}),
            GetItem(namespace=["a"], key="new"),
            GetItem(namespace=["a"], key="old"),
            DeleteItem(namespace=["a"], key="old"),
            SearchItems(namespace_prefix=["a"]),
            ListNamespaces(matches=[NamespaceMatch(kind="prefix", path=["a"])]),
            PutItem(namespace=["a"], key="new", value={"n": 3}),
        ]
    )
    assert [result.item and result.item.key for result in results] == [None, None, "old", *[None] * 4]
    assert [item.key for item in results[4].items or []] == ["old"]
    assert results[5].namespaces == [["a"]]
    assert [(item.key, item.value) for item in await items.search()] == [("new", {"n": 3})]


async def test_a_batch_with_something_wrong_changes_nothing(items: Items) -> None:
    with pytest.raises(InvalidInput):
        await items.batch(
            [PutItem(namespace=["a"], key="k", value={}), PutItem(namespace=[], key="k", value={})]
        )
    assert (await items.search()).items == []


async def test_many_who_write_the_same_items_do_not_wait_for_each_other_for_ever(items: Items) -> None:
    async def work(number: int) -> None:
        names = [str((number + n) % 7) for n in range(5)]
        await items.batch(
            [
                *[PutItem(namespace=["a", name], key="k", value={"n": number}) for name in names],
                DeleteItem(namespace=["a", names[0]], key="k"),
            ]
        )

    others = [Items(items.storage) for _ in range(4)]
    async with asyncio.timeout(60):
        await asyncio.gather(
            *(work(n) for n in range(20)),
            *(each.put(["a", str(n)], "k", {}) for n in range(7) for each in others),
        )
    assert len(await items.search(limit=100)) <= 7


# --- bad input --------------------------------------------------------------------------------------------


BAD_NAMESPACES: list[Any] = [
    [],
    ["a.b"],
    [""],
    [1],
    "ab",
    ["a", None],
    ["a\0"],
    ["langgraph", "x"],
    ["x" * 1025],
    7,
]


async def test_bad_namespaces_are_refused(items: Items) -> None:
    for namespace in BAD_NAMESPACES:
        with pytest.raises(InvalidInput):
            await items.put(namespace, "k", {})
    assert (await items.search()).items == []


BAD_CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("put", (["a"], 1, {}), {}),
    ("put", (["a"], "k\0", {}), {}),
    ("put", (["a"], "k" * 1025, {}), {}),
    ("put", (["a"], "k", []), {}),
    ("put", (["a"], "k", {1: 2}), {}),
    ("put", (["a"], "k", {"n": float("nan")}), {}),
    ("put", (["a"], "k", {"n": object()}), {}),
    ("put", (["a"], "k", {}), {"ttl_minutes": 0}),
    ("put", (["a"], "k", {}), {"ttl_minutes": -1}),
    ("put", (["a"], "k", {}), {"ttl_minutes": float("inf")}),
    ("put", (["a"], "k", {}), {"ttl_minutes": True}),
    ("put", (["a"], "k", {}), {"ttl_minutes": 1e12}),
    ("put", (["a"], "k", {}), {"index": True}),
    ("put", (["a"], "k", {}), {"index": "text"}),
    ("get", (["a.b"], "k"), {}),
    ("get", (["a"], None), {}),
    ("delete", (["a", ""], "k"), {}),
    ("search", (["a.b"],), {}),
    ("search", ("ab",), {}),
    ("search", ([],), {"limit": -1}),
    ("search", ([],), {"limit": True}),
    ("search", ([],), {"offset": -1}),
    ("search", ([],), {"offset": "1"}),
    ("search", ([],), {"filter": []}),
    ("search", ([],), {"filter": {"a": {"$in": [1]}}}),
    ("search", ([],), {"filter": {"a": {"b": [{"$gt": 1, "c": 2}]}}}),
    ("list_namespaces", (), {"prefix": ["a.b"]}),
    ("list_namespaces", (), {"suffix": [""]}),
    ("list_namespaces", (), {"max_depth": 0}),
    ("list_namespaces", (), {"limit": -1}),
    ("list_namespaces", (), {"offset": -1}),
]


async def test_bad_input_is_refused_and_changes_nothing(items: Items) -> None:
    for method, arguments, options in BAD_CALLS:
        with pytest.raises(InvalidInput):
            await getattr(items, method)(*arguments, **options)
    assert (await items.search()).items == []
