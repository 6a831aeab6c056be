"""The Model Context Protocol at `/mcp`: assistants as tools, over streamable HTTP without sessions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from msgspec import UNSET
from starlette.responses import Response

from perdure.assistants.records import Assistant
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import PerdureError
from perdure.kernel.version import VERSION
from perdure.server.http.long_responses import cancel_on_disconnect
from perdure.server.http.routes import Call
from perdure.server.langgraph.json_rpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Record,
    RpcError,
    RpcMessage,
    RpcResult,
    answered,
    build_error,
    last_answer,
)
from perdure.server.langgraph.protocol import answer, get_graphs
from perdure.server.langgraph.routing import Authorization, LangGraphResource, before, matches
from perdure.server.langgraph.run_requests import RunBody
from perdure.server.langgraph.runs import authorize_run, created, new_final_values

mcp = LangGraphResource("mcp")

VERSIONS: Final = ("2025-06-18", "2025-03-26", "2024-11-05")
"""Supported versions of the protocol; the first is offered to clients of other versions."""
PAGE: Final = 50
ACCEPTED: Final = 202
STAMPED: Final = "run_metadata"
"""Key in a request's scope; the value is the run metadata with the owner that custom auth has added."""
FILTER: Final = "mcp_filter"
"""Key in a request's scope; the value is the custom auth filter for the assistants that the user may see."""
MESSAGE: Final = {"type": "string", "description": "The message to the agent."}
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


@before
async def _authorize(request: Authorization) -> None:
    message: RpcMessage = request.call.body
    if message.method != "tools/call":
        value: Record = {"metadata": {}, "limit": PAGE, "offset": 0}
        request.call.request.scope[FILTER] = await request.authorize("assistants", "search", value)
        return
    assistant = await _assistant(request.call, str(message.parameters.get("name")))
    if assistant is None:
        await request.authorize("assistants", "search", {"metadata": {}})
        return
    body = RunBody(assistant_id=assistant.assistant_id)
    await authorize_run(request, body, None)
    request.call.request.scope[STAMPED] = body.metadata


@mcp.route(
    "POST",
    "/mcp",
    rule=_authorize,
    scope="write",
    summary="The Model Context Protocol: list assistants as tools, and call them",
    body=RpcMessage,
    answer=Record,
)
async def serve_mcp(call: Call) -> Response:
    message: RpcMessage = call.body
    if message.method is None or message.id is UNSET:
        # A notification, or an unexpected response.
        return Response(status_code=ACCEPTED)
    if message.jsonrpc != "2.0":
        return answer(build_error(message, INVALID_REQUEST, "jsonrpc must be 2.0"))
    if message.method == "tools/call":
        return await _call_tool(call, message)
    return answer(await answered(message, partial(_answer, call, message)))


async def _answer(call: Call, message: RpcMessage) -> Any:
    if message.method == "initialize":
        return _initialized(message.parameters)
    if message.method == "ping":
        return {}
    if message.method == "tools/list":
        return await _tools(call, message.parameters)
    raise RpcError(METHOD_NOT_FOUND, f"there is no method {str(message.method)[:64]!r}")


def _initialized(params: Record) -> Record:
    asked = params.get("protocolVersion")
    return {
        "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": {"name": "perdure", "version": VERSION},
    }


# --- tools ------------------------------------------------------------------------------------------------


async def _tools(call: Call, params: Record) -> Record:
    cursor = params.get("cursor") or "0"
    if not isinstance(cursor, str) or not cursor.isdecimal() or len(cursor) > 9:
        raise RpcError(INVALID_PARAMS, "invalid cursor; pass the `nextCursor` of the previous page")
    page = await call.assistants.search(limit=PAGE, offset=int(cursor), sort_by="created_at")
    filter = call.request.scope.get(FILTER) or {}
    visible = [
        assistant for assistant in page.items if assistant.system or matches(filter, assistant.metadata)
    ]
    tools = [await _tool(call, assistant) for assistant in visible]
    more = int(cursor) + PAGE
    return {"tools": tools, **({"nextCursor": str(more)} if more < page.counted else {})}


