"""Custom auth: who is authenticated, and what each user may do and see."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
import pytest_asyncio
from langgraph_sdk import Auth, get_client, get_sync_client
from langgraph_sdk.errors import AuthenticationError, ConflictError, NotFoundError, PermissionDeniedError
from tests.kernel.support import soon, until_true
from tests.server.langgraph.auth_project import AUTH, MEMBERS, WHO
from tests.server.langgraph.conftest import serving
from tests.server.langgraph.project import project
from tests.server.support import serving as serving_app

from perdure import InMemoryLightningStore
from perdure.langgraph.custom_auth import GraphAuth
from perdure.server.http import long_responses
from perdure.testing.serving import ServerProcess

YEARLY = "0 0 1 1 *"
GIVEN: dict[str, Any] = {"n": 0, "user_id": ""}
GONE = (NotFoundError, httpx.HTTPStatusError)
ABSENT = r"not found|404"
REFUSED = (PermissionDeniedError, httpx.HTTPStatusError)
"""Errors of refused requests; while waiting for a run or reading events, clients raise their transport's."""
KEY = {"PERDURE_API_KEY": "the-operator-of-this-one"}


def guarded_project(folder: Path, auth: str) -> Path:
    project(folder, ("noop", "steps"), auth={"path": "./auth.py:auth"})
    (folder / "auth.py").write_text(auth, encoding="utf-8")
    (folder / "who.py").write_text(WHO, encoding="utf-8")
    content = json.loads((folder / "langgraph.json").read_text(encoding="utf-8"))
    content["graphs"]["who"] = "./who.py:graph"
    (folder / "langgraph.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = guarded_project(tmp_path_factory.mktemp("auth"), AUTH)
    with serving(folder, f"sqlite:///{folder / 'perdure.db'}", **KEY) as started:
        yield started


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = guarded_project(tmp_path_factory.mktemp("members"), MEMBERS)
    with serving(folder, f"sqlite:///{folder / 'perdure.db'}") as started:
        yield started


class People:
    """Clients of a server, one for each requested user."""

    def __init__(self, url: str, stack: AsyncExitStack, header: str) -> None:
        self._url = url
        self._stack = stack
        self._header = header

    async def client(self, name: str) -> Any:
        value = f"Bearer {name}" if self._header == "Authorization" else name
        opened = get_client(url=self._url, headers={self._header: value}, api_key=None)
        return await self._stack.enter_async_context(opened)


@pytest_asyncio.fixture
async def people(guarded: ServerProcess) -> AsyncIterator[People]:
    async with AsyncExitStack() as stack:
        yield People(guarded.url, stack, "Authorization")


@pytest_asyncio.fixture
async def members(shared: ServerProcess) -> AsyncIterator[People]:
    async with AsyncExitStack() as stack:
        yield People(shared.url, stack, "x-user")


async def ask(
    url: str, method: str = "GET", body: Any = None, **headers: str
) -> tuple[int, dict[str, Any] | list[Any]]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, json=body, headers=headers) as answer,
    ):
        return answer.status, await answer.json(content_type=None)


# --- authentication ---------------------------------------------------------------------------------------


async def test_nobody_comes_in_unknown(guarded: ServerProcess) -> None:
    url = guarded.url + "/threads/search"
    assert await ask(url, "POST", {}) == (401, {"detail": "who are you?", "code": "unauthorized"})
    status, content = await ask(url, "POST", {}, Authorization="Bearer crash")
    assert (status, "secret of the house" in str(content)) == (401, False)
    status, content = await ask(url, "POST", {}, Authorization="Bearer teapot")
    assert (status, content) == (400, {"detail": "I am a teapot", "code": "refused"})


async def test_an_unknown_caller_is_the_typed_error_of_the_clients(
    people: People, guarded: ServerProcess
) -> None:
    stranger = await people.client("stranger")
    with pytest.raises(AuthenticationError, match="who are you"):
        await stranger.threads.create()
    with (
        get_sync_client(url=guarded.url, headers={"Authorization": "Bearer x"}, api_key=None) as client,
        pytest.raises(AuthenticationError),
    ):
        client.threads.create()


async def test_a_key_of_perdure_opens_the_other_doors_and_not_this_one(guarded: ServerProcess) -> None:
    key = {"x-api-key": KEY["PERDURE_API_KEY"]}
    assert (await ask(guarded.url + "/threads/search", "POST", {}, **key))[0] == 401
    assert (await ask(guarded.url + "/api/v1/threads", **key))[0] == 200
    assert (await ask(guarded.url + "/api/v1/threads", Authorization="Bearer ann"))[0] == 401
    assert (await ask(guarded.url + "/ok"))[0] == 200


