"""What is counted of spans whose attributes have the same names: where each value stands is found once.

The rules are those of `figures_of`, which is asked for each kind of step once, and for all that is unusual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from perdure.spans.figures import (
    AGENT,
    ATTRIBUTES,
    CACHED,
    CALLS,
    COST,
    INPUT,
    KINDS,
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
    count_figures,
    figures_if_any,
)

REMEMBERED = 4096
MOST_LETTERS = 1000
"""Labels that are longer together are not remembered."""
_UNUSUAL = frozenset({*REWARDS, *OUTPUTS, *COST})
_LABELS = frozenset({*KINDS, *MODEL, *AGENT, *USER})


class _Known(NamedTuple):
    """What follows from the labels of a span: its kind, model, agent and user."""

    step: UsageStep
    """Of a span with tokens."""
    kind: str
    """The kind of step that they tell; empty if they tell none."""


class FigurePlan:
    """Where the values stand that count."""

    def __init__(self, names: Sequence[str]) -> None:
        places = {name: place for place, name in enumerate(names)}
        self._labels = tuple(name for name in names if name in _LABELS)
        self._told = itemgetter(*map(places.__getitem__, self._labels)) if self._labels else None
        self._input, self._output, self._cached = (
            next((places[name] for name in group if name in places), None)
            for group in (INPUT, OUTPUT, CACHED)
        )
        self._response = places.get(RESPONSE)

    def figures(self, name: str, values: Sequence[Any], attributes: Mapping[str, Any]) -> SpanFigures | None:
        """The figures of a span with these values; None if it has none. Every model call comes by here."""
        told = None if self._told is None else self._told(values)
        try:
            step, kind = _steps.get((self._labels, told)) or _learn(self._labels, told)
        except TypeError:
            # A list cannot be looked up, and is no label.
            return figures_if_any(name, attributes)
        if kind not in CALLS:
            return SpanFigures(step=step)
        input_tokens = 0 if self._input is None else values[self._input]
        output_tokens = 0 if self._output is None else values[self._output]
        cached_tokens = 0 if self._cached is None else values[self._cached]
        for tokens in (input_tokens, output_tokens, cached_tokens):
            if type(tokens) is not int or not 0 <= tokens <= MOST:
                return figures_if_any(name, attributes)
        if not (kind or input_tokens or output_tokens):
            return None
        response_id = "" if self._response is None else values[self._response]
        if type(response_id) is not str or len(response_id) > MAX_LABEL:
            return figures_if_any(name, attributes)
        cached_tokens = min(cached_tokens, input_tokens)
        return SpanFigures(input_tokens, output_tokens, None, cached_tokens, step, None, response_id)


_steps: dict[tuple[tuple[str, ...], Any], _Known] = {}


def _learn(names: tuple[str, ...], told: Any) -> _Known:
    labels = {} if told is None else dict(zip(names, told if len(names) > 1 else (told,), strict=True))
    kind = count_figures("", labels).step.kind
    known = _Known(count_figures("", {**labels, INPUT[0]: 1}).step, kind)
    if len(_steps) >= REMEMBERED:
        _steps.clear()
    if sum(len(label) for label in labels.values() if isinstance(label, str)) <= MOST_LETTERS:
        _steps[names, told] = known
    return known


def build_plan(names: Sequence[str]) -> FigurePlan | None:
    """The plan for spans with these attributes; None if it is left to `figures_of`."""
    return FigurePlan(names) if _UNUSUAL.isdisjoint(names) else None


def may_count(names: Sequence[str]) -> bool:
    """Whether spans with these attributes may have figures."""
    return not ATTRIBUTES.isdisjoint(names)
