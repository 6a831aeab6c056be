"""Every LangGraph route has a rule that asks custom auth for a resource and an action."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest_asyncio
from langgraph_sdk import Auth
from tests.server.support import Visitor, serving

from perdure import InMemoryLightningStore
from perdure.langgraph.custom_auth import GraphAuth
from perdure.server import table
from perdure.server.http.routes import Route
from perdure.server.langgraph.protocol import PROTOCOL
from perdure.server.langgraph.routes import ROUTES
from perdure.server.langgraph.routing import LangGraphRoute

ID = str(uuid.uuid4())
THREAD, RUN = "/threads/{thread_id}", "/threads/{thread_id}/runs/{run_id}"
ASSISTANT, CRON = "/assistants/{assistant_id}", "/runs/crons/{cron_id}"

ASKED = {
    "POST /assistants": "assistants.create",
    "POST /assistants/search": "assistants.search",
    "POST /assistants/count": "assistants.search",
    f"GET {ASSISTANT}": "assistants.read",
    f"PATCH {ASSISTANT}": "assistants.update",
    f"DELETE {ASSISTANT}": "assistants.delete",
    f"POST {ASSISTANT}/versions": "assistants.read",
    f"POST {ASSISTANT}/latest": "assistants.update",
    f"GET {ASSISTANT}/graph": "assistants.read",
    f"GET {ASSISTANT}/schemas": "assistants.read",
    f"GET {ASSISTANT}/subgraphs": "assistants.read",
    f"GET {ASSISTANT}/subgraphs/{{namespace}}": "assistants.read",
    "POST /mcp": "assistants.search",
    "POST /a2a/{assistant_id}": "assistants.read",
    "GET /a2a/{assistant_id}/.well-known/agent-card.json": "assistants.read",
    "GET /.well-known/agent-card.json": "assistants.search",
    "POST /threads": "threads.create",
    "POST /threads/search": "threads.search",
    "POST /threads/count": "threads.search",
    "POST /threads/prune": "threads.delete",
    f"GET {THREAD}": "threads.read",
    f"PATCH {THREAD}": "threads.update",
    f"DELETE {THREAD}": "threads.delete",
    f"POST {THREAD}/copy": "threads.read",
    f"GET {THREAD}/state": "threads.read",
    f"GET {THREAD}/state/{{checkpoint_id}}": "threads.read",
    f"POST {THREAD}/state/checkpoint": "threads.read",
    f"POST {THREAD}/state": "threads.update",
    f"POST {THREAD}/history": "threads.read",
    f"GET {THREAD}/history": "threads.read",
    f"GET {THREAD}/stream": "threads.read",
    f"POST {THREAD}/stream/events": "threads.read",
    f"POST {THREAD}/commands": "threads.update",
    f"POST {THREAD}/runs": "threads.create_run",
    f"POST {THREAD}/runs/stream": "threads.create_run",
    f"POST {THREAD}/runs/wait": "threads.create_run",
    f"GET {THREAD}/runs": "threads.read",
    f"GET {RUN}": "threads.read",
    f"GET {RUN}/join": "threads.read",
    f"GET {RUN}/stream": "threads.read",
    f"POST {RUN}/cancel": "threads.update",
    f"DELETE {RUN}": "threads.delete",
    "GET /runs/{run_id}/stream": "threads.read",
    "POST /runs": "threads.create_run",
    "POST /runs/stream": "threads.create_run",
    "POST /runs/wait": "threads.create_run",
    "POST /runs/batch": "threads.create_run",
    "POST /runs/cancel": "threads.update",
    "POST /runs/crons": "crons.create",
    f"POST {THREAD}/runs/crons": "crons.create",
    "POST /runs/crons/search": "crons.search",
    "POST /runs/crons/count": "crons.search",
    f"GET {CRON}": "crons.read",
    f"PATCH {CRON}": "crons.update",
    f"DELETE {CRON}": "crons.delete",
    "PUT /store/items": "store.put",
    "GET /store/items": "store.get",
    "DELETE /store/items": "store.delete",
    "POST /store/items/search": "store.search",
    "POST /store/namespaces": "store.list_namespaces",
}
"""The first question of each route to custom auth."""

BODIES: dict[str, Any] = {
    "AssistantCreate": {"graph_id": "g"},
    "VersionChange": {"version": 1},
    "ThreadPrune": {"thread_ids": [ID]},
    "StateRequest": {"checkpoint": {}},
    "RunBody": {"assistant_id": "a"},
    "CronCreate": {"assistant_id": "a", "schedule": "* * * * *"},
    "NewStoreItem": {"namespace": ["n"], "key": "k", "value": {}},
    "StoreItemName": {"namespace": ["n"], "key": "k"},
}
"""Bodies with required fields, by type."""


class Guarded(NamedTuple):
    """A server whose custom auth denies everything and records the questions."""

    visitor: Visitor
    asked: list[str]


@pytest_asyncio.fixture
async def guarded() -> AsyncIterator[Guarded]:
    auth, asked = Auth(), list[str]()

    @auth.authenticate
    async def authenticate() -> str:
        return "ann"

    @auth.on
    async def deny(ctx: Auth.types.AuthContext, value: Any) -> bool:
        asked.append(f"{ctx.resource}.{ctx.action}")
        return False

    async with InMemoryLightningStore() as store, serving(store) as visitor:
        visitor.app.auth = GraphAuth(auth)
        yield Guarded(visitor, asked)


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


def test_every_route_has_a_rule() -> None:
    served = [route for route in table.ROUTES if route.protocol is PROTOCOL]
    assert served == list(ROUTES)
    assert all(isinstance(route, LangGraphRoute) and callable(route.rule) for route in served)
    assert {name_of(route) for route in served} == set(ASKED)


async def test_every_route_asks_first_and_does_nothing_that_is_denied(guarded: Guarded) -> None:
    for route in ROUTES:
        guarded.asked.clear()
        path = route.path.replace("{namespace}", "n").replace("{checkpoint_id}", "c")
        for name in ("assistant_id", "thread_id", "run_id", "cron_id"):
            path = path.replace("{" + name + "}", ID)
        body = BODIES.get(getattr(route.body, "__name__", ""), {})
        if route.path == "/runs/batch":
            body = [BODIES["RunBody"]]
        answer = await guarded.visitor.ask(route.method, path, json=None if route.body is None else body)
        if route.path == "/runs/{run_id}/stream":
            # The run that names the thread to authorize does not exist.
            assert (answer.status, guarded.asked) == (404, [])
        else:
            assert (answer.status, answer.body["code"], name_of(route)) == (403, "forbidden", name_of(route))
            assert guarded.asked == [ASKED[name_of(route)]], name_of(route)
