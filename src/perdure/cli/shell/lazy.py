"""Command groups that load each command when it is used, so that a command costs no other's import.

Options and arguments get their values without pydantic, because loading it, as typer does, takes longer than
most commands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from inspect import getdoc
from typing import Any

import typer
import typer.core
from typer._coercion import RuntimeParam, TypeDescriptor, build_runtime_param
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info, get_command_name, get_group_from_info
from typer.models import CommandInfo, Default, TyperInfo

from perdure.cli.examples import EXAMPLES

# --- values -----------------------------------------------------------------------------------------------


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


# --- groups -----------------------------------------------------------------------------------------------


Maker = Callable[[], Any]
_WRAPPED = re.compile(r"(?<!\n)\n(?!\n)")


class LazyCommands(MutableMapping[str, Any]):
    """Commands by name, each built at its first use."""

    def __init__(self, makers: Mapping[str, Maker]) -> None:
        self._makers = dict(makers)
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def __setitem__(self, name: str, command: Any) -> None:
        self._makers[name] = lambda: command
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._makers[name]
        self._made.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def _load(name: str, panel: str, place: str) -> Any:
    """Load the command or group at a place."""
    module, _, attribute = place.partition(":")
    loaded = getattr(import_module(module), attribute)
    if not isinstance(loaded, typer.Typer):
        return _command(CommandInfo(name, callback=loaded, rich_help_panel=panel), name)
    without_commands = copy(loaded)
    without_commands.registered_commands = []
    group = get_group_from_info(
        TyperInfo(
            without_commands,
            name=name,
            cls=_Group,
            epilog=_example(name) or Default(None),
            rich_help_panel=panel,
        ),
        pretty_exceptions_short=True,
        suggest_commands=True,
        rich_markup_mode="rich",
    )
    makers = {
        _name(info): partial(_command, info, f"{name} {_name(info)}") for info in loaded.registered_commands
    }
    commands = LazyCommands(makers)
    commands.update(group.commands)
    group.commands = commands
    return group


def _name(info: CommandInfo) -> str:
    return info.name or get_command_name(info.callback.__name__ if info.callback else "")


def _command(info: CommandInfo, path: str) -> Any:
    described = copy(info)
    described.cls, described.epilog = _Command, _example(path)
    # A terminal wraps paragraphs to its own width.
    described.help = _WRAPPED.sub(" ", getdoc(info.callback) or "")
    return get_command_from_info(described, pretty_exceptions_short=True, rich_markup_mode="rich")


def _example(path: str) -> str | None:
    return f"Example: {EXAMPLES[path]}" if path in EXAMPLES else None


class _Command(TyperCommand):
    """A command whose help shows no type for --help, which takes no value, and no ranges of numbers, for
    which a terminal has no room."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from typer import rich_utils

        rich_utils.RANGE_STRING = ""
        super().format_help(ctx, formatter)

    def get_help_option(self, ctx: Any) -> Any:
        return _without_type(super().get_help_option(ctx))


class _Group(TyperGroup):
    """A group whose help shows no type for --help."""

    def get_help_option(self, ctx: Any) -> Any:
        return _without_type(super().get_help_option(ctx))


def _without_type(option: Any) -> Any:
    if option is not None:
        option.metavar = ""
    return option


def lazy_group(panels: Mapping[str, Mapping[str, str]]) -> type[TyperGroup]:
    """Build the class of a group of commands: for each panel of its help, the place of each command."""
    makers = {
        name: partial(_load, name, panel, place)
        for panel, own in panels.items()
        for name, place in own.items()
    }

    class LazyGroup(_Group):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.commands = LazyCommands(makers)

    return LazyGroup
