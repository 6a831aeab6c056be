"""The functional API, `Send`, commands to a parent and subgraphs, through the client."""

from __future__ import annotations

from typing import Any

from langgraph_sdk.client import LangGraphClient
from tests.server.langgraph.run_support import collected, data_of, new_thread


async def test_the_functional_api(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    given: Any = {"topics": ["a", "b"]}
    for count in (1, 2):
        asked: Any = await client.runs.wait(thread_id, "functional", input=given)
        assert asked["__interrupt__"][0]["value"] == {"drafts": ["about a", "about b"]}
        ended: Any = await client.runs.wait(thread_id, "functional", command={"resume": "good"})
        assert ended == {"texts": ["about a", "about b"], "verdict": "good", "count": count}
    assert (await client.threads.get_state(thread_id))["values"] == ended


async def test_objects_are_sent_to_nodes(client: LangGraphClient) -> None:
    given: Any = {"items": [1, 2, 3]}
    ended: Any = await client.runs.wait(None, "sending", input=given)
    assert ended == {"items": [1, 2, 3], "done": [1, 4, 9]}


async def test_a_command_to_the_parent(client: LangGraphClient) -> None:
    given: Any = {"log": ["start"]}
    ended: Any = await client.runs.wait(None, "to_parent", input=given)
    assert ended == {"log": ["start", "left the inner graph", "after"]}


async def test_a_subgraph_asks(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    modes: Any = ["values", "updates"]
    streamed = client.runs.stream(
        thread_id, "asking_inside", input={"log": []}, stream_mode=modes, stream_subgraphs=True
    )
    parts = await collected(streamed)
    assert any(part.event.startswith("updates|inner:") for part in parts)
    state: Any = await client.threads.get_state(thread_id, subgraphs=True)
    assert state["tasks"][0]["state"]["next"] == ["ask"]
    ended = client.runs.stream(thread_id, "asking_inside", command={"resume": "this"}, stream_mode="values")
    assert data_of(await collected(ended), "values")[-1] == {"log": ["answer this", "closed"]}
