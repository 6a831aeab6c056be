"""A real PgBouncer for tests, in transaction mode before a PostgreSQL.

Its program is the system's, or that of the Debian package, which is unpacked into the environment of the
tests at its first use: nothing is installed, and no permission is needed.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

from perdure.testing.binaries import ServerNotFound
from perdure.testing.processes import Guard
from perdure.testing.servers import free_port

PLACE = Path(sys.prefix) / "share" / "perdure-tests" / "pgbouncer"
NEEDED = re.compile(r"^\s*Depends: (libevent[-\w.]*|libc-ares2\w*|libcares2\w*)$", re.MULTILINE)


def find_pgbouncer() -> tuple[Path, dict[str, str]]:
    """Return the program, and the variables that it needs."""
    found = shutil.which("pgbouncer", path=os.environ.get("PATH", os.defpath) + ":/usr/sbin")
    if found is not None:
        return Path(found), {}
    program = PLACE / "usr" / "sbin" / "pgbouncer"
    if not program.exists():
        PLACE.parent.mkdir(parents=True, exist_ok=True)
        with (PLACE.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not program.exists():
                _unpack()
    libraries = ":".join(map(str, PLACE.glob("usr/lib/*")))
    return program, {"LD_LIBRARY_PATH": libraries}


def _unpack() -> None:
    """Download the package and the libraries that it needs, and unpack them."""
    with tempfile.TemporaryDirectory(dir=PLACE.parent) as folder:
        home = Path(folder)
        try:
            own = _package_lists(home)
            _download(home, own)
            for package in home.glob("*.deb"):
                _call(home, "dpkg", "-x", str(package), str(home / "root"))
        except (OSError, subprocess.CalledProcessError) as error:
            said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
            raise ServerNotFound(
                f"Found no PgBouncer, and its Debian package cannot be had: {said}. Install it "
                "(apt install pgbouncer, brew install pgbouncer)."
            ) from error
        (home / "root").rename(PLACE)


def _package_lists(home: Path) -> list[str]:
    """Return the options under which apt knows the package: our own lists if the system has none."""
    known = _call(home, "apt-cache", "policy", "pgbouncer")
    if "Candidate:" in known and "Candidate: (none)" not in known:
        return []
    (home / "lists" / "partial").mkdir(parents=True)
    (home / "cache" / "archives" / "partial").mkdir(parents=True)
    own = ["-o", f"Dir::State::lists={home / 'lists'}", "-o", f"Dir::Cache={home / 'cache'}"]
    _call(home, "apt-get", *own, "update")
    return own


def _download(home: Path, own: list[str]) -> None:
    libraries = NEEDED.findall(_call(home, "apt-cache", *own, "depends", "pgbouncer"))
    _call(home, "apt-get", *own, "download", "pgbouncer", *libraries)


def _call(home: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout


class PgBouncer:
    """PgBouncer before the server of a URL: `with PgBouncer(url) as bouncer: bouncer.url`."""

    def __init__(self, url: str, *, pool_mode: str = "transaction", pool_size: int = 5) -> None:
        self._server = urlsplit(url)
        self._options = f"pool_mode = {pool_mode}\ndefault_pool_size = {pool_size}\n"
        self._program, self._variables = find_pgbouncer()
        self.port = free_port()
        self.url = urlunsplit(
            self._server._replace(netloc=self._server.netloc.rpartition(":")[0] + f":{self.port}")
        )

    def __enter__(self) -> Self:
        self._home = Path(tempfile.mkdtemp(prefix="perdure-pgbouncer-"))
        self._guard = Guard(self._home)
        self._home.chmod(0o755)
        (self._home / "users").write_text(f'"{self._server.username}" "{self._server.password}"\n')
        (self._home / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={self._server.hostname} port={self._server.port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {self._home / 'users'}\nmax_client_conn = 500\n" + self._options
        )
        # PgBouncer refuses to run as root.
        user = ["-u", "nobody"] if os.getuid() == 0 else []
        self._process = subprocess.Popen(
            [self._program, *user, str(self._home / "pgbouncer.ini")],
            env={**os.environ, **self._variables},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._guard.watch(self._process.pid)
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if "process up" in line:
                return self
        raise RuntimeError(f"PgBouncer did not start: exit code {self._process.wait()}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.communicate(timeout=30)
        self._guard.close()
