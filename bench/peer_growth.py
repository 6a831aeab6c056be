"""LangGraph's own checkpointer on SQLite. Run as `python -m bench.peer_growth` in its environment."""

import asyncio
import importlib
from pathlib import Path
from typing import Any

from bench.growth import grow, read
from bench.peer_loop import work_off


async def do(work: str, size: int, path: str | None) -> float:
    """Grow a thread in the file at `path`, and return its size in KiB, or the time of a read."""
    saver: Any = importlib.import_module("langgraph.checkpoint.sqlite").SqliteSaver
    assert path is not None
    with saver.from_conn_string(path) as opened:
        if work == "read":
            return read(opened, size)
        grow(opened, size)
    return _kibibytes(path)


def _kibibytes(path: str) -> float:
    return Path(path).stat().st_size / 1024


if __name__ == "__main__":
    asyncio.run(work_off(do))
