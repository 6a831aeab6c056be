"""perdure's tools for the Model Context Protocol, and a server for them with its SDK (1.24 or newer, and 2).

The tools are methods of services; their schema, check and scope come from their signatures.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from importlib.metadata import version
from inspect import Parameter, signature
from typing import Any, Final, Protocol, get_type_hints

import msgspec
from mcp import types
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from perdure.approvals.service import Approvals
from perdure.diagnostics.service import Diagnostics
from perdure.kernel.codec import decode_json, encode_wire
from perdure.kernel.errors import Forbidden, InvalidInput, NotFound, PerdureError
from perdure.kernel.pages import Part
from perdure.kernel.version import VERSION
from perdure.memory.service import Memory
from perdure.service.callers import allows
from perdure.service.endpoints import Endpoint, endpoints
from perdure.threads.service import Threads

# --- tools ------------------------------------------------------------------------------------------------


LEFT_OUT: Final = frozenset({"self", "idempotency_key"})


class Holder(Protocol):
    """An object with the services: those of a caller in this process, or a connection to a server."""

    @property
    def memory(self) -> Memory: ...
    @property
    def threads(self) -> Any: ...
    @property
    def diagnostics(self) -> Diagnostics: ...
    @property
    def approvals(self) -> Approvals: ...


class Tool:
    """A service method that an agent may call."""

    def __init__(self, name: str, service: type[Any], holder: str, method: str) -> None:
        self.name = name
        self._holder = holder
        self._method = method
        self.endpoint: Endpoint = endpoints(service)[method]
        self.reads = self.endpoint.address.method == "GET"

    @property
    def description(self) -> str:
        """The docstring of the method."""
        lines = (self.endpoint.function.__doc__ or "").split("\n")
        return "\n".join(line.strip() for line in lines).strip()

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        schema = msgspec.json.schema(_arguments(self.endpoint.function))
        parts = schema.pop("$defs")
        main: dict[str, Any] = parts.pop(schema["$ref"].rpartition("/")[2])
        main.pop("title", None)
        return {**main, "$defs": parts} if parts else main

    async def call(self, holder: Holder, arguments: Mapping[str, Any]) -> Any:
        """Call the method with checked arguments."""
        kind = _arguments(self.endpoint.function)
        try:
            given = msgspec.convert(dict(arguments), kind)
        except msgspec.ValidationError as error:
            raise InvalidInput(f"{self.name}: {error}") from None
        values = {name: getattr(given, name) for name in arguments}
        method: Callable[..., Any] = getattr(getattr(holder, self._holder), self._method)
        return await method(**values)


@cache
def _arguments(function: Callable[..., Any]) -> type[msgspec.Struct]:
    """Build a struct from the parameters of a method."""
    hints = get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    for name, parameter in signature(function).parameters.items():
        if name not in LEFT_OUT:
            required = parameter.default is Parameter.empty
            fields.append((name, hints[name]) if required else (name, hints[name], parameter.default))
    return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)


TOOLS: Final[Mapping[str, Tool]] = {
    name: Tool(name, service, holder, method)
    for name, service, holder, method in (
        ("memory_search", Memory, "memory", "search"),
        ("memory_contents", Memory, "memory", "toc_root"),
        ("memory_browse", Memory, "memory", "browse"),
        ("memory_show", Memory, "memory", "get_node"),
        ("memory_expand", Memory, "memory", "expand_grip"),
        ("memory_events", Memory, "memory", "get_events"),
        ("why", Diagnostics, "diagnostics", "why"),
        ("list_runs", Threads, "threads", "list_runs"),
        ("get_run", Threads, "threads", "get_run"),
        ("list_approvals", Approvals, "approvals", "list"),
        ("get_approval", Approvals, "approvals", "get"),
        ("approve", Approvals, "approvals", "approve"),
        ("reject", Approvals, "approvals", "reject"),
        ("reply", Approvals, "approvals", "reply"),
    )
}


def tools_for(scopes: frozenset[str] | None) -> list[Tool]:
    """Return the tools that these scopes allow; None allows all, because another server decides."""
    return [tool for tool in TOOLS.values() if scopes is None or allows(scopes, tool.endpoint.scope)]


def tool_named(name: str, scopes: frozenset[str] | None) -> Tool:
    """Return a tool by name. Raise NotFound or Forbidden if it is not available to the caller."""
    tool = TOOLS.get(name)
    if tool is None:
        raise NotFound(f"there is no tool {name[:64]!r}")
    if scopes is not None and not allows(scopes, tool.endpoint.scope):
        raise Forbidden(f"the tool {name} needs a token with the scope {tool.endpoint.scope!r}")
    return tool


# --- the server -------------------------------------------------------------------------------------------


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
        # Tools have no cursors: the answer of a list is its items.
        text = encode_wire(answer.items if isinstance(answer, Part) else answer).decode()
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
