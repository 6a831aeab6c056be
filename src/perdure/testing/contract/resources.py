"""Resources: versioned bundles, the latest of which is the default."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Any

import pytest

from perdure import LLM, LightningStore, NamedResources, PromptTemplate, ProxyLLM, ResourcesUpdate
from perdure.testing.grids import every

from .paging import PAGES, check_page, check_pages_join, check_sorted
from .support import Contract

__all__ = ["TestQueryResources", "TestResources"]

BUNDLES: dict[str, NamedResources] = {
    "llm": {"main": LLM(endpoint="http://host/v1", model="m")},
    "llm with everything": {
        "main": LLM(
            endpoint="http://host/v1",
            model="m",
            api_key="k",
            sampling_parameters={"temperature": 0.5, "stop": ["x"]},
        )
    },
    "proxy": {"main": ProxyLLM(endpoint="http://host/v1", model="m", sampling_parameters={"top_p": 1})},
    "prompt": {"prompt": PromptTemplate(template="{question}\n世界", engine="f-string")},
    "several": {
        "z": PromptTemplate(template="{{ x }}", engine="jinja"),
        "a": LLM(endpoint="e", model="m"),
        "": PromptTemplate(template="", engine="poml"),
    },
    "empty": {},
}
FIELDS = ["resources_id", "create_time", "update_time", "version"]


def prompt(template: str) -> NamedResources:
    return {"prompt": PromptTemplate(template=template, engine="f-string")}


class TestResources(Contract):
    """Adding, updating, and the latest."""

    async def test_none_at_first(self, store: LightningStore) -> None:
        assert await store.get_latest_resources() is None
        assert await store.get_resources_by_id("rs-missing") is None

    async def test_added_as_version_one(self, store: LightningStore) -> None:
        update = await store.add_resources(prompt("a"))
        assert type(update) is ResourcesUpdate
        assert re.fullmatch(r"rs-[0-9a-f]{12}", update.resources_id)
        assert update.version == 1
        assert update.create_time == update.update_time > 0

    @every("bundle", BUNDLES)
    async def test_comes_back_as_it_was_given(self, store: LightningStore, bundle: str) -> None:
        update = await store.add_resources(BUNDLES[bundle])
        stored = await store.get_resources_by_id(update.resources_id)
        assert stored == update
        assert stored is not None
        assert stored.resources == BUNDLES[bundle]
        assert {k: type(v) for k, v in stored.resources.items()} == {
            k: type(v) for k, v in BUNDLES[bundle].items()
        }

    async def test_the_last_one_added_is_the_latest(self, store: LightningStore) -> None:
        await store.add_resources(prompt("a"))
        second = await store.add_resources(prompt("b"))
        assert await store.get_latest_resources() == second

    async def test_update_is_a_new_version(self, store: LightningStore) -> None:
        added = await store.add_resources(prompt("a"))
        updated = await store.update_resources(added.resources_id, prompt("b"))
        assert (updated.resources_id, updated.version) == (added.resources_id, 2)
        assert updated.resources == prompt("b")
        assert updated.create_time == added.create_time
        assert updated.update_time >= added.update_time
        assert await store.get_resources_by_id(added.resources_id) == updated

    async def test_update_replaces_the_whole_bundle(self, store: LightningStore) -> None:
        added = await store.add_resources(BUNDLES["several"])
        updated = await store.update_resources(added.resources_id, prompt("b"))
        assert set(updated.resources) == {"prompt"}

    async def test_update_makes_it_the_latest(self, store: LightningStore) -> None:
        first = await store.add_resources(prompt("a"))
        await store.add_resources(prompt("b"))
        updated = await store.update_resources(first.resources_id, prompt("c"))
        assert await store.get_latest_resources() == updated
        assert (await store.enqueue_rollout("task")).resources_id == first.resources_id

    async def test_update_of_an_unknown_id_adds_it(self, store: LightningStore) -> None:
        updated = await store.update_resources("mine", prompt("a"))
        assert (updated.resources_id, updated.version) == ("mine", 1)
        assert updated.create_time == updated.update_time
        assert await store.get_resources_by_id("mine") == updated
        assert await store.get_latest_resources() == updated

    async def test_versions_are_counted_apart(self, store: LightningStore) -> None:
        a, b = await store.add_resources(prompt("a")), await store.add_resources(prompt("b"))
        for expected in (2, 3):
            assert (await store.update_resources(a.resources_id, prompt("x"))).version == expected
        assert (await store.update_resources(b.resources_id, prompt("y"))).version == 2

    async def test_rollouts_keep_the_id_they_were_made_with(self, store: LightningStore) -> None:
        first = await store.add_resources(prompt("a"))
        queued = await store.enqueue_rollout("task")
        await store.add_resources(prompt("b"))
        stored = await store.get_rollout_by_id(queued.rollout_id)
        assert stored is not None
        assert stored.resources_id == first.resources_id

    async def test_bundle_is_copied(self, store: LightningStore) -> None:
        bundle = prompt("a")
        update = await store.add_resources(bundle)
        bundle["more"] = PromptTemplate(template="x", engine="poml")
        stored = await store.get_resources_by_id(update.resources_id)
        assert stored is not None
        assert set(stored.resources) == {"prompt"}

    async def test_concurrent_updates_are_all_counted(self, store: LightningStore) -> None:
        added = await store.add_resources(prompt("a"))
        updates = await asyncio.gather(
            *(store.update_resources(added.resources_id, prompt(str(i))) for i in range(50))
        )
        assert sorted(update.version for update in updates) == list(range(2, 52))
        stored = await store.get_resources_by_id(added.resources_id)
        assert stored is not None
        assert stored == max(updates, key=lambda update: update.version)

    async def test_concurrent_additions_are_all_stored(self, store: LightningStore) -> None:
        updates = await asyncio.gather(*(store.add_resources(prompt(str(i))) for i in range(50)))
        assert len({update.resources_id for update in updates}) == 50
        assert (await store.query_resources()).total == 50


async def mixed_resources(store: LightningStore) -> list[ResourcesUpdate]:
    """Create five bundles, in order."""
    ids = ("set-b", "set-a", "other_1", "SET-c", "set-d")
    for resources_id in ids:
        await store.update_resources(resources_id, prompt(resources_id))
    for resources_id in ("set-d", "set-a", "set-a"):
        await store.update_resources(resources_id, prompt("new"))
    stored = [await store.get_resources_by_id(resources_id) for resources_id in ids]
    return [update for update in stored if update is not None]


class TestQueryResources(Contract):
    """Lists of bundles."""

    async def test_empty_store(self, store: LightningStore) -> None:
        result = await store.query_resources()
        assert (list(result), result.total) == ([], 0)

    async def test_order_of_creation_by_default(self, store: LightningStore) -> None:
        updates = await mixed_resources(store)
        assert list(await store.query_resources()) == updates

    async def test_sorted(self, store: LightningStore) -> None:
        await check_sorted(store.query_resources, await mixed_resources(store), FIELDS)

    async def test_page(self, store: LightningStore) -> None:
        resources = await mixed_resources(store)
        for limit, offset in PAGES:
            await check_page(store.query_resources, resources, limit, offset)

    async def test_pages_join(self, store: LightningStore) -> None:
        await mixed_resources(store)
        await check_pages_join(store.query_resources, [None, *FIELDS])

    @pytest.mark.parametrize(
        ("filters", "expected"),
        [
            ({"resources_id": "set-a"}, [1]),
            ({"resources_id": "set"}, []),
            ({"resources_id": "set-A"}, []),
            ({"resources_id_contains": "set-"}, [0, 1, 4]),
            ({"resources_id_contains": "SET"}, [3]),
            ({"resources_id_contains": "_"}, [2]),
            ({"resources_id_contains": "%"}, []),
            ({"resources_id": "set-a", "resources_id_contains": "set"}, [1]),
            ({"resources_id": "set-a", "resources_id_contains": "other"}, []),
        ],
        ids=str,
    )
    async def test_filters(self, store: LightningStore, filters: dict[str, Any], expected: list[int]) -> None:
        updates = await mixed_resources(store)
        result = await store.query_resources(**filters)
        assert list(result) == [updates[i] for i in expected]
        assert result.total == len(expected)

    async def test_filter_comes_before_the_page(self, store: LightningStore) -> None:
        updates = await mixed_resources(store)
        query = partial(store.query_resources, resources_id_contains="set-")
        await check_page(query, [updates[0], updates[1], updates[4]], 1, 2)
