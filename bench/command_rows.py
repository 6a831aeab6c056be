"""CPU time of client commands on their machine."""

import asyncio
import os
import sys
from functools import partial
from statistics import median

from bench.host import Host
from bench.measures import Figures, Measure, Row
from bench.run_servers import agent_server
from bench.sizes import Sizes

TARGET = 400.0
TIMES = 5
COMMANDS = {
    "version": "--version",
    "help": "--help",
    "run": "run list",
    "rollout": "rollout list",
    "span": "span list last",
    "why": "why last",
    "workflow": "workflow list",
    "approval": "approval list",
}
"""The commands, by the names of their rows."""


def measures(sizes: Sizes) -> list[Measure]:
    """Build a row for each command, with one server."""
    rows = tuple(
        Row(
            f"command/{name}",
            f"CPU of `perdure {command}`, user and system; raw: an empty program",
            "ms",
            "lower",
            target=TARGET,
        )
        for name, command in COMMANDS.items()
    )
    return [Measure(rows, partial(_figures, times=TIMES if sizes.rounds > 1 else 1))]


async def _figures(host: Host, times: int) -> list[Figures]:
    async with agent_server(host, "sqlite", {}) as server:
        environ = {each: value for each, value in os.environ.items() if each != "PYTHONDONTWRITEBYTECODE"}
        environ["PERDURE_URL"] = server.url
        await _cpu([sys.executable, "-m", "perdure.cli", "rollout", "enqueue", "1"], environ)
        empty = [await _cpu([sys.executable, "-c", ""], environ) for _ in range(times)]
        found: list[Figures] = []
        for command in COMMANDS.values():
            words = [sys.executable, "-m", "perdure.cli", *command.split()]
            # The first run writes the bytecode.
            await _cpu(words, environ)
            taken = [await _cpu(words, environ) for _ in range(times)]
            found.append({"ours": median(taken), "raw": median(empty)})
        return found


async def _cpu(words: list[str], environ: dict[str, str]) -> float:
    """Return the milliseconds of CPU of a command."""
    return await asyncio.to_thread(_run, words, environ)


def _run(words: list[str], environ: dict[str, str]) -> float:
    null = os.open(os.devnull, os.O_RDWR)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, null, 1)]
        pid = os.posix_spawn(words[0], words, environ, file_actions=actions)
        _, status, used = os.wait4(pid, 0)
    finally:
        os.close(null)
    if os.waitstatus_to_exitcode(status) != 0:
        raise RuntimeError(f"{' '.join(words)} failed")
    return 1000 * (used.ru_utime + used.ru_stime)
