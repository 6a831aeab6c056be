"""The Model Context Protocol at `/api/v1/mcp`: memory, runs and approvals as tools for coding agents."""

from __future__ import annotations

from starlette.responses import Response

from perdure.kernel.errors import NotSupported
from perdure.server.http.routes import Call


async def serve(call: Call) -> Response:
    """Answer a request with the tools that the caller's token allows."""
    try:
        from perdure.integrations.mcp.server import McpResponse, build_server
    except ModuleNotFoundError as error:
        raise NotSupported("this needs the MCP SDK on the server: pip install 'perdure[mcp]'") from error
    return McpResponse(build_server(call.services, call.caller.scopes), call.body)
