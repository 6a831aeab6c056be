"""Assistants, as `langgraph_sdk` creates, changes, finds and draws them."""

from __future__ import annotations

import asyncio
import uuid
from datetime import datetime
from typing import Any

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient, SyncLangGraphClient
from langgraph_sdk.errors import (
    BadRequestError,
    ConflictError,
    NotFoundError,
    UnprocessableEntityError,
)
from tests.server.langgraph.project import GRAPHS

from perdure.testing.serving import ServerProcess

FIELDS = {
    "assistant_id",
    "graph_id",
    "name",
    "description",
    "config",
    "context",
    "metadata",
    "version",
    "created_at",
    "updated_at",
}
NAMESPACE = uuid.UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")


def own(graph_id: str) -> str:
    """Return the id of a graph's own assistant."""
    return str(uuid.uuid5(NAMESPACE, graph_id))


async def test_each_graph_has_an_assistant_of_its_own(client: LangGraphClient) -> None:
    for graph_id in GRAPHS:
        assistant = await client.assistants.get(own(graph_id))
        assert set(assistant) == FIELDS
        assert (assistant["graph_id"], assistant["name"]) == (graph_id, graph_id)
        assert assistant["metadata"] == {"created_by": "system"}
        assert assistant["version"] == 1
        assert datetime.fromisoformat(str(assistant["created_at"])).utcoffset() is not None


async def test_an_assistant_is_made_with_all_that_was_given(
    client: LangGraphClient, mark: dict[str, str]
) -> None:
    assistant_id = str(uuid.uuid4())
    made = await client.assistants.create(
        "given",
        config={"tags": ["t"], "recursion_limit": 9},
        context={"name": "Ada"},
        metadata=mark,
        assistant_id=assistant_id,
        name="mine",
        description="says names",
    )
    assert made["assistant_id"] == assistant_id
    assert (made["graph_id"], made["name"], made["description"]) == ("given", "mine", "says names")
    assert (made["metadata"], made["version"]) == (mark, 1)
    assert made["context"] == {"name": "Ada"}
    assert made["config"] == {"tags": ["t"], "recursion_limit": 9, "configurable": {"name": "Ada"}}
    assert await client.assistants.get(assistant_id) == made


async def test_context_and_configurable_say_the_same(client: LangGraphClient) -> None:
    made = await client.assistants.create("given", config={"configurable": {"name": "Bob"}})
    assert made["context"] == {"name": "Bob"}
    with pytest.raises(BadRequestError):
        await client.assistants.create(
            "given", config={"configurable": {"name": "Bob"}}, context={"name": "Ada"}
        )
    changed = await client.assistants.update(made["assistant_id"], context={"name": "Eve"})
    assert (changed["config"], changed["context"]) == ({"configurable": {"name": "Eve"}}, {"name": "Eve"})
    with pytest.raises(BadRequestError):
        await client.assistants.update(
            made["assistant_id"], config={"configurable": {"name": "Bob"}}, context={"name": "Ada"}
        )


async def test_without_a_name_it_is_untitled(client: LangGraphClient) -> None:
    assert (await client.assistants.create("noop"))["name"] == "Untitled"


async def test_an_id_that_is_taken_is_a_conflict_or_nothing(client: LangGraphClient) -> None:
    first = await client.assistants.create("noop", name="first")
    with pytest.raises(ConflictError) as refused:
        await client.assistants.create("noop", assistant_id=first["assistant_id"])
    assert first["assistant_id"] in refused.value.message
    again = await client.assistants.create(
        "steps", assistant_id=first["assistant_id"], if_exists="do_nothing", name="second"
    )
    assert again == first


async def test_of_many_that_take_the_same_id_one_wins(client: LangGraphClient) -> None:
    assistant_id = str(uuid.uuid4())
    answers = await asyncio.gather(
        *(client.assistants.create("noop", assistant_id=assistant_id) for _ in range(8)),
        return_exceptions=True,
    )
    assert sum(isinstance(each, ConflictError) for each in answers) == 7


