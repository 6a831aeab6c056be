"""What lists show of spans: tokens and rewards, out of the attributes that each instrumentation writes.

| dialect | tokens | reward |
|---|---|---|
| OpenTelemetry | `gen_ai.usage.input_tokens`, `gen_ai.usage.output_tokens` | |
| older OpenTelemetry, OpenLLMetry | `gen_ai.usage.prompt_tokens`, `llm.usage.prompt_tokens`, … | |
| OpenInference | `llm.token_count.prompt`, `llm.token_count.completion` | |
| Agent-lightning | | `agentlightning.reward.0.value`, `agentlightning.reward.primary`, `reward` |
| AgentOps | | `agentops.task.output`, `agentops.entity.output` |

To take more out of spans, a model or a cost, add a field to `Figures` and its attributes here, and a mark if
they have none of the `MARKS`; then a column to `rollout_figures` and `traces`, and how it is added up to
`sums.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from perdure.kernel.codec import decode_json
from perdure.kernel.errors import InvalidInput

MARKS = (b"usage", b"token_count", b"reward")
"""The body of a span that has figures contains one of these."""
INPUT = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "llm.token_count.prompt",
    "llm.usage.prompt_tokens",
)
OUTPUT = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.token_count.completion",
    "llm.usage.completion_tokens",
)
OPERATION = "gen_ai.operation.name"
SUMS = {
    OPERATION: frozenset({"invoke_agent", "create_agent", "invoke_workflow", "execute_tool"}),
    "openinference.span.kind": frozenset({"AGENT", "CHAIN", "TOOL", "RETRIEVER", "RERANKER", "EVALUATOR"}),
    "traceloop.span.kind": frozenset({"workflow", "agent", "task", "tool"}),
}
"""Spans that repeat the tokens of the calls below them, which must not count twice."""
REWARD = "agentlightning.reward"
REWARD_SPANS = frozenset({"agentlightning.annotation", "agentlightning.operation", REWARD})
REWARDS = (f"{REWARD}.0.value", f"{REWARD}.primary", REWARD, "reward")
REWARD_OPERATION = "agentlightning.operation.name"
OUTPUTS = ("agentops.task.output", "agentops.entity.output")
ATTRIBUTES = frozenset({*INPUT, *OUTPUT, *SUMS, *REWARDS, REWARD_OPERATION, *OUTPUTS})
"""All that figures are taken out of."""
MOST = 2**53
"""More tokens than that are no number of tokens."""


class Figures(NamedTuple):
    """What a span counts."""

    input_tokens: int = 0
    output_tokens: int = 0
    reward: float | None = None

    @property
    def present(self) -> bool:
        return bool(self.input_tokens or self.output_tokens or self.reward is not None)


def may_have_figures(body: bytes) -> bool:
    """Whether an encoded span can have figures, without decoding it."""
    for mark in MARKS:  # noqa: SIM110  (every span comes by here, and a generator takes four times as long)
        if mark in body:
            return True
    return False


def figures_of(name: str, attributes: Mapping[str, Any]) -> Figures:
    """The figures of a span. What is no number counts as nothing."""
    reward = reward_of(name, attributes)
    for kind, values in SUMS.items():
        found = attributes.get(kind)
        if isinstance(found, str) and found in values:
            return Figures(reward=reward)
    return Figures(_tokens(attributes, INPUT), _tokens(attributes, OUTPUT), reward)


def figures_in(body: bytes, name: str, attributes: Mapping[str, Any]) -> Figures | None:
    """The figures of a span with this body; None if it has none, mostly without a look at the attributes."""
    if not may_have_figures(body):
        return None
    found = figures_of(name, attributes)
    return found if found.present else None


def _tokens(attributes: Mapping[str, Any], names: Sequence[str]) -> int:
    for name in names:
        found = _number(attributes.get(name))
        if found is not None:
            return int(found) if 0 <= found <= MOST else 0
    return 0


def reward_of(name: str, attributes: Mapping[str, Any]) -> float | None:
    """The reward that a span of Agent-lightning holds; of several dimensions the first."""
    if name in REWARD_SPANS:
        if attributes.get(REWARD_OPERATION, REWARD) != REWARD:
            return None
        found = map(_number, map(attributes.get, REWARDS))
        return next((value for value in found if value is not None), None)
    for each in OUTPUTS:
        output = attributes.get(each)
        reward = None if output is None else _output_reward(output)
        if reward is not None:
            return reward
    return None


def _output_reward(output: Any) -> float | None:
    """The reward in an output of AgentOps, which is JSON."""
    if isinstance(output, str) and '"reward"' in output:
        try:
            output = decode_json(output)
        except InvalidInput:
            return None
    if not isinstance(output, Mapping) or output.get("type") != "reward":
        return None
    return _number(output.get("value"))


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool):
        return float(value)
    try:
        return value if isinstance(value, int | float) and isfinite(value) else None
    except OverflowError:
        return None
