"""Real servers for tests, without containers: a private PostgreSQL to start, crash and restart.

A server has a temporary directory and its own port. If this process is killed, a guard ends the server and
removes the directory. POSIX only.
"""

import asyncio
import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlsplit, urlunsplit

from perdure.testing.binaries import (
    URL_VARIABLE,
    WHEEL,
    PostgresBinaries,
    ServerNotFound,
    find,
    find_all,
    given_url,
)
from perdure.testing.processes import Guard, kill_tree

__all__ = [
    "URL_VARIABLE",
    "PostgresBinaries",
    "PostgresServer",
    "ServerFailed",
    "ServerNotFound",
    "create_database",
    "drop_database",
    "find",
    "find_all",
    "free_port",
    "given_url",
    "with_database",
]

_USER = "perdure"
# Below the ephemeral range: a client that retries a closed ephemeral port on loopback can connect to itself.
_PORTS = range(10_240, 32_000)
_FIRST_WITH_ITERATIONS = 16
"""The first release that can configure the number of password hash iterations."""
_START_SECONDS = 60.0
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.01


class ServerFailed(RuntimeError):
    """Raised if a server did not start or stop; the message ends with its log."""


def create_database(server_url: str, name: str, template: str | None = None) -> None:
    """Create a database on the server. This also works under a running event loop."""
    _administer(server_url, "CREATE DATABASE %I TEMPLATE %I", name, template or "template0")


def drop_database(server_url: str, name: str) -> None:
    """Drop a database if it exists, and close its connections."""
    _administer(server_url, "DROP DATABASE IF EXISTS %I WITH (FORCE)", name)


def with_database(server_url: str, name: str) -> str:
    """Return the server's URL with another database."""
    return urlunsplit(urlsplit(server_url)._replace(path="/" + quote(name, safe="")))


def _administer(server_url: str, command: str, *identifiers: str) -> None:
    # Use a separate thread, because the caller's may run an event loop.
    with ThreadPoolExecutor(1, "postgres-administration") as pool:
        pool.submit(asyncio.run, _send(server_url, command, identifiers)).result()


async def _send(server_url: str, command: str, identifiers: tuple[str, ...]) -> None:
    import asyncpg

    connection = await asyncpg.connect(server_url, timeout=30, command_timeout=60)
    try:
        text = await connection.fetchval("SELECT format($1, VARIADIC $2::text[])", command, list(identifiers))
        await connection.execute(text)
    finally:
        await connection.close()


