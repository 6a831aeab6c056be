"""The peer's environment, made on demand, and the process that runs it."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

PEER = "agentlightning==0.3.0"
ROOT = Path(__file__).resolve().parent.parent
SCRATCH = ROOT / ".bench"
ENVIRONMENT = SCRATCH / PEER.replace("==", "-")


class PeerError(RuntimeError):
    """The peer could not be installed, or ended before it answered."""


def make_scratch() -> Path:
    """The folder for environments and databases; it tells git to ignore it."""
    SCRATCH.mkdir(exist_ok=True)
    (SCRATCH / ".gitignore").write_text("*\n")
    return SCRATCH


def environment_python() -> Path:
    return ENVIRONMENT / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def ensure_environment() -> Path:
    """Make the peer's environment once, and return its Python."""
    stamp = ENVIRONMENT / "installed"
    if not stamp.exists():
        print(f"installing {PEER} into {ENVIRONMENT.relative_to(ROOT)}", file=sys.stderr)
        make_scratch()
        _install()
        stamp.write_text(PEER + "\n")
    return environment_python()


def _install() -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
    target = ["--python", str(environment_python())]
    uv = shutil.which(
        "uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    )
    if uv and subprocess.run([uv, "pip", "install", "--quiet", *target, PEER], check=False).returncode == 0:
        return
    pip = subprocess.run([str(environment_python()), "-m", "pip", "install", "--quiet", PEER], check=False)
    if pip.returncode:
        raise PeerError(f"{PEER} could not be installed; run with --no-peer to leave it out")


class PeerProcess:
    """The peer, one job at a time; it sleeps on its pipe while the others are measured."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._log = ENVIRONMENT / "peer.log"

    async def __aenter__(self) -> Self:
        python = await asyncio.to_thread(ensure_environment)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        with self._log.open("w") as log:
            self._process = await asyncio.create_subprocess_exec(
                str(python), "-m", "bench.peer_agentlightning", cwd=ROOT, env=environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        await self.do("hello", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def do(self, work: str, size: int) -> float:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"work": work, "size": size}).encode() + b"\n")
        await self._process.stdin.drain()
        answer = await self._process.stdout.readline()
        if not answer:
            raise PeerError(f"the peer ended during {work}:\n{self._log.read_text()[-2000:]}")
        return float(json.loads(answer)["figure"])
