"""The Claude Agent SDK and the OpenAI Agents SDK, in an environment of their own beside our client."""

import tomllib

from bench.environments import ROOT, Environment


def _dependencies() -> list[str]:
    """What our client needs; perdure itself is not installed there."""
    found: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return found


SDKS = Environment("agent_sdks", ("claude-agent-sdk==0.2.182", "openai-agents==0.24.0", *_dependencies()))


def command() -> list[str]:
    return [str(SDKS.ensure()), "-m", "tests.conformance.sdk_client"]
