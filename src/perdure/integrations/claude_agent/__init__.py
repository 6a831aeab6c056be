"""perdure as the session store of the Claude Agent SDK (`pip install 'perdure[claude-agent]'`)."""

from perdure.integrations.claude_agent.store import PerdureSessionStore

__all__ = ["PerdureSessionStore"]
