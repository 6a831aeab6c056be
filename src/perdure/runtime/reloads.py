"""Reload of a running process's configuration, at SIGHUP."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

import msgspec

from perdure.kernel.config import Settings, reload_settings
from perdure.kernel.errors import InvalidInput, PerdureError

logger = logging.getLogger(__name__)

Reload = Callable[[Settings], Awaitable[str | None]]
"""Reloads a part with the new settings. Returns a description of the change, or None.

It raises an error if the new configuration is unusable, and keeps the old one.
"""


class Reloadable(NamedTuple):
    """A part that can be reloaded."""

    name: str
    reload: Reload
    settings: frozenset[str]


class ReloadReport(msgspec.Struct, kw_only=True):
    """The changes of a reload, the failed parts, and the settings that need a restart."""

    changed: dict[str, str] = {}
    failed: dict[str, str] = {}
    needs_restart: list[str] = []


class Reloads:
    """Registry of the parts that can be reloaded: log level, key files, certificates, workflow files.

    `settings` are those in effect. A part registers itself at its setup:

        app.reloads.add("workflow files", catalog.reload)
        app.reloads.add("API key", reload_key, settings=["api_key"])
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._entries: list[Reloadable] = []

    def add(self, name: str, reload: Reload, settings: Iterable[str] = ()) -> None:
        """Register a part for every reload. `settings` are those that it applies."""
        self._entries.append(Reloadable(name, reload, frozenset(settings)))

    @property
    def names(self) -> list[str]:
        """The names of the parts."""
        return [entry.name for entry in self._entries]

    async def run(self) -> ReloadReport:
        """Reload all parts. A part that fails keeps its configuration and does not affect the others."""
        try:
            settings = reload_settings(self.settings)
        except InvalidInput as error:
            return ReloadReport(failed={"settings": error.message})
        report = ReloadReport()
        applied: set[str] = set()
        for entry in self._entries:
            try:
                change = await entry.reload(settings)
            except PerdureError as error:
                report.failed[entry.name] = error.message
            except Exception as error:
                logger.exception("%s: cannot be reloaded", entry.name)
                report.failed[entry.name] = f"{type(error).__name__}: {error}"
            else:
                applied |= entry.settings
                if change is not None:
                    report.changed[entry.name] = change
        waiting = frozenset().union(*(entry.settings for entry in self._entries))
        report.needs_restart = sorted(_differences(self.settings, settings) - waiting)
        self.settings = msgspec.structs.replace(
            self.settings, **{name: getattr(settings, name) for name in applied}
        )
        return report


def _differences(old: Settings, new: Settings) -> set[str]:
    return {name for name in old.sources if getattr(old, name) != getattr(new, name)}


def log_report(report: ReloadReport) -> None:
    """Log the changes of a reload, and the settings that need a restart."""
    for name, change in report.changed.items():
        logger.info("reloaded %s: %s", name, change)
    for name, reason in report.failed.items():
        logger.error("%s cannot be reloaded, and stays unchanged: %s", name, reason)
    if report.needs_restart:
        logger.warning("these settings have changed and need a restart: %s", ", ".join(report.needs_restart))
    if not (report.changed or report.failed or report.needs_restart):
        logger.info("reloaded: nothing has changed")
