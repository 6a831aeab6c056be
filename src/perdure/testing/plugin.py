"""Fixtures of pytest for programs with perdure: `pytest_plugins = ["perdure.testing.plugin"]` in a conftest.

The fixture `perdure` is a `perdure.sync.Perdure` in memory, so it needs no plugin for async tests. Override
the fixture `perdure_agents` to execute your agents.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perdure.sync import Perdure
from perdure.worker.registry import Agents


@pytest.fixture
def perdure_agents() -> Agents:
    """Return the agents whose runs the fixture `perdure` executes; override it in your tests."""
    return Agents()


@pytest.fixture
def perdure(perdure_agents: Agents) -> Iterator[Perdure]:
    """Open perdure in memory with a worker for `perdure_agents`, and serve it at `perdure.url`."""
    with Perdure("memory:", agents=perdure_agents, serve=0) as opened:
        yield opened
