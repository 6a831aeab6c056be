"""Contexts, output schemas and refused inputs, through the client."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import APIError, UnprocessableEntityError
from tests.server.langgraph.run_support import collected, data_of, new_thread


async def test_a_context_has_the_defaults_of_its_schema(client: LangGraphClient) -> None:
    none: Any = await client.runs.wait(None, "with_defaults", input={})
    assert none["context"] == "Settings(model='small', turns=3)"
    some: Any = await client.runs.wait(None, "with_defaults", input={}, context={"turns": 5, "other": 1})
    assert some["context"] == "Settings(model='small', turns=5)"
    config: Any = {"configurable": {"model": "large"}}
    configured: Any = await client.runs.wait(None, "with_defaults", input={}, config=config)
    assert configured["context"] == "Settings(model='large', turns=3)"


async def test_a_context_that_does_not_fit_is_refused_with_a_sentence(client: LangGraphClient) -> None:
    for context, reason in (
        (None, "limit: Field required"),
        ({"limit": "many"}, "limit: Input should be a valid integer, unable to parse string as an integer"),
    ):
        ended: Any = await client.runs.wait(
            None, "with_required", input={}, context=context, raise_error=False
        )
        assert ended["__error__"] == {
            "error": "ValidationError",
            "message": f"the context does not fit Checked of graph 'with_required': {reason}",
        }


async def test_configurable_names_the_user_and_the_request(client: LangGraphClient) -> None:
    found: Any = await client.runs.wait(
        None, "with_defaults", input={}, headers={"x-request-id": "request-1"}
    )
    assert found["configured"] == {"user_id": "", "langgraph_request_id": "request-1"}
    config: Any = {"configurable": {"user_id": "ada", "langgraph_request_id": "forged"}}
    named: Any = await client.runs.wait(None, "with_defaults", input={}, config=config)
    assert named["configured"]["user_id"] == "ada"
    assert named["configured"]["langgraph_request_id"] not in ("", "forged")


async def test_only_the_output_is_returned(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    modes: Any = ["values", "updates"]
    parts = await collected(client.runs.stream(thread_id, "shy", input={"question": "q"}, stream_mode=modes))
    assert data_of(parts, "updates")[0] == {"think": None}
    assert not any(part.data.keys() - {"__interrupt__"} for part in parts if part.event == "values")
    ended: Any = await client.runs.wait(thread_id, "shy", command={"resume": "yes"})
    assert ended == {"answer": "about q: yes"}
    run_id = (await client.runs.list(thread_id))[0]["run_id"]
    assert await client.runs.join(thread_id, run_id) == ended
    assert await client.runs.wait(None, "shy", input={"question": "q"}, raise_error=False) != {}
    # The thread keeps all of it.
    whole = {"question": "q", "answer": "about q: yes", "notes": "n", "thought": "about q"}
    assert (await client.threads.get_state(thread_id))["values"] == whole
    assert (await client.threads.get(thread_id))["values"] == whole


async def test_a_refused_first_input_leaves_a_thread_that_can_be_read(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    ended: Any = await client.runs.wait(thread_id, "strict", input={"count": "no"}, raise_error=False)
    assert ended["__error__"]["error"] == "ValidationError"
    state = await client.threads.get_state(thread_id)
    assert (state["values"], state["next"]) == ({"count": "no"}, ["wait"])
    history = await client.threads.get_history(thread_id)
    assert history[0]["checkpoint"] == state["checkpoint"]
    inner: Any = {"checkpoint_ns": "inner"}
    with pytest.raises(APIError, match="cannot read this state"):
        await client.threads.get_state(thread_id, checkpoint=inner)


async def test_a_duration_is_a_number_of_seconds(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    ended: Any = await client.runs.wait(thread_id, "strict", input={"count": 86400})
    assert ended == {"count": 86400, "waited": 86400.5}
    assert (await client.threads.get_state(thread_id))["values"] == ended
    assert (await client.threads.get(thread_id))["values"] == ended


async def test_a_graph_is_drawn_by_its_name(client: LangGraphClient) -> None:
    drawn = await client.assistants.get_graph("shy")
    assert [node["id"] for node in drawn["nodes"]] == ["__start__", "think", "ask", "__end__"]
    with pytest.raises(UnprocessableEntityError):
        await client.assistants.get_graph("nobody")


async def test_a_graph_that_cannot_be_imported_is_left_out(client: LangGraphClient) -> None:
    assert not await client.assistants.search(graph_id="broken")
    assert await client.assistants.search(graph_id="shy")
