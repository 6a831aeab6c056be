"""A tool that reads the context of the run."""

from __future__ import annotations

from typing import Any

from langgraph.runtime import get_runtime

from react_agent.context import Context


async def search(query: str) -> dict[str, Any]:
    """Search for something."""
    runtime = get_runtime(Context)
    return {"query": query, "max_search_results": runtime.context.max_search_results}


TOOLS = [search]
