"""The project that tests of the LangGraph door serve: a langgraph.json, and the graphs that it names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GRAPHS = (
    "noop",
    "steps",
    "chat",
    "approval",
    "nested",
    "nested_approval",
    "failing",
    "slow",
    "given",
    "plain",
    "telling",
    "stairs",
    "stumbling",
    "remembering",
)


def project(folder: Path, graphs: tuple[str, ...] = GRAPHS, **sections: Any) -> Path:
    """A folder with a langgraph.json and the graphs that it names."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "graphs.py", folder / "graphs.py")
    content = {"dependencies": ["."], "graphs": {name: f"./graphs.py:{name}" for name in graphs}, **sections}
    (folder / "langgraph.json").write_text(json.dumps(content), encoding="utf-8")
    return folder
