"""Threads, as `langgraph_sdk` creates, changes, finds, copies and prunes them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient, SyncLangGraphClient
from langgraph_sdk.errors import (
    APIStatusError,
    BadRequestError,
    ConflictError,
    NotFoundError,
    UnprocessableEntityError,
)
from tests.kernel.support import until_true
from tests.server.langgraph.conftest import serving
from tests.server.langgraph.project import project

from perdure.testing.serving import ServerProcess

FIELDS = {
    "thread_id",
    "status",
    "metadata",
    "config",
    "values",
    "interrupts",
    "error",
    "created_at",
    "updated_at",
    "state_updated_at",
}


@pytest_asyncio.fixture
async def session(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url) as opened:
        yield opened


async def _ran(client: LangGraphClient, graph: str, **options: Any) -> str:
    """Run a graph once on a new thread, and return the thread's id."""
    thread = await client.threads.create(metadata=options.pop("metadata", None))
    await client.runs.wait(thread["thread_id"], graph, raise_error=False, **options)
    return thread["thread_id"]


# --- making -----------------------------------------------------------------------------------------------


async def test_a_new_thread_is_idle_and_empty(client: LangGraphClient, mark: dict[str, str]) -> None:
    made: Any = await client.threads.create(metadata=mark)
    assert set(made) == FIELDS
    uuid.UUID(made["thread_id"])
    assert (made["status"], made["metadata"], made["error"]) == ("idle", mark, None)
    assert (made["values"], made["interrupts"]) == (None, {})
    for name in ("created_at", "updated_at", "state_updated_at"):
        assert datetime.fromisoformat(made[name]).utcoffset() == timedelta(0)
    assert await client.threads.get(made["thread_id"]) == made


async def test_an_id_and_a_graph_can_be_given(client: LangGraphClient) -> None:
    thread_id = str(uuid.uuid4())
    made = await client.threads.create(thread_id=thread_id, graph_id="steps")
    assert (made["thread_id"], made["metadata"]) == (thread_id, {"graph_id": "steps"})


async def test_an_id_that_is_taken_is_a_conflict_or_nothing(client: LangGraphClient) -> None:
    first = await client.threads.create(metadata={"n": 1})
    with pytest.raises(ConflictError):
        await client.threads.create(thread_id=first["thread_id"])
    with pytest.raises(ConflictError):
        await client.threads.create(thread_id=first["thread_id"], if_exists="raise")
    again = await client.threads.create(
        thread_id=first["thread_id"], if_exists="do_nothing", metadata={"n": 2}
    )
    assert again == first


async def test_of_many_that_take_the_same_id_one_wins(client: LangGraphClient) -> None:
    thread_id = str(uuid.uuid4())
    answers = await asyncio.gather(
        *(client.threads.create(thread_id=thread_id) for _ in range(8)), return_exceptions=True
    )
    assert sum(isinstance(each, ConflictError) for each in answers) == 7


async def test_a_thread_can_begin_with_states(client: LangGraphClient) -> None:
    steps: list[Any] = [
        {"updates": [{"values": {"n": 5}, "as_node": "__input__"}]},
        {"updates": [{"values": {"n": 6, "log": ["one"]}, "as_node": "one"}]},
    ]
    made: Any = await client.threads.create(graph_id="steps", supersteps=steps)
    assert (made["status"], made["values"]) == ("interrupted", {"n": 6, "log": ["one"]})
    state = await client.threads.get_state(made["thread_id"])
    assert state["next"] == ["two"]
    assert len(await client.threads.get_history(made["thread_id"])) == 2
    ended = await client.runs.wait(made["thread_id"], "steps")
    assert ended == {"n": 8, "log": ["one", "two", "three"]}


async def test_a_thread_whose_states_cannot_be_made_is_not_made(client: LangGraphClient) -> None:
    thread_id = str(uuid.uuid4())
    steps: list[Any] = [{"updates": [{"values": {"n": 5}, "as_node": "nowhere"}]}]
    with pytest.raises(APIStatusError) as refused:
        await client.threads.create(thread_id=thread_id, graph_id="steps", supersteps=steps)
    assert refused.value.status_code in (400, 422)
    with pytest.raises(NotFoundError):
        await client.threads.get(thread_id)


@pytest.mark.parametrize(
    "body",
    [
        {"thread_id": "no-uuid"},
        {"metadata": 1},
        {"if_exists": "overwrite"},
        {"ttl": {"ttl": -1}},
        {"ttl": {"ttl": 1, "strategy": "forget"}},
        {"supersteps": [{"updates": [{"values": {}}]}]},
    ],
)
async def test_a_thread_that_cannot_be_is_refused(session: httpx.AsyncClient, body: dict[str, Any]) -> None:
    answer = await session.post("/threads", json=body)
    assert answer.status_code == 422
    assert isinstance(answer.json()["detail"], str)


