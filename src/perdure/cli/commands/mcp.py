"""`perdure mcp`: tools for coding agents over the Model Context Protocol."""

from __future__ import annotations

from perdure.cli.shell.options import CommandContext, client_command
from perdure.kernel.errors import InvalidInput


@client_command
async def mcp(context: CommandContext) -> None:
    """Serve memory search, why, runs and approvals to a coding agent, over MCP on stdin and stdout."""
    try:
        from perdure.integrations.mcp.server import serve_stdio
    except ModuleNotFoundError as error:
        raise InvalidInput("this needs the MCP SDK: pip install 'perdure[mcp]'") from error
    async with context.connect() as connection:
        await serve_stdio(connection)
