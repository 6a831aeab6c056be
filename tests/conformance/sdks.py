"""Environments of SDKs in Python that need our client beside them, which is taken from the source."""

import tomllib

from bench.environments import ROOT, Environment


def client_dependencies() -> list[str]:
    """Return what our client needs; perdure itself is not installed there."""
    dependencies: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return dependencies


SDKS = Environment(
    "agent_sdks", ("claude-agent-sdk==0.2.182", "openai-agents==0.24.0", *client_dependencies())
)
MCP_ADAPTERS = Environment(
    "mcp_adapters", ("langchain-mcp-adapters==0.3.2", "mcp==1.30.0", *client_dependencies())
)
"""The adapters need SDK 1 of the Model Context Protocol; our own environment has SDK 2."""