# --- lifetimes --------------------------------------------------------------------------------------------


async def test_a_lifetime_is_shown_when_it_is_asked_for(client: LangGraphClient) -> None:
    before = datetime.now(UTC)
    made: Any = await client.threads.create(ttl=7)
    assert "ttl" not in made
    shown: Any = await client.threads.get(made["thread_id"], include=["ttl"])
    assert (shown["ttl"]["strategy"], shown["ttl"]["ttl_minutes"]) == ("delete", 7)
    left = datetime.fromisoformat(shown["ttl"]["expires_at"]) - before
    assert timedelta(minutes=6) < left < timedelta(minutes=8)
    await client.threads.update(made["thread_id"], metadata={}, ttl={"ttl": 60, "strategy": "keep_latest"})
    shown = await client.threads.get(made["thread_id"], include=["ttl"])
    assert (shown["ttl"]["strategy"], shown["ttl"]["ttl_minutes"]) == ("keep_latest", 60)
    without: Any = await client.threads.get((await client.threads.create())["thread_id"], include=["ttl"])
    assert without["ttl"] is None


async def _others(client: LangGraphClient, known: Sequence[str]) -> list[str]:
    """List the threads except these."""
    return [each["thread_id"] for each in await client.threads.search() if each["thread_id"] not in known]


async def test_a_project_says_how_long_its_threads_live(tmp_path: Path) -> None:
    ttl = {"strategy": "keep_latest", "sweep_interval_minutes": 60, "default_ttl": 43_200}
    folder = project(tmp_path / "project", ("noop",), checkpointer={"ttl": ttl})
    with serving(folder, "memory:") as started:
        async with get_client(url=started.url) as client:
            thread_id = str(uuid.uuid4())
            await client.runs.wait(thread_id, "noop", input={}, if_not_exists="create")
            for each in (thread_id, (await client.threads.create())["thread_id"]):
                shown: Any = await client.threads.get(each, include=["ttl"])
                assert (shown["ttl"]["strategy"], shown["ttl"]["ttl_minutes"]) == ("keep_latest", 43_200)
            await client.crons.create("noop", schedule="* * * * * *", input={}, on_run_completed="keep")
            known = [thread_id, each]
            await until_true(lambda: _others(client, known))
            shown = await client.threads.get((await _others(client, known))[0], include=["ttl"])
            assert (shown["ttl"]["strategy"], shown["ttl"]["ttl_minutes"]) == ("keep_latest", 43_200)
            own = (await client.threads.create(ttl=5))["thread_id"]
            shown = await client.threads.get(own, include=["ttl"])
            assert (shown["ttl"]["strategy"], shown["ttl"]["ttl_minutes"]) == ("delete", 5)


# --- changing and removing --------------------------------------------------------------------------------


async def test_metadata_is_merged(client: LangGraphClient) -> None:
    made = await client.threads.create(metadata={"a": 1, "b": 1})
    changed = await client.threads.update(made["thread_id"], metadata={"b": 2, "c": 3})
    assert changed["metadata"] == {"a": 1, "b": 2, "c": 3}
    assert str(changed["updated_at"]) > str(made["updated_at"])
    assert changed["created_at"] == made["created_at"]


async def test_a_change_can_be_answered_with_nothing(
    client: LangGraphClient, session: httpx.AsyncClient
) -> None:
    thread_id = (await client.threads.create())["thread_id"]
    minimal: Any = client.threads.update(thread_id, metadata={"a": 1}, return_minimal=True)
    assert await minimal is None
    answer = await session.patch(
        f"/threads/{thread_id}", json={"metadata": {"b": 2}}, headers={"Prefer": "return=minimal"}
    )
    assert (answer.status_code, answer.content) == (204, b"")
    assert (await client.threads.get(thread_id))["metadata"] == {"a": 1, "b": 2}


async def test_a_deleted_thread_is_gone(client: LangGraphClient) -> None:
    thread_id = await _ran(client, "steps", input={"n": 0})
    await client.threads.delete(thread_id)
    for call in (
        client.threads.get(thread_id),
        client.threads.get_state(thread_id),
        client.threads.get_history(thread_id),
        client.threads.delete(thread_id),
        client.runs.list(thread_id),
    ):
        with pytest.raises(NotFoundError):
            await call
    again: Any = await client.threads.create(thread_id=thread_id)
    assert (again["values"], await client.threads.get_history(thread_id)) == (None, [])


