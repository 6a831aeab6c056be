"""Time limits of attempts: from the run, its agent, the settings or the kind of the agent."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from perdure import Agents, Perdure
from perdure.agents.loading import load_agents
from perdure.agents.records import DEFAULT_TIMEOUT, GRAPH_TIMEOUT
from perdure.errors import InvalidInput
from perdure.kernel.config import load_settings
from perdure.threads.work import Assignment
from perdure.worker.execution import TimeLimit, find_limit

FOR_EVER = 3600.0
SHORT = 0.2


def make_agents(timeout: Any = None) -> Agents:
    agents = Agents()

    @agents.agent("waits", timeout=timeout)
    async def waits(ctx: Any, input: Any) -> Any:
        await asyncio.sleep(input)
        return "ended"

    return agents


@pytest.mark.parametrize(
    ("agent", "setting", "own", "source"),
    [
        (FOR_EVER, FOR_EVER, SHORT, ""),
        (SHORT, FOR_EVER, None, " (timeout of agent waits)"),
        (SHORT, None, None, " (timeout of agent waits)"),
        (None, SHORT, None, " (setting BG_JOB_TIMEOUT_SECS)"),
    ],
)
async def test_the_first_limit_that_is_set_ends_the_run(
    engine_url: str, agent: float | None, setting: float | None, own: float | None, source: str
) -> None:
    async with Perdure(engine_url, agents=make_agents(agent), job_timeout=setting) as perdure:
        end = await perdure.run("waits", FOR_EVER, timeout_seconds=own)
        assert end.run.status == "timeout"
        assert end.run.error is not None
        assert end.run.error.message == f"the run took longer than {SHORT:g} s{source}"


@pytest.mark.parametrize(
    ("agent", "setting", "own"),
    [(SHORT, SHORT, FOR_EVER), (FOR_EVER, SHORT, None), (None, FOR_EVER, None)],
)
async def test_a_later_limit_does_not_count(
    engine_url: str, agent: float | None, setting: float, own: float | None
) -> None:
    async with Perdure(engine_url, agents=make_agents(agent), job_timeout=setting) as perdure:
        end = await perdure.run("waits", 2 * SHORT, timeout_seconds=own)
        assert (end.run.status, end.values) == ("success", "ended")


async def test_without_any_limit_the_kind_of_agent_decides(tmp_path: Path) -> None:
    (tmp_path / "graph.py").write_text(
        "from langgraph.graph import START, MessagesState, StateGraph\n"
        "graph = StateGraph(MessagesState).add_node('n', lambda state: {}).add_edge(START, 'n').compile()\n"
        "async def plain(ctx, input): return input\n"
    )
    (tmp_path / "langgraph.json").write_text(
        json.dumps({"dependencies": ["."], "graphs": {"graph": "./graph.py:graph"}})
    )
    (tmp_path / "perdure.toml").write_text(
        '[perdure.agents]\nplain = "./graph.py:plain"\nslow = {path = "./graph.py:plain", timeout = 900}\n'
    )
    settings = load_settings(environment={}, directory=tmp_path)
    loaded = load_agents(Agents(), settings, tmp_path)
    assert not loaded.failures
    async with Perdure("memory:", agents=make_agents()) as perdure:
        run = (await perdure.run("waits", 0.0)).run
    claimed = Assignment(
        run=run,
        attempt_id="a",
        attempt=1,
        last_attempt=False,
        config={},
        context={},
        timeout_seconds=None,
        lease_seconds=10.0,
        origin=run.run_id,
    )
    limits = {name: find_limit(claimed, agent.spec, None).seconds for name, agent in loaded.agents.items()}
    assert limits == {"graph": GRAPH_TIMEOUT, "plain": DEFAULT_TIMEOUT, "slow": 900.0}
    assert find_limit(claimed, loaded.agents["graph"].spec, 60.0) == TimeLimit(
        60.0, "setting BG_JOB_TIMEOUT_SECS"
    )


@pytest.mark.parametrize("timeout", [0, -1, True, float("nan"), 86_401, "5"])
def test_a_timeout_that_is_none_is_refused(timeout: Any) -> None:
    with pytest.raises(InvalidInput, match="timeout of agent 'waits'"):
        make_agents(timeout)
