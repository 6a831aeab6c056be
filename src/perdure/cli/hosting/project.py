"""The project of `perdure dev`: its code and files, loaded at the start and after changes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from perdure.agents.loading import LoadedAgents, LoadFailure, graphs_file, list_project_files, load_agents
from perdure.agents.project import (
    PROJECT,
    ImportedFiles,
    Stamp,
    Stamps,
    files_below,
    imported_anew,
    read_stamps,
)
from perdure.agents.sections import load_http
from perdure.cli.hosting.agents import include
from perdure.cli.hosting.server import auth_here
from perdure.kernel.config import FILE_VARIABLE, Settings, config_file
from perdure.kernel.errors import InvalidInput, StartRefused
from perdure.langgraph.custom_auth import GraphAuth
from perdure.runtime.app import App
from perdure.runtime.components import EmbeddedWorker
from perdure.runtime.reloads import ReloadReport
from perdure.worker.registry import Agents
from perdure.workflows.definition_files import list_folders

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""Interval of checking the files."""
SETTLE_SECONDS = 0.1
"""Files must be unchanged for this time before they are loaded, because editors write in several steps."""
AGENTS = "agents"
"""The name of the project's code in reload reports."""

Shown = Callable[[Sequence[Path], ReloadReport], None]


class _Code(NamedTuple):
    """The newly loaded code."""

    agents: Agents
    auth: GraphAuth | None
    http_app: Any
    failures: Sequence[LoadFailure]


class ProjectCode:
    """Reloads the project's code in a running server.

    Runs finish with the code that they started with. If an active agent cannot be loaded, all of the old code
    stays.
    """

    def __init__(
        self,
        app: App,
        worker: EmbeddedWorker,
        loaded: LoadedAgents[Agents],
        place: Path,
        given: Sequence[str],
    ) -> None:
        self._app = app
        self._worker = worker
        self._place = place
        self._given = given
        self._lock = asyncio.Lock()
        self._imported = ImportedFiles()
        self._failures: Sequence[LoadFailure] = loaded.failures
        self._broken = bool(loaded.failures)
        self._known: Stamps = self._stamps()
        app.reloads.add(AGENTS, self.reload, settings=["agents"])

    def _stamps(self) -> Stamps:
        files = {*self._imported.now(), *list_project_files(self._place), config_file().resolve()}
        if self._broken:
            # The cause of the failure may be in a file that was not imported.
            files.update(files_below({self._place.parent, *map(Path, PROJECT.folders)}))
        return read_stamps(files)

    def changes(self) -> dict[Path, Stamp | None]:
        """Return the files that have changed since the code was loaded, with their current stamps."""
        now = self._stamps()
        if not self._broken:
            # Agents import further files while they run.
            self._known = {**now, **self._known}
        return {path: stamp for path, stamp in now.items() if self._known.get(path) != stamp}

    async def reload(self, settings: Settings) -> str | None:
        """Load the code again if one of its files has changed. Return a description of the change."""
        async with self._lock:
            changed = self.changes()
            if not changed:
                return None
            before = self._known
            try:
                code = await asyncio.to_thread(self._load, settings, changed)
                self._failures, self._broken = code.failures, bool(code.failures)
            except InvalidInput:
                self._broken = True
                raise
            finally:
                # A file that changes during the load is loaded next time.
                self._known = {**self._stamps(), **before, **changed}
            return await self._put_into_service(code)

    def _load(self, settings: Settings, changed: Iterable[Path]) -> _Code:
        failed_before = {(failure.agent, failure.source) for failure in self._failures}
        with imported_anew(changed):
            loaded = load_agents(Agents(), settings, self._place)
            include(loaded.agents, self._given)
            for failure in loaded.failures:
                if (failure.agent, failure.source) not in failed_before and self._was_loaded(failure):
                    raise InvalidInput(str(failure))
            try:
                auth = auth_here(self._place)
            except StartRefused as error:
                raise InvalidInput(error.message) from error
            if auth is None and self._app.auth is not None:
                raise InvalidInput("auth was removed; a restart is needed for that")
            http_app = None
            if self._app.http.app is not None:
                http = load_http(self._place)
                if http.app is None:
                    raise InvalidInput("; ".join(http.failures) or "http.app was removed; restart to do so")
                http_app = http.app
        return _Code(loaded.agents, auth, http_app, loaded.failures)

    def _was_loaded(self, failure: LoadFailure) -> bool:
        """Return whether a failed agent is active. Failures without an agent concern a file or a handler."""
        return failure.agent is None or failure.agent in self._worker.agents

    async def _put_into_service(self, code: _Code) -> str:
        before = self._worker.agents
        self._replace_handlers(code.agents)
        await self._worker.replace(code.agents)
        self._app.services.set_not_loaded(code.agents.not_loaded)
        self._app.auth = code.auth
        if code.http_app is not None:
            self._app.http = replace(self._app.http, app=code.http_app)
        new = [name for name in code.agents if name not in before]
        gone = [name for name in before if name not in code.agents]
        parts = [", ".join(name for name in code.agents if name in before)]
        parts += [f"new: {', '.join(new)}"] if new else []
        parts += [f"gone: {', '.join(gone)}"] if gone else []
        parts += [f"not loaded: {failure}" for failure in code.failures]
        if self._worker.draining:
            parts.append(f"{_count(self._worker.draining)} with the old code")
        return "; ".join(part for part in parts if part) or "none"

    def _replace_handlers(self, agents: Agents) -> None:
        services = self._app.services
        for name, handler in agents.handlers.items():
            if name in self._worker.agents.handlers:
                services.job_registry.replace(name, handler)
            else:
                logger.warning("handler %r is new: restart for crons that name it", name)
        for name, predicate in agents.conditions.items():
            services.conditions.register(name, predicate)


def _count(runs: int) -> str:
    return "1 run goes on" if runs == 1 else f"{runs} runs go on"


class FileWatch:
    """Reloads a process's configuration and code when a file of the project changes."""

    def __init__(self, app: App, code: ProjectCode, shown: Shown) -> None:
        self._app = app
        self._code = code
        self._shown = shown
        self._definitions: Stamps = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._definitions = self._definition_files()
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            changed = self._changes()
            settled: Stamps = {}
            while changed != settled:
                await asyncio.sleep(SETTLE_SECONDS)
                settled, changed = changed, self._changes()
            if changed:
                self._definitions = self._definition_files()
                self._shown(sorted(changed), await self._app.reloads.run())

    def _changes(self) -> Stamps:
        now, before = self._definition_files(), self._definitions
        return {
            **self._code.changes(),
            **{path: now.get(path) for path in {*now, *before} if now.get(path) != before.get(path)},
        }

    def _definition_files(self) -> Stamps:
        folders = list_folders(self._app.settings)
        return read_stamps(path for folder in folders for path in _files_in(folder))


def _files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []


def project_place(config: str | None) -> Path:
    """Return the project's `langgraph.json`: the named one, or that of the working directory."""
    if config is None:
        return graphs_file(".")
    path = Path(config).resolve()
    if not path.is_file():
        raise InvalidInput(f"--config {config}: there is no such file")
    if path.suffix == ".toml":
        os.environ[FILE_VARIABLE] = str(path)
        return graphs_file(path.parent)
    return path
