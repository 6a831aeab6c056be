"""Figures of spans: kind of step, model, tokens, cost and reward, from the attributes of instrumentations.

| dialect | tokens | model | kind of step |
|---|---|---|---|
| OpenTelemetry | `gen_ai.usage.input_tokens`, … | `gen_ai.response.model`, `gen_ai.request.model` | `gen_ai.operation.name` |
| older OpenTelemetry, OpenLLMetry | `gen_ai.usage.prompt_tokens`, `llm.usage.prompt_tokens`, … | the same | `traceloop.span.kind`, `llm.request.type` |
| OpenInference | `llm.token_count.prompt`, … | `llm.model_name` | `openinference.span.kind` |
| Agent-lightning | | | the name of the span |

Rewards are Agent-lightning's (`agentlightning.reward.0.value`, `agentlightning.reward.primary`, `reward`) and
AgentOps' (`agentops.task.output`, `agentops.entity.output`).

To count more, add a field to `SpanFigures` and its attributes here, and a mark if they contain none of the
`MARKS`; then add a column, and how it is added up to `sums.py`.
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
"""The body of a span with figures contains one of these marks."""
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
"""Cost of a call in US dollars, if the instrumentation reports it."""
MODEL = (
    "gen_ai.response.model",
    "gen_ai.request.model",
    "llm.model_name",
    "llm.response.model",
    "llm.request.model",
)
AGENT = ("gen_ai.agent.name", "agent.name", "traceloop.association.properties.agent_name")
AGENT_NAMES = (*AGENT, "graph.node.id")
"""Attributes with the agent's name in a span of an agent. Spans of its model calls may lack the name."""
SESSIONS = ("gen_ai.conversation.id", "session.id")
"""The conversation that a span belongs to."""
USER = ("user.id", "enduser.id", "traceloop.association.properties.user_id")
RESPONSE = "gen_ai.response.id"
"""Id of a model call, the same in every instrumentation."""
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
"""Kinds of step by attribute and value."""
CALLS = frozenset({"", LLM, EMBEDDING, GUARDRAIL})
"""Steps whose tokens count. Other steps repeat the tokens of the calls below them."""
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
"""All attributes that figures are read from."""
MOST = 2**53
"""Maximum number of tokens; a larger number is not plausible."""
MAX_LABEL = 100
"""Maximum length of a model, an agent or a user, in characters."""
NANOS = 10**9
"""Costs are whole billionths of a US dollar, so that sums are exact."""


class UsageStep(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """Key of the sums of spans, besides rollout and hour. There are few, each of many spans."""

    kind: str = ""
    """The kind of step, such as `llm` or `tool`; empty if it is unknown."""
    model: str = ""
    agent: str = ""
    user_id: str = ""


NO_STEP = UsageStep()


class SpanFigures(msgspec.Struct, frozen=True, gc=False):
    """Figures of a span."""

    input_tokens: int = 0
    output_tokens: int = 0
    reward: float | None = None
    cached_tokens: int = 0
    step: UsageStep = NO_STEP
    cost: int | None = None
    """In billionths of a US dollar, if the span reports it; otherwise the price table is used."""
    response_id: str = ""
    """The provider's id of a model call."""

    @property
    def counts(self) -> bool:
        """Whether the span adds to the figures of its rollout and trace."""
        return bool(self.input_tokens or self.output_tokens or self.cost or self.reward is not None)


def may_have_figures(body: bytes) -> bool:
    """Return whether an encoded span can have figures, without decoding it."""
    for mark in MARKS:  # noqa: SIM110  (every span passes here, and a generator takes 4 times as long)
        if mark in body:
            return True
    return False


def count_figures(name: str, attributes: Mapping[str, Any]) -> SpanFigures:
    """Compute the figures of a span. Values that are not numbers are ignored."""
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
"""Build a step, usually from the cache. A step remembers its hash, by which sums look it up."""


def figures_in(body: bytes, name: str, attributes: Mapping[str, Any]) -> SpanFigures | None:
    """Compute the figures of a span with this body; None if it has none. Most bodies have no mark."""
    return figures_if_any(name, attributes) if may_have_figures(body) else None


def figures_if_any(name: str, attributes: Mapping[str, Any]) -> SpanFigures | None:
    """Compute the figures of a span; None if it has none."""
    figures = count_figures(name, attributes)
    return figures if figures.step.kind or figures.counts else None


def _kind(attributes: Mapping[str, Any]) -> str:
    """Return the kind of step. If dialects differ, a kind that is not a call wins, because such a kind is
    wider."""
    call = ""
    for name, kinds in KINDS.items():
        value = attributes.get(name)
        if value is not None and isinstance(value, str) and value in kinds:
            kind = kinds[value]
            if kind not in CALLS:
                return kind
            call = call or kind
    return call


def _tokens(attributes: Mapping[str, Any], names: Sequence[str]) -> int:
    for name in names:
        value = attributes.get(name)
        if type(value) is int and 0 <= value <= MOST:
            return value
        if value is not None:
            number = _number(value)
            if number is not None:
                return int(number) if 0 <= number <= MOST else 0
    return 0


def label_in(attributes: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the first of these attributes that is a text, in a form that a column can hold."""
    for name in names:
        value = attributes.get(name)
        if value and isinstance(value, str):
            return cut_label(value)
    return ""


def cut_label(text: str) -> str:
    """Return the beginning of a text, in a form that a column can hold."""
    return _clean(text[:MAX_LABEL])


@lru_cache(maxsize=4096)
def _clean(label: str) -> str:
    """Replace invalid characters. Cached, because few labels come with many spans."""
    return label.replace("\0", "\ufffd").encode(errors="replace").decode()


def _cost(attributes: Mapping[str, Any]) -> int | None:
    for name in COST:
        value = attributes.get(name)
        if value is not None:
            number = _number(value)
            if number is not None and 0 <= number <= 1e6:
                return round(number * NANOS)
    return None


def find_reward(name: str, attributes: Mapping[str, Any]) -> float | None:
    """Return the reward in a span of Agent-lightning; the first if there are several dimensions."""
    if name in REWARD_SPANS:
        if attributes.get(REWARD_OPERATION, REWARD) != REWARD:
            return None
        numbers = map(_number, map(attributes.get, REWARDS))
        return next((number for number in numbers if number is not None), None)
    for key in OUTPUTS:
        output = attributes.get(key)
        reward = None if output is None else _output_reward(output)
        if reward is not None:
            return reward
    return None


def _output_reward(output: Any) -> float | None:
    """Return the reward in an output of AgentOps, which is JSON."""
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
