"""Figures of spans, from their attributes in the form of OTLP's parser.

The rules are the rules of `count_figures`. Spans with the same attributes share a plan, which reads only the
needed attributes. Unusual values, such as a number in a string, are left to `count_figures`.
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
    """The attribute of each figure, for spans with the same attributes; empty if there is none."""

    kinds: tuple[tuple[str, Mapping[str, str]], ...]
    input: str
    output: str
    cached: str
    model: str
    agent: str
    user_id: str
    response: str


_plans: dict[frozenset[str], _Plan | None] = {}
_Labels = tuple[str, str | None, str | None, str | None]
"""Kind of step, model, agent and user of a span; a missing value is None."""
_steps: dict[_Labels, UsageStep] = {}


def figures_in(span: Any, attributes: Mapping[str, Any], wanted: frozenset[str]) -> SpanFigures | None:
    """Compute the figures of a span with these wanted attributes; None if it has none."""
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
    """An attribute is empty, or does not have its usual type."""


def _read(attributes: Mapping[str, Any], plan: _Plan) -> SpanFigures | None:
    """Compute the figures of a usual span by its plan. Every model call passes here, so it makes few
    calls."""
    kinds, input, output, cached, model, agent, user_id, response = plan
    kind = ""
    for key, names in kinds:
        step_kind = names.get(attributes[key].string_value)
        if step_kind is not None:
            if step_kind not in CALLS:
                return _ONLY_KIND[step_kind]
            kind = kind or step_kind
    input_tokens = attributes[input].int_value if input else 0
    output_tokens = attributes[output].int_value if output else 0
    cached_tokens = attributes[cached].int_value if cached else 0
    if not 0 < input_tokens <= MOST or not 0 < output_tokens <= MOST or cached:
        for key in (input, output, cached):
            if key and not (attributes[key].HasField("int_value") and 0 <= attributes[key].int_value <= MOST):
                raise _Unusual
        if not (kind or input_tokens or output_tokens):
            return None
    labels = (
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
        _steps.get(labels) or _new_step(labels),
        None,
        cut_label(attributes[response].string_value) if response else "",
    )


def _new_step(labels: _Labels) -> UsageStep:
    kind, *names = labels
    if "" in names:
        raise _Unusual
    step = step_of(kind, *(cut_label(name or "") for name in names))
    if len(_steps) >= REMEMBERED:
        _steps.clear()
    if all(len(name or "") <= MAX_LABEL for name in names):
        _steps[labels] = step
    return step


def _new_plan(wanted: frozenset[str]) -> _Plan | None:
    """Build the plan for these attributes; None if they need `count_figures`."""
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
