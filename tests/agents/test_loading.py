"""Agents that files name: all that can be loaded are, and of the others is said what is wrong."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agents.support import MemoryContext, run

from perdure.agents.loading import LoadedAgents, import_target, load_agents
from perdure.agents.project import PROJECT
from perdure.agents.sections import unsupported
from perdure.cli.hosting.agents import include
from perdure.kernel.config import load_settings
from perdure.kernel.errors import InvalidInput
from perdure.worker.registry import Agents

_NUMBERS = itertools.count()

FUNCTIONS = """
async def greet(ctx, input):
    "Say hello."
    return {"hello": input}

def work(ctx, input):
    return {"worked": input}

class Inside:
    greet = staticmethod(greet)

number = 5
"""

GRAPH = """
from typing import TypedDict
from helpers_of_the_graph import WORD
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    word: str

builder = StateGraph(State)
builder.add_node("say", lambda state: {"word": WORD})
builder.add_edge(START, "say")

def make(config):
    return builder
"""


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """What loading adds to the process is taken away again."""
    path, modules, environment = list(sys.path), set(sys.modules), dict(os.environ)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith(("perdure_agent_", "module_", "helpers_of_")):
            del sys.modules[name]
    for name in set(os.environ) - set(environment):
        del os.environ[name]


@pytest.fixture
def module(tmp_path: Path) -> str:
    """A module of functions in the directory, under a name that no other test has used."""
    name = f"module_{next(_NUMBERS)}"
    (tmp_path / f"{name}.py").write_text(FUNCTIONS)
    return name


def load(
    directory: Path, toml: str = "", graphs: Any = None, registry: Agents | None = None
) -> LoadedAgents[Agents]:
    (directory / "perdure.toml").write_text(toml)
    if graphs is not None:
        text = graphs if isinstance(graphs, str) else json.dumps(graphs)
        (directory / "langgraph.json").write_text(text)
    return load_agents(registry or Agents(), load_settings(environment={}, directory=directory), directory)


async def test_a_table_names_agents(tmp_path: Path, module: str) -> None:
    loaded = load(
        tmp_path,
        f"""
        [perdure.agents]
        greet = "{module}:greet"
        work = "./{module}.py:work"
        inside = {{ path = "{module}:Inside.greet", description = "Inside." }}
        echo = {{ command = ["{sys.executable}", "-c", "print('{{\\"type\\": \\"result\\"}}')"] }}
        """,
    )
    assert loaded.failures == []
    assert [(spec.name, spec.kind, spec.description) for spec in loaded.agents.specs] == [
        ("echo", "command", None),
        ("greet", "function", "Say hello."),
        ("inside", "function", "Inside."),
        ("work", "function", None),
    ]
    assert await run(loaded.agents["greet"], MemoryContext(), 1) == {"hello": 1}
    assert await run(loaded.agents["work"], MemoryContext(), 2) == {"worked": 2}
    assert await run(loaded.agents["echo"], MemoryContext()) is None


async def test_a_command_runs_where_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    program = (
        "import json, os; print(json.dumps({'type': 'result', 'values': [os.getcwd(), os.environ['A']]}))"
    )
    (tmp_path / "inner" / "agent.py").write_text(program)
    loaded = load(
        tmp_path,
        f"""
        [perdure.agents]
        there = {{ command = ["{sys.executable}", "agent.py"], cwd = "inner", env = {{ A = "b" }} }}
        """,
    )
    assert await run(loaded.agents["there"], MemoryContext()) == [str(tmp_path / "inner"), "b"]


async def test_a_langgraph_file_as_it_is(tmp_path: Path) -> None:
    for folder in ("code", "lib"):
        (tmp_path / folder).mkdir()
    (tmp_path / "lib" / "helpers_of_the_graph.py").write_text(
        "import os\nWORD = os.environ['OF_THE_GRAPH']\n"
    )
    (tmp_path / "code" / "graph.py").write_text(GRAPH)
    (tmp_path / ".env").write_text("# words\nexport OF_THE_GRAPH='a word'\nOTHER=x # y\n\nnonsense\n")
    loaded = load(
        tmp_path,
        graphs={
            "dependencies": [".", "./lib", "langchain_openai"],
            "graphs": {
                "built": "./code/graph.py:builder",
                "made": {"path": "./code/graph.py:make", "description": "Made."},
            },
            "env": ".env",
            "python_version": "3.11",
            "dockerfile_lines": [],
        },
    )
    assert loaded.failures == []
    assert [(spec.name, spec.kind) for spec in loaded.agents.specs] == [("built", "graph"), ("made", "graph")]
    for name in loaded.agents:
        ctx = MemoryContext()
        await run(loaded.agents[name], ctx, {"word": ""})
        assert await ctx.load() == {"word": "a word"}
    assert os.environ["OTHER"] == "x"


def test_what_the_surroundings_say_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIVEN", "outside")
    assert load(tmp_path, graphs={"graphs": {}, "env": {"GIVEN": "inside", "NEW_ONE": "1"}}).failures == []
    assert (os.environ["GIVEN"], os.environ["NEW_ONE"]) == ("outside", "1")


def test_one_that_fails_is_named_and_the_others_load(tmp_path: Path, module: str) -> None:
    (tmp_path / "raises.py").write_text("raise ValueError('at import')\n")
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "broken.py").write_text("def (:\n")
    wrong = {
        "raises": ('"./raises.py:x"', "ValueError: at import"),
        "exits": ('"./exits.py:x"', "SystemExit: 3"),
        "broken": ('"./broken.py:x"', "SyntaxError: "),
        "nowhere": ('"./nowhere.py:x"', "there is no file "),
        "no_module": ('"no_such_module_at_all:x"', "No module named 'no_such_module_at_all'"),
        "no_name": (f'"{module}:nobody"', f"there is no 'nobody' in {module}; it has greet, work, Inside"),
        "no_colon": (f'"{module}"', "is not a path of an object; write module:name"),
        "number": (f'"{module}:number"', "is a int, which cannot be executed"),
        "typed": ("3", "Expected `object`, got `int`"),
        "neither": ('{ description = "x" }', "use either a path"),
        "both": (f'{{ path = "{module}:greet", command = ["x"] }}', "use either a path"),
        "unknown": ('{ paht = "x" }', "unknown field `paht`"),
        "empty": ("{ command = [] }", "a command must be a list of strings"),
        '""': (f'"{module}:greet"', "must not be empty"),
    }
    lines = "\n".join(f"{name} = {entry}" for name, (entry, _) in wrong.items())
    loaded = load(tmp_path, f'[perdure.agents]\nfine = "{module}:greet"\n{lines}\nlast = "{module}:work"\n')
    assert loaded.agents.names == ["fine", "last"]
    failures = {failure.agent: failure for failure in loaded.failures}
    assert len(failures) == len(wrong)
    for name, (_, words) in wrong.items():
        failure = failures[name.strip('"')]
        assert words in failure.message
        assert failure.source == str(tmp_path / "perdure.toml")
        assert str(failure).startswith(f"{failure.source}: agent {failure.agent!r}: ")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "Expected `object`"),
        ('{"graphs": []}', "Expected `object`, got `array`"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, module: str, content: str, words: str) -> None:
    loaded = load(tmp_path, f'[perdure.agents]\nfine = "{module}:greet"\n', graphs=content)
    assert loaded.agents.names == ["fine"]
    [failure] = loaded.failures
    assert failure.agent is None
    assert words in failure.message
    assert str(failure).startswith(str(tmp_path / "langgraph.json"))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"env": ".env"}, ".env: No such file or directory; its variables are not set from there"),
        ({"env": "folder"}, "env: cannot read"),
        ({"env": 5}, "env must be an object, or the name of a file"),
        ({"env": {"A": []}}, "env.A must be a text; it is ignored"),
        ({"dependencies": "."}, "dependencies must be a list"),
        ({"dependencies": [5]}, "dependencies must be a list"),
    ],
)
def test_graphs_are_served_although_another_section_is_wrong(
    tmp_path: Path, module: str, wrong: dict[str, Any], words: str
) -> None:
    (tmp_path / "folder").mkdir()
    loaded = load(tmp_path, graphs={"graphs": {"fine": f"./{module}.py:greet"}, **wrong})
    assert (loaded.agents.names, loaded.failures) == (["fine"], [])
    assert [words in each for each in unsupported(tmp_path)] == [True]


def test_a_name_that_two_files_give(tmp_path: Path, module: str) -> None:
    loaded = load(
        tmp_path,
        f'[perdure.agents]\nsame = "{module}:greet"\n',
        graphs={"graphs": {"same": f"{module}:work", "bad": 3}},
    )
    assert loaded.agents.names == ["same"]
    assert not loaded.agents["same"].blocking
    assert [failure.agent for failure in loaded.failures] == ["same", "bad"]
    assert "registered twice" in loaded.failures[0].message


async def test_a_registry_stands_for_its_agents(tmp_path: Path) -> None:
    name = f"module_{next(_NUMBERS)}"
    (tmp_path / f"{name}.py").write_text(
        "from perdure.worker.registry import Agents\n"
        "mine = Agents()\n"
        "@mine.agent('greet', description='Mine.')\n"
        "async def greet(ctx, input):\n    return input\n"
    )
    registry = Agents()
    registry.register("before", lambda ctx, input: input)
    toml = f'[perdure.agents]\ngreet = "{name}:mine"\nother = "{name}:mine"\n'
    loaded = load(tmp_path, toml, registry=registry)
    assert loaded.agents is registry
    assert registry.names == ["before", "greet"]
    assert registry["greet"].spec.description == "Mine."
    assert [failure.agent for failure in loaded.failures] == ["other"]
    assert await run(registry["greet"], MemoryContext(), 1) == 1


def test_a_file_is_run_once_and_has_the_same_name_everywhere(tmp_path: Path) -> None:
    (tmp_path / "counted.py").write_text("made = object()\n")
    first = import_target("./counted.py:made", tmp_path)
    assert import_target("./counted.py:made", tmp_path) is first
    assert sys.modules["perdure_agent_counted"].made is first
    other = tmp_path / "other"
    other.mkdir()
    (other / "counted.py").write_text("made = 'other'\n")
    assert import_target("./counted.py:made", other) == "other"


@pytest.mark.parametrize("path", ["", ":", "x:", ":x", "x"])
def test_what_names_nothing(path: str) -> None:
    with pytest.raises(InvalidInput, match="is not a path of an object"):
        import_target(path)


def test_without_any_file_there_is_nothing(tmp_path: Path) -> None:
    loaded = load_agents(Agents(), load_settings(environment={}, directory=tmp_path), tmp_path)
    assert (len(loaded.agents), loaded.failures) == (0, [])


def test_agents_of_a_command_line_import_what_lies_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file as a script does; a module may lie in the working directory."""
    number = next(_NUMBERS)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / f"helpers_of_inner_{number}.py").write_text("WORD = 'beside'\n")
    inner = f"from helpers_of_inner_{number} import WORD\n\n\nasync def say(ctx, input):\n    return WORD\n"
    (tmp_path / "inner" / "a.py").write_text(inner)
    (tmp_path / f"module_{number}.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    agents = Agents()
    include(agents, ["./inner/a.py:say", f"module_{number}:greet"])
    assert sorted(agents.names) == ["greet", "say"]
    assert str(tmp_path / "inner") in PROJECT.folders
