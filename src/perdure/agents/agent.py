"""The interface of agents."""

from __future__ import annotations

from typing import Any, Protocol

from perdure.agents.context import Context
from perdure.agents.records import AgentSpec


class Agent(Protocol):
    """An agent: a spec, and a method that executes it."""

    spec: AgentSpec
    blocking: bool
    """True to run in a separate thread, because the agent would block the event loop."""

    async def run(self, ctx: Context, input: Any) -> Any:
        """Execute the agent; return the final values of the thread, or None to keep the last saved ones.

        A cancelled agent stops; code that does not stop within a few seconds is abandoned.
        """
        ...
