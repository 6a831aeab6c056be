"""What every agent is: a spec, and something that can be run."""

from __future__ import annotations

from typing import Any, Protocol

from perdure.agents.context import Context
from perdure.agents.records import AgentSpec


class Agent(Protocol):
    """Something that can be run."""

    spec: AgentSpec
    blocking: bool
    """Whether it runs in a thread of its own, since it would hold up the loop."""

    async def run(self, ctx: Context, input: Any) -> Any:
        """Run once, to the end; gives the final values of the thread, or None to keep what was saved last.

        Cancelling it ends it soon: code that cannot be interrupted gets a few seconds, and is left behind.
        """
        ...
