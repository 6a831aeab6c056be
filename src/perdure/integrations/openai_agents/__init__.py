"""perdure as the session of the OpenAI Agents SDK."""

from perdure.integrations.openai_agents.session import PerdureSession

__all__ = ["PerdureSession"]
