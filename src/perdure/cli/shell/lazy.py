"""A group whose commands are loaded when they are used, so that each command pays for itself alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command_from_info, get_group_from_info
from typer.models import CommandInfo, TyperInfo


class LazyCommands(MutableMapping[str, Any]):
    """Commands by name. `panels` has, for each panel of the help, where its commands stand."""

    def __init__(self, panels: Mapping[str, Mapping[str, str]]) -> None:
        self._places = {name: (panel, place) for panel, own in panels.items() for name, place in own.items()}
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, *self._places[name])
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __setitem__(self, name: str, command: Any) -> None:
        self._places.setdefault(name, ("", ""))
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._places[name]
        self._loaded.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _load(name: str, panel: str, place: str) -> Any:
    module, _, attribute = place.partition(":")
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        return get_group_from_info(
            TyperInfo(found, name=name, rich_help_panel=panel),
            pretty_exceptions_short=True,
            suggest_commands=True,
            rich_markup_mode="rich",
        )
    return get_command_from_info(
        CommandInfo(name, callback=found, rich_help_panel=panel),
        pretty_exceptions_short=True,
        rich_markup_mode="rich",
    )


def lazy_group(panels: Mapping[str, Mapping[str, str]]) -> type[TyperGroup]:
    """The class of a group with these commands, listed in this order."""

    class LazyGroup(TyperGroup):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.commands = LazyCommands(panels)

    return LazyGroup
