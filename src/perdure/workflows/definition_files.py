"""Workflow and cron files: found and read at the start of a process, and at each reload."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from perdure.assistants.operations import CHANNEL, known_anywhere
from perdure.kernel.config import Settings, config_file
from perdure.kernel.errors import PerdureError
from perdure.kernel.signals.port import until
from perdure.kernel.storage.port import Storage
from perdure.workflows.definition import Cron, Workflow
from perdure.workflows.loading import FileProblem, LoadedFile, load_folder

WORKFLOWS = "workflows"
CRONS = "crons"
LOOK_SECONDS = 5.0
"""How often unknown assistants are looked up without a hint."""

D = TypeVar("D", Workflow, Cron)

logger = logging.getLogger(__name__)


class Definitions(NamedTuple):
    """What the files of a process define, by file, and the files with mistakes.

    A file with a mistake keeps what it defined before.
    """

    workflows: Sequence[tuple[str, Workflow]]
    crons: Sequence[tuple[str, Cron]]
    broken: Sequence[str]
    assistants: Sequence[tuple[str, FileProblem]] = ()
    """The assistants that workflows name, each with what is told if there is none of that name."""
    refused: Mapping[str, str] = {}
    """The workflows whose assistants are unknown, by name, each with its mistake."""

    def without(self, problems: Sequence[FileProblem]) -> Definitions:
        """The same with these mistakes, too: their files are broken."""
        broken = {_short(each.file): each for each in reversed(problems)}
        return self._replace(
            workflows=[each for each in self.workflows if each[0] not in broken],
            broken=[*self.broken, *broken],
            refused={
                workflow.name: str(broken[file]._replace(file=file))
                for file, workflow in self.workflows
                if file in broken
            },
        )


Taker = Callable[[Definitions], Awaitable[str | None]]
"""Takes definitions over; gives what has changed in one sentence, or None."""


def list_folders(settings: Settings) -> list[Path]:
    """Where the files are: where settings say, or in `workflows` and `crons` beside perdure.toml."""
    beside = config_file().parent
    return [
        beside / WORKFLOWS if settings.workflow_dir is None else Path(settings.workflow_dir),
        beside / CRONS if settings.cron_dir is None else Path(settings.cron_dir),
    ]


def read_definitions(settings: Settings) -> Definitions | None:
    """Read every file; mistakes and warnings are logged. None if there is no folder of files."""
    folders = [folder for folder in list_folders(settings) if folder.is_dir()]
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


def _named(loaded: Sequence[LoadedFile], kind: type[D]) -> list[tuple[str, D]]:
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


class KnownAssistants:
    """Which assistants there are: those of the database, and the agents of this process."""

    def __init__(self, storage: Storage, agents: Collection[str]) -> None:
        self._storage = storage
        self._agents = agents

    async def unknown(self, names: Iterable[str]) -> set[str]:
        """Those of the names that are no assistant and no agent of a worker, in any namespace."""
        asked = {name for name in names if name not in self._agents}
        return asked - await self._storage.read(known_anywhere, sorted(asked)) if asked else asked

    async def until_known(self, wanted: Callable[[], Collection[str]]) -> None:
        """Wait until one of the wanted ones is known: a worker registered it, or it was created."""

        async def look(_: frozenset[str]) -> bool:
            names = wanted()
            try:
                return len(await self.unknown(names)) < len(names)
            except PerdureError as error:
                logger.debug("the assistants of workflow files were not looked up: %s", error)
                return False

        await until(self._storage.signals, CHANNEL, [""], look, timeout=None, poll=LOOK_SECONDS)


class DefinitionFiles:
    """Reads the files at the start of a process and at each reload, and gives them to those who take them.

    A workflow file that names an unknown assistant is refused; it is tried again when that one is known.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._takers: list[Taker] = []
        self._known: KnownAssistants | None = None
        self._missing: set[str] = set()
        self._retrying: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()

    def add(self, taker: Taker) -> None:
        """Give the definitions to one more."""
        self._takers.append(taker)

    def check_assistants(self, known: KnownAssistants) -> None:
        """Refuse files that name an unknown assistant; before `start`."""
        self._known = known

    async def start(self) -> None:
        """Read the files."""
        await self._read_and_log()
        if self._known is not None:
            self._retrying = asyncio.create_task(self._read_when_known(self._known))

    async def stop(self) -> None:
        """Do not try refused files again."""
        retrying, self._retrying = self._retrying, None
        if retrying is not None:
            retrying.cancel()
            await asyncio.wait([retrying])

    async def _read_and_log(self) -> None:
        changed = await self.reload(self._settings)
        if changed is not None:
            logger.info("workflow and cron files: %s", changed)

    async def _read_when_known(self, known: KnownAssistants) -> None:
        while True:
            await known.until_known(lambda: self._missing)
            try:
                await self._read_and_log()
            except PerdureError as error:
                logger.warning("workflow files were not read again; retrying: %s", error)
                await asyncio.sleep(LOOK_SECONDS)

    async def reload(self, settings: Settings) -> str | None:
        """Read the files again; gives what has changed in one sentence, or None."""
        async with self._reading:
            self._settings = settings
            definitions = await asyncio.to_thread(read_definitions, settings)
            if definitions is None:
                self._missing = set()
                return None
            definitions, self._missing = await self._checked(definitions)
            told = [await take(definitions) for take in self._takers]
            return "; ".join(each for each in told if each) or None

    async def _checked(self, found: Definitions) -> tuple[Definitions, set[str]]:
        """The definitions without the files that name unknown assistants, and the names of those."""
        if self._known is None:
            return found, set()
        missing = await self._known.unknown(name for name, _ in found.assistants)
        problems = [problem for name, problem in found.assistants if name in missing]
        for problem in problems:
            logger.error("%s; the file is read again when there is", problem)
        return found.without(problems), missing
