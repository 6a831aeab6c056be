"""Sums of spans by kind of step, model, agent and user: declared once, for rows and tables."""

from __future__ import annotations

import msgspec

from perdure.kernel.storage.schema import Column, integer


class UsageSums(msgspec.Struct):
    """Usage of spans. Costs are 10⁻⁹ dollars."""

    steps: int
    errors: int
    micros: int
    """Total duration of the steps."""
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: int

    def add(self, other: UsageSums) -> None:
        """Add other sums."""
        self.steps += other.steps
        self.errors += other.errors
        self.micros += other.micros
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.cached_tokens += other.cached_tokens
        self.cost += other.cost


NOTHING = (0, 0, 0, 0, 0, 0, 0)
"""Sums of no spans, to start a row."""
COLUMNS: tuple[Column, ...] = tuple(map(integer, UsageSums.__struct_fields__))
