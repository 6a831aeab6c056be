"""A peer in its own process, which does one job at a time; and Agent-lightning, the store's peer."""

import asyncio
import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.cpu import seconds_of_tree
from bench.environments import AGENTLIGHTNING, ROOT, Environment, PeerError, make_scratch

__all__ = ["PEER", "ROOT", "PeerError", "PeerProcess", "command", "ensure_environment", "make_scratch"]

PEER = AGENTLIGHTNING.title
MODULE = "bench.peer_agentlightning"


def ensure_environment() -> Path:
    """Create Agent-lightning's environment once, and return its Python."""
    return AGENTLIGHTNING.ensure()


def command(python: Path) -> list[str]:
    return [str(python), "-m", MODULE]


def variables() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


class PeerProcess:
    """A peer behind a pipe, where it sleeps while other sides are measured."""

    def __init__(self, environment: Environment = AGENTLIGHTNING, module: Sequence[str] = (MODULE,)) -> None:
        self._environment = environment
        self._module = module
        self._process: asyncio.subprocess.Process | None = None
        self._log = environment.folder / "peer.log"

    async def __aenter__(self) -> Self:
        python = await asyncio.to_thread(self._environment.ensure)
        with self._log.open("w") as log:
            self._process = await asyncio.create_subprocess_exec(
                str(python), "-m", *self._module, cwd=ROOT, env=variables(),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        try:
            await self.do("hello", 0)
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    def seconds(self) -> float:
        """Return the CPU time of the peer."""
        assert self._process is not None
        return seconds_of_tree(self._process.pid)

    async def do(self, work: str, size: int, url: str | None = None) -> float:
        """Do a work in the peer's process, or by its client on the server or database at `url`."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"work": work, "size": size, "url": url}).encode() + b"\n")
        with suppress(ConnectionError):
            await self._process.stdin.drain()
        answer = await self._process.stdout.readline()
        if not answer:
            raise PeerError(
                f"{self._environment.title} ended during {work}:\n{self._log.read_text()[-2000:]}"
            )
        return float(json.loads(answer)["figure"])
