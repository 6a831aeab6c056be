"""The store, through the real clients."""

from __future__ import annotations

import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient, SyncLangGraphClient
from langgraph_sdk.errors import APIStatusError, UnprocessableEntityError
from tests.server.langgraph.conftest import serving
from tests.server.langgraph.project import project

from perdure import PerdureClient
from perdure.testing.serving import ServerProcess


@pytest.fixture
def root() -> str:
    """Return a namespace that only this test uses."""
    return f"test-{uuid.uuid4().hex}"


async def test_an_item_is_put_got_changed_and_deleted(client: LangGraphClient, root: str) -> None:
    namespace = [root, "ada"]
    await client.store.put_item(namespace, "prefs", {"theme": "dark", "n": [1, None, {"x": 1.5}]})
    first = await client.store.get_item(namespace, "prefs")
    assert set(first) == {"namespace", "key", "value", "created_at", "updated_at"}
    assert (first["namespace"], first["key"]) == (namespace, "prefs")
    assert first["value"] == {"theme": "dark", "n": [1, None, {"x": 1.5}]}
    assert datetime.fromisoformat(str(first["created_at"])).tzinfo is not None
    await client.store.put_item(namespace, "prefs", {"theme": "light"})
    second = await client.store.get_item(namespace, "prefs")
    assert second["value"] == {"theme": "light"}
    assert second["created_at"] == first["created_at"]
    assert str(second["updated_at"]) > str(first["updated_at"])
    await client.store.delete_item(namespace, "prefs")
    gone: Any = await client.store.get_item(namespace, "prefs")
    assert gone is None
    await client.store.delete_item(namespace, "prefs")


async def fill(client: LangGraphClient, root: str) -> None:
    for number, labels in enumerate((["a"], ["a", "b"], ["c", "b"], ["c"])):
        value = {"n": number, "even": number % 2 == 0, "at": {"city": "Paris" if number > 1 else "Rome"}}
        await client.store.put_item([root, *labels], f"k{number}", value)


async def test_items_are_searched(client: LangGraphClient, root: str) -> None:
    await fill(client, root)

    async def keys(*labels: str, **terms: Any) -> list[str]:
        found = await client.store.search_items([root, *labels], **terms)
        return [item["key"] for item in found["items"]]

    assert await keys() == ["k3", "k2", "k1", "k0"]
    assert await keys("a") == ["k1", "k0"]
    assert await keys(limit=2, offset=1) == ["k2", "k1"]
    assert await keys(filter={"even": True}) == ["k2", "k0"]
    assert await keys(filter={"n": {"$gte": 1, "$lt": 3}}) == ["k2", "k1"]
    assert await keys(filter={"at": {"city": "Rome"}}) == ["k1", "k0"]
    assert await keys(filter={"n": {"$ne": 2}}, limit=2) == ["k3", "k1"]
    assert await keys("nothing") == []
    (found,) = (await client.store.search_items([root, "c", "b"]))["items"]
    assert set(found) == {"namespace", "key", "value", "created_at", "updated_at", "score"}
    assert found["score"] is None


async def test_namespaces_are_listed(client: LangGraphClient, root: str) -> None:
    await fill(client, root)

    async def spaces(**terms: Any) -> list[str]:
        found = await client.store.list_namespaces(**{"prefix": [root], **terms})
        return [".".join(labels[1:]) for labels in found["namespaces"]]

    assert await spaces() == ["a", "a.b", "c", "c.b"]
    assert await spaces(prefix=[root, "a"]) == ["a", "a.b"]
    assert await spaces(prefix=[root, "*", "b"]) == ["a.b", "c.b"]
    assert await spaces(suffix=["b"]) == ["a.b", "c.b"]
    assert await spaces(max_depth=2) == ["a", "c"]
    assert await spaces(limit=2, offset=1) == ["a.b", "c"]


async def test_items_with_a_time_to_live(client: LangGraphClient, root: str) -> None:
    await client.store.put_item([root], "long", {}, ttl=60)
    await client.store.put_item([root], "ever", {})
    assert (await client.store.get_item([root], "long", refresh_ttl=False))["key"] == "long"
    assert (await client.store.get_item([root], "long", refresh_ttl=True))["key"] == "long"
    found = await client.store.search_items([root], refresh_ttl=False)
    assert [item["key"] for item in found["items"]] == ["ever", "long"]


