"""What is counted of spans: the kind of step, model, tokens, cost and reward, out of the attributes that each
instrumentation writes.

| dialect | tokens | model | kind of step |
|---|---|---|---|
| OpenTelemetry | `gen_ai.usage.input_tokens`, … | `gen_ai.response.model`, `gen_ai.request.model` | `gen_ai.operation.name` |
| older OpenTelemetry, OpenLLMetry | `gen_ai.usage.prompt_tokens`, `llm.usage.prompt_tokens`, … | the same | `traceloop.span.kind`, `llm.request.type` |
| OpenInference | `llm.token_count.prompt`, … | `llm.model_name` | `openinference.span.kind` |
| Agent-lightning | | | the name of the span |

Rewards are Agent-lightning's (`agentlightning.reward.0.value`, `agentlightning.reward.primary`, `reward`) and
those of AgentOps (`agentops.task.output`, `agentops.entity.output`).

To take more out of spans, add a field to `Figures` and its attributes here, and a mark if they have none of
the `MARKS`; then a column, and how it is added up to `sums.py`.
"""  # noqa: E501 - a row of a table is one line

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any

import msgspec

from perdure.kernel.codec import decode_json
from perdure.kernel.errors import InvalidInput

MARKS = (b"gen_ai.", b"llm.", b"span.kind", b"reward")
"""The body of a span that has figures contains one of these. Most spans are looked through for all."""
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
CACHED = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "llm.token_count.prompt_details.cache_read",
    "llm.usage.cache_read_input_tokens",
)
"""Tokens of the input that the provider had in its cache: a part of the input."""
COST = ("gen_ai.usage.cost", "llm.cost.total", "llm.usage.total_cost")
"""What a call cost in US dollars, where the instrumentation knows it."""
MODEL = (
    "gen_ai.response.model",
    "gen_ai.request.model",
    "llm.model_name",
    "llm.response.model",
    "llm.request.model",
)
AGENT = ("gen_ai.agent.name", "agent.name", "traceloop.association.properties.agent_name")
AGENT_NAMES = (*AGENT, "graph.node.id")
"""Attributes that name the agent of a span of an agent, whose model calls may name none."""
SESSIONS = ("gen_ai.conversation.id", "session.id")
"""The conversation that a span is part of."""
USER = ("user.id", "enduser.id", "traceloop.association.properties.user_id")
RESPONSE = "gen_ai.response.id"
"""Identifies a model call, whichever instrumentation reports it."""
OPERATION = "gen_ai.operation.name"
REQUEST_TYPE = "llm.request.type"
LLM, EMBEDDING, TOOL, AGENT_STEP, CHAIN = "llm", "embedding", "tool", "agent", "chain"
RETRIEVER, RERANKER, GUARDRAIL, EVALUATOR, REWARD_STEP = (
    "retriever",
    "reranker",
    "guardrail",
    "evaluator",
    "reward",
)
KINDS: Mapping[str, Mapping[str, str]] = {
    OPERATION: {
        "chat": LLM,
        "text_completion": LLM,
        "generate_content": LLM,
        "embeddings": EMBEDDING,
        "execute_tool": TOOL,
        "invoke_agent": AGENT_STEP,
        "create_agent": AGENT_STEP,
        "invoke_workflow": CHAIN,
    },
    "openinference.span.kind": {
        "LLM": LLM,
        "EMBEDDING": EMBEDDING,
        "TOOL": TOOL,
        "AGENT": AGENT_STEP,
        "CHAIN": CHAIN,
        "RETRIEVER": RETRIEVER,
        "RERANKER": RERANKER,
        "GUARDRAIL": GUARDRAIL,
        "EVALUATOR": EVALUATOR,
    },
    "traceloop.span.kind": {"workflow": CHAIN, "task": CHAIN, "agent": AGENT_STEP, "tool": TOOL},
    REQUEST_TYPE: {"chat": LLM, "completion": LLM, "embedding": EMBEDDING, "rerank": RERANKER},
}
"""The kind of step that each attribute names."""
CALLS = frozenset({"", LLM, EMBEDDING, GUARDRAIL})
"""Steps whose tokens count. The others repeat those of the calls below them, which must not count twice."""
REWARD = "agentlightning.reward"
REWARD_SPANS = frozenset({"agentlightning.annotation", "agentlightning.operation", REWARD})
REWARDS = (f"{REWARD}.0.value", f"{REWARD}.primary", REWARD, "reward")
REWARD_OPERATION = "agentlightning.operation.name"
OUTPUTS = ("agentops.task.output", "agentops.entity.output")
ATTRIBUTES = frozenset(
    {
        *INPUT,
        *OUTPUT,
        *CACHED,
        *COST,
        *MODEL,
        *AGENT,
        *USER,
        *KINDS,
        *REWARDS,
        REWARD_OPERATION,
        *OUTPUTS,
        RESPONSE,
    }
)
"""All that figures are taken out of."""
MOST = 2**53
"""More tokens than that are no number of tokens."""
MAX_LABEL = 100
"""How many characters of a model, an agent or a user are kept."""
NANOS = 10**9
"""Costs are whole billionths of a US dollar, which add up exactly."""


