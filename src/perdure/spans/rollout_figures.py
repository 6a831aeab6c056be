"""Figures of a rollout's spans, in the form that callers receive."""

from __future__ import annotations

import msgspec

from perdure.kernel.record import Record
from perdure.spans.figures import NANOS
from perdure.spans.rows import RolloutFiguresRow


class RolloutFigures(Record, kw_only=True):
    """Figures of a rollout's spans."""

    rollout_id: str
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """The part of the input that the provider had in its cache."""
    cost: float | None = None
    """In US dollars, by the price table; null if no price is known."""
    reward: float | None = None
    """The last reward of Agent-lightning."""


def figures_from(row: RolloutFiguresRow) -> RolloutFigures:
    return RolloutFigures(
        rollout_id=row.rollout_id,
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        cached_tokens=row.cached_tokens,
        cost=dollars(row.cost),
        reward=_reward(row.reward),
    )


def dollars(cost: int) -> float | None:
    """Convert a cost to US dollars; None if no price is known."""
    return cost / NANOS if cost else None


def _reward(text: str | None) -> float | None:
    return None if text is None else msgspec.convert(text, float, strict=False)
