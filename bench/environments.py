"""The peers' environments: each peer is installed once, on demand, into its own folder."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRATCH = ROOT / ".bench"
PINS = Path(__file__).with_name("constraints")


class PeerError(RuntimeError):
    """Raised if a peer could not be installed, or ended before it answered."""


def make_scratch() -> Path:
    """Return the folder for environments and databases; git ignores it."""
    SCRATCH.mkdir(exist_ok=True)
    (SCRATCH / ".gitignore").write_text("*\n")
    return SCRATCH


@dataclass(frozen=True)
class Environment:
    """A peer's packages, named after the first one; their dependencies are pinned."""

    name: str
    packages: tuple[str, ...]
    pinned: bool = True
    """Whether its dependencies are pinned; otherwise it gets the newest releases, as a new user does."""

    @property
    def title(self) -> str:
        return self.packages[0]

    @property
    def version(self) -> str:
        return self.title.rpartition("==")[2]

    @property
    def folder(self) -> Path:
        return SCRATCH / f"{self.name}-{self.version}"

    @property
    def pins(self) -> Path:
        return PINS / f"{self.name}.txt"

    def program(self, name: str) -> Path:
        """Return the path of a program in this environment."""
        return self.folder / (f"Scripts/{name}.exe" if os.name == "nt" else f"bin/{name}")

    def ensure(self) -> Path:
        """Create the environment if it is missing, and return its Python."""
        stamp = self.folder / "installed"
        contents = "\n".join((*self.packages, self.pins.read_text() if self.pinned else ""))
        if not stamp.exists() or stamp.read_text() != contents:
            print(f"installing {self.title} into {self.folder.relative_to(ROOT)}", file=sys.stderr)
            make_scratch()
            self._install()
            stamp.write_text(contents)
        return self.program("python")

    def _install(self) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(self.folder)], check=True)
        for pins in [["--constraint", str(self.pins)], []] if self.pinned else [[]]:
            if any(self._run(command, pins) for command in self._installers()):
                return
            # The pins are for one platform; elsewhere the peer's own bounds apply.
            print(f"{self.title} with its pinned dependencies cannot be installed here", file=sys.stderr)
        raise PeerError(f"{self.title} could not be installed; ./dev bench --no-peer leaves it out")

    def _installers(self) -> list[list[str]]:
        python = str(self.program("python"))
        places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        uv = shutil.which("uv", path=places)
        pip = [python, "-m", "pip", "install", "--progress-bar", "off", "--disable-pip-version-check"]
        return [[uv, "pip", "install", "--python", python], pip] if uv else [pip]

    def _run(self, command: list[str], pins: list[str]) -> bool:
        # Progress goes to standard error, because standard output is for results.
        words = [*command, *pins, *self.packages]
        return subprocess.run(words, stdout=sys.stderr, check=False).returncode == 0


AGENTLIGHTNING = Environment("agentlightning", ("agentlightning==0.3.0",))
PGQUEUER = Environment("pgqueuer", ("pgqueuer==1.6.0", "asyncpg"))
PROCRASTINATE = Environment("procrastinate", ("procrastinate==3.10.0", "psycopg[binary,pool]"))
DBOS = Environment("dbos", ("dbos==3.3.0", "psycopg[binary]"))
LANGGRAPH = Environment("langgraph", ("langgraph-cli[inmem]==0.4.40", "langgraph-api==0.16.7"))
LANGGRAPH_SQLITE = Environment(
    "langgraph_sqlite", ("langgraph-checkpoint-sqlite==3.1.2", "langgraph==1.2.20")
)
AEGRA = Environment("aegra", ("aegra-api==0.6.0", "greenlet"))
