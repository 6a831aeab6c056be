"""Typed input of an agent: a dataclass or a pydantic model that its function declares."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from perdure.agents.context import AgentError

logger = logging.getLogger(__name__)


class TypedInput:
    """Convert the input of a run to an object of a class."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._is_model = _is_model(kind)

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON Schema of the input, if its types have one."""
        try:
            return dict(self._kind.model_json_schema() if self._is_model else msgspec.json.schema(self._kind))
        except Exception as error:  # noqa: BLE001 - a schema is optional, and types of users may have none
            logger.debug("cannot build a schema of %s: %s", self._kind, error)
            return None

    def read(self, value: Any) -> Any:
        """Return the object for a JSON value; AgentError if the value does not fit."""
        try:
            return self._kind.model_validate(value) if self._is_model else msgspec.convert(value, self._kind)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise AgentError(
                f"the input does not fit {self._kind.__name__}: {format_reason(error)}",
                error=type(error).__name__,
            ) from error


def build_typed_input(function: Callable[..., Any]) -> TypedInput | None:
    """Return the declared input of a function `(ctx, input)`; None if it accepts any JSON value."""
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) < 2:
        return None
    try:
        hints = typing.get_type_hints(function if inspect.isroutine(function) else type(function).__call__)
    except Exception as error:  # noqa: BLE001 - annotations are code of users
        logger.debug("cannot read the annotations of %r: %s", function, error)
        return None
    kind = hints.get(parameters[1].name)
    is_record = isinstance(kind, type) and (
        dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)
    )
    return TypedInput(kind) if is_record or _is_model(kind) else None


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and all(
        callable(getattr(kind, name, None)) for name in ("model_validate", "model_json_schema")
    )


def format_reason(error: Exception) -> str:
    """Describe what is wrong with a value, without the value itself."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    wrong = errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, problem['loc'])) or 'it'}: {problem['msg']}" for problem in wrong)
