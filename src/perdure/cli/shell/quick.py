"""Values of options and arguments without pydantic, because loading it, as typer does, takes longer than
most commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import typer.core
from typer._coercion import RuntimeParam, TypeDescriptor, build_runtime_param


@dataclass(frozen=True)
class QuickParam(RuntimeParam):
    """Accepts texts, whole numbers, flags and lists of texts unchanged.

    Other values go to typer, so that its own messages report errors.
    """

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        info = self.parameter_info
        if info.parser is not None:
            # A default is not a text, and already has the parser's type.
            return info.parser(value) if isinstance(value, str) else value
        if self.annotation is int and isinstance(value, str) and value.isdecimal():
            return self.coerce(int(value), param, ctx)
        if self._is_plain(value):
            return value
        if self.annotation == list[str] and all(type(item) is str for item in value):
            return list(value)
        return build_runtime_param(param.type_descriptor).coerce(value, param=param, ctx=ctx)

    def _coerce_value(self, value: Any, param: Any, ctx: Any) -> Any:
        return self.coerce(value, param, ctx)

    def _is_plain(self, value: Any) -> bool:
        info = self.parameter_info
        if self.annotation is int:
            bounded = type(value) is int and (info.min is None or value >= info.min)
            return bounded and (info.max is None or value <= info.max)
        return self.annotation in (str, bool) and type(value) is self.annotation


def use_quick_params() -> None:
    """Let all commands of this process accept plain values unchanged."""
    vars(typer.core)["build_runtime_param"] = _quick_param


def _quick_param(described: TypeDescriptor) -> RuntimeParam:
    return QuickParam(described.parameter_info, described.annotation)
