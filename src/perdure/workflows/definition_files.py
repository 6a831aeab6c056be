"""Workflow and cron files, read when a process starts and at each reload."""

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
"""Interval at which unknown assistants are looked up without a hint."""

D = TypeVar("D", Workflow, Cron)

logger = logging.getLogger(__name__)


class Definitions(NamedTuple):
    """Workflows and crons of all files, each with its file, and the files with mistakes.

    A file with a mistake keeps its previous definition.
    """

    workflows: Sequence[tuple[str, Workflow]]
    crons: Sequence[tuple[str, Cron]]
    broken: Sequence[str]
    assistants: Sequence[tuple[str, FileProblem]] = ()
    """Assistants that workflows name, each with the problem to report if it does not exist."""
    refused: Mapping[str, str] = {}
    """Workflows with unknown assistants, by name, each with its problem."""

    def without(self, problems: Sequence[FileProblem]) -> Definitions:
        """Return a copy that marks the files of these problems as broken."""
        broken = {_short(entry.file): entry for entry in reversed(problems)}
        return self._replace(
            workflows=[entry for entry in self.workflows if entry[0] not in broken],
            broken=[*self.broken, *broken],
            refused={
                workflow.name: str(broken[file]._replace(file=file))
                for file, workflow in self.workflows
                if file in broken
            },
        )


Taker = Callable[[Definitions], Awaitable[str | None]]
"""Receives definitions; returns a sentence about what changed, or None."""


def list_folders(settings: Settings) -> list[Path]:
    """Return the configured folders; by default `workflows` and `crons` next to perdure.toml."""
    folder = config_file().parent
    return [
        folder / WORKFLOWS if settings.workflow_dir is None else Path(settings.workflow_dir),
        folder / CRONS if settings.cron_dir is None else Path(settings.cron_dir),
    ]


def read_definitions(settings: Settings) -> Definitions | None:
    """Read every file, and log mistakes and warnings. Return None if no folder exists."""
    folders = [folder for folder in list_folders(settings) if folder.is_dir()]
    if not folders:
        return None
    loaded = [file for folder in folders for file in load_folder(folder)]
    for file in loaded:
        for problem in file.problems:
            logger.error("%s", problem)
        for warning in file.warnings:
            logger.warning("%s", warning)
    return Definitions(
        _named(loaded, Workflow),
        _named(loaded, Cron),
        [_short(file.file) for file in loaded if file.problems],
        [assistant for file in loaded for assistant in file.assistants],
    )


def _named(loaded: Sequence[LoadedFile], kind: type[D]) -> list[tuple[str, D]]:
    """Return the definitions of one kind with their files. For a duplicate name, the first file counts."""
    definitions: dict[str, tuple[str, D]] = {}
    for file in loaded:
        definition = file.definition
        if not isinstance(definition, kind):
            continue
        if definition.name in definitions:
            first, _ = definitions[definition.name]
            logger.error(
                "%s: %r is defined in %s already; this one is not used", file.file, definition.name, first
            )
        else:
            definitions[definition.name] = (_short(file.file), definition)
    return list(definitions.values())


def _short(file: str) -> str:
    """Return the name of a file with its folder."""
    path = Path(file)
    return f"{path.parent.name}/{path.name}"


class KnownAssistants:
    """Existing assistants: assistants of the database and agents of this process."""

    def __init__(self, storage: Storage, agents: Collection[str]) -> None:
        self._storage = storage
        self._agents = agents

    async def unknown(self, names: Iterable[str]) -> set[str]:
        """Return the names that are neither an assistant nor an agent of a worker, in any namespace."""
        missing = {name for name in names if name not in self._agents}
        return missing - await self._storage.read(known_anywhere, sorted(missing)) if missing else missing

    async def until_known(self, wanted: Callable[[], Collection[str]]) -> None:
        """Wait until a wanted assistant exists: a worker registers it, or it is created."""

        async def look(_: frozenset[str]) -> bool:
            names = wanted()
            try:
                return len(await self.unknown(names)) < len(names)
            except PerdureError as error:
                logger.debug("the assistants of workflow files were not looked up: %s", error)
                return False

        await until(self._storage.signals, CHANNEL, [""], look, timeout=None, poll=LOOK_SECONDS)


class DefinitionFiles:
    """Reader of workflow and cron files: reads them at start and at each reload, and passes them to takers.

    A workflow file with an unknown assistant is refused. It is read again when the assistant exists.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._takers: list[Taker] = []
        self._known: KnownAssistants | None = None
        self._missing: set[str] = set()
        self._retrying: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()

    def add(self, taker: Taker) -> None:
        """Add a receiver of definitions."""
        self._takers.append(taker)

    def check_assistants(self, assistants: KnownAssistants) -> None:
        """Refuse files that name an unknown assistant. Call this before `start`."""
        self._known = assistants

    async def start(self) -> None:
        """Read the files."""
        await self._read_and_log()
        if self._known is not None:
            self._retrying = asyncio.create_task(self._read_when_known(self._known))

    async def stop(self) -> None:
        """Stop retrying refused files."""
        retrying, self._retrying = self._retrying, None
        if retrying is not None:
            retrying.cancel()
            await asyncio.wait([retrying])

    async def _read_and_log(self) -> None:
        changed = await self.reload(self._settings)
        if changed is not None:
            logger.info("workflow and cron files: %s", changed)

    async def _read_when_known(self, assistants: KnownAssistants) -> None:
        while True:
            await assistants.until_known(lambda: self._missing)
            try:
                await self._read_and_log()
            except PerdureError as error:
                logger.warning("workflow files were not read again; retrying: %s", error)
                await asyncio.sleep(LOOK_SECONDS)

    async def reload(self, settings: Settings) -> str | None:
        """Read the files again. Return a sentence about what changed, or None."""
        async with self._reading:
            self._settings = settings
            definitions = await asyncio.to_thread(read_definitions, settings)
            if definitions is None:
                self._missing = set()
                return None
            definitions, self._missing = await self._checked(definitions)
            changes = [await take(definitions) for take in self._takers]
            return "; ".join(change for change in changes if change) or None

    async def _checked(self, definitions: Definitions) -> tuple[Definitions, set[str]]:
        """Return the definitions without files that name unknown assistants, and the unknown names."""
        if self._known is None:
            return definitions, set()
        missing = await self._known.unknown(name for name, _ in definitions.assistants)
        problems = [problem for name, problem in definitions.assistants if name in missing]
        for problem in problems:
            logger.error("%s; the file is read again when it exists", problem)
        return definitions.without(problems), missing
