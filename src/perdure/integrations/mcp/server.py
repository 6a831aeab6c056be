"""A server of the Model Context Protocol over the tools, by the official SDK: for stdio, and for HTTP."""

from __future__ import annotations

import logging
from typing import Any

from mcp import types
from mcp.server import Server, ServerRequestContext
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

logger = logging.getLogger(__name__)


def server_of(holder: Holder, scopes: frozenset[str] | None = None) -> Server[Any]:
    """A server whose tools work on these services, as far as the scopes of the caller allow."""

    async def list_tools(
        context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(tool) for tool in tools_for(scopes)])

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        try:
            found = await tool_named(params.name, scopes).call(holder, params.arguments or {})
        except PerdureError as error:
            return _result(f"{error.code}: {error.public}", is_error=True)
        except Exception:
            logger.exception("the tool %s failed", params.name)
            return _result("internal: internal error; the log has the details", is_error=True)
        text = encode_wire(found).decode()
        content = decode_json(text)
        return _result(text, content if isinstance(content, dict) else {"items": content})

    return Server(
        NAME,
        version=VERSION,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _described(tool: Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.schema,
        annotations=types.ToolAnnotations(read_only_hint=tool.reads),
    )


def _result(
    text: str, content: dict[str, Any] | None = None, *, is_error: bool = False
) -> types.CallToolResult:
    block = types.TextContent(type="text", text=text)
    return types.CallToolResult(content=[block], structured_content=content, is_error=is_error)


async def serve_stdio(holder: Holder) -> None:
    """Serve one client on stdin and stdout, until it closes them."""
    server = server_of(holder)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


class McpResponse(Response):
    """Answers one request over streamable HTTP, without a session."""

    def __init__(self, server: Server[Any], max_body: int) -> None:
        super().__init__()
        self.raw_headers = []
        self._manager = StreamableHTTPSessionManager(
            server, json_response=True, stateless=True, max_request_body_size=max_body
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            """Add our headers where the SDK has set none."""
            if message["type"] == "http.response.start":
                theirs = list(message.get("headers") or ())
                present = {name for name, _ in theirs}
                ours = [header for header in self.raw_headers if header[0] not in present]
                message = {**message, "headers": [*theirs, *ours]}
            await send(message)

        async with self._manager.run():
            await self._manager.handle_request(scope, receive, with_headers)
