"""What a running process can read again without a restart; SIGHUP asks for it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

import msgspec

from perdure.kernel.config import Settings, reload_settings
from perdure.kernel.errors import InvalidInput, PerdureError

logger = logging.getLogger(__name__)

Reload = Callable[[Settings], Awaitable[str | None]]
"""Reads something again with the new settings; gives what has changed in one sentence, or None.

It raises an error if what it read cannot be used, and then goes on with what it had.
"""


class Reloadable(NamedTuple):
    """Something that can be read again."""

    name: str
    reload: Reload
    settings: frozenset[str]


class ReloadReport(msgspec.Struct, kw_only=True):
    """What a reload has changed, what could not be read, and which settings need a restart."""

    changed: dict[str, str] = {}
    failed: dict[str, str] = {}
    needs_restart: list[str] = []


class Reloads:
    """The registry of what can be read again: log level, key files, certificates, workflow files.

    `settings` are the ones in effect. A part that can be read again adds itself when it is set up:

        app.reloads.add("workflow files", catalog.reload)
        app.reloads.add("API key", reload_key, settings=["api_key"])
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._entries: list[Reloadable] = []

    def add(self, name: str, reload: Reload, settings: Iterable[str] = ()) -> None:
        """Read something again at each reload. `settings` are those that it puts into effect."""
        self._entries.append(Reloadable(name, reload, frozenset(settings)))

    @property
    def names(self) -> list[str]:
        """What is read again."""
        return [each.name for each in self._entries]

    async def run(self) -> ReloadReport:
        """Read everything again. What fails stays as it was, and keeps nothing else from being read."""
        try:
            found = reload_settings(self.settings)
        except InvalidInput as error:
            return ReloadReport(failed={"settings": error.message})
        report = ReloadReport()
        applied: set[str] = set()
        for each in self._entries:
            try:
                change = await each.reload(found)
            except PerdureError as error:
                report.failed[each.name] = error.message
            except Exception as error:
                logger.exception("%s: cannot be read again", each.name)
                report.failed[each.name] = f"{type(error).__name__}: {error}"
            else:
                applied |= each.settings
                if change is not None:
                    report.changed[each.name] = change
        waiting = frozenset().union(*(each.settings for each in self._entries))
        report.needs_restart = sorted(_differences(self.settings, found) - waiting)
        self.settings = msgspec.structs.replace(
            self.settings, **{name: getattr(found, name) for name in applied}
        )
        return report


def _differences(old: Settings, new: Settings) -> set[str]:
    return {name for name in old.sources if getattr(old, name) != getattr(new, name)}


def log_report(report: ReloadReport) -> None:
    """Write to the log what a reload has changed, and what needs a restart."""
    for name, change in report.changed.items():
        logger.info("reloaded %s: %s", name, change)
    for name, reason in report.failed.items():
        logger.error("%s cannot be reloaded, and stays as it was: %s", name, reason)
    if report.needs_restart:
        logger.warning("these settings have changed and need a restart: %s", ", ".join(report.needs_restart))
    if not (report.changed or report.failed or report.needs_restart):
        logger.info("reloaded: nothing has changed")