async def _tool(call: Call, assistant: Assistant) -> Record:
    about = assistant.description or f"Run the assistant {assistant.name}"
    return {
        "name": build_tool_name(assistant),
        "title": assistant.name,
        "description": about,
        "inputSchema": await _input_schema(call, assistant.assistant_id),
        "annotations": {"readOnlyHint": False, "openWorldHint": True},
    }


def build_tool_name(assistant: Assistant) -> str:
    """Build a tool's name: the graph's name, or the assistant's name with the start of the assistant's id."""
    if assistant.system:
        return assistant.agent
    plain = _NOT_IN_NAMES.sub("_", assistant.name)[:80]
    return f"{plain}-{assistant.assistant_id[:8]}"


async def _input_schema(call: Call, assistant_id: str) -> Record:
    """Return the input schema of an assistant. Messages become a single text."""
    try:
        schemas = await get_graphs(call).schemas(assistant_id)
        schema = schemas.get("input_schema") or schemas.get("state_schema")
    except PerdureError:
        # A tool can be called even if its schema is unavailable.
        schema = None
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return {"type": "object"}
    properties = schema.get("properties")
    if not isinstance(properties, dict) or "messages" not in properties:
        return schema
    simple = {**schema, "properties": {**properties, "messages": MESSAGE}}
    definitions = simple.pop("$defs", {})
    return {**simple, "$defs": definitions} if "#/$defs/" in encode_json(simple) else simple


async def _assistant(call: Call, name: str) -> Assistant | None:
    """Find the assistant of a tool's name."""
    graph_assistant = (await call.assistants.resolve([name])).get(name)
    if graph_assistant is not None:
        return graph_assistant
    offset = 0
    while True:
        page = await call.assistants.search(limit=1000, offset=offset)
        for assistant in page.items:
            if build_tool_name(assistant) == name:
                return assistant
        offset += 1000
        if offset >= page.counted:
            return None


async def _call_tool(call: Call, message: RpcMessage) -> Response:
    params = message.parameters
    name, arguments = str(params.get("name")), params.get("arguments")
    assistant = await _assistant(call, name)
    if assistant is None:
        return answer(build_error(message, INVALID_PARAMS, f"there is no tool {name[:100]!r}"))
    if not isinstance(arguments, dict | None):
        return answer(build_error(message, INVALID_PARAMS, "arguments must be an object"))
    body = RunBody(
        assistant_id=assistant.assistant_id,
        input=_input(arguments or {}),
        on_disconnect="cancel",
        metadata=call.request.scope.get(STAMPED),
    )
    try:
        run = await created(call, body)
    except PerdureError as error:
        if error.http_status >= 500:
            raise
        return answer(build_error(message, INVALID_PARAMS, error.message))
    return RpcResult(
        call,
        answered(message, lambda: _outcome(call, run.run_id)),
        on_disconnect=cancel_on_disconnect(call.threads, run.run_id, True),
    )


def _input(arguments: Record) -> Record:
    if isinstance(arguments.get("messages"), str):
        return {**arguments, "messages": [{"role": "user", "content": arguments["messages"]}]}
    return arguments


async def _outcome(call: Call, run_id: str) -> Record:
    """Return the result of a tool: the text of the last message, or all values as JSON."""
    values = await new_final_values(call.threads, run_id)
    failure = values.get("__error__") if isinstance(values, dict) else None
    if failure is not None:
        return {"content": _text(f"{failure['error']}: {failure['message']}"), "isError": True}
    waits = isinstance(values, dict) and "__interrupt__" in values
    text = None if waits else last_answer(values)
    content = _text(encode_json(values) if text is None else text)
    structured = {"structuredContent": values} if isinstance(values, dict) else {}
    return {"content": content, "isError": False, **structured}


def _text(text: str) -> Sequence[Record]:
    return [{"type": "text", "text": text}]
