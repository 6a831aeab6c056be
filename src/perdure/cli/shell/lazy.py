"""Command groups that load each command when it is used, so that a command costs no other's import."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from copy import copy
from functools import partial
from importlib import import_module
from inspect import getdoc
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info, get_command_name, get_group_from_info
from typer.models import CommandInfo, Default, TyperInfo

from perdure.cli.examples import EXAMPLES

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
