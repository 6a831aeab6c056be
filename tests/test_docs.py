"""The documentation is true: examples run, charts and tables are those of the code, links lead somewhere."""

import ast
import asyncio
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pytest
from docs import benchmarks, references, regenerate
from tests.support.python_process import PythonProcess

from perdure.cli import PANELS
from perdure.diagnostics.machines import MACHINES
from perdure.testing.serving import ServerProcess

ROOT = Path(__file__).resolve().parent.parent
MOST_WORDS = 80
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md")), ROOT / "examples" / "README.md"]
LINKED_PAGES = sorted({*ROOT.glob("*.md"), *PAGES})
EXAMPLES = sorted([*(ROOT / "examples").glob("*.py"), *(ROOT / "examples").glob("*/walkthrough.py")])

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LANGUAGES = {"python", "sh", "text", "mermaid"}
LONGEST_README_EXAMPLE = 20
PROMISE = (
    "an acknowledged write is never lost; a completion is applied exactly once; "
    "a rollout has at most one live attempt, a thread at most one live run; agent code runs at least once"
)

# Commands that make environments or run the whole suite, and where they are tested instead.
COVERED = {
    "./dev run": "tests/test_dev_script.py makes environments, and tests/cli runs the demo",
    "./dev test": "it is what runs this test",
    "./dev docs": "tests/test_guide.py builds the guide",
    "./dev chaos": "tests/reliability runs the same at a small size",
    "perdure dev": "tests/cli/test_serve.py starts it and plays the demo",
    "perdure serve": "tests/cli/test_serve.py and tests/cli/test_supervisor.py",
    "perdure store": "tests/cli/test_serve.py",
    **dict.fromkeys(
        ("perdure start", "perdure stop", "perdure status", "perdure restart"),
        "tests/cli/test_daemon.py runs the commands of docs/daemon.md",
    ),
    "perdure worker": "tests/cli/test_worker_command.py",
    "pip install": "tests/test_dev_script.py holds the installation to its pins",
}


# The commands of these pages build on each other and on a server: tests/cli/test_page.py runs them.
SERVED = [
    README,
    *(
        DOCS / f"{name}.md"
        for name in (
            "cli",
            "runs",
            "workers",
            "items",
            "sessions",
            "webhooks",
            "memory",
            "outbox",
            "troubleshooting",
        )
    ),
    DOCS / "crons.md",
]
# tests/cli/test_tutorial.py runs the commands of this one, with a model behind a URL.
WITH_MODEL = DOCS / "tutorial.md"


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    language: str
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, found[1], found[2], text.count("\n", 0, found.start()) + 1)
        for found in BLOCK.finditer(text)
    ]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


ALL_BLOCKS = [block for page in PAGES for block in blocks_of(page)]
PYTHON_PAGES = [page for page in PAGES if any(block.language == "python" for block in blocks_of(page))]
COMMANDS = [
    pytest.param(line.partition("#")[0].strip(), id=f"{name_of(block.page)}: {line.strip()}")
    for block in ALL_BLOCKS
    if block.language == "sh"
    for line in block.text.splitlines()
    if line.partition("#")[0].strip()
    and not (block.page in (*SERVED, WITH_MODEL) and line.startswith("perdure "))
]


@pytest.mark.parametrize("page", ["workflows", "workers", "stores", "sessions", "memory"])
def test_long_pages_have_short_paragraphs(page: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / "docs" / f"{page}.md").read_text(), flags=re.DOTALL)
    paragraphs = [each.strip() for each in text.split("\n\n")]
    long = [each for each in paragraphs if len(each.split()) > MOST_WORDS and each[:1] not in "|-#"]
    assert long == []


def test_every_block_says_what_it_is() -> None:
    unknown = [f"{name_of(each.page)}:{each.line}" for each in ALL_BLOCKS if each.language not in LANGUAGES]
    assert unknown == []
    assert len(COMMANDS) >= 10
    assert len(PYTHON_PAGES) >= 6


def run_blocks(page: Path) -> None:
    """Run a page's Python from the top, with `await` allowed anywhere, as in `python -m asyncio`."""
    names: dict[str, object] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for block in blocks_of(page):
            if block.language == "python":
                padded = "\n" * block.line + block.text
                code = compile(padded, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                result = eval(code, names)
                if inspect.iscoroutine(result):
                    runner.run(result)


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=name_of)
def test_python_blocks_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    defaults = ServerProcess.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "popen", PythonProcess)
    if any("DATABASE_URL" in block.text for block in blocks_of(page)):
        monkeypatch.setenv("DATABASE_URL", request.getfixturevalue("postgres_url"))
    run_blocks(page)