async def test_where_there_is_no_key_the_other_doors_are_closed(shared: ServerProcess) -> None:
    assert (await ask(shared.url + "/api/v1/threads"))[0] == 401
    assert (await ask(shared.url + "/v1/agl/statistics"))[0] == 401
    headers = {"x-user": "zoe", "x-perdure-namespace": "other"}
    assert (await ask(shared.url + "/threads/search", "POST", {}, **headers)) == (200, [])


async def test_a_stream_outlasts_its_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller of custom auth has no perdure token that could be checked again."""
    monkeypatch.setattr(long_responses, "HEARTBEAT_SECONDS", 0.02)
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str) -> str:
        return authorization

    async with InMemoryLightningStore() as store, serving_app(store) as visitor:
        visitor.app.auth = GraphAuth(auth)
        visitor.headers = {"Authorization": "Bearer ann"}
        thread = (await visitor.post("/threads", json={})).body
        url = f"{visitor.url}/threads/{thread['thread_id']}/stream"
        async with visitor.session.get(url, headers=visitor.headers) as response:
            for _ in range(3):
                assert await soon(response.content.readuntil(b"\r\n\r\n")) == b": heartbeat\r\n\r\n"


# --- actions and visibility -------------------------------------------------------------------------------


async def test_threads_are_seen_by_their_owners_alone(people: People) -> None:
    ann, bob = await people.client("ann"), await people.client("bob")
    mark = {"test": uuid.uuid4().hex}
    thread = await ann.threads.create(metadata={**mark, "owner": "bob"})
    thread_id = thread["thread_id"]
    assert thread["metadata"] == {**mark, "owner": "ann"}
    assert (await ann.threads.get(thread_id))["thread_id"] == thread_id
    assert [each["thread_id"] for each in await ann.threads.search(metadata=mark)] == [thread_id]
    assert await ann.threads.count(metadata=mark) == 1
    assert await bob.threads.search(metadata=mark) == []
    assert await bob.threads.search(metadata={**mark, "owner": "ann"}) == []
    assert await bob.threads.count(metadata=mark) == 0
    run = await ann.runs.create(thread_id, "noop", input=GIVEN)
    await ann.runs.join(thread_id, run["run_id"])
    for refused in (
        bob.threads.get(thread_id),
        bob.threads.update(thread_id, metadata={"x": 1}),
        bob.threads.copy(thread_id),
        bob.threads.get_state(thread_id),
        bob.threads.get_history(thread_id),
        bob.threads.update_state(thread_id, {"n": 1}),
        bob.runs.create(thread_id, "noop", input=GIVEN),
        bob.runs.wait(thread_id, "noop", input=GIVEN),
        bob.runs.list(thread_id),
        bob.runs.get(thread_id, run["run_id"]),
        bob.runs.join(thread_id, run["run_id"]),
        bob.runs.cancel(thread_id, run["run_id"]),
        bob.crons.create_for_thread(thread_id, "noop", schedule=YEARLY),
    ):
        with pytest.raises(GONE, match=ABSENT):
            await refused
    assert (await ann.threads.update(thread_id, metadata={"x": 1}))["metadata"]["x"] == 1
    assert len(await ann.runs.list(thread_id)) == 1
    await ann.threads.delete(thread_id)


async def test_a_stream_is_not_read_by_others(people: People) -> None:
    ann, bob = await people.client("ann"), await people.client("bob")
    thread_id = (await ann.threads.create())["thread_id"]
    parts = [part.event async for part in ann.runs.stream(thread_id, "noop", input=GIVEN)]
    assert parts[0] == "metadata"
    for events in (
        bob.runs.stream(thread_id, "noop", input=GIVEN),
        await bob.threads.join_stream(thread_id),
        bob.runs.join_stream(thread_id, str(uuid.uuid4())),
    ):
        with pytest.raises(GONE, match=ABSENT):
            async for _ in events:
                pass


async def test_a_run_without_a_thread_is_joined_by_who_asked_for_it(
    people: People, guarded: ServerProcess
) -> None:
    ann, bob = await people.client("ann"), await people.client("bob")
    run: Any = await ann.runs.create(None, "noop", input=GIVEN)
    values = await ann.runs.join(run["thread_id"], run["run_id"])
    assert values is not None
    with pytest.raises(GONE, match=ABSENT):
        await bob.runs.join(run["thread_id"], run["run_id"])
    path = f"{guarded.url}/runs/{run['run_id']}/stream"
    async with aiohttp.ClientSession() as session:
        for name, status in (("ann", 200), ("bob", 404)):
            async with session.get(path, headers={"Authorization": f"Bearer {name}"}) as answer:
                assert answer.status == status


async def test_what_may_not_be_done_is_403(people: People) -> None:
    eve, bob, broken = [await people.client(name) for name in ("eve", "bob", "broken")]
    with pytest.raises(PermissionDeniedError):
        await eve.threads.create()
    with pytest.raises(REFUSED, match="403"):
        await eve.runs.wait(None, "noop", input=GIVEN)
    with pytest.raises(PermissionDeniedError):
        await eve.assistants.create("noop")
    with pytest.raises(PermissionDeniedError):
        await eve.crons.create("noop", schedule=YEARLY)
    assert await eve.threads.search() == []
    thread = await bob.threads.create()
    with pytest.raises(PermissionDeniedError, match="bob deletes nothing"):
        await bob.threads.delete(thread["thread_id"])
    with pytest.raises(PermissionDeniedError):
        await broken.threads.search()
    with pytest.raises(PermissionDeniedError, match="by thread_id and run_ids"):
        await bob.runs.cancel_many(status="all")


async def test_an_id_that_somebody_else_has_is_taken(people: People) -> None:
    ann, bob = await people.client("ann"), await people.client("bob")
    thread_id = str(uuid.uuid4())
    await ann.threads.create(thread_id=thread_id)
    for if_exists in ("raise", "do_nothing"):
        with pytest.raises(ConflictError):
            await bob.threads.create(thread_id=thread_id, if_exists=if_exists)
    again = await ann.threads.create(thread_id=thread_id, if_exists="do_nothing")
    assert again["thread_id"] == thread_id


async def test_runs_know_for_whom_they_are(people: People) -> None:
    ann = await people.client("ann")
    values: Any = await ann.runs.wait(None, "who", input=GIVEN)
    assert values["user"] == {
        "identity": "ann",
        "display_name": "ann",
        "is_authenticated": True,
        "permissions": ["read", "write"],
        "city": "Graz",
    }
    assert (values["user_id"], values["permissions"]) == ("ann", ["read", "write"])
    forged = {"configurable": {"langgraph_auth_user_id": "bob", "langgraph_auth_user": {"identity": "bob"}}}
    values = await ann.runs.wait(None, "who", input=GIVEN, config=forged)
    assert (values["user_id"], values["user"]["identity"]) == ("ann", "ann")
    (made,) = await ann.runs.create_batch([{"assistant_id": "who", "input": GIVEN}])
    assert made["kwargs"]["config"]["configurable"]["langgraph_auth_user_id"] == "ann"


async def test_a_thread_that_a_run_makes_belongs_to_who_asked(people: People) -> None:
    ann, bob = await people.client("ann"), await people.client("bob")
    thread_id = str(uuid.uuid4())
    run = await ann.runs.create(thread_id, "noop", input=GIVEN, if_not_exists="create")
    await ann.runs.join(thread_id, run["run_id"])
    assert (await ann.threads.get(thread_id))["metadata"] is not None
    with pytest.raises(NotFoundError):
        await bob.threads.get(thread_id)
    with pytest.raises(NotFoundError):
        await bob.runs.create(thread_id, "noop", input=GIVEN, if_not_exists="create")


async def test_an_idempotency_key_is_its_owners(guarded: ServerProcess) -> None:
    key, url = uuid.uuid4().hex, guarded.url + "/runs"
    body = {"assistant_id": "noop"}
    answers: list[Any] = [
        (await ask(url, "POST", body, **{"Authorization": f"Bearer {name}", "Idempotency-Key": key}))[1]
        for name in ("ann", "ann", "bob")
    ]
    first, again, other = [each["run_id"] for each in answers]
    assert first == again
    assert first != other


async def test_assistants_are_seen_by_their_owners_and_graphs_by_all(people: People) -> None:
    ann, bob = await people.client("ann"), await people.client("bob")
    own = await ann.assistants.create("noop", name="mine")
    assistant_id = own["assistant_id"]
    assert own["metadata"] == {"owner": "ann"}
    assert [each["assistant_id"] for each in await ann.assistants.search(name="mine")] == [assistant_id]
    assert await bob.assistants.search() == []
    thread_id = (await bob.threads.create())["thread_id"]
    for refused in (
        bob.assistants.get(assistant_id),
        bob.assistants.get_schemas(assistant_id),
        bob.assistants.update(assistant_id, name="stolen"),
        bob.assistants.get_versions(assistant_id),
        bob.assistants.delete(assistant_id),
        bob.runs.create(thread_id, assistant_id, input=GIVEN),
        bob.runs.wait(None, assistant_id, input=GIVEN),
        bob.crons.create(assistant_id, schedule=YEARLY),
    ):
        with pytest.raises(GONE, match=ABSENT):
            await refused
    assert await bob.runs.wait(thread_id, "noop", input=GIVEN) is not None
    assert await ann.runs.wait(None, assistant_id, input=GIVEN) is not None
    changed = await ann.assistants.update(assistant_id, name="still mine")
    assert (changed["name"], changed["metadata"]) == ("still mine", {"owner": "ann"})
    await ann.assistants.delete(assistant_id)


async def test_crons_belong_to_who_made_them_and_run_for_them(people: People) -> None:
    ann, bob = await people.client("ann"), await people.client("bob")
    thread_id = (await ann.threads.create())["thread_id"]
    cron: Any = await ann.crons.create_for_thread(thread_id, "who", schedule="* * * * * *", input=GIVEN)
    assert (cron["user_id"], cron["metadata"]) == ("ann", {"owner": "ann"})
    assert [each["cron_id"] for each in await ann.crons.search(thread_id=thread_id)] == [cron["cron_id"]]
    assert await bob.crons.search() == []
    assert await bob.crons.count() == 0
    for refused in (bob.crons.update(cron["cron_id"], enabled=False), bob.crons.delete(cron["cron_id"])):
        with pytest.raises(GONE, match=ABSENT):
            await refused

    async def ran() -> bool:
        return any(run["status"] == "success" for run in await ann.runs.list(thread_id))

    await until_true(ran)
    await ann.crons.update(cron["cron_id"], enabled=False)
    await ann.crons.delete(cron["cron_id"])
    run = (await ann.runs.list(thread_id))[-1]
    values: Any = await ann.runs.join(thread_id, run["run_id"])
    assert values["user_id"] == "ann"


async def test_the_store_is_where_the_handler_puts_it(people: People) -> None:
    ann, bob = await people.client("ann"), await people.client("bob")
    await ann.store.put_item(["notes"], "k", {"text": "hers"})
    item: Any = await ann.store.get_item(["notes"], "k")
    assert (item["namespace"], item["value"]) == (["ann", "notes"], {"text": "hers"})
    not_his: Any = await bob.store.get_item(["notes"], "k")
    assert not_his is None
    found = await ann.store.search_items(["notes"])
    assert [each["key"] for each in found["items"]] == ["k"]
    assert (await bob.store.search_items([]))["items"] == []
    assert (await ann.store.list_namespaces())["namespaces"] == [["ann", "notes"]]
    await bob.store.delete_item(["notes"], "k")
    await ann.store.delete_item(["notes"], "k")
    assert (await ann.store.search_items([]))["items"] == []


# --- what contains its members ----------------------------------------------------------------------------


async def test_what_contains_a_member_is_seen_by_its_members(members: People) -> None:
    ann, bob, cat = [await members.client(name) for name in ("ann", "bob", "cat")]
    mark = {"test": uuid.uuid4().hex}
    both = await ann.threads.create(metadata={**mark, "members": ["bob"]})
    hers = await ann.threads.create(metadata=mark)
    assert both["metadata"]["members"] == ["bob", "ann"]
    every = [hers["thread_id"], both["thread_id"]]
    assert [each["thread_id"] for each in await ann.threads.search(metadata=mark)] == every
    assert [each["thread_id"] for each in await ann.threads.search(metadata=mark, limit=1)] == every[:1]
    assert [each["thread_id"] for each in await ann.threads.search(metadata=mark, offset=1)] == every[1:]
    assert await bob.threads.search(metadata=mark, select=["thread_id"]) == [{"thread_id": every[1]}]
    assert [await each.threads.count(metadata=mark) for each in (ann, bob, cat)] == [2, 1, 0]
    assert (await bob.threads.get(every[1]))["thread_id"] == every[1]
    with pytest.raises(NotFoundError):
        await bob.threads.get(every[0])
    with pytest.raises(NotFoundError):
        await cat.threads.get(every[1])
    assert await bob.runs.wait(every[1], "noop", input=GIVEN) is not None
    pruned = await bob.threads.prune([every[1]])
    assert pruned["pruned_count"] == 1
    with pytest.raises(NotFoundError):
        await bob.threads.prune(every)


async def test_assistants_and_crons_of_members_are_counted(members: People) -> None:
    ann, bob = await members.client("ann"), await members.client("bob")
    mark = {"test": uuid.uuid4().hex}
    await ann.assistants.create("noop", metadata={**mark, "members": ["bob"]})
    await ann.assistants.create("noop", metadata=mark)
    assert [await each.assistants.count(metadata=mark) for each in (ann, bob)] == [2, 1]
    await ann.crons.create("noop", schedule=YEARLY, metadata=mark)
    assert [await each.crons.count(metadata=mark) for each in (ann, bob)] == [1, 0]
    assert len(await ann.crons.search(metadata=mark)) == 1


# --- starting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("auth", "words"),
    [
        ("auth = 5", "auth must be a langgraph_sdk.Auth, not int"),
        ("from langgraph_sdk import Auth\nauth = Auth()", "has no @auth.authenticate"),
        ("raise RuntimeError('no database')", "auth: auth.py, line 1: RuntimeError: no database"),
        ("other = 1", "there is no 'auth'"),
    ],
)
def test_auth_that_cannot_be_had_lets_nobody_in(tmp_path: Path, auth: str, words: str) -> None:
    from tests.cli.command import perdure

    guarded_project(tmp_path, auth)
    ended = perdure(tmp_path, "serve", "--port", "0")
    assert ended.returncode == 1
    assert words in ended.stderr
    examined = perdure(tmp_path, "doctor")
    assert examined.returncode == 1
    assert words in examined.stdout


# --- the other ways to a run ------------------------------------------------------------------------------


async def test_threads_of_streams_and_of_agents_belong_to_who_made_them(guarded: ServerProcess) -> None:
    ann, bob, eve = ({"Authorization": f"Bearer {name}"} for name in ("ann", "bob", "eve"))
    thread_id = str(uuid.uuid4())
    url = f"{guarded.url}/threads/{thread_id}"
    start = {"id": 1, "method": "run.start", "params": {"assistant_id": "noop", "input": {}}}
    assert (await ask(f"{url}/commands", "POST", start, **eve))[0] == 403
    status, content = await ask(f"{url}/commands", "POST", start, **ann)
    assert (status, isinstance(content, dict) and content["type"]) == (200, "success")
    assert [(await ask(url, **who))[0] for who in (ann, bob)] == [200, 404]
    assert (await ask(f"{url}/commands", "POST", start, **bob))[0] == 404
    answer = {"id": 2, "method": "input.respond", "params": {"interrupt_id": "x", "response": 1}}
    assert (await ask(f"{url}/commands", "POST", answer, **bob))[0] == 404
    assert (await ask(f"{url}/commands", "POST", answer, **eve))[0] == 403
    wanted = {"channels": ["values"]}
    assert (await ask(f"{url}/stream/events", "POST", wanted, **bob))[0] == 404

    agent = f"{guarded.url}/a2a/noop"
    message = {"parts": [{"kind": "data", "data": {"n": 0}}]}
    send = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}}
    assert (await ask(agent, "POST", send, **eve))[0] == 403
    status, content = await ask(agent, "POST", send, **ann)
    task: Any = content["result"] if isinstance(content, dict) else None
    assert task["status"]["state"] == "completed"
    assert [(await ask(f"{guarded.url}/threads/{task['contextId']}", **who))[0] for who in (ann, bob)] == [
        200,
        404,
    ]
    for method, params in (
        ("tasks/get", {"id": task["id"]}),
        ("tasks/cancel", {"id": task["id"]}),
        ("message/send", {"message": {**message, "contextId": task["contextId"]}}),
    ):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        assert (await ask(agent, "POST", body, **bob))[0] == 404, method


async def test_tools_are_those_that_a_user_may_see(people: People, guarded: ServerProcess) -> None:
    ann = await people.client("ann")
    own = await ann.assistants.create("steps", name="hers")
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    tool = f"hers-{own['assistant_id'][:8]}"
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": tool, "arguments": {"n": 0}},
    }
    url = f"{guarded.url}/mcp"
    seen = {}
    for name in ("ann", "bob"):
        _, content = await ask(url, "POST", listing, Authorization=f"Bearer {name}")
        found: Any = content
        seen[name] = {each["name"] for each in found["result"]["tools"]}
    assert seen["ann"] - seen["bob"] >= {tool}
    assert {"noop", "steps"} <= seen["bob"]
    status, content = await ask(url, "POST", call, Authorization="Bearer ann")
    assert (status, "structuredContent" in str(content)) == (200, True)
    assert (await ask(url, "POST", call, Authorization="Bearer bob"))[0] == 404
    assert (await ask(url, "POST", call, Authorization="Bearer eve"))[0] == 403
    assert (await ask(url, "POST", listing))[0] == 401
