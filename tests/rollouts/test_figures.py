"""Figures of a span, from its attributes in each dialect, as JSON and in OTLP's form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from tests.rollouts.attributes import CHAT, REWARD, put

from perdure.kernel.errors import InvalidInput
from perdure.spans import otlp, plans
from perdure.spans.figures import (
    AGENT,
    ATTRIBUTES,
    CACHED,
    COST,
    INPUT,
    KINDS,
    MODEL,
    OUTPUT,
    OUTPUTS,
    REWARD_SPANS,
    REWARDS,
    USER,
    SpanFigures,
    count_figures,
    figures_if_any,
    may_have_figures,
)
from perdure.spans.plans import build_plan, may_count
from perdure.spans.prices import Prices, Tokens, read_prices


def test_every_dialect_has_its_figures() -> None:
    none = SpanFigures()
    for name, attributes, expected in (
        ("chat", CHAT, SpanFigures(10, 4)),
        ("chat", {"gen_ai.usage.prompt_tokens": 3, "gen_ai.usage.completion_tokens": 2}, SpanFigures(3, 2)),
        ("llm", {"llm.token_count.prompt": 7, "llm.token_count.completion": 1}, SpanFigures(7, 1)),
        ("llm", {"llm.usage.prompt_tokens": "8", "llm.usage.completion_tokens": 2.0}, SpanFigures(8, 2)),
        ("agent", {**CHAT, "gen_ai.operation.name": "invoke_agent"}, none),
        ("chain", {**CHAT, "openinference.span.kind": "CHAIN"}, none),
        ("llm", {**CHAT, "openinference.span.kind": "LLM"}, SpanFigures(10, 4)),
        ("flow", {**CHAT, "traceloop.span.kind": "workflow"}, none),
        ("chat", {"gen_ai.usage.input_tokens": -1, "gen_ai.usage.output_tokens": 2**80}, none),
        ("chat", {"gen_ai.usage.input_tokens": "many", "gen_ai.usage.output_tokens": None}, none),
        ("agentlightning.annotation", REWARD, SpanFigures(reward=0.5)),
        ("agentlightning.annotation", {"agentlightning.reward.0.value": True}, SpanFigures(reward=1.0)),
        ("agentlightning.reward", {"agentlightning.reward.primary": -2}, SpanFigures(reward=-2)),
        ("agentlightning.reward", {"reward": 0.0}, SpanFigures(reward=0.0)),
        ("agentlightning.operation", {**REWARD, "agentlightning.operation.name": "other"}, none),
        ("agentlightning.annotation", {"agentlightning.reward.0.value": float("nan")}, none),
        ("task", {"agentops.task.output": '{"type": "reward", "value": 0.25}'}, SpanFigures(reward=0.25)),
        ("task", {"agentops.entity.output": '{"type": "reward", "value"'}, none),
        ("chat", {"reward": 1.0}, none),
        ("chat", {**CHAT, "gen_ai.operation.name": ["chat"]}, SpanFigures(10, 4)),
        ("chat", {"gen_ai.usage.input_tokens": 10**400, "gen_ai.usage.output_tokens": [4]}, none),
        ("agentlightning.annotation", {"agentlightning.reward.0.value": 10**400}, none),
    ):
        found = count_figures(name, attributes)
        told = (found.input_tokens, found.output_tokens, found.reward)
        assert told == (expected.input_tokens, expected.output_tokens, expected.reward), (name, attributes)
        if expected.counts:
            assert may_have_figures(repr((name, attributes)).encode()), attributes


def test_every_dialect_has_its_model_kind_cached_tokens_and_cost() -> None:
    tokens = {"gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 4}
    for attributes, kind, model, cached, cost in (
        ({**CHAT, "gen_ai.request.model": "gpt-4o"}, "llm", "gpt-4o", 0, None),
        ({**CHAT, "gen_ai.request.model": "a", "gen_ai.response.model": "b"}, "llm", "b", 0, None),
        ({**CHAT, "gen_ai.usage.cache_read.input_tokens": 6}, "llm", "", 6, None),
        ({**CHAT, "gen_ai.usage.cache_read_input_tokens": 60}, "llm", "", 10, None),
        ({**tokens, "gen_ai.operation.name": "embeddings"}, "embedding", "", 0, None),
        ({"gen_ai.operation.name": "execute_tool"}, "tool", "", 0, None),
        ({"gen_ai.operation.name": "invoke_agent", "gen_ai.request.model": "gpt-4o"}, "agent", "", 0, None),
        (
            {
                "openinference.span.kind": "LLM",
                "llm.token_count.prompt": 9,
                "llm.token_count.prompt_details.cache_read": 3,
                "llm.model_name": "claude-sonnet-4",
                "llm.cost.total": 0.25,
            },
            "llm",
            "claude-sonnet-4",
            3,
            250_000_000,
        ),
        ({"openinference.span.kind": "RETRIEVER"}, "retriever", "", 0, None),
        ({"traceloop.span.kind": "task"}, "chain", "", 0, None),
        ({"llm.request.type": "chat", "llm.usage.prompt_tokens": 2}, "llm", "", 0, None),
        ({**tokens, "gen_ai.request.model": "m" * 500, "gen_ai.usage.cost": -1}, "llm", "m" * 100, 0, None),
        ({**tokens, "gen_ai.request.model": ["gpt-4o"], "gen_ai.usage.cost": "free"}, "llm", "", 0, None),
        ({"some": "attribute"}, "", "", 0, None),
    ):
        found = count_figures("span", attributes)
        told = (found.step.kind, found.step.model, found.cached_tokens, found.cost)
        assert told == (kind, model, cached, cost), attributes
    assert count_figures("agentlightning.annotation", REWARD).step.kind == "reward"
    named = count_figures("chat", {**CHAT, "gen_ai.agent.name": "trivia", "user.id": "anna"})
    assert (named.step.agent, named.step.user_id) == ("trivia", "anna")


def test_a_price_is_that_of_the_longest_name_and_a_file_goes_before_the_shipped_table(tmp_path: Path) -> None:
    prices = Prices()
    for model, input in (
        ("gpt-4o", 2.5),
        ("gpt-4o-2024-08-06", 2.5),
        ("gpt-4o-mini-2024-07-18", 0.15),
        ("openai/GPT-4o-mini", 0.15),
        ("claude-sonnet-4@20250514", 3.0),
        ("gpt-4.5-preview", None),
        ("gpt-4omni", None),
        ("", None),
    ):
        found = prices.of(model)
        assert (None if found is None else found.input) == input, model
    tokens = Tokens(1000, 100, 400)
    assert prices.cost("gpt-4o", tokens) == (600 * 2500 + 400 * 1250 + 100 * 10_000)
    assert prices.cost("unknown", tokens) is prices.cost("", tokens) is None
    file = tmp_path / "prices.toml"
    file.write_text('[models]\n"gpt-4o" = { input = 1.0, output = 2.0 }\n"own" = { input = 0, output = 0 }\n')
    prices.use(read_prices(file))
    assert prices.cost("gpt-4o", tokens) == 1000 * 1000 + 100 * 2000
    assert prices.cost("own:7b", tokens) == 0
    assert prices.of("gpt-4o-mini") is not None
    for text, words in (
        ("models = 3", "models"),
        ("[models]\na = { input = -1, output = 2 }", "input"),
        ("[models]\na = { input = 1, output = 2, tax = 3 }", "tax"),
        ("not toml", str(file)),
    ):
        file.write_text(text)
        with pytest.raises(InvalidInput, match=re.escape(words)):
            read_prices(file)
    with pytest.raises(InvalidInput, match="cannot read"):
        read_prices(tmp_path / "missing.toml")


def figures_by_otlp(name: str, attributes: Mapping[str, Any]) -> SpanFigures | None:
    """Compute the figures of a span that came by OTLP."""
    message = TracesData()
    span = (
        message.resource_spans.add()
        .scope_spans.add()
        .spans.add(name=name, trace_id=b"\x01" * 16, span_id=b"\x02" * 8)
    )
    for key, value in attributes.items():
        put(span.attributes.add(key=key).value, value)
    (found,) = otlp.receive(otlp.parse(message.SerializeToString())).unattributed
    return found.figures


NAMES = sorted(ATTRIBUTES)
WORDS = sorted({word for kinds in KINDS.values() for word in kinds})
TEXTS = st.text(alphabet=st.characters(codec="utf-8"), max_size=120)
NUMBERS = st.integers(-1, 100) | st.integers(-(2**63), 2**63 - 1)
HOSTILE = st.sampled_from(NAMES).map(lambda key: f"J.\n{chr(len(key))}{key}\x12\x03\x18\x90\x4e")
"""Texts that look like a counted attribute on the wire."""
LEAVES = st.none() | st.booleans() | NUMBERS | st.floats() | TEXTS | st.sampled_from(WORDS) | HOSTILE
VALUES = LEAVES | st.lists(LEAVES, max_size=3) | st.dictionaries(st.sampled_from(NAMES), LEAVES, max_size=3)
SPANS = st.dictionaries(st.sampled_from(NAMES) | TEXTS, VALUES, max_size=12)
USUAL = st.fixed_dictionaries(
    {},
    optional={
        **{key: st.sampled_from(sorted(kinds)) for key, kinds in KINDS.items()},
        **{key: NUMBERS for names in (INPUT, OUTPUT, CACHED) for key in names},
        **{key: TEXTS for names in (MODEL, AGENT, USER) for key in names},
    },
)
"""The usual attributes of instrumentations, which are read in a different way than others."""


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["chat", *REWARD_SPANS]), SPANS | USUAL)
def test_what_otlp_brings_counts_as_the_same_attributes_do(name: str, attributes: dict[str, Any]) -> None:
    expected = figures_if_any(name, attributes)
    assert figures_by_otlp(name, attributes) == expected


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(["chat", *REWARD_SPANS]), SPANS | USUAL)
def test_what_a_plan_counts_is_what_the_rules_count(name: str, attributes: dict[str, Any]) -> None:
    expected = figures_if_any(name, attributes)
    plan = build_plan(list(attributes))
    if plan is None:
        assert any(key in attributes for key in (*REWARDS, *OUTPUTS, *COST))
    else:
        for _ in range(2):
            assert plan.figures(name, list(attributes.values()), attributes) == expected
    if not may_count(list(attributes)):
        assert expected is None


def test_a_plan_reads_numbers_that_are_none_by_the_rules() -> None:
    for told, input_tokens in ((12, 12), ("12", 12), (12.0, 12), (True, 1), (-1, 0), (2**60, 0), ([1], 0)):
        attributes = {**CHAT, "gen_ai.request.model": "gpt-4o", "gen_ai.usage.input_tokens": told}
        plan = build_plan(list(attributes))
        assert plan is not None
        found = plan.figures("chat", list(attributes.values()), attributes)
        assert found == count_figures("chat", attributes)
        assert found is not None
        assert (found.input_tokens, found.step.model) == (input_tokens, "gpt-4o"), told


def test_labels_that_are_many_or_long_are_not_kept() -> None:
    plan = build_plan(["gen_ai.request.model", "gen_ai.usage.input_tokens"])
    assert plan is not None
    for number in range(plans.REMEMBERED + 10):
        values = [f"model-{number}", 1]
        attributes = dict(zip(("gen_ai.request.model", "gen_ai.usage.input_tokens"), values, strict=True))
        plan.figures("chat", values, attributes)
    assert 0 < len(plans._steps) <= plans.REMEMBERED
    known = len(plans._steps)
    long = {"gen_ai.request.model": "m" * 5000, "gen_ai.usage.input_tokens": 1}
    assert plan.figures("chat", list(long.values()), long) == count_figures("chat", long)
    assert len(plans._steps) == known


def test_a_text_that_looks_like_an_attribute_on_the_wire_counts_nothing() -> None:
    tokens = "gen_ai.usage.input_tokens"
    forged = OtlpSpan()
    put(forged.attributes.add(key=tokens).value, 9_000)
    text = forged.SerializeToString().decode("latin-1")
    assert figures_by_otlp("chat", {"prompt": text, "gen_ai.prompt": {tokens: 7}}) is None
    found = figures_by_otlp("chat", {"prompt": text, tokens: 3, "answer": text})
    assert found is not None
    assert found.input_tokens == 3


def test_every_dialect_is_read_out_of_otlp_as_out_of_json() -> None:
    """Cover texts, whole numbers, fractions and lists, in the form that each instrumentation sends."""
    for name, attributes, kind in (
        (
            "chat",
            {**CHAT, "gen_ai.request.model": "gpt-4o", "user.id": "ann", "gen_ai.usage.cost": 0.5},
            "llm",
        ),
        (
            "chat",
            {"gen_ai.usage.prompt_tokens": 7, "llm.request.type": "chat", "gen_ai.agent.name": ""},
            "llm",
        ),
        ("step", {"traceloop.span.kind": "tool", "gen_ai.usage.prompt_tokens": 7}, "tool"),
        (
            "step",
            {"openinference.span.kind": "LLM", "llm.token_count.prompt": 0, "llm.cost.total": 2.0},
            "llm",
        ),
        ("agentlightning.annotation", {"agentlightning.reward.0.value": 0.0}, "reward"),
        ("agentlightning.annotation", {"agentlightning.reward.0.value": True}, "reward"),
        ("chat", {"gen_ai.operation.name": ["chat"], "gen_ai.usage.input_tokens": "12"}, "llm"),
    ):
        found = figures_by_otlp(name, attributes)
        assert found == count_figures(name, attributes), attributes
        assert found is not None
        assert found.step.kind == kind
