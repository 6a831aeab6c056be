"""What is added up of spans by kind of step, model, agent and user: declared once, for rows and tables."""

from __future__ import annotations

import msgspec

from perdure.kernel.storage.schema import Column, integer


class UsageSums(msgspec.Struct):
    """What spans took. Costs are 10⁻⁹ dollars."""

    steps: int
    errors: int
    micros: int
    """How long the steps took."""
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: int

    def add(self, other: UsageSums) -> None:
        """Add what others took."""
        self.steps += other.steps
        self.errors += other.errors
        self.micros += other.micros
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.cached_tokens += other.cached_tokens
        self.cost += other.cost


NOTHING = (0, 0, 0, 0, 0, 0, 0)
"""The sums of no span: a row begins with them."""
COLUMNS: tuple[Column, ...] = tuple(map(integer, UsageSums.__struct_fields__))
