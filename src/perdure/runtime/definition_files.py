"""Workflow and cron files: found and read at the start of a process, and at each reload."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from perdure.assistants.operations import resolve
from perdure.assistants.service import Assistants
from perdure.kernel.config import Settings, config_file
from perdure.workflows.definition import Cron, Workflow
from perdure.workflows.loading import Loaded, Problem, load_folder

WORKFLOWS = "workflows"
CRONS = "crons"

D = TypeVar("D", Workflow, Cron)

logger = logging.getLogger(__name__)


class Definitions(NamedTuple):
    """What the files of a process define, by file, and the files with mistakes.

    A file with a mistake keeps what it defined before.
    """

    workflows: Sequence[tuple[str, Workflow]]
    crons: Sequence[tuple[str, Cron]]
    broken: Sequence[str]
    assistants: Sequence[tuple[str, Problem]] = ()
    """The assistants that workflows name, each with what is told if there is none of that name."""


Taker = Callable[[Definitions], Awaitable[str | None]]
"""Takes definitions over; gives what has changed in one sentence, or None."""


def folders_of(settings: Settings) -> list[Path]:
    """Where the files are: where settings say, or in `workflows` and `crons` beside perdure.toml."""
    beside = config_file().parent
    return [
        beside / WORKFLOWS if settings.workflow_dir is None else Path(settings.workflow_dir),
        beside / CRONS if settings.cron_dir is None else Path(settings.cron_dir),
    ]


def read_definitions(settings: Settings) -> Definitions | None:
    """Read every file; mistakes and warnings are logged. None if there is no folder of files."""
    folders = [folder for folder in folders_of(settings) if folder.is_dir()]
    if not folders:
        return None
    loaded = [each for folder in folders for each in load_folder(folder)]
    for each in loaded:
        for problem in each.problems:
            logger.error("%s", problem)
        for warning in each.warnings:
            logger.warning("%s", warning)
    return Definitions(
        _named(loaded, Workflow),
        _named(loaded, Cron),
        [_short(each.file) for each in loaded if each.problems],
        [each for file in loaded for each in file.assistants],
    )


def _named(loaded: Sequence[Loaded], kind: type[D]) -> list[tuple[str, D]]:
    """The definitions of one kind, with their files; of two with one name the first counts."""
    found: dict[str, tuple[str, D]] = {}
    for each in loaded:
        definition = each.definition
        if not isinstance(definition, kind):
            continue
        if definition.name in found:
            first, _ = found[definition.name]
            logger.error(
                "%s: %r is defined in %s already; this one is not used", each.file, definition.name, first
            )
        else:
            found[definition.name] = (_short(each.file), definition)
    return list(found.values())


def _short(file: str) -> str:
    """The name of a file with its folder."""
    path = Path(file)
    return f"{path.parent.name}/{path.name}"


class AssistantCheck:
    """Tells of phases whose assistant is neither in the database nor among the agents of this process.

    Their workflows are taken all the same: a worker that starts later may bring the agent.
    """

    def __init__(self, assistants: Assistants, agents: Collection[str]) -> None:
        self._assistants = assistants
        self._agents = agents

    async def take(self, found: Definitions) -> None:
        names = sorted({name for name, _ in found.assistants if name not in self._agents})
        known = await self._assistants.read(resolve, names) if names else {}
        for name, problem in found.assistants:
            if name in names and name not in known:
                logger.warning("%s", problem)


class DefinitionFiles:
    """Reads the files at the start of a process and at each reload, and gives them to those who take them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._takers: list[Taker] = []

    def add(self, taker: Taker) -> None:
        """Give the definitions to one more."""
        self._takers.append(taker)

    async def start(self) -> None:
        """Read the files."""
        changed = await self.reload(self._settings)
        if changed is not None:
            logger.info("workflow and cron files: %s", changed)

    async def stop(self) -> None:
        """Nothing runs."""

    async def reload(self, settings: Settings) -> str | None:
        """Read the files again; gives what has changed in one sentence, or None."""
        definitions = await asyncio.to_thread(read_definitions, settings)
        if definitions is None:
            return None
        told = [await take(definitions) for take in self._takers]
        return "; ".join(each for each in told if each) or None
