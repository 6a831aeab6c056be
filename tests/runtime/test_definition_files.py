"""Workflow and cron files: read at the start and on reload, one bad file stopping no other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.kernel.support import PATIENCE, until_true

from perdure.agents.records import AgentSpec
from perdure.embedding.perdure import Perdure
from perdure.jobs.model import JobContext
from perdure.kernel.config import Settings, config_file
from perdure.kernel.errors import JobNotFound, NotFound
from perdure.worker.registry import Agents
from perdure.workflows.definition_files import Definitions, list_folders, read_definitions

CRON = """
kind: cron
name: {name}
schedule: "{schedule}"
handler: {handler}
context:
  team: blue
  schedule: spoofed
  trigger_id: spoofed
{more}
"""


class Folder:
    """A folder of cron files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def write(self, name: str, schedule: str = "0 0 1 1 *", *, handler: str = "note", more: str = "") -> Path:
        file = self.path / f"{name}.yaml"
        file.write_text(CRON.format(name=name, schedule=schedule, handler=handler, more=more))
        return file


@pytest.fixture
def crons(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "crons")


@pytest_asyncio.fixture
async def perdure(tmp_path: Path, crons: Folder) -> AsyncIterator[Perdure]:
    async with Perdure(str(tmp_path / "p.db"), cron_dir=str(crons.path)) as opened:
        yield opened


def _workflow(folder: Path, *assistants: str) -> None:
    phases = "".join(
        f"  - name: p{number}\n    prompt: x\n    assistant: '{name}'\n"
        for number, name in enumerate(assistants)
    )
    folder.mkdir(exist_ok=True)
    (folder / "w.yaml").write_text("name: w\nphases:\n" + phases)


async def _names(perdure: Perdure) -> list[str]:
    return [each.name for each in await perdure.services.workflows.list()]


