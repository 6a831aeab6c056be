"""An MCP server for the tools, with the official SDK (1.24 or newer, and 2)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from inspect import signature
from typing import Any, Final

from mcp import types
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from perdure.integrations.mcp.tools import Holder, Tool, tool_named, tools_for
from perdure.kernel.codec import decode_json, encode_wire
from perdure.kernel.errors import PerdureError
from perdure.kernel.version import VERSION

NAME = "perdure"
INSTRUCTIONS = (
    "Search what agents did (memory_search, then memory_show and memory_expand for the events behind it), "
    "explain why a run waits (why), look at runs, and answer approvals that wait for a person."
)

SDK: Final = int(version("mcp").split(".")[0])
"""The major release of the installed SDK."""

ListTools = Callable[[], types.ListToolsResult]
CallTool = Callable[[str, dict[str, Any] | None], Awaitable[types.CallToolResult]]

logger = logging.getLogger(__name__)


def build_server(holder: Holder, scopes: frozenset[str] | None = None) -> Server[Any]:
    """Build a server whose tools use these services, limited by the caller's scopes."""

    def list_tools() -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_describe(tool) for tool in tools_for(scopes)])

    async def call_tool(name: str, arguments: dict[str, Any] | None) -> types.CallToolResult:
        try:
            answer = await tool_named(name, scopes).call(holder, arguments or {})
        except PerdureError as error:
            return _build_result(f"{error.code}: {error.public}", is_error=True)
        except Exception:
            logger.exception("the tool %s failed", name)
            return _build_result("internal: internal error; the log has the details", is_error=True)
        text = encode_wire(answer).decode()
        content = decode_json(text)
        return _build_result(text, content if isinstance(content, dict) else {"items": content})

    return _server_of_sdk_1(list_tools, call_tool) if SDK == 1 else _server_of_sdk_2(list_tools, call_tool)


def _server_of_sdk_1(list_tools: ListTools, call_tool: CallTool) -> Server[Any]:
    """Build a server of SDK 1, whose handlers get a request and return a `ServerResult`."""
    sdk: Any = types
    server: Any = Server(NAME, version=VERSION, instructions=INSTRUCTIONS)

    async def on_list_tools(request: Any) -> Any:
        return sdk.ServerResult(list_tools())

    async def on_call_tool(request: Any) -> Any:
        return sdk.ServerResult(await call_tool(request.params.name, request.params.arguments))

    # The decorators of SDK 1 would check arguments a second time, with other error texts.
    server.request_handlers[types.ListToolsRequest] = on_list_tools
    server.request_handlers[types.CallToolRequest] = on_call_tool
    return server  # type: ignore[no-any-return]


def _server_of_sdk_2(list_tools: ListTools, call_tool: CallTool) -> Server[Any]:
    """Build a server of SDK 2, whose handlers get a context and parameters."""

    async def on_list_tools(
        context: object, parameters: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return list_tools()

    async def on_call_tool(context: object, parameters: types.CallToolRequestParams) -> types.CallToolResult:
        return await call_tool(parameters.name, parameters.arguments)

    return Server(
        NAME,
        version=VERSION,
        instructions=INSTRUCTIONS,
        on_list_tools=on_list_tools,
        on_call_tool=on_call_tool,
    )


def _describe(tool: Tool) -> types.Tool:
    # Both releases of the SDK read the wire names; their Python names differ.
    return types.Tool.model_validate(
        {
            "name": tool.name,
            "description": tool.description,
            "inputSchema": tool.schema,
            "annotations": {"readOnlyHint": tool.reads},
        }
    )


def _build_result(
    text: str, content: dict[str, Any] | None = None, *, is_error: bool = False
) -> types.CallToolResult:
    blocks = [{"type": "text", "text": text}]
    return types.CallToolResult.model_validate(
        {"content": blocks, "structuredContent": content, "isError": is_error}
    )


async def serve_stdio(holder: Holder) -> None:
    """Serve one client on stdin and stdout, until it closes them."""
    server = build_server(holder)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


class McpResponse(Response):
    """Answers one request over streamable HTTP without a session. Its body was read and limited before."""

    def __init__(self, server: Server[Any], body: bytes) -> None:
        super().__init__()
        self.raw_headers = []
        self._request_body = body
        # Early releases of SDK 1 have no limit.
        bounded = "max_request_body_size" in signature(StreamableHTTPSessionManager).parameters
        bound: dict[str, Any] = {"max_request_body_size": max(len(body), 1)} if bounded else {}
        self._manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True, **bound)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        unread = [self._request_body]

        async def receive_body() -> Message:
            """Return the body that was already read, then the client's messages."""
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            return await receive()

        async def send_with_headers(message: Message) -> None:
            """Add our headers that the SDK has not set."""
            if message["type"] == "http.response.start":
                theirs = list(message.get("headers") or ())
                present = {name for name, _ in theirs}
                ours = [header for header in self.raw_headers if header[0] not in present]
                message = {**message, "headers": [*theirs, *ours]}
            await send(message)

        async with self._manager.run():
            await self._manager.handle_request(scope, receive_body, send_with_headers)
