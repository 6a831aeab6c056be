"""The sections of a langgraph.json beside its graphs: auth is loaded, and what is not supported is named."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.agents.sections import ThreadTtl, load_auth, load_thread_ttl, unsupported
from perdure.kernel.errors import InvalidInput


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """What loading adds to the process is taken away again."""
    path, modules, environment = list(sys.path), set(sys.modules), dict(os.environ)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    os.environ.clear()
    os.environ.update(environment)


def written(folder: Path, **sections: Any) -> Path:
    (folder / "langgraph.json").write_text(json.dumps(sections), encoding="utf-8")
    return folder


def test_without_a_file_or_a_section_there_is_no_auth(tmp_path: Path) -> None:
    assert load_auth(tmp_path) is None
    assert load_auth(written(tmp_path, graphs={})) is None
    assert unsupported(tmp_path) == []


def test_auth_is_loaded_with_the_variables_that_it_needs(tmp_path: Path) -> None:
    (tmp_path / "helper_of_auth.py").write_text("WORD = 'open'")
    code = "import os\nfrom helper_of_auth import WORD\nauth = (WORD, os.environ['NAME_OF_THE_KEY'])"
    (tmp_path / "guard.py").write_text(code)
    written(tmp_path, auth={"path": "./guard.py:auth"}, env={"NAME_OF_THE_KEY": "sesame"}, dependencies=["."])
    assert load_auth(tmp_path) == ("open", "sesame")


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({}, "needs a path"),
        ("./auth.py:auth", "needs a path"),
        ({"path": 5}, "needs a path"),
        ({"path": "./nowhere.py:auth"}, "there is no file"),
        ({"path": "./broken.py:auth"}, "ZeroDivisionError"),
        ({"path": "./leaving.py:auth"}, "SystemExit"),
        ({"path": "./empty.py:auth"}, "there is no 'auth'"),
    ],
)
def test_auth_that_cannot_be_loaded_is_an_error(tmp_path: Path, section: Any, words: str) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "leaving.py").write_text("raise SystemExit(0)")
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(InvalidInput, match=words):
        load_auth(written(tmp_path, auth=section))


def test_a_file_that_cannot_be_read_lets_nothing_through(tmp_path: Path) -> None:
    (tmp_path / "langgraph.json").write_text("{")
    with pytest.raises(InvalidInput, match="it is not JSON"):
        load_auth(tmp_path)
    assert unsupported(tmp_path) == []


def test_what_is_not_supported_is_named_with_what_to_do_instead(tmp_path: Path) -> None:
    written(
        tmp_path,
        graphs={},
        dependencies=[".", "msgspec>=0.20", "no-such-package-here[all]>=1"],
        env={},
        store={"ttl": {}},
        auth={"path": "./auth.py:auth", "disable_studio_auth": True, "openapi": {}},
        http={"unheard_of": 1},
        checkpointer={"path": "./saver.py:saver", "ttl": {"default_ttl": 5}},
        encryption={"path": "x"},
        ui={},
        webhooks={"url": {}},
        python_version="3.11",
        dockerfile_lines=[],
        novelty=True,
    )
    found = [each.partition("langgraph.json: ")[2] for each in unsupported(tmp_path)]
    assert found == [
        "encryption is not supported here: encrypt the disk, or the database",
        "novelty is not supported here",
        "auth.openapi is not supported here",
        "checkpointer.path is not supported here: states are kept in perdure's own database",
        "dependencies: no-such-package-here is not installed, and perdure installs nothing",
    ]


def test_how_long_threads_live(tmp_path: Path) -> None:
    assert load_thread_ttl(tmp_path) == ThreadTtl()
    written(tmp_path, checkpointer={"ttl": {"default_ttl": 5, "sweep_interval_minutes": 1}})
    assert load_thread_ttl(tmp_path) == ThreadTtl(default_ttl=5, strategy="delete")
    for wrong in ({"default_ttl": -1}, {"default_ttl": "long"}, {"strategy": "forget"}, 7):
        written(tmp_path, checkpointer={"ttl": wrong})
        with pytest.raises(InvalidInput, match=r"checkpointer\.ttl"):
            load_thread_ttl(tmp_path)
