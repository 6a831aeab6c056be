"""Types that are revived from stored states: nothing is imported or called unless the project owns it."""

from __future__ import annotations

import dataclasses
import logging
import sys
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import ormsgpack
import pytest
from langchain_core.runnables import RunnablePassthrough
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from perdure.agents.project import Project
from perdure.integrations.langgraph import PerdureSaver
from perdure.langgraph import revival
from perdure.langgraph.revival import is_data, own_types, strict_serializer


@dataclasses.dataclass
class Ours:
    x: int


class Hue(Enum):
    RED = "red"


class Model(BaseModel):
    n: int


class Two(NamedTuple):
    a: int
    b: int


class Dangerous(RunnablePassthrough):  # type: ignore[type-arg]
    """Pydantic model that is code rather than data."""


def stored(code: int, *content: Any) -> tuple[str, bytes]:
    return "msgpack", ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb(content)))


NAMES: list[tuple[Any, ...]] = [
    (0, "os", "system", "echo stolen"),
    (1, "subprocess", "Popen", [["true"]]),
    (2, "subprocess", "Popen", {"args": ["true"]}),
    (5, "langchain_core.runnables.passthrough", "RunnablePassthrough", {}),
    (5, "tests.langgraph.test_revival", "Dangerous", {}),
    (2, "antigravity", "Point", {"x": 1}),
    (3, "builtins", "eval", "1", "__call__"),
]


def test_a_stored_name_imports_and_calls_nothing() -> None:
    assert "antigravity" not in sys.modules
    serde = strict_serializer(own_types())
    for code, *content in NAMES:
        assert serde.loads_typed(stored(code, *content)) == content[2]
    assert "antigravity" not in sys.modules


def test_json_of_early_releases_is_plain_data() -> None:
    body = b'{"lc": 1, "type": "secret", "id": ["HOME"]}'
    assert strict_serializer().loads_typed(("json", body)) == {"lc": 1, "type": "secret", "id": ["HOME"]}


@pytest.mark.parametrize("value", [Ours(1), Hue.RED, Model(n=1), Two(1, 2), [Ours(1), {"hue": Hue.RED}]])
def test_data_of_the_project_comes_back(value: Any) -> None:
    serde = strict_serializer(own_types())
    found = serde.loads_typed(serde.dumps_typed(value))
    assert (found, type(found)) == (value, type(value))


class Prickly(type):
    """Metaclass whose classes refuse every inspection."""

    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(f"no {name}")


Untouchable = Prickly("Untouchable", (tuple,), {})


def test_only_data_counts() -> None:
    assert all(map(is_data, (Ours, Hue, Model, Two)))
    assert not any(map(is_data, (Dangerous, dict, Path, tuple, print, Ours(1))))
    assert (__name__, "Ours") in own_types()
    assert not {(__name__, "Dangerous"), (__name__, "Untouchable")} & own_types()
    assert not [each for each in own_types() if each[0].partition(".")[0] in ("perdure", "langchain_core")]


def test_the_log_says_once_what_stays_plain(caplog: pytest.LogCaptureFixture) -> None:
    revival._reported.discard(("some.where", "Thing"))
    serde = strict_serializer()
    with caplog.at_level(logging.WARNING, logger=revival.__name__):
        for _ in range(3):
            serde.loads_typed(stored(2, "some.where", "Thing", {"x": 1}))
    said = [each for each in caplog.messages if "values of some.where.Thing come back as plain data" in each]
    assert len(said) == 1


def test_declared_packages_are_the_projects(tmp_path: Path) -> None:
    import cronsim  # noqa: F401 - imported with the graph

    def packages(project: Project) -> set[str]:
        return {name.partition(".")[0] for name, _ in project.modules()}

    project = Project()
    assert "cronsim" not in packages(project)
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["cronsim>=2", "not-installed"]\n')
    project.add_dependencies(["."], tmp_path)
    assert "cronsim" in packages(project)
    assert not packages(project) & {"langchain_core", "perdure", "os"}


def test_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, project = tmp_path / "gone", Project()
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    project.add_folder(Path(__file__).parent)
    assert __name__ in {name for name, _ in project.modules()}


class State(TypedDict, total=False):
    declared: Ours
    anything: Any


def ask(state: State) -> State:
    return {
        "anything": [interrupt("?"), type(state["declared"]).__name__, type(state["anything"][0]).__name__]
    }


async def test_a_program_gets_its_types_back(tmp_path: Path) -> None:
    builder: Any = StateGraph(State)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", END)
    config: Any = {"configurable": {"thread_id": "one"}}
    async with PerdureSaver(tmp_path / "states.db") as saver:
        graph = builder.compile(checkpointer=saver)
        await graph.ainvoke({"declared": Ours(1), "anything": [Hue.RED, Path("x")]}, config)
    async with PerdureSaver(tmp_path / "states.db") as saver:
        graph = builder.compile(checkpointer=saver)
        ended = await graph.ainvoke(Command(resume="yes"), config)
    assert ended == {"declared": Ours(1), "anything": ["yes", "Ours", "Hue"]}