async def test_a_thread_can_be_deleted_while_it_is_busy(client: LangGraphClient, tmp_path: Path) -> None:
    thread_id = (await client.threads.create())["thread_id"]
    await client.runs.create(thread_id, "slow", input={"until": str(tmp_path / "never")})
    await client.threads.delete(thread_id)
    with pytest.raises(NotFoundError):
        await client.threads.get(thread_id)


async def test_what_is_not_there_is_not_found(client: LangGraphClient) -> None:
    nobody = str(uuid.uuid4())
    for call in (
        client.threads.get(nobody),
        client.threads.update(nobody, metadata={"a": 1}),
        client.threads.delete(nobody),
        client.threads.copy(nobody),
        client.threads.get_state(nobody),
        client.threads.get_history(nobody),
        client.threads.update_state(nobody, {"n": 1}),
    ):
        with pytest.raises(NotFoundError):
            await call


async def test_an_id_that_is_no_uuid_is_refused(client: LangGraphClient) -> None:
    for call in (
        client.threads.get("mine"),
        client.threads.update("mine", metadata={"a": 1}),
        client.threads.delete("mine"),
        client.threads.copy("mine"),
        client.threads.get_state("mine"),
        client.threads.get_history("mine"),
        client.threads.prune(["mine"]),
    ):
        with pytest.raises(UnprocessableEntityError):
            await call
    with pytest.raises(BadRequestError):
        await client.threads.search(ids=["mine"])


# --- threads after runs -----------------------------------------------------------------------------------


async def test_a_thread_has_the_values_of_its_last_state(client: LangGraphClient) -> None:
    thread_id = await _ran(client, "steps", input={"n": 1})
    thread: Any = await client.threads.get(thread_id)
    assert (thread["status"], thread["error"], thread["interrupts"]) == ("idle", None, {})
    assert thread["values"] == {"n": 4, "log": ["one", "two", "three"]}
    assert thread["metadata"]["graph_id"] == "steps"
    assert (await client.assistants.get(thread["metadata"]["assistant_id"]))["graph_id"] == "steps"
    assert thread["state_updated_at"] > thread["created_at"]


async def test_a_thread_has_its_interrupts_by_task(client: LangGraphClient) -> None:
    thread_id = await _ran(client, "approval", input={"n": 1})
    thread: Any = await client.threads.get(thread_id)
    assert thread["status"] == "interrupted"
    assert thread["values"] == {"n": 2, "log": ["before"]}
    state = await client.threads.get_state(thread_id)
    (task,) = state["tasks"]
    assert list(thread["interrupts"]) == [task["id"]]
    ((asked,),) = thread["interrupts"].values()
    assert asked["value"] == {"question": "go on?"}
    assert asked["id"] == task["interrupts"][0]["id"]
    await client.runs.wait(thread_id, "approval", command={"resume": "yes"})
    thread = await client.threads.get(thread_id)
    assert (thread["status"], thread["interrupts"]) == ("idle", {})
    assert thread["values"]["log"] == ["before", "approved: yes", "after"]


async def test_a_failed_run_is_seen_in_its_thread_until_one_succeeds(client: LangGraphClient) -> None:
    thread_id = await _ran(client, "failing", input={"n": 1})
    thread: Any = await client.threads.get(thread_id)
    assert thread["status"] == "error"
    assert thread["error"] == {"error": "ValueError", "message": "this graph always fails"}
    assert thread["values"] == {"n": 2, "log": ["first"]}
    await client.runs.wait(thread_id, "noop", input={})
    thread = await client.threads.get(thread_id)
    assert (thread["status"], thread["error"]) == ("idle", None)


async def test_a_thread_is_busy_while_a_run_waits_or_runs(client: LangGraphClient, tmp_path: Path) -> None:
    thread_id = (await client.threads.create())["thread_id"]
    go = tmp_path / "go"
    run = await client.runs.create(thread_id, "slow", input={"until": str(go)})
    assert (await client.threads.get(thread_id))["status"] == "busy"
    go.touch()
    await client.runs.join(thread_id, run["run_id"])
    assert (await client.threads.get(thread_id))["status"] == "idle"


# --- searching --------------------------------------------------------------------------------------------


