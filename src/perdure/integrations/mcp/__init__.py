"""perdure as tools of the Model Context Protocol, for coding agents: what the extra `mcp` adds."""