async def test_a_file_with_an_unknown_assistant_is_refused_until_there_is_one(
    engine_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "workflows"
    _workflow(folder, "mine", "stored", "{{context.who}}", "nobody")
    agents = Agents()
    agents.register("mine", _nothing)
    async with Perdure(engine_url, agents=agents, workflow_dir=str(folder)) as opened:
        told = [each.getMessage() for each in caplog.records if "no assistant" in each.getMessage()]
        assert [each.split("; ")[0] for each in told] == [
            f"{folder}/w.yaml:8: phase 'p1': there is no assistant or agent 'stored'",
            f"{folder}/w.yaml:14: phase 'p3': there is no assistant or agent 'nobody'",
        ]
        assert await _names(opened) == []
        with pytest.raises(NotFound, match=r"Workflow w not found: workflows/w\.yaml:8: phase"):
            await opened.services.workflows.run("w")
        await opened.assistants.create("mine", assistant_id="stored")
        # An agent of a worker of another namespace counts, too.
        await opened.services.assistants.in_namespace("other").register([AgentSpec(name="nobody")])

        async def is_loaded() -> bool:
            return await _names(opened) == ["w"]

        await until_true(is_loaded)
        # What a file said before stays when it names an assistant that is unknown.
        _workflow(folder, "gone")
        assert await _reload(opened) is None
        assert len((await opened.services.workflows.list())[0].phases) == 4


async def _nothing(ctx: Any, input: Any) -> None:
    pass


async def _reload(perdure: Perdure) -> str | None:
    return await perdure.services.definition_files.reload(perdure.settings)


async def test_crons_are_loaded_at_the_start_and_on_reload(
    tmp_path: Path, crons: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    crons.write("nightly")
    crons.write("bad", schedule="never")
    crons.write("odd", handler="nobody")
    perdure = Perdure(str(tmp_path / "p.db"), cron_dir=str(crons.path), handlers={"note": _note})
    async with perdure:
        assert "workflow and cron files: 1 cron added" in caplog.text
        assert "unknown handler 'nobody'; the cron odd is dropped" in caplog.text
        assert "bad.yaml:4: Invalid cron expression: 'never'" in caplog.text
        assert "must not have schedule, trigger_id" in caplog.text
        nightly = await perdure.schedules.get("nightly")
        assert (nightly.origin, nightly.file, nightly.overlap) == ("file", "crons/nightly.yaml", "skip")
        assert nightly.payload == {"job": "note", "payload": {"team": "blue"}}
        crons.write("nightly", "@hourly")
        crons.write("other")
        assert await _reload(perdure) == "1 cron added, 1 cron changed"
        # A file that is broken keeps what it said before.
        crons.write("nightly", schedule="never")
        (crons.path / "other.yaml").unlink()
        assert await _reload(perdure) == "1 cron removed"
        assert (await perdure.schedules.get("nightly")).expression == "@hourly"
        with pytest.raises(JobNotFound):
            await perdure.schedules.get("other")
        assert await _reload(perdure) is None


async def test_what_fires_is_the_row_and_its_override(perdure: Perdure, crons: Folder) -> None:
    seen: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()

    async def note(context: JobContext, payload: Mapping[str, Any]) -> None:
        await seen.put(payload)

    perdure.services.job_registry.register("note", note)
    await perdure.services.job_executor.stop()
    await perdure.services.job_executor.start()
    file = crons.write("ticking", "0 0 1 1 *")
    await _reload(perdure)
    file.unlink()
    await perdure.schedules.update("ticking", expression="* * * * * *")
    payload = await asyncio.wait_for(seen.get(), PATIENCE)
    assert (payload["team"], payload["schedule"]["name"]) == ("blue", "ticking")
    assert (payload["schedule"]["source"], "trigger_id" in payload) == ("schedule", False)
    await perdure.schedules.pause("ticking")

    async def skipped() -> bool:
        return (await perdure.schedules.get("ticking")).skipped > 0

    await until_true(skipped)


async def test_a_condition_that_is_not_known_is_warned_of_once(
    perdure: Perdure, crons: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    perdure.services.conditions.register("here", lambda order: True)
    perdure.services.job_registry.register("note", _note)
    crons.write("careful", more="condition:\n  unless: away")
    await _reload(perdure)
    await _reload(perdure)
    assert (await perdure.schedules.get("careful")).unless == "away"
    assert caplog.text.count("unknown condition 'away'") == 1


async def test_jobs_of_code_are_scheduled_at_the_start(tmp_path: Path) -> None:
    for _ in range(2):
        perdure = Perdure(str(tmp_path / "p.db"))
        async with perdure:
            services = perdure.services
            services.job_registry.register("tidy", _note)
            services.scheduled_jobs.add("tidy", "@hourly", jitter=5.0, payload={"level": 1})
            await services.scheduled_jobs.start()
            found = await perdure.schedules.get("tidy")
            assert (found.origin, found.overlap, found.jitter) == ("code", "skip", 5.0)
            assert found.payload == {"job": "tidy", "payload": {"level": 1}}
            if found.enabled:
                await perdure.schedules.pause("tidy")
    assert not found.enabled


def test_the_folders_are_beside_the_settings_or_where_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert config_file() == Path("perdure.toml")
    assert list_folders(Settings()) == [Path("workflows"), Path("crons")]
    assert read_definitions(Settings()) is None
    monkeypatch.setenv("PERDURE_CONFIG", str(tmp_path / "there" / "perdure.toml"))
    assert list_folders(Settings(cron_dir="/c")) == [tmp_path / "there" / "workflows", Path("/c")]
    one, other = Folder(tmp_path / "a"), Folder(tmp_path / "b")
    one.write("same")
    other.write("same")
    other.write("more")
    found = read_definitions(Settings(workflow_dir=str(one.path), cron_dir=str(other.path)))
    assert isinstance(found, Definitions)
    assert [(file, cron.name) for file, cron in found.crons] == [
        ("a/same.yaml", "same"),
        ("b/more.yaml", "more"),
    ]


async def _note(context: JobContext, payload: Mapping[str, Any]) -> None:
    return None