class UsageStep(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """What a span is added up by, beside its rollout and its hour. There are few, each of many spans."""

    kind: str = ""
    """The kind of step, such as `llm` or `tool`; empty if it is unknown."""
    model: str = ""
    agent: str = ""
    user_id: str = ""


NO_STEP = UsageStep()


class SpanFigures(msgspec.Struct, frozen=True, gc=False):
    """What a span counts."""

    input_tokens: int = 0
    output_tokens: int = 0
    reward: float | None = None
    cached_tokens: int = 0
    step: UsageStep = NO_STEP
    cost: int | None = None
    """In billionths of a US dollar, where the span tells it; else a price table may know."""
    response_id: str = ""
    """The provider's id of a model call."""

    @property
    def counts(self) -> bool:
        """Whether it adds to the figures of its rollout and trace."""
        return bool(self.input_tokens or self.output_tokens or self.cost or self.reward is not None)


def may_have_figures(body: bytes) -> bool:
    """Whether an encoded span can have figures, without decoding it."""
    for mark in MARKS:  # noqa: SIM110  (every span comes by here, and a generator takes four times as long)
        if mark in body:
            return True
    return False


def count_figures(name: str, attributes: Mapping[str, Any]) -> SpanFigures:
    """The figures of a span. What is no number counts as nothing."""
    reward = None
    if name in REWARD_SPANS or OUTPUTS[0] in attributes or OUTPUTS[1] in attributes:
        reward = find_reward(name, attributes)
    kind = _kind(attributes)
    if kind not in CALLS:
        return SpanFigures(reward=reward, step=step_of(kind))
    input_tokens, output_tokens = _tokens(attributes, INPUT), _tokens(attributes, OUTPUT)
    if not (kind or input_tokens or output_tokens):
        return SpanFigures(reward=reward, step=NO_STEP if reward is None else step_of(REWARD_STEP))
    return SpanFigures(
        input_tokens,
        output_tokens,
        reward,
        min(_tokens(attributes, CACHED), input_tokens),
        step_of(
            kind or LLM, label_in(attributes, MODEL), label_in(attributes, AGENT), label_in(attributes, USER)
        ),
        _cost(attributes),
        label_in(attributes, (RESPONSE,)),
    )


step_of = lru_cache(maxsize=4096)(UsageStep)
"""A step, mostly one that is known: sums look it up by its hash, which it remembers."""


def figures_in(body: bytes, name: str, attributes: Mapping[str, Any]) -> SpanFigures | None:
    """The figures of a span with this body; None if it has none, mostly without a look at the attributes."""
    return figures_if_any(name, attributes) if may_have_figures(body) else None


def figures_if_any(name: str, attributes: Mapping[str, Any]) -> SpanFigures | None:
    """The figures of a span; None if it has none."""
    found = count_figures(name, attributes)
    return found if found.step.kind or found.counts else None


def _kind(attributes: Mapping[str, Any]) -> str:
    """The kind of step; where two dialects differ, the one that is no call, since it is the wider one."""
    found = ""
    for name, kinds in KINDS.items():
        told = attributes.get(name)
        if told is not None and isinstance(told, str) and told in kinds:
            kind = kinds[told]
            if kind not in CALLS:
                return kind
            found = found or kind
    return found


def _tokens(attributes: Mapping[str, Any], names: Sequence[str]) -> int:
    for name in names:
        told = attributes.get(name)
        if type(told) is int and 0 <= told <= MOST:
            return told
        if told is not None:
            found = _number(told)
            if found is not None:
                return int(found) if 0 <= found <= MOST else 0
    return 0


def label_in(attributes: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the first of these attributes that is a text, as a column can hold it."""
    for name in names:
        told = attributes.get(name)
        if told and isinstance(told, str):
            return cut_label(told)
    return ""


def cut_label(text: str) -> str:
    """The beginning of a text, as a column can hold it."""
    return _cleaned(text[:MAX_LABEL])


@lru_cache(maxsize=4096)
def _cleaned(label: str) -> str:
    """There are few labels, and each comes with many spans."""
    return label.replace("\0", "\ufffd").encode(errors="replace").decode()


def _cost(attributes: Mapping[str, Any]) -> int | None:
    for name in COST:
        told = attributes.get(name)
        if told is not None:
            found = _number(told)
            if found is not None and 0 <= found <= 1e6:
                return round(found * NANOS)
    return None


def find_reward(name: str, attributes: Mapping[str, Any]) -> float | None:
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