class PostgresServer:
    """A private PostgreSQL cluster: `with PostgresServer() as server: server.url("postgres")`.

    The first `start` creates the cluster. `stop`, `crash` and `kill` keep data and port for the next `start`;
    `close` removes everything.
    """

    def __init__(
        self,
        binaries: PostgresBinaries | None = None,
        *,
        fsync: bool = True,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.binaries = binaries or find()
        self._fsync = fsync
        self._settings = dict(settings or {})
        self._password = secrets.token_hex(16)
        self._home: Path | None = None
        self._programs = self.binaries.directory
        self._guard: Guard | None = None
        self._postmaster: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def label(self) -> str:
        return self.binaries.label

    @property
    def home(self) -> Path:
        """The temporary directory with data, socket and log."""
        if self._home is None:
            raise ServerFailed("The server has not been started.")
        return self._home

    @property
    def pid(self) -> int | None:
        """The postmaster's pid while it runs."""
        return self._postmaster.pid if self._postmaster and self._postmaster.poll() is None else None

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database over TCP."""
        return f"postgresql://{_USER}:{self._password}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def socket_url(self, database: str = "postgres") -> str:
        """Return the URL of a database over the unix socket."""
        name = quote(database, safe="")
        return f"postgresql://{_USER}:{self._password}@/{name}?host={quote(str(self.home))}&port={self.port}"

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create a database and return its URL."""
        create_database(self.url(), name, template)
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database if it exists, with its connections."""
        drop_database(self.url(), name)

    def start(self) -> Self:
        """Start, or recover after a crash, and return when connections are accepted."""
        if self.pid is not None:
            return self
        if self._home is None:
            self._create()
        else:
            self._launch()
        return self

    def stop(self) -> None:
        """Stop cleanly: close connections, roll back transactions, write a checkpoint."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """Stop at once without a checkpoint (PostgreSQL's immediate mode); the next start recovers."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """SIGKILL the postmaster and its processes, as a power cut would."""
        if self._postmaster is not None:
            kill_tree(self._postmaster.pid)
            self._reap(self._postmaster)

    def restart(self) -> Self:
        """Stop cleanly and start again on the same data and port."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stop, and remove the cluster."""
        try:
            self.stop()
        finally:
            if self._guard is not None:
                self._guard.close()
            self._guard = self._home = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def log(self) -> str:
        """Return the last lines of the server's log."""
        path = self.home / "server.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-40:]) if path.exists() else ""

    def _create(self) -> None:
        self._home = _make_home()
        self._guard = Guard(self._home)
        try:
            self._programs = _readable_programs(self.binaries, self._home)
            self._initialise()
            self._launch_on_a_free_port()
        except BaseException:
            self.close()
            raise

    def _initialise(self) -> None:
        secret = self.home / "password"
        secret.write_text(self._password)
        _give_away(secret)
        options = ["--no-sync", "--encoding=UTF8", "--locale=C", "--auth=scram-sha-256", f"--pwfile={secret}"]
        if self.binaries.major >= _FIRST_WITH_ITERATIONS:
            # A random password needs no key stretching, which every connection would compute.
            options.append("--set=scram_iterations=1")
        process = self._spawn("initdb", "-D", str(self.home / "data"), "-U", _USER, *options)
        if process.wait(_START_SECONDS) != 0:
            raise ServerFailed(f"initdb failed.\n{self.log()}")
        secret.unlink()

    def _launch_on_a_free_port(self) -> None:
        for last in (False, False, True):
            self.port = free_port()
            try:
                self._launch()
                return
            except ServerFailed as failure:
                if last or "could not bind" not in str(failure):
                    raise

    def _launch(self) -> None:
        parameters = [f"--{name}={value}" for name, value in self._parameters().items()]
        self._postmaster = self._spawn("postgres", "-D", str(self.home / "data"), *parameters)
        deadline = time.monotonic() + _START_SECONDS
        while not self._ready(self._postmaster.pid):
            if self._postmaster.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise ServerFailed(f"{self.label} did not start on port {self.port}.\n{self.log()}")
            time.sleep(_POLL_SECONDS)

    def _parameters(self) -> dict[str, str]:
        return {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.home),
            "max_connections": "200",
            "shared_buffers": "64MB",
            "timezone": "UTC",
            "fsync": "on" if self._fsync else "off",
            "full_page_writes": "on" if self._fsync else "off",
            **self._settings,
        }

    def _ready(self, pid: int) -> bool:
        # Line 1 is the postmaster's pid and line 8 its state; a crash leaves an old file behind.
        path = self.home / "data" / "postmaster.pid"
        lines = path.read_text().splitlines() if path.exists() else []
        return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"

    def _spawn(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.home / "server.log").open("ab") as log:
            process = subprocess.Popen(
                [self._programs / program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.home,
                env={"LC_ALL": "C", "PATH": os.defpath},
                start_new_session=True,
                **_account(),
            )
        if self._guard is not None:
            self._guard.watch(process.pid)
        return process

    def _end(self, how: signal.Signals) -> None:
        process = self._postmaster
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
        self._reap(process)

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired as late:
            kill_tree(process.pid)
            process.wait()
            raise ServerFailed(f"{self.label} had to be killed.\n{self.log()}") from late
        finally:
            self._postmaster = None


def _account() -> dict[str, Any]:
    """Return the account for PostgreSQL: our own, or an unprivileged one if we are root, which it refuses."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise ServerNotFound("PostgreSQL refuses to run as root, and there is no user postgres or nobody.")


def _give_away(path: Path) -> None:
    account = _account()
    if account:
        os.chown(path, account["user"], account["group"], follow_symlinks=False)


def _make_home() -> Path:
    parent = Path(tempfile.gettempdir())
    # The path of a socket has at most about 100 characters, and the account must reach all its folders.
    if len(str(parent)) > 60 or not all(path.stat().st_mode & 1 for path in (parent, *parent.parents)):
        parent = Path("/tmp")
    home = Path(tempfile.mkdtemp(prefix="perdure-pg-", dir=parent))
    _give_away(home)
    return home


def _readable_programs(binaries: PostgresBinaries, home: Path) -> Path:
    """Return a folder of programs that the account can run: the installation's, or a copy in `home`."""
    if _can_run(binaries.directory):
        return binaries.directory
    if binaries.origin != "wheel":
        raise ServerNotFound(f"{binaries.directory} cannot be read by the user that PostgreSQL runs as.")
    package = binaries.directory.parent.parent
    shutil.copytree(package / "pginstall", home / WHEEL / "pginstall", symlinks=True)
    libraries = package.parent / f"{WHEEL}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, home / libraries.name, symlinks=True)
    for path in home.rglob("*"):
        _give_away(path)
    return home / WHEEL / "pginstall" / "bin"


def _can_run(directory: Path) -> bool:
    command = [str(directory / "initdb"), "--version"]
    try:
        answer = subprocess.run(command, capture_output=True, cwd="/", check=False, **_account())
    except PermissionError:
        return False
    return answer.returncode == 0


def free_port() -> int:
    """Find a port of 127.0.0.1 without a listener."""
    for port in random.Random(secrets.randbits(64)).sample(_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServerFailed("No free port was found on 127.0.0.1.")
