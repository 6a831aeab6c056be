"""`/mcp` through the official client, and `/a2a`: assistants as tools, and as agents of other agents."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.types import PaginatedRequestParams
from tests.server.langgraph.run_support import asked, new_id, until_thread

from perdure.testing.serving import ServerProcess

DONE = {"n": 3, "log": ["one", "two", "three"]}


# --- tools ------------------------------------------------------------------------------------------------


async def test_assistants_are_tools(server: ServerProcess, client: LangGraphClient) -> None:
    own = await client.assistants.create("steps", name="my own steps")
    own_tool = f"my_own_steps-{own['assistant_id'][:8]}"
    async with (
        streamable_http_client(f"{server.url}/mcp") as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        assert (await session.initialize()).server_info.name == "perdure"
        tools: dict[str, Any] = {}
        page = await session.list_tools()
        while True:
            tools |= {tool.name: tool for tool in page.tools}
            if page.next_cursor is None:
                break
            page = await session.list_tools(params=PaginatedRequestParams(cursor=page.next_cursor))
        assert {"steps", "chat", "failing", own_tool} <= set(tools)
        assert tools["chat"].input_schema["properties"]["messages"]["type"] == "string"
        for name in ("steps", own_tool):
            result: Any = await session.call_tool(name, {"n": 0})
            assert result.structured_content == DONE
            assert json.loads(result.content[0].text) == DONE
        result = await session.call_tool("chat", {"messages": "hello"})
        assert result.content[0].text == "hello there friend"
        result = await session.call_tool("failing", {"n": 0})
        assert result.is_error
        assert "this graph always fails" in result.content[0].text
        result = await session.call_tool("approval", {"n": 0})
        assert "go on?" in result.content[0].text
    threads = await client.threads.search(
        status="interrupted", metadata={"assistant_id": own["assistant_id"]}
    )
    assert threads == []


async def rpc(url: str, path: str, method: str, params: Any = None, **more: Any) -> httpx.Response:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params, **more}
    return await asked(url, path, "POST", {key: value for key, value in body.items() if value != ...})


async def test_what_is_wrong_is_answered_as_json_rpc_wants_it(server: ServerProcess) -> None:
    for method, params, code in (
        ("tools/call", {"name": "nobody"}, -32602),
        ("tools/call", {"name": "steps", "arguments": []}, -32602),
        ("tools/call", 5, -32602),
        ("tools/list", {"cursor": "x"}, -32602),
        ("prompts/list", {}, -32601),
    ):
        answer = await rpc(server.url, "/mcp", method, params)
        assert (answer.status_code, answer.json()["error"]["code"]) == (200, code), answer.text
    assert (await rpc(server.url, "/mcp", "ping")).json()["result"] == {}
    assert (await rpc(server.url, "/mcp", "notifications/initialized", id=...)).status_code == 202
    assert (await rpc(server.url, "/mcp", "ping", jsonrpc="1.0")).json()["error"]["code"] == -32600
    assert (await asked(server.url, "/mcp", "POST", [])).status_code == 422
    refused = await asked(server.url, "/mcp", "GET")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    page = {"Origin": "https://evil.example"}
    assert (await asked(server.url, "/mcp", "POST", {"method": "ping", "id": 1}, page)).status_code == 403


# --- agents -----------------------------------------------------------------------------------------------


def said(text: str, **more: Any) -> dict[str, Any]:
    return {
        "message": {"role": "user", "parts": [{"kind": "text", "text": text}], "messageId": new_id(), **more}
    }


async def test_a_message_becomes_a_task(server: ServerProcess) -> None:
    answer = (await rpc(server.url, "/a2a/chat", "message/send", said("hi"))).json()["result"]
    assert (answer["kind"], answer["status"]["state"]) == ("task", "completed")
    assert answer["artifacts"][0]["parts"] == [{"kind": "text", "text": "hello there friend"}]
    assert [each["role"] for each in answer["history"]] == ["user", "agent"]
    assert answer["id"].startswith(answer["contextId"] + ":")
    again = (
        await rpc(server.url, "/a2a/chat", "message/send", said("more", contextId=answer["contextId"]))
    ).json()
    assert again["result"]["contextId"] == answer["contextId"]
    known = (await rpc(server.url, "/a2a/chat", "tasks/get", {"id": answer["id"], "historyLength": 1})).json()
    assert known["result"]["status"]["state"] == "completed"
    assert len(known["result"]["history"]) == 1


async def test_a_task_asks_and_is_answered(server: ServerProcess) -> None:
    data = {"message": {"parts": [{"kind": "data", "data": {"n": 0}}]}}
    task = (await rpc(server.url, "/a2a/approval", "message/send", data)).json()["result"]
    assert task["status"]["state"] == "input-required"
    assert "go on?" in json.dumps(task["status"]["message"])
    ended = (await rpc(server.url, "/a2a/approval", "message/send", said("yes", taskId=task["id"]))).json()
    assert ended["result"]["status"]["state"] == "completed"
    assert "approved: yes" in json.dumps(ended["result"]["artifacts"])


async def test_a_task_is_streamed(server: ServerProcess) -> None:
    answer = await rpc(server.url, "/a2a/chat", "message/stream", said("hi"))
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    results = [json.loads(line)["result"] for line in lines]
    assert [results[0]["kind"], results[-2]["kind"], results[-1]["kind"]] == [
        "task",
        "artifact-update",
        "status-update",
    ]
    texts = [each["status"]["message"]["parts"][0]["text"] for each in results[1:-2]]
    assert texts[-1] == "hello there friend"
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert (results[-1]["status"]["state"], results[-1]["final"]) == ("completed", True)


async def test_a_task_that_nobody_waits_for_is_cancelled(
    server: ServerProcess, client: LangGraphClient
) -> None:
    params = {
        "message": {"parts": [{"kind": "data", "data": {"until": "/nowhere/at/all", "n": 0}}]},
        "configuration": {"blocking": False},
    }
    task = (await rpc(server.url, "/a2a/slow", "message/send", params)).json()["result"]
    assert task["status"]["state"] == "submitted"
    cancelled = (await rpc(server.url, "/a2a/slow", "tasks/cancel", {"id": task["id"]})).json()["result"]
    assert cancelled["status"]["state"] == "canceled"
    await until_thread(client, task["contextId"], "idle", "interrupted")
    again = await rpc(server.url, "/a2a/slow", "tasks/cancel", {"id": task["id"]})
    assert again.json()["error"]["code"] == -32002


async def test_what_is_wrong_with_a_task(server: ServerProcess) -> None:
    for method, params, code in (
        ("tasks/get", {"id": "x"}, -32001),
        ("tasks/get", {"id": f"{new_id()}:{new_id()}"}, -32001),
        ("tasks/get", {}, -32602),
        ("message/send", {}, -32602),
        ("message/send", {"message": {"parts": []}}, -32602),
        ("message/send", said("x", contextId="not-a-uuid"), -32602),
        ("tasks/resubscribe", {"id": "x"}, -32601),
    ):
        answer = await rpc(server.url, "/a2a/chat", method, params)
        assert (answer.status_code, answer.json()["error"]["code"]) == (200, code), answer.text
    assert (await rpc(server.url, "/a2a/nobody", "message/send", said("x"))).status_code == 422
    failed = (await rpc(server.url, "/a2a/failing", "message/send", said("x"))).json()["result"]
    assert failed["status"]["state"] == "failed"


@pytest.mark.parametrize(
    "path", ["/a2a/chat/.well-known/agent-card.json", "/.well-known/agent-card.json?assistant_id=chat"]
)
async def test_the_card_of_an_agent(server: ServerProcess, path: str) -> None:
    card = (await asked(server.url, path)).json()
    assert card["capabilities"]["streaming"]
    assert card["url"].startswith(server.url)
    answer = await rpc(server.url, card["url"].removeprefix(server.url), "message/send", said("hi"))
    assert answer.json()["result"]["status"]["state"] == "completed"
    assert (await asked(server.url, "/.well-known/agent-card.json")).status_code == 400
    assert (await asked(server.url, "/.well-known/agent-card.json?assistant_id=nobody")).status_code == 404