async def test_bad_input_is_refused(client: LangGraphClient) -> None:
    with pytest.raises(NotFoundError):
        await client.assistants.create("nobody-knows-it")
    with pytest.raises(UnprocessableEntityError):
        await client.assistants.create("noop", assistant_id="no-uuid")
    with pytest.raises(UnprocessableEntityError):
        await client.assistants.create(None)
    with pytest.raises(UnprocessableEntityError):
        await client.assistants.create("noop", metadata=["x"])  # type: ignore[arg-type]
    named: list[Any] = [
        client.assistants.get("noop"),
        client.assistants.get_schemas("noop"),
        client.assistants.get_versions("noop"),
        client.assistants.delete("noop"),
    ]
    for call in named:
        with pytest.raises(UnprocessableEntityError):
            await call


async def test_what_is_not_there_is_not_found(client: LangGraphClient) -> None:
    nobody = str(uuid.uuid4())
    calls: list[Any] = [
        client.assistants.get(nobody),
        client.assistants.update(nobody, name="x"),
        client.assistants.delete(nobody),
        client.assistants.get_versions(nobody),
        client.assistants.set_latest(nobody, 1),
        client.assistants.get_graph(nobody),
        client.assistants.get_schemas(nobody),
        client.assistants.get_subgraphs(nobody),
    ]
    for call in calls:
        with pytest.raises(NotFoundError):
            await call


# --- versions ---------------------------------------------------------------------------------------------


async def test_an_update_is_a_new_version(client: LangGraphClient) -> None:
    made = await client.assistants.create("steps", name="one", metadata={"a": 1, "b": 1})
    assistant_id = made["assistant_id"]
    changed = await client.assistants.update(
        assistant_id, graph_id="noop", name="two", metadata={"b": 2}, description="new"
    )
    assert (changed["version"], changed["graph_id"], changed["name"]) == (2, "noop", "two")
    assert (changed["metadata"], changed["description"]) == ({"a": 1, "b": 2}, "new")
    assert changed["created_at"] == made["created_at"]
    versions = await client.assistants.get_versions(assistant_id)
    assert [each["version"] for each in versions] == [2, 1]
    assert [each["name"] for each in versions] == ["two", "one"]
    assert [each["graph_id"] for each in versions] == ["noop", "steps"]
    assert "updated_at" not in versions[0]


async def test_versions_come_in_pages_and_by_metadata(client: LangGraphClient) -> None:
    made = await client.assistants.create("steps", metadata={"n": 1})
    for number in range(2, 6):
        await client.assistants.update(made["assistant_id"], metadata={"n": number})
    page = await client.assistants.get_versions(made["assistant_id"], limit=2, offset=1)
    assert [each["version"] for each in page] == [4, 3]
    third = await client.assistants.get_versions(made["assistant_id"], metadata={"n": 3})
    assert [each["version"] for each in third] == [3]


async def test_an_older_version_can_count_again(client: LangGraphClient) -> None:
    made = await client.assistants.create("given", name="one", context={"name": "Ada"})
    await client.assistants.update(made["assistant_id"], name="two", context={"name": "Bob"})
    back = await client.assistants.set_latest(made["assistant_id"], 1)
    assert (back["version"], back["name"], back["context"]) == (1, "one", {"name": "Ada"})
    assert await client.assistants.get(made["assistant_id"]) == back
    third = await client.assistants.update(made["assistant_id"], name="three")
    assert third["version"] == 3
    with pytest.raises(NotFoundError):
        await client.assistants.set_latest(made["assistant_id"], 99)


# --- deleting ---------------------------------------------------------------------------------------------


async def test_a_deleted_assistant_is_gone(client: LangGraphClient) -> None:
    made = await client.assistants.create("noop")
    await client.assistants.delete(made["assistant_id"])
    with pytest.raises(NotFoundError):
        await client.assistants.get(made["assistant_id"])


async def test_a_graphs_own_assistant_stays(client: LangGraphClient) -> None:
    with pytest.raises(ConflictError) as refused:
        await client.assistants.delete(own("noop"))
    assert "cannot be deleted" in refused.value.message
    assert (await client.assistants.get(own("noop")))["graph_id"] == "noop"


