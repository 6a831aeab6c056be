"""What is counted of spans, out of their attributes as OTLP's parser holds them.

The rules are those of `figures_of`. Spans with the same attributes have the same plan, so that only what
counts is read; what is unusual, such as a number that came as text, is left to `figures_of`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from perdure.spans.figures import (
    AGENT,
    CACHED,
    CALLS,
    COST,
    INPUT,
    KINDS,
    LLM,
    MAX_LABEL,
    MODEL,
    MOST,
    OUTPUT,
    OUTPUTS,
    RESPONSE,
    REWARDS,
    USER,
    SpanFigures,
    UsageStep,
    cut_label,
    figures_if_any,
    step_of,
)
from perdure.spans.otlp_values import decode_value

REMEMBERED = 4096
_UNUSUAL = frozenset({*REWARDS, *OUTPUTS, *COST})
_ONLY_KIND = {kind: SpanFigures(step=step_of(kind)) for kinds in KINDS.values() for kind in kinds.values()}


class _Plan(NamedTuple):
    """Which attribute tells what, of spans that have the same ones; empty where none does."""

    kinds: tuple[tuple[str, Mapping[str, str]], ...]
    input: str
    output: str
    cached: str
    model: str
    agent: str
    user_id: str
    response: str


_plans: dict[frozenset[str], _Plan | None] = {}
_Told = tuple[str, str | None, str | None, str | None]
"""The kind of step, and model, agent and user as a span tells them; None where it tells none."""
_steps: dict[_Told, UsageStep] = {}


def figures_in(span: Any, attributes: Mapping[str, Any], wanted: frozenset[str]) -> SpanFigures | None:
    """The figures of a span, which has these of the wanted attributes; None if it has none."""
    try:
        plan = _plans[wanted]
    except KeyError:
        plan = _new_plan(wanted)
    if plan is not None:
        try:
            return _read(attributes, plan)
        except _Unusual:
            pass
    return figures_if_any(span.name, {key: decode_value(attributes[key]) for key in wanted})


class _Unusual(Exception):
    """An attribute is empty, or not of the type that it mostly has."""


def _read(attributes: Mapping[str, Any], plan: _Plan) -> SpanFigures | None:
    """The figures of a usual span, by its plan. Every model call comes by here, so little is called."""
    kinds, input, output, cached, model, agent, user_id, response = plan
    kind = ""
    for key, names in kinds:
        known = names.get(attributes[key].string_value)
        if known is not None:
            if known not in CALLS:
                return _ONLY_KIND[known]
            kind = kind or known
    input_tokens = attributes[input].int_value if input else 0
    output_tokens = attributes[output].int_value if output else 0
    cached_tokens = attributes[cached].int_value if cached else 0
    if not 0 < input_tokens <= MOST or not 0 < output_tokens <= MOST or cached:
        for key in (input, output, cached):
            if key and not (attributes[key].HasField("int_value") and 0 <= attributes[key].int_value <= MOST):
                raise _Unusual
        if not (kind or input_tokens or output_tokens):
            return None
    told = (
        kind or LLM,
        attributes[model].string_value if model else None,
        attributes[agent].string_value if agent else None,
        attributes[user_id].string_value if user_id else None,
    )
    return SpanFigures(
        input_tokens,
        output_tokens,
        None,
        cached_tokens if cached_tokens < input_tokens else input_tokens,
        _steps.get(told) or _new_step(told),
        None,
        cut_label(attributes[response].string_value) if response else "",
    )


def _new_step(told: _Told) -> UsageStep:
    kind, *labels = told
    if "" in labels:
        raise _Unusual
    step = step_of(kind, *(cut_label(each or "") for each in labels))
    if len(_steps) >= REMEMBERED:
        _steps.clear()
    if all(len(each or "") <= MAX_LABEL for each in labels):
        _steps[told] = step
    return step


def _new_plan(wanted: frozenset[str]) -> _Plan | None:
    """The plan for these attributes; None for those that are left to `figures_of`."""
    plan = None
    if _UNUSUAL.isdisjoint(wanted):
        plan = _Plan(
            tuple((key, names) for key, names in KINDS.items() if key in wanted),
            *(_first(names, wanted) for names in (INPUT, OUTPUT, CACHED, MODEL, AGENT, USER, (RESPONSE,))),
        )
    if len(_plans) >= REMEMBERED:
        _plans.clear()
    _plans[wanted] = plan
    return plan


def _first(names: Sequence[str], wanted: frozenset[str]) -> str:
    return next((name for name in names if name in wanted), "")