async def test_threads_are_searched(client: LangGraphClient, mark: dict[str, str]) -> None:
    idle = await _ran(client, "steps", input={"n": 1}, metadata={**mark, "kind": {"of": [1]}})
    waiting = await _ran(client, "approval", input={"n": 1}, metadata={**mark, "kind": "other"})
    failed = await _ran(client, "failing", input={"n": 1}, metadata=mark)

    async def found(**terms: Any) -> list[str]:
        metadata = {**mark, **terms.pop("metadata", {})}
        return [each["thread_id"] for each in await client.threads.search(metadata=metadata, **terms)]

    assert await found() == [failed, waiting, idle]
    assert await found(metadata={"kind": "other"}) == [waiting]
    assert await found(metadata={"kind": {"of": [1]}}) == [idle]
    assert await found(metadata={"graph_id": "steps"}) == [idle]
    assert await found(status="idle") == [idle]
    assert await found(status="interrupted") == [waiting]
    assert await found(status="error") == [failed]
    assert await found(status="busy") == []
    assert await found(values={"n": 4}) == [idle]
    assert await found(values={"log": ["before"]}) == [waiting]
    assert await found(values={"n": "4"}) == []
    assert await found(ids=[idle, failed]) == [failed, idle]
    assert await found(limit=1, offset=1) == [waiting]
    assert await found(sort_by="created_at", sort_order="asc") == [idle, waiting, failed]
    assert await found(sort_by="thread_id", sort_order="asc") == sorted([idle, waiting, failed])
    assert await found(sort_by="status", sort_order="asc") == [failed, idle, waiting]
    await client.threads.update(idle, metadata={"touched": True})
    assert (await found(sort_by="updated_at"))[0] == idle
    assert await found(sort_by="state_updated_at") == [failed, waiting, idle]


async def test_a_search_gives_what_was_asked_for(client: LangGraphClient, mark: dict[str, str]) -> None:
    thread_id = await _ran(client, "steps", input={"n": 1}, metadata=mark)
    (whole,) = await client.threads.search(metadata=mark)
    assert whole == await client.threads.get(thread_id)
    part: Any
    (part,) = await client.threads.search(metadata=mark, select=["thread_id", "status"])
    assert part == {"thread_id": thread_id, "status": "idle"}
    (part,) = await client.threads.search(metadata=mark, select=["values"])
    assert part == {"values": {"n": 4, "log": ["one", "two", "three"]}}


async def test_a_search_can_look_into_threads(client: LangGraphClient, mark: dict[str, str]) -> None:
    await _ran(client, "steps", input={"n": 1}, metadata=mark)
    paths = {
        "first": "values.log[0]",
        "last": "values.log[-1]",
        "beyond": "values.log[9]",
        "none": "values.nothing.at.all",
        "graph": "metadata.graph_id",
    }
    (thread,) = await client.threads.search(metadata=mark, select=["thread_id"], extract=paths)
    found: Any = thread
    assert set(found) == {"thread_id", "extracted"}
    assert found["extracted"] == {
        "first": "one",
        "last": "three",
        "beyond": None,
        "none": None,
        "graph": "steps",
    }


async def test_a_search_tells_where_it_goes_on(
    client: LangGraphClient, session: httpx.AsyncClient, mark: dict[str, str]
) -> None:
    for _ in range(3):
        await client.threads.create(metadata=mark)
    first = await session.post("/threads/search", json={"metadata": mark, "limit": 2})
    assert (first.headers["X-Pagination-Total"], first.headers["X-Pagination-Next"]) == ("3", "2")
    rest = await session.post("/threads/search", json={"metadata": mark, "limit": 2, "offset": 2})
    assert rest.headers["X-Pagination-Total"] == "3"
    assert "X-Pagination-Next" not in rest.headers


async def test_threads_are_counted(client: LangGraphClient, mark: dict[str, str]) -> None:
    await _ran(client, "steps", input={"n": 1}, metadata=mark)
    await _ran(client, "approval", input={"n": 1}, metadata=mark)
    assert await client.threads.count(metadata=mark) == 2
    assert await client.threads.count(metadata=mark, status="idle") == 1
    assert await client.threads.count(metadata=mark, values={"n": 2}) == 1


async def test_threads_of_stateless_runs_are_not_found(client: LangGraphClient, mark: dict[str, str]) -> None:
    await client.runs.wait(None, "noop", input={}, metadata=mark)
    assert await client.threads.search(metadata=mark) == []


@pytest.mark.parametrize(
    "terms",
    [
        {"sort_by": "values"},
        {"sort_order": "up"},
        {"status": "asleep"},
        {"select": ["secrets"]},
        {"limit": 0},
        {"limit": 1001},
        {"offset": -1},
        {"extract": {"a": "secrets.of"}},
        {"extract": {"a": "values..b"}},
        {"extract": {"a": "values[x]"}},
        {"extract": {str(number): "values.n" for number in range(11)}},
    ],
)
async def test_a_search_for_what_cannot_be_is_refused(
    session: httpx.AsyncClient, terms: dict[str, Any]
) -> None:
    answer = await session.post("/threads/search", json=terms)
    assert answer.status_code == 422
    assert isinstance(answer.json()["detail"], str)


