"""Code that is imported anew, and what is said when it cannot be."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.agents.loading import import_target
from perdure.agents.project import PROJECT, explain_failure, files_below, imported_anew


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with a package of two modules."""
    package = tmp_path / "anew_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "word.py").write_text('WORD = "a"\n')
    (package / "main.py").write_text("from . import word\ndef say():\n    return word.WORD\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # The modules of these tests are on the path as well, and are not the project's.
    monkeypatch.setattr(PROJECT, "_list_folders", lambda: (f"{tmp_path}/",))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("anew_package")]:
        del sys.modules[name]


def said() -> Any:
    return import_target("anew_package.main:say")


def test_new_code_is_found_and_old_code_goes_on(folder: Path) -> None:
    old = said()
    # Three versions of one size within a second: bytecode would look the same.
    for letter in "bcd":
        file = folder / "anew_package" / "word.py"
        file.write_text(f'WORD = "{letter}"\n')
        with imported_anew([file]):
            assert said()() == letter
    assert (old(), said()()) == ("a", "d")


def test_an_error_puts_the_old_modules_back(folder: Path) -> None:
    say = said()
    before = {name: module for name, module in sys.modules.items() if name.startswith("anew_package")}
    (folder / "anew_package" / "word.py").write_text("import anew_package.more\nraise ValueError('no')\n")
    (folder / "anew_package" / "more.py").write_text("")
    with pytest.raises(ValueError, match="no"), imported_anew():
        said()
    after = {name: module for name, module in sys.modules.items() if name.startswith("anew_package")}
    assert after == before
    assert said() is say


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = (\n", "broken.py, line 1: SyntaxError: '(' was never closed"),
        ("\n1 / 0\n", "broken.py, line 2: ZeroDivisionError: division by zero"),
        ("raise SystemExit\n", "broken.py, line 1: SystemExit"),
        ("import json\njson.loads('{')\n", "broken.py, line 2: JSONDecodeError: Expecting property name"),
        ("import no_such_thing\n", "broken.py, line 1: ModuleNotFoundError: No module named 'no_such_thing'"),
        (
            "raise ModuleNotFoundError(\"No module named 'asyncpg_x'\", name='langgraph.no_such_part')\n",
            "broken.py, line 1: ModuleNotFoundError: No module named 'asyncpg_x'",
        ),
        (
            "import claude_agent_sdk\n",
            "broken.py, line 1: ModuleNotFoundError: No module named 'claude_agent_sdk'; "
            "pip install 'perdure[claude-agent]'",
        ),
    ],
)
def test_a_failure_names_its_file_its_line_and_what_to_install(
    folder: Path, code: str, expected: str
) -> None:
    (folder / "broken.py").write_text(code)
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - each code raises another
        import_target("./broken.py:x", folder)
    assert explain_failure(raised.value).startswith(expected)


def test_the_files_of_environments_are_not_looked_at(tmp_path: Path) -> None:
    for name in ("a.py", "b/c.py", ".venv/d.py", "node_modules/e.py", "b/__pycache__/f.py", "g.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b" / "loop").symlink_to(tmp_path)
    found = [path.relative_to(tmp_path).as_posix() for path in files_below([tmp_path, tmp_path / "none"])]
    assert sorted(found) == ["a.py", "b/c.py"]
