"""The section `store` of a langgraph.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.agents.sections import ItemSetup, load_items
from perdure.items.records import ItemPolicy


def read(folder: Path, store: Any) -> ItemSetup:
    (folder / "langgraph.json").write_text(json.dumps({"graphs": {}, "store": store}), encoding="utf-8")
    return load_items(folder)


def test_without_a_file_or_a_section_all_is_as_usual(tmp_path: Path) -> None:
    assert load_items(tmp_path) == ItemSetup()
    assert read(tmp_path, None) == ItemSetup()
    (tmp_path / "langgraph.json").write_text("{")
    assert load_items(tmp_path) == ItemSetup()


def test_how_long_items_last(tmp_path: Path) -> None:
    ttl = {"default_ttl": 60, "refresh_on_read": False, "sweep_interval_minutes": 5, "other": 1}
    policy = ItemPolicy(default_ttl=60, refresh_on_read=False, sweep_interval_minutes=5)
    assert read(tmp_path, {"ttl": ttl}) == ItemSetup(policy)
    assert read(tmp_path, {"ttl": {"default_ttl": None}}) == ItemSetup()


async def test_how_items_are_searched(tmp_path: Path) -> None:
    (tmp_path / "vectors.py").write_text("def embed(texts):\n    return [[1.0, 0.0] for _ in texts]\n")
    index = {"dims": 2, "embed": "./vectors.py:embed", "fields": ["text"]}
    found = read(tmp_path, {"index": index})
    assert found.failures == ()
    assert found.index is not None
    assert (found.index.dims, found.index.fields) == (2, ("text",))
    assert list(await found.index.of_query("x")) == [1.0, 0.0]


def test_the_name_of_a_model_needs_langchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langchain.embeddings", None)
    (failure,) = read(tmp_path, {"index": {"embed": "nobody:knows-this"}}).failures
    assert "if it is the name of a model, install langchain" in failure


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ([1], "store must be an object"),
        ({"path": "./store.py:store"}, "store.path is not supported here"),
        ({"ttl": {"default_ttl": "soon"}}, "store.ttl: Expected `float | null`"),
        ({"ttl": {"default_ttl": 0}}, "store.ttl: default_ttl is 0"),
        ({"index": {"dims": 2}}, "store.index: Object missing required field `embed`"),
        ({"index": {"embed": "./none.py:embed"}}, "store.index: embed './none.py:embed' cannot be loaded"),
        ({"index": {"embed": "nobody:knows-this"}}, "embed 'nobody:knows-this' cannot be loaded"),
        ({"index": {"embed": "math:pi"}}, "embed must be a function"),
    ],
)
def test_what_is_wrong_is_told_by_its_name(tmp_path: Path, store: Any, message: str) -> None:
    (failure,) = read(tmp_path, store).failures
    assert message in failure
    assert failure.startswith(str(tmp_path / "langgraph.json"))
