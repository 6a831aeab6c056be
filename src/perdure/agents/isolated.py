"""Agents in processes of their own: whatever they do there, they do to nobody else."""

from __future__ import annotations

import os
import sys

from perdure.agents.commands import MAX_LINE, Command

CHILD = "perdure.worker.child"
"""The program that runs one attempt of an agent."""


def isolated(path: str, *, directory: str | os.PathLike[str] | None = None) -> Command:
    """An agent that is imported by its path (`module:name` or `./file.py:name`) in a process of its own.

    ```python
    agents.register("careful", isolated("my_agents:careful"))
    ```

    Each attempt gets a process. It may block, exhaust its memory or be killed: the run ends with an error,
    and the worker goes on.
    """
    return Command([sys.executable, "-m", CHILD, path], cwd=directory, max_line=4 * MAX_LINE, whole=True)
