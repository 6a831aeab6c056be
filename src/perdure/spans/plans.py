"""Figures of spans with equal attribute names: the positions of the values are found once.

The rules are the same as in `count_figures`, which runs once per kind of step, and for unusual values.
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
"""Maximum length of all labels together; longer labels are not cached."""
_UNUSUAL = frozenset({*REWARDS, *OUTPUTS, *COST})
_LABELS = frozenset({*KINDS, *MODEL, *AGENT, *USER})


class _LabelStep(NamedTuple):
    """The step of spans with the same labels: kind, model, agent and user."""

    step: UsageStep
    """For a span with tokens."""
    kind: str
    """The kind of step in the labels; empty if they have none."""


class FigurePlan:
    """Positions of the values that count."""

    def __init__(self, names: Sequence[str]) -> None:
        positions = {name: position for position, name in enumerate(names)}
        self._labels = tuple(name for name in names if name in _LABELS)
        self._read_labels = itemgetter(*map(positions.__getitem__, self._labels)) if self._labels else None
        self._input, self._output, self._cached = (
            next((positions[name] for name in group if name in positions), None)
            for group in (INPUT, OUTPUT, CACHED)
        )
        self._response = positions.get(RESPONSE)

    def figures(self, name: str, values: Sequence[Any], attributes: Mapping[str, Any]) -> SpanFigures | None:
        """Compute the figures of a span with these values; None if it has none. Every model call passes
        here."""
        labels = None if self._read_labels is None else self._read_labels(values)
        try:
            step, kind = _steps.get((self._labels, labels)) or _cache_step(self._labels, labels)
        except TypeError:
            # A list is not hashable, and not a label.
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


_steps: dict[tuple[tuple[str, ...], Any], _LabelStep] = {}


def _cache_step(names: tuple[str, ...], values: Any) -> _LabelStep:
    labels = {} if values is None else dict(zip(names, values if len(names) > 1 else (values,), strict=True))
    kind = count_figures("", labels).step.kind
    step = _LabelStep(count_figures("", {**labels, INPUT[0]: 1}).step, kind)
    if len(_steps) >= REMEMBERED:
        _steps.clear()
    if sum(len(label) for label in labels.values() if isinstance(label, str)) <= MOST_LETTERS:
        _steps[names, values] = step
    return step


def build_plan(names: Sequence[str]) -> FigurePlan | None:
    """Build the plan for spans with these attributes; None if they need `count_figures`."""
    return FigurePlan(names) if _UNUSUAL.isdisjoint(names) else None


def may_count(names: Sequence[str]) -> bool:
    """Return whether spans with these attributes may have figures."""
    return not ATTRIBUTES.isdisjoint(names)
