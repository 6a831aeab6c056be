"""Isolated agents: one process per attempt, so that a crash or a blocking call affects no other run."""

from __future__ import annotations

import os
import sys

from perdure.agents.commands import MAX_LINE, Command

CHILD = "perdure.worker.child"
"""The program that runs one attempt of an agent."""


def isolated(path: str, *, directory: str | os.PathLike[str] | None = None) -> Command:
    """An agent that a separate process imports by its path (`module:name` or `./file.py:name`).

    ```python
    agents.register("careful", isolated("my_agents:careful"))
    ```

    Each attempt gets a process. If it blocks, runs out of memory or is killed, the run ends with an error,
    and the worker continues.
    """
    return Command([sys.executable, "-m", CHILD, path], cwd=directory, max_line=4 * MAX_LINE, whole=True)