async def test_its_threads_go_with_it_if_asked_to(client: LangGraphClient) -> None:
    made = await client.assistants.create("noop")
    mine = await client.threads.create()
    await client.runs.wait(mine["thread_id"], made["assistant_id"], input={})
    other = await client.threads.create()
    await client.runs.wait(other["thread_id"], "noop", input={})
    await client.assistants.delete(made["assistant_id"], delete_threads=True)
    with pytest.raises(NotFoundError):
        await client.threads.get(mine["thread_id"])
    assert (await client.threads.get(other["thread_id"]))["status"] == "idle"


async def test_its_threads_stay_otherwise(client: LangGraphClient) -> None:
    made = await client.assistants.create("noop")
    mine = await client.threads.create()
    await client.runs.wait(mine["thread_id"], made["assistant_id"], input={})
    await client.assistants.delete(made["assistant_id"])
    assert (await client.threads.get(mine["thread_id"]))["status"] == "idle"


# --- searching --------------------------------------------------------------------------------------------


async def _three(client: LangGraphClient, mark: dict[str, str]) -> list[dict[str, Any]]:
    names = (("beta", "noop"), ("alpha", "steps"), ("Gamma", "noop"))
    return [
        dict(await client.assistants.create(graph, name=name, metadata={**mark, "name": name}))
        for name, graph in names
    ]


async def test_assistants_are_searched(client: LangGraphClient, mark: dict[str, str]) -> None:
    await _three(client, mark)

    async def names(**terms: Any) -> list[str]:
        found = await client.assistants.search(metadata={**mark, **terms.pop("metadata", {})}, **terms)
        return [each["name"] for each in found]

    assert await names() == ["Gamma", "alpha", "beta"]
    assert await names(graph_id="steps") == ["alpha"]
    assert await names(name="GAM") == ["Gamma"]
    assert await names(metadata={"name": "beta"}) == ["beta"]
    assert await names(sort_by="graph_id", sort_order="asc") == ["beta", "Gamma", "alpha"]
    assert await names(sort_by="created_at", sort_order="asc") == ["beta", "alpha", "Gamma"]
    assert await names(limit=1, offset=1) == ["alpha"]
    assert await names(graph_id="nobody-knows-it") == []
    for key in ("assistant_id", "name", "updated_at"):
        assert sorted(await names(sort_by=key)) == ["Gamma", "alpha", "beta"]


async def test_a_search_gives_the_fields_that_were_asked_for(
    client: LangGraphClient, mark: dict[str, str]
) -> None:
    await _three(client, mark)
    found = await client.assistants.search(metadata=mark, select=["assistant_id", "name"])
    assert [set(each) for each in found] == [{"assistant_id", "name"}] * 3


async def test_a_search_tells_where_it_goes_on(client: LangGraphClient, mark: dict[str, str]) -> None:
    await _three(client, mark)
    first = await client.assistants.search(metadata=mark, limit=2, response_format="object")
    assert (len(first["assistants"]), first["next"]) == (2, "2")
    rest = await client.assistants.search(metadata=mark, limit=2, offset=2, response_format="object")
    assert (len(rest["assistants"]), rest["next"]) == (1, None)


async def test_the_total_is_in_a_header(
    server: ServerProcess, client: LangGraphClient, mark: dict[str, str]
) -> None:
    await _three(client, mark)
    async with httpx.AsyncClient(base_url=server.url) as session:
        answer = await session.post("/assistants/search", json={"metadata": mark, "limit": 1})
    assert (answer.headers["X-Pagination-Total"], answer.headers["X-Pagination-Next"]) == ("3", "1")


async def test_assistants_are_counted(client: LangGraphClient, mark: dict[str, str]) -> None:
    await _three(client, mark)
    assert await client.assistants.count(metadata=mark) == 3
    assert await client.assistants.count(metadata=mark, graph_id="noop") == 2
    assert await client.assistants.count(metadata=mark, name="alp") == 1