def test_the_readme_example_is_short_and_prints_what_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = [block for block in blocks_of(README) if block.language == "python"]
    assert len(example.text.splitlines()) <= LONGEST_README_EXAMPLE
    run_blocks(README)
    printed = capsys.readouterr().out.strip()
    assert printed
    assert f"It prints `{printed}`" in README.read_text(encoding="utf-8")


def run_in(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run Python as a user of a checkout in `folder` would; the exit code, and what it says on stderr."""
    settings = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(folder)}
    command = [sys.executable, *arguments]
    process = PythonProcess(
        command, cwd=folder, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _, errors = process.communicate()
    return process.wait(), errors


@pytest.mark.parametrize("command", COMMANDS)
def test_shell_commands_run(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)
    if " ".join(words[:2]) in COVERED:
        return
    program = {"perdure": ("-m", "perdure.cli"), "python": ()}[words[0]]
    for folder in ("bench", "docs", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    # What is generated for type checkers stands beside the code.
    (tmp_path / "src" / "perdure" / "kernel").mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert run_in(tmp_path, *program, *words[1:]) == (0, "")


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_every_example_is_listed(example: Path) -> None:
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    name = example.relative_to(ROOT / "examples").as_posix()
    assert f"python examples/{name}" in listed
    assert f"]({name})" in listed


@pytest.mark.parametrize("page", [*regenerate.blocks(), *references.PAGES])
def test_what_is_generated_is_up_to_date(page: str) -> None:
    """If this fails: python docs/regenerate.py"""
    assert (DOCS / page).read_text(encoding="utf-8") == regenerate.page_as_generated(page)


@pytest.mark.parametrize("plot", [benchmarks.GOALS, benchmarks.RELEASES])
def test_the_plots_of_benchmarks_are_drawn_from_the_history(plot: str) -> None:
    """If this fails: python docs/regenerate.py"""
    assert (DOCS / plot).read_text(encoding="utf-8") == benchmarks.plots()[plot]


def test_every_machine_has_its_chart() -> None:
    charts = [block.text for block in blocks_of(DOCS / "state-machines.md") if block.language == "mermaid"]
    assert charts == [machine.chart() for machine in MACHINES]


def test_every_error_has_a_code_of_its_own_and_a_row() -> None:
    classes = regenerate.error_classes()
    assert len({each.code for each in classes}) == len(classes)
    table = (DOCS / "errors.md").read_text(encoding="utf-8")
    assert [each.__name__ for each in classes if f"| `{each.code}` | `{each.__name__}` |" not in table] == []


def test_every_setting_is_explained() -> None:
    explained = [name for meanings in references.ABOUT.values() for name in meanings]
    missing = sorted(set(references.setting_names()) - set(explained))
    assert missing == [], (
        f"say in ABOUT of docs/references.py what {missing} mean, then run docs/regenerate.py"
    )
    assert sorted(set(explained)) == sorted(explained)
    assert set(explained) <= set(references.setting_names())


def anchors_of(page: Path) -> set[str]:
    """The anchors that a reader's browser knows: headings in lower case, with dashes for spaces."""
    headings = HEADING.findall(BLOCK.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_dead(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / unquote(path) if path else page
    return not target.exists() or bool(anchor and anchor not in anchors_of(target))


@pytest.mark.parametrize("page", LINKED_PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    links = [link for link in LINK.findall(text) if not link.startswith(("https://", "mailto:"))]
    assert [link for link in links if is_dead(page, link)] == []


def test_every_page_is_linked() -> None:
    indexes = [README, DOCS / "index.md", DOCS / "adr" / "README.md"]
    linked = {
        (index.parent / link.partition("#")[0]).resolve()
        for index in indexes
        for link in LINK.findall(index.read_text(encoding="utf-8"))
    }
    assert [name_of(page) for page in DOCS.rglob("*.md") if page not in linked | {DOCS / "index.md"}] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_the_text_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    script = (ROOT / "dev").read_text(encoding="utf-8")
    ours = {name for commands in PANELS.values() for name in commands}
    assert [name for name in re.findall(r"\./dev (\w+)", text) if f"./dev {name} " not in script] == []
    assert set(re.findall(r"`perdure (\w+)", text)) <= ours


@pytest.mark.parametrize("page", [README, DOCS / "reliability.md", ROOT / "AGENTS.md"], ids=name_of)
def test_the_promise_is_the_same_everywhere(page: Path) -> None:
    assert PROMISE in page.read_text(encoding="utf-8").replace("An ack", "an ack")
