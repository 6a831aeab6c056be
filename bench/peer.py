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
PINS = Path(__file__).with_name("peer-constraints.txt")


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
    """Make the peer's environment once, and return its Python. What it installs is pinned."""
    stamp = ENVIRONMENT / "installed"
    contents = f"{PEER}\n{PINS.read_text()}"
    if not stamp.exists() or stamp.read_text() != contents:
        print(f"installing {PEER} into {ENVIRONMENT.relative_to(ROOT)}; it is large", file=sys.stderr)
        make_scratch()
        _install()
        stamp.write_text(contents)
    return environment_python()


def _install() -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
    for pins in (["--constraint", str(PINS)], []):
        if any(_run(command, pins) for command in _installers()):
            return
        # The pins are of one platform; on another the peer's own bounds have to do.
        print(f"{PEER} with its pinned dependencies cannot be installed here", file=sys.stderr)
    raise PeerError(f"{PEER} could not be installed; ./dev bench --no-peer leaves it out")


def _installers() -> list[list[str]]:
    python = str(environment_python())
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    uv = shutil.which("uv", path=places)
    pip = [python, "-m", "pip", "install", "--progress-bar", "off", "--disable-pip-version-check"]
    return [[uv, "pip", "install", "--python", python], pip] if uv else [pip]


def _run(command: list[str], pins: list[str]) -> bool:
    # What it prints is progress; standard output belongs to results.
    return subprocess.run([*command, *pins, PEER], stdout=sys.stderr, check=False).returncode == 0


def command(python: Path) -> list[str]:
    return [str(python), "-m", "bench.peer_agentlightning"]


def variables() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


class PeerProcess:
    """The peer, one job at a time; it sleeps on its pipe while the others are measured."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._log = ENVIRONMENT / "peer.log"

    async def __aenter__(self) -> Self:
        python = await asyncio.to_thread(ensure_environment)
        with self._log.open("w") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command(python), cwd=ROOT, env=variables(),
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

    async def do(self, work: str, size: int, url: str | None = None) -> float:
        """Have a work done, in the peer's process or by its client on the server at `url`."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"work": work, "size": size, "url": url}).encode() + b"\n")
        await self._process.stdin.drain()
        answer = await self._process.stdout.readline()
        if not answer:
            raise PeerError(f"the peer ended during {work}:\n{self._log.read_text()[-2000:]}")
        return float(json.loads(answer)["figure"])