# --- copying and pruning ----------------------------------------------------------------------------------


async def test_a_copy_has_all_states_and_goes_its_own_way(
    client: LangGraphClient, mark: dict[str, str]
) -> None:
    source = await _ran(client, "approval", input={"n": 1}, metadata=mark)
    threads: Any = client.threads
    copy = await threads.copy(source)
    assert copy["thread_id"] != source
    assert copy["metadata"]["test"] == mark["test"]
    theirs, ours = await threads.get_state(source), await threads.get_state(copy["thread_id"])
    assert (ours["values"], ours["next"]) == (theirs["values"], theirs["next"])
    assert ours["checkpoint"]["thread_id"] == copy["thread_id"]
    steps = [state["metadata"]["step"] for state in await threads.get_history(copy["thread_id"])]
    assert steps == [state["metadata"]["step"] for state in await threads.get_history(source)]
    await client.runs.wait(copy["thread_id"], "approval", command={"resume": "copied"})
    assert (await client.threads.get_state(source))["next"] == ["ask"]
    ended: Any = await client.threads.get(copy["thread_id"])
    assert ended["values"]["log"] == ["before", "approved: copied", "after"]


async def test_pruned_threads_are_gone(client: LangGraphClient) -> None:
    one = await _ran(client, "steps", input={"n": 1})
    two = (await client.threads.create())["thread_id"]
    assert await client.threads.prune([one, two, str(uuid.uuid4())]) == {"pruned_count": 2}
    for thread_id in (one, two):
        with pytest.raises(NotFoundError):
            await client.threads.get(thread_id)
    assert await client.threads.prune([]) == {"pruned_count": 0}


async def test_pruning_may_keep_the_latest_state(client: LangGraphClient) -> None:
    thread_id = await _ran(client, "steps", input={"n": 1})
    before = await client.threads.get_state(thread_id)
    assert len(await client.threads.get_history(thread_id)) > 1
    assert await client.threads.prune([thread_id], strategy="keep_latest") == {"pruned_count": 1}
    (left,) = await client.threads.get_history(thread_id)
    assert left["checkpoint"] == before["checkpoint"]
    assert left["values"] == before["values"] == {"n": 4, "log": ["one", "two", "three"]}
    ended = await client.runs.wait(thread_id, "steps", input={"n": 10})
    assert ended["n"] == 13  # type: ignore[call-overload]


async def test_a_thread_that_waits_can_be_pruned_and_goes_on(client: LangGraphClient) -> None:
    for graph, said in (("approval", "before"), ("nested_approval", "outer")):
        thread_id = await _ran(client, graph, input={"n": 1})
        assert await client.threads.prune([thread_id], strategy="keep_latest") == {"pruned_count": 1}
        thread: Any = await client.threads.get(thread_id)
        assert (thread["status"], len(thread["interrupts"])) == ("interrupted", 1)
        ended: Any = await client.runs.wait(thread_id, graph, command={"resume": "yes"})
        assert said in ended["log"]
        assert "approved: yes" in ended["log"]
        assert (await client.threads.get(thread_id))["status"] == "idle"


async def test_another_way_to_prune_is_refused(client: LangGraphClient) -> None:
    with pytest.raises(UnprocessableEntityError):
        await client.threads.prune([str(uuid.uuid4())], strategy="forget")  # type: ignore[arg-type]


# --- the synchronous client -------------------------------------------------------------------------------


def test_the_sync_client_does_the_same(sync_client: SyncLangGraphClient, mark: dict[str, str]) -> None:
    threads: Any = sync_client.threads
    thread_id = threads.create(metadata=mark, ttl=60)["thread_id"]
    sync_client.runs.wait(thread_id, "steps", input={"n": 1})
    thread = threads.get(thread_id)
    assert thread["values"] == {"n": 4, "log": ["one", "two", "three"]}
    assert threads.update(thread_id, metadata={"a": 1})["metadata"]["a"] == 1
    assert threads.update(thread_id, metadata={"a": 2}, return_minimal=True) is None
    assert [each["thread_id"] for each in threads.search(metadata=mark)] == [thread_id]
    assert threads.count(metadata=mark) == 1
    copy = threads.copy(thread_id)
    assert threads.prune([copy["thread_id"]]) == {"pruned_count": 1}
    threads.delete(thread_id)
    with pytest.raises(NotFoundError):
        threads.get(thread_id)
