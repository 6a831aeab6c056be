"""Tokens, namespaces, the audit and callers, on both engines; and their limits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.server.native.support import API, KEY, bearer
from tests.server.otlp_support import ENGINES, opened
from tests.server.support import Answer, Visitor, serving

from perdure.testing.grids import every


@pytest_asyncio.fixture(params=ENGINES)
async def visitor(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Visitor]:
    """Start a server, and return a caller with the server's own key."""
    async with opened(request.param, request, tmp_path) as store, serving(store, api_key=KEY) as found:
        found.headers = bearer(KEY)
        yield found


async def make(visitor: Visitor, **fields: Any) -> Answer:
    return await visitor.post(API + "/tokens", json={"name": "a token", "without_admin": True} | fields)


async def test_who_calls(visitor: Visitor) -> None:
    me = (await visitor.get(API + "/me")).body
    assert me == {
        "actor": "key",
        "scopes": ["admin", "read", "worker", "write"],
        "namespace": "default",
        "namespaces": None,
    }
    made = (await make(visitor, scopes=["read"], namespaces=["b", "a"])).body
    there = (await visitor.get(API + "/me", headers=bearer(made["secret"]))).body
    assert there == {
        "actor": made["token_id"],
        "scopes": ["read"],
        "namespace": "b",
        "namespaces": ["b", "a"],
    }


async def test_a_token_is_made_used_listed_and_revoked(visitor: Visitor) -> None:
    answer = await make(visitor, scopes=["write"], expires_in=3600.0)
    assert answer.status == 201
    secret = answer.body["secret"]
    assert secret.startswith(f"pdr_{answer.body['token_id']}_")
    assert answer.body["namespaces"] == ["default"]
    written = await visitor.post(API + "/rollouts", json={"input": 1}, headers=bearer(secret))
    assert written.status == 201
    assert (await visitor.get(API + "/rollouts", headers=bearer(secret))).status == 403

    listed = await visitor.get(API + "/tokens")
    assert [each["token_id"] for each in listed.body["items"]] == [answer.body["token_id"]]
    assert secret not in str(listed.body)
    revoked = await visitor.ask("DELETE", f"{API}/tokens/{answer.body['token_id']}")
    assert revoked.status == 200
    assert revoked.body["revoke_time"] is not None
    assert (await visitor.post(API + "/rollouts", json={"input": 1}, headers=bearer(secret))).status == 401
    assert (await visitor.ask("DELETE", API + "/tokens/none")).status == 404


@every(
    "fields",
    [
        {"name": ""},
        {"name": 5},
        {"scopes": []},
        {"scopes": ["everything"]},
        {"namespaces": []},
        {"namespaces": ["x" * 3000]},
        {"expires_in": -1},
        {"expires_in": "soon"},
        {"secret": "mine"},
    ],
)
async def test_bad_tokens_are_refused(visitor: Visitor, fields: dict[str, Any]) -> None:
    assert (await make(visitor, **fields)).status == 422
    assert (await visitor.get(API + "/tokens")).body == {"items": [], "next": None}


async def test_an_admin_of_some_namespaces_reaches_no_further(visitor: Visitor) -> None:
    mine = (await make(visitor, scopes=["admin"], namespaces=["mine"])).body
    other = (await make(visitor, scopes=["admin"], namespaces=["other"])).body
    everywhere = (await make(visitor, scopes=["admin"], namespaces=["*"])).body
    await visitor.post(API + "/rollouts", json={"input": 1})
    boss: Any = {"headers": bearer(mine["secret"])}
    await visitor.post(API + "/rollouts", json={"input": 1}, **boss)

    for namespaces in (["other"], ["*"], ["mine", "other"]):
        answer = await visitor.post(API + "/tokens", json={"name": "x", "namespaces": namespaces}, **boss)
        assert (answer.status, answer.body["code"]) == (403, "forbidden")
    own = await visitor.post(API + "/tokens", json={"name": "x"}, **boss)
    assert (own.status, own.body["namespaces"]) == (201, ["mine"])
    seen = (await visitor.get(API + "/tokens", **boss)).body["items"]
    assert {each["token_id"] for each in seen} == {mine["token_id"], own.body["token_id"]}
    for beyond in (other, everywhere):
        assert (await visitor.ask("DELETE", f"{API}/tokens/{beyond['token_id']}", **boss)).status == 404
    assert (await visitor.get(API + "/namespaces", **boss)).body == {"items": ["mine"], "next": None}
    assert set((await visitor.get(API + "/namespaces")).body["items"]) >= {"default", "mine"}
    entries = (await visitor.get(API + "/audit", **boss)).body["items"]
    assert {entry["namespace"] for entry in entries} == {"mine"}
    assert (await visitor.get(API + "/audit?namespace=other", **boss)).status == 403
    text = (await visitor.get("/metrics", **boss)).body.decode()
    assert 'namespace="mine"' in text
    assert 'namespace="default"' not in text


async def test_the_audit_is_read_page_by_page(visitor: Visitor) -> None:
    for number in range(5):
        await visitor.post(API + "/rollouts", json={"input": number})
    whole = (await visitor.get(API + "/audit?action=enqueue_rollout")).body
    assert (len(whole["items"]), whole["before"]) == (5, None)
    assert {entry["actor"] for entry in whole["items"]} == {"key"}
    read: list[Any] = []
    path = API + "/audit?action=enqueue_rollout&limit=2"
    page = (await visitor.get(path)).body
    while page["before"] is not None:
        read += page["items"]
        page = (await visitor.get(f"{path}&before={page['before']}")).body
    assert read + page["items"] == whole["items"]
    assert (await visitor.get(API + "/audit?actor=nobody")).body == {"items": [], "before": None}
    for bad in ("limit=-1", "limit=1001", "before=-1", "before=x"):
        assert (await visitor.get(f"{API}/audit?{bad}")).status == 422


async def test_only_an_admin_may_look_at_tokens_namespaces_and_the_audit(visitor: Visitor) -> None:
    made = (await make(visitor, scopes=["read", "write", "worker"])).body
    plain: Any = {"headers": bearer(made["secret"])}
    for path in ("/tokens", "/namespaces", "/audit"):
        assert (await visitor.get(API + path, **plain)).status == 403
    assert (await visitor.post(API + "/tokens", json={"name": "x"}, **plain)).status == 403
