"""An agent that searches memory, in its worker's process or in one of its own."""

from __future__ import annotations

from typing import Any

from perdure.errors import InvalidInput


async def recall(ctx: Any, input: Any) -> Any:
    """What memory has about something, with the sessions that it is from."""
    found = await ctx.memory.search(input["query"], kind="event", limit=5)
    try:
        await ctx.memory.search("x", magic=True)
    except InvalidInput as error:
        refused = error.message
    return {
        "texts": [hit.text for hit in found.items],
        "sessions": [event.session_id for hit in found.items for event in hit.events],
        "mode": found.mode_used,
        "refused": refused,
    }
