"""Handlers of custom auth: which one is called, with which arguments, and the effect of its answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from langgraph_sdk import Auth
from starlette.requests import Request

from perdure.kernel.errors import Forbidden, InvalidInput, NotFound, PerdureError, Unauthorized
from perdure.langgraph.custom_auth import GraphAuth, User


def request(path: str = "/threads", **headers: str) -> Request:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "path": path, "query_string": b"a=1", "headers": raw})


def authenticating(handler: Any) -> GraphAuth:
    auth = Auth()
    auth.authenticate(handler)
    return GraphAuth(auth)


async def anybody() -> str:
    return "ann"


async def test_an_authenticator_gets_what_it_asks_for() -> None:
    seen: dict[str, Any] = {}

    async def handler(
        request: Any, path: str, method: str, headers: Any, query_params: Any, authorization: Any
    ) -> str:
        seen.update(locals())
        return "ann"

    user = await authenticating(handler).authenticate(request(Authorization="Bearer x"))
    assert user.identity == "ann"
    assert (seen["path"], seen["method"], seen["authorization"]) == ("/threads", "POST", "Bearer x")
    assert seen["headers"] == {b"authorization": b"Bearer x"}
    assert seen["query_params"] == {"a": "1"}


async def test_a_user_may_be_a_text_a_mapping_or_an_object() -> None:
    found = SimpleNamespace(identity="bob", permissions=["p"], team="blue", _hidden=1)
    for answer in ("bob", {"identity": "bob", "display_name": "Bob"}, found):
        user = await authenticating(lambda answer=answer: answer).authenticate(request())
        assert (user.identity, user["identity"], "identity" in user) == ("bob", "bob", True)
    user = await authenticating(lambda: found).authenticate(request())
    assert (user.team, list(user.permissions), user.is_authenticated) == ("blue", ["p"], True)
    assert "_hidden" not in list(user)
    with pytest.raises(AttributeError):
        _ = user.nothing


@pytest.mark.parametrize("answer", [None, "", 5, {}, {"identity": ""}, {"identity": 5}, True])
async def test_who_has_no_identity_does_not_come_in(answer: Any) -> None:
    with pytest.raises(Unauthorized):
        await authenticating(lambda: answer).authenticate(request())


@pytest.mark.parametrize(
    ("status", "kind"), [(401, Unauthorized), (403, Forbidden), (404, NotFound), (418, PerdureError)]
)
async def test_a_refusal_is_handed_on(status: int, kind: type[PerdureError]) -> None:
    async def handler() -> str:
        raise Auth.exceptions.HTTPException(status_code=status, detail="no")

    with pytest.raises(kind, match="no"):
        await authenticating(handler).authenticate(request())


async def test_the_handler_that_fits_best_is_asked() -> None:
    auth = Auth()
    auth.authenticate(anybody)
    asked: list[str] = []

    def told(name: str) -> Any:
        async def handler(ctx: Any, value: Any) -> None:
            asked.append(f"{name}: {ctx.resource}.{ctx.action}")

        return handler

    auth.on(told("all"))
    auth.on.threads(told("threads"))
    auth.on.threads.create(told("create"))
    auth.on(actions=["search"])(told("search"))
    guard, user = GraphAuth(auth), User({"identity": "ann"})
    for resource, action in (
        ("threads", "create"),
        ("threads", "search"),
        ("crons", "search"),
        ("store", "put"),
    ):
        assert await guard.authorize(user, resource, action, {}) == {}
    assert asked == [
        "create: threads.create",
        "threads: threads.search",
        "search: crons.search",
        "all: store.put",
    ]


async def test_without_a_handler_whoever_is_known_may() -> None:
    assert await authenticating(anybody).authorize(User({"identity": "ann"}), "threads", "create", {}) == {}


@pytest.mark.parametrize("answer", [False, 0, "yes", ["x"]])
async def test_any_other_answer_is_a_no(answer: Any) -> None:
    auth = Auth()
    auth.authenticate(anybody)

    async def handler(ctx: Any, value: Any) -> Any:
        return answer

    auth.on(handler)
    with pytest.raises(Forbidden):
        await GraphAuth(auth).authorize(User({"identity": "ann"}), "threads", "read", {})


@pytest.mark.parametrize("given", [5, None, Auth()])
def test_what_is_no_auth_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput):
        GraphAuth(given)
