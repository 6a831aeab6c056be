"""The project for tests of the LangGraph protocol: a langgraph.json and its graphs."""

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
    "gated",
)


CALLING = ("configured", "asking", "asking_in_a_thread", "remote")
"""The graphs in `calling_graphs`."""


def project(folder: Path, graphs: tuple[str, ...] = GRAPHS, **sections: Any) -> Path:
    """Create a folder with a langgraph.json and its graphs."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("graphs.py", "calling_graphs.py"):
        shutil.copy(HERE / file, folder / file)
    files = {name: "calling_graphs" if name in CALLING else "graphs" for name in graphs}
    named = {name: f"./{file}.py:{name}" for name, file in files.items()}
    content = {"dependencies": ["."], "graphs": named, **sections}
    (folder / "langgraph.json").write_text(json.dumps(content), encoding="utf-8")
    return folder
