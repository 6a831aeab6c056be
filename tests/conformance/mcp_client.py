"""LangChain's adapters of the Model Context Protocol, with SDK 1, on our tools. Run in their environment."""

import os
import sys
from typing import Any

from langchain_mcp_adapters.client import MultiServerMCPClient
from tests.conformance.checks import Check, CheckedServer, run_checks

from perdure.integrations.mcp.server import SDK, TOOLS


async def check_tools(connection: Any) -> None:
    """List our tools through the adapters, call some, and get the sentence of an error."""
    client = MultiServerMCPClient({"perdure": connection}, handle_tool_errors=False)
    async with client.session("perdure") as session:
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        assert set(tools) == set(TOOLS), sorted(tools)
        assert tools["memory_search"].inputSchema["required"] == ["query"]
        assert tools["memory_search"].annotations is not None
        assert tools["memory_search"].annotations.readOnlyHint
        runs = await session.call_tool("list_runs", {})
        assert runs.structuredContent is not None
        assert runs.structuredContent["items"] == [], runs
        refused = await session.call_tool("why", {"id": "unknown"})
        assert refused.isError
        assert "not_found" in refused.content[0].text, refused
    for_agents = {tool.name: tool for tool in await client.get_tools()}
    assert set(for_agents) == set(TOOLS), sorted(for_agents)
    answer = str(await for_agents["memory_search"].ainvoke({"query": "billing"}))
    assert "items" in answer, answer


async def the_adapters_over_http(server: CheckedServer) -> None:
    """The client has SDK 1, the server SDK 2."""
    headers = {"Authorization": f"Bearer {server.key}"}
    await check_tools({"transport": "streamable_http", "url": f"{server.url}/api/v1/mcp", "headers": headers})


async def the_adapters_over_stdio_with_a_server_of_the_same_sdk(server: CheckedServer) -> None:
    """`perdure mcp` runs in this environment, so that both sides have SDK 1."""
    assert SDK == 1
    settings = {
        "PERDURE_URL": server.url,
        "PERDURE_TOKEN": server.key,
        "PYTHONPATH": os.environ["PYTHONPATH"],
    }
    await check_tools(
        {
            "transport": "stdio",
            "command": sys.executable,
            "args": ["-m", "perdure.cli", "mcp"],
            "env": settings | {"PATH": os.environ["PATH"]},
        }
    )


async def the_adapters_over_http_with_a_server_of_the_same_sdk(server: CheckedServer) -> None:
    """A server in this environment answers over HTTP, and refuses a body that is too large."""
    import httpx

    from perdure import InMemoryLightningStore
    from perdure.kernel.config import SecretKey, Settings
    from perdure.runtime.app import App
    from perdure.server.http.server import HttpServer
    from perdure.server.table import build_application

    headers = {"Authorization": f"Bearer {server.key}"}
    async with InMemoryLightningStore() as store:
        settings = Settings(api_key=SecretKey(server.key), max_body_bytes=100_000)
        async with HttpServer(build_application(App(store, settings))) as http:
            url = f"{http.url}/api/v1/mcp"
            await check_tools({"transport": "streamable_http", "url": url, "headers": headers})
            async with httpx.AsyncClient(headers=headers) as client:
                answer = await client.post(url, content=b"x" * 100_001)
            assert answer.status_code == 413, answer


CHECKS: tuple[Check, ...] = (
    the_adapters_over_http,
    the_adapters_over_stdio_with_a_server_of_the_same_sdk,
    the_adapters_over_http_with_a_server_of_the_same_sdk,
)

if __name__ == "__main__":
    run_checks(sys.argv[1:], CHECKS)
