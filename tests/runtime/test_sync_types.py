"""What a type checker knows of `perdure.sync` and of options."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from docs import stubs

from perdure import sync
from perdure.kernel.config import Settings
from perdure.kernel.setting_options import SettingOptions
from perdure.runtime.stores import (
    InMemoryLightningStore,
    PostgresLightningStore,
    SqliteLightningStore,
    StoreOptions,
)

ROOT = Path(__file__).resolve().parents[2]
RIGHT = """
from perdure import Agents, Perdure as AsyncPerdure, RunEnd, RunRequest, open_store
from perdure.sync import Perdure, PerdureClient
from perdure.threads.records import Run

agents = Agents()
with Perdure("memory:", agents=agents, job_timeout=5.0) as perdure:
    end: RunEnd = perdure.run("greet", {"name": "Ada"}, priority=1)
    name: str = end.run.run_id
    for event in perdure.stream("greet"):
        kind: str = event.event
    run: Run = perdure.threads.create_run(RunRequest(assistant_id="greet"))
    found = [each.status for each in perdure.services.rollouts.search(limit=3).items]
    attempts: int = len(perdure.store.query_rollouts())

with PerdureClient("http://127.0.0.1:4747", token="secret") as client:
    reveal_type(client.get_run("r").error)
    sentence: str = client.why("r").sentence
    items: int = len(client.schedules.search().items)
client.close()
AsyncPerdure("memory:", log_level="debug")
open_store("memory:", namespace="n")
"""
WRONG = {
    "perdure.run(7)": "arg-type",
    "perdure.run('a', prority=1)": "call-arg",
    "perdure.runs('a')": "attr-defined",
    "await_ = perdure.run('a').values_of": "attr-defined",
    "number: int = perdure.why('x').sentence": "assignment",
    "perdure.threads.list_runs(status='lost')": "arg-type",
    "Perdure('memory:', job_timeot=3)": "call-arg",
    "Perdure('memory:', job_timeout='long')": "arg-type",
    "AsyncPerdure(port='x')": "arg-type",
    "open_store('memory:', name='x')": "call-arg",
    "client.schedules.lost()": "attr-defined",
    "PerdureClient()": "call-arg",
}


def check(file: Path, program: str) -> list[str]:
    """What mypy says of a program, with the settings and the cache of this project."""
    file.write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(file)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    return [line.partition(f"{file.name}:")[2] for line in ended.stdout.splitlines()]


def test_a_type_checker_follows_programs_without_await(tmp_path: Path) -> None:
    wrong = "".join(f"{line}\n" for line in WRONG)
    printed = check(tmp_path / "program.py", RIGHT + wrong)
    notes = [line for line in printed if ": note: Revealed" in line]
    assert [line.partition('"')[2] for line in notes] == ['perdure.threads.records.Failure | None"']
    errors = [line for line in printed if ": error: " in line]
    first = RIGHT.count("\n") + 1
    found = [f"{line.partition(':')[0]} {line.rpartition('  ')[2]}" for line in errors]
    assert found == [f"{first + number} [{code}]" for number, code in enumerate(WRONG.values())], printed


@pytest.mark.parametrize("path", stubs.files(), ids=lambda path: path.name)
def test_what_type_checkers_read_is_up_to_date(path: Path) -> None:
    """If this fails: python docs/regenerate.py"""
    assert path.read_text(encoding="utf-8") == stubs.files()[path]()


def test_what_the_stub_names_is_there() -> None:
    tree = ast.parse(stubs.sync_stub())
    classes = {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}

    def check_members(holder: Any, name: str) -> None:
        for each in classes[name].body:
            assert isinstance(each, ast.FunctionDef)
            found = getattr(holder, each.name)
            if isinstance(each.returns, ast.Name) and each.returns.id in classes and each.decorator_list:
                check_members(found, each.returns.id)

    with sync.Perdure("memory:") as opened, sync.PerdureClient("http://127.0.0.1:1") as client:
        check_members(opened, "Perdure")
        check_members(client, "PerdureClient")


def test_options_are_the_settings_and_the_parameters_of_stores() -> None:
    assert set(get_type_hints(SettingOptions)) == set(Settings.__struct_fields__) - stubs.NO_SETTINGS
    stores: list[Any] = [InMemoryLightningStore, SqliteLightningStore, PostgresLightningStore]
    taken = {
        name
        for store in stores
        for name, each in inspect.signature(store).parameters.items()
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert set(get_type_hints(StoreOptions)) == taken
