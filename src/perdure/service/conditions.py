"""Conditions that an operation declares: what must hold before it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from perdure.kernel.storage.port import Check

F = TypeVar("F", bound=Callable[..., Any])


class Condition(Protocol):
    """Condition of an operation, for the services that run it.

    It is checked in the transaction of the operation. If it does not hold, it is met outside a transaction,
    and the operation runs again.
    """

    is_parameter: bool
    """True if the last parameter of the operation says whether the condition was met."""

    def get_check(self, service: Any) -> Check | None:
        """Return the check, which raises `Unmet`; None if the operation raises it."""
        ...

    async def meet(self, service: Any) -> None:
        """Make the condition hold."""
        ...


class Unmet(Exception):
    """A condition does not hold; the transaction is rolled back."""

    def __init__(self, condition: Condition) -> None:
        super().__init__(type(condition).__name__)
        self.condition = condition


def requires(*conditions: Condition) -> Callable[[F], F]:
    """Declare the conditions of an operation."""

    def declare(operation: F) -> F:
        operation.conditions = conditions  # type: ignore[attr-defined]
        return operation

    return declare
