"""Isolated agents: one process per attempt, so that a crash or a blocking call affects no other run."""

from __future__ import annotations

import os
import sys

from perdure.agents.commands import MAX_LINE, Command
from perdure.agents.confinement import SandboxChoice

CHILD = "perdure.worker.child"
"""The program that runs one attempt of an agent."""


def isolated(
    path: str,
    *,
    directory: str | os.PathLike[str] | None = None,
    sandbox: SandboxChoice | None = None,
    network: bool = False,
    uid: int | str | None = None,
) -> Command:
    """An agent that a separate process imports by its path (`module:name` or `./file.py:name`).

    ```python
    agents.register("careful", isolated("my_agents:careful"))
    ```

    Each attempt gets a process. If it blocks, runs out of memory or is killed, the run ends with an error,
    and the worker continues. `sandbox`, `network` and `uid` are those of a `Command`.
    """
    argv, limit = [sys.executable, "-m", CHILD, path], 4 * MAX_LINE
    return Command(argv, cwd=directory, max_line=limit, whole=True, sandbox=sandbox, network=network, uid=uid)