BAD: list[tuple[str, str, dict[str, Any], int]] = [
    ("PUT", "/store/items", {"namespace": [], "key": "k", "value": {}}, 400),
    ("PUT", "/store/items", {"namespace": ["a.b"], "key": "k", "value": {}}, 422),
    ("PUT", "/store/items", {"namespace": ["a", ""], "key": "k", "value": {}}, 422),
    ("PUT", "/store/items", {"namespace": ["langgraph"], "key": "k", "value": {}}, 422),
    ("PUT", "/store/items", {"namespace": "a", "key": "k", "value": {}}, 422),
    ("PUT", "/store/items", {"namespace": ["a"], "value": {}}, 422),
    ("PUT", "/store/items", {"namespace": ["a"], "key": "k", "value": []}, 422),
    ("PUT", "/store/items", {"namespace": ["a"], "key": "k", "value": {}, "ttl": -1}, 422),
    ("PUT", "/store/items", {"namespace": ["a"], "key": "k", "value": {}, "ttl": "soon"}, 422),
    ("PUT", "/store/items", {"namespace": ["a"], "key": "k", "value": {}, "index": True}, 422),
    ("DELETE", "/store/items", {"namespace": ["a.b"], "key": "k"}, 422),
    ("DELETE", "/store/items", {"namespace": ["a"]}, 422),
    ("POST", "/store/items/search", {"namespace_prefix": ["a.b"]}, 422),
    ("POST", "/store/items/search", {"namespace_prefix": ["a"], "filter": {"x": {"$in": [1]}}}, 422),
    ("POST", "/store/items/search", {"namespace_prefix": ["a"], "limit": -1}, 422),
    ("POST", "/store/items/search", {"namespace_prefix": ["a"], "limit": 10**9}, 422),
    ("POST", "/store/items/search", {"namespace_prefix": ["a"], "offset": "x"}, 422),
    ("POST", "/store/namespaces", {"prefix": ["a.b"]}, 422),
    ("POST", "/store/namespaces", {"max_depth": 0}, 422),
]


async def test_bad_input_is_refused(server: ServerProcess) -> None:
    async with httpx.AsyncClient(base_url=server.url) as session:
        for method, path, body, status in BAD:
            answer = await session.request(method, path, json=body)
            assert (answer.status_code, body) == (status, body)
            assert isinstance(answer.json()["detail"], str)
        assert (await session.get("/store/items", params={"namespace": "a"})).status_code == 400
        assert (
            await session.get("/store/items", params={"namespace": "a..b", "key": "k"})
        ).status_code == 422
        assert (await session.get("/store/items", params={"key": "k"})).status_code == 422


async def test_the_clients_errors_are_typed(client: LangGraphClient, root: str) -> None:
    with pytest.raises(UnprocessableEntityError):
        await client.store.put_item(["langgraph", root], "k", {})
    with pytest.raises(ValueError, match="periods"):
        await client.store.put_item(["a.b"], "k", {})
    with pytest.raises(APIStatusError):
        await client.store.search_items([root], filter={"a": {"$near": 1}})


def test_the_same_without_an_event_loop(sync_client: SyncLangGraphClient, root: str) -> None:
    store = sync_client.store
    store.put_item([root, "x"], "k", {"n": 1}, index=False)
    store.put_item([root, "y"], "k", {"n": 2}, ttl=5)
    assert store.get_item([root, "x"], "k")["value"] == {"n": 1}
    found = store.search_items([root], filter={"n": 2})
    assert [item["namespace"] for item in found["items"]] == [[root, "y"]]
    assert store.list_namespaces(prefix=[root])["namespaces"] == [[root, "x"], [root, "y"]]
    store.delete_item([root, "x"], "k")
    gone: Any = store.get_item([root, "x"], "k")
    assert gone is None


async def test_a_graph_has_the_same_store(client: LangGraphClient, root: str) -> None:
    context = {"name": root}
    for number, before in ((3, 0), (4, 3)):
        ended = await client.runs.wait(None, "remembering", input={"n": number}, context=context)
        assert ended["log"] == [f"had {before}"]  # type: ignore[call-overload]
    assert (await client.store.get_item(["remembered", root], "n"))["value"] == {"n": 7}
    await client.store.put_item(["remembered", root], "n", {"n": 40})
    ended = await client.runs.wait(None, "remembering", input={"n": 2}, context=context)
    assert ended["log"] == ["had 40"]  # type: ignore[call-overload]


EMBED = """
def embed(texts):
    return [[float(text.count(letter)) for letter in "abc"] for text in texts]
"""


async def test_the_store_is_as_langgraph_json_says(tmp_path: Path) -> None:
    index = {"dims": 3, "embed": "./vectors.py:embed", "fields": ["text"]}
    store = {"ttl": {"default_ttl": 5, "refresh_on_read": False}, "index": index}
    folder = project(tmp_path / "project", ("noop",), store=store)
    (folder / "vectors.py").write_text(EMBED)
    with serving(folder, f"sqlite:///{folder / 'perdure.db'}") as server:
        async with get_client(url=server.url) as client:
            for key in ("aab", "bbc", "cca"):
                await client.store.put_item(["docs"], key, {"text": key})
            await client.store.put_item(["docs"], "out", {"text": "b"}, index=False)
            found = await client.store.search_items(["docs"], query="b")
            assert [item["key"] for item in found["items"]] == ["bbc", "aab", "cca", "out"]
            scores = [item["score"] for item in found["items"]]
            assert scores == [pytest.approx(0.894, abs=0.001), pytest.approx(0.447, abs=0.001), 0.0, None]
        async with PerdureClient(server.url) as native:
            item = await native.items.get(["docs"], "aab")
            assert item is not None
            assert item.expires_at == pytest.approx(item.updated_at + 300)


def test_what_is_not_supported_is_said_at_the_start(tmp_path: Path) -> None:
    store = {"path": "./store.py:store", "index": {"dims": 3, "embed": "no-such-provider:model"}}
    folder = project(tmp_path / "project", ("noop",), store=store)
    with serving(folder, f"sqlite:///{folder / 'perdure.db'}") as server:
        said = server.log()
    assert "store.path is not supported here" in said
    assert "store.index: embed 'no-such-provider:model' cannot be loaded" in said