@pytest.mark.parametrize(
    "terms",
    [
        {"sort_by": "config"},
        {"sort_order": "up"},
        {"select": ["secrets"]},
        {"limit": 0},
        {"limit": 1001},
        {"offset": -1},
        {"metadata": 7},
    ],
)
async def test_a_search_for_what_cannot_be_is_refused(server: ServerProcess, terms: dict[str, Any]) -> None:
    async with httpx.AsyncClient(base_url=server.url) as session:
        answer = await session.post("/assistants/search", json=terms)
    assert answer.status_code == 422
    assert isinstance(answer.json()["detail"], str)


# --- graphs -----------------------------------------------------------------------------------------------


async def test_a_graph_is_drawn(client: LangGraphClient) -> None:
    drawn = await client.assistants.get_graph(own("steps"))
    assert [node["id"] for node in drawn["nodes"]] == ["__start__", "one", "two", "three", "__end__"]
    edges = [(edge["source"], edge["target"]) for edge in drawn["edges"]]
    assert edges == [("__start__", "one"), ("one", "two"), ("two", "three"), ("three", "__end__")]


async def test_a_graph_is_drawn_with_those_within_it(client: LangGraphClient) -> None:
    flat = await client.assistants.get_graph(own("nested"))
    assert "sub" in {node["id"] for node in flat["nodes"]}
    for xray in (True, 1):
        deep = await client.assistants.get_graph(own("nested"), xray=xray)
        assert "sub:inner_one" in {node["id"] for node in deep["nodes"]}


async def test_an_agent_that_is_no_graph_is_one_node(client: LangGraphClient) -> None:
    drawn = await client.assistants.get_graph(own("plain"))
    assert "plain" in {node["id"] for node in drawn["nodes"]}
    schemas = await client.assistants.get_schemas(own("plain"))
    assert schemas["graph_id"] == "plain"


async def test_schemas_say_what_a_graph_takes_and_gives(client: LangGraphClient) -> None:
    schemas = await client.assistants.get_schemas(own("given"))
    assert set(schemas) == {
        "graph_id",
        "input_schema",
        "output_schema",
        "state_schema",
        "config_schema",
        "context_schema",
    }
    assert schemas["graph_id"] == "given"
    for name in ("input_schema", "output_schema", "state_schema"):
        schema: Any = schemas[name]
        assert set(schema["properties"]) == {"n", "log"}
    context: Any = schemas["context_schema"]
    assert set(context["properties"]) == {"name"}


async def test_subgraphs_have_schemas(client: LangGraphClient) -> None:
    found: Any = await client.assistants.get_subgraphs(own("nested"), recurse=True)
    assert set(found) == {"sub"}
    assert set(found["sub"]["input_schema"]["properties"]) == {"n", "log"}
    assert set(await client.assistants.get_subgraphs(own("nested"), "sub")) == {"sub"}
    assert await client.assistants.get_subgraphs(own("steps")) == {}


# --- the client that does not wait ------------------------------------------------------------------------


def test_the_sync_client_does_the_same(sync_client: SyncLangGraphClient, mark: dict[str, str]) -> None:
    assistants = sync_client.assistants
    made = assistants.create("steps", name="sync", metadata=mark, context={"name": "x"})
    assistant_id = made["assistant_id"]
    assert assistants.get(assistant_id) == made
    assert assistants.update(assistant_id, name="other")["version"] == 2
    assert [each["version"] for each in assistants.get_versions(assistant_id)] == [2, 1]
    assert assistants.set_latest(assistant_id, 1)["name"] == "sync"
    assert [each["assistant_id"] for each in assistants.search(metadata=mark)] == [assistant_id]
    assert assistants.search(metadata=mark, response_format="object")["next"] is None
    assert assistants.count(metadata=mark) == 1
    assert assistants.get_graph(assistant_id)["nodes"]
    assert assistants.get_schemas(assistant_id)["graph_id"] == "steps"
    assert assistants.get_subgraphs(assistant_id) == {}
    assistants.delete(assistant_id)
    with pytest.raises(NotFoundError):
        assistants.get(assistant_id)
