"""perdure as tools of the Model Context Protocol for coding agents, part of the extra `mcp`."""
