"""The servers of a test run, started once by the process that controls it, and a database for each test."""

import json
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import NamedTuple

import httpx._transports.default
import hypothesis
import pytest
from tests.support import unsteady
from tests.support.databases import Databases
from tests.support.redis_cluster import redis_cluster
from tests.support.reporting import DearestFiles, FastSelection

from perdure.testing import redis_server, servers

# xdist's workers are told of the servers by the environment that they inherit.
_VARIABLE = "PERDURE_TEST_SERVERS"
_REDIS_VARIABLE = "PERDURE_TEST_REDIS"


SQLITE = "sqlite"


class Server(NamedTuple):
    """A server that this run proves the stores against."""

    label: str
    url: str


_RUNNING = pytest.StashKey[ExitStack]()
_SERVERS = pytest.StashKey[list[Server]]()
_REDIS = pytest.StashKey[Server | None]()

# Each client would read the certificates of the system anew, which takes longer than most tests.
_HTTPX = vars(httpx._transports.default)
_HTTPX["create_ssl_context"] = cache(_HTTPX["create_ssl_context"])

hypothesis.settings.register_profile("perdure", deadline=None, print_blob=True)
hypothesis.settings.load_profile("perdure")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--servers",
        choices=("first", "all"),
        default="first",
        help="run the tests of stores on the first server found, or on all",
    )
    parser.addoption(
        "--fast",
        action="store_true",
        help="run on SQLite alone, without servers and without what takes long",
    )
    parser.addoption(
        "--dearest-files",
        type=int,
        metavar="N",
        default=0,
        help="print the N files whose tests took the most CPU time",
    )
    unsteady.add_options(parser)


def _heed_signals() -> None:
    """Whoever starts the tests in the background may ignore these, and each child would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    _heed_signals()
    unsteady.register(config)
    if config.getoption("--dearest-files"):
        config.pluginmanager.register(DearestFiles(config.getoption("--dearest-files")))
    if config.getoption("--fast"):
        config.pluginmanager.register(FastSelection())
    elif not hasattr(config, "workerinput") and _runs_tests(config):
        config.stash[_RUNNING] = ExitStack()
        started = _start(config.stash[_RUNNING], everything=config.getoption("--servers") == "all")
        os.environ[_VARIABLE] = json.dumps(started)
        os.environ[_REDIS_VARIABLE] = json.dumps(_start_redis(config.stash[_RUNNING]))
    given = {} if config.getoption("--fast") else os.environ
    config.stash[_SERVERS] = [Server(*each) for each in json.loads(given.get(_VARIABLE, "[]"))]
    redis = json.loads(given.get(_REDIS_VARIABLE, "null"))
    config.stash[_REDIS] = Server(*redis) if redis else None


def pytest_unconfigure(config: pytest.Config) -> None:
    if _RUNNING in config.stash:
        config.stash[_RUNNING].close()
        os.environ.pop(_VARIABLE, None)
        os.environ.pop(_REDIS_VARIABLE, None)


def pytest_report_header(config: pytest.Config) -> str:
    started = [*config.stash[_SERVERS], config.stash[_REDIS]]
    return "servers: " + (", ".join(each.label for each in started if each) or "none needed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    started = metafunc.config.stash[_SERVERS]
    labels = ["postgres"] if len(started) <= 1 else [f"postgres {each.label}" for each in started]
    for name in {"engine_url", "new_engine_url", "shared_engine_url"}.intersection(metafunc.fixturenames):
        metafunc.parametrize(name, [SQLITE, *range(len(labels))], indirect=True, ids=[SQLITE, *labels])
    if "postgres_server_url" in metafunc.fixturenames and len(started) > 1:
        labels = [each.label for each in started]
        metafunc.parametrize("postgres_server_url", range(len(started)), indirect=True, ids=labels)


@pytest.fixture
def postgres_server_url(request: pytest.FixtureRequest) -> str:
    """The URL of the run's PostgreSQL, where a test may create databases of its own."""
    return request.config.stash[_SERVERS][getattr(request, "param", 0)].url


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    made = Databases()
    yield made
    made.drop()


@pytest.fixture
def postgres_url(postgres_server_url: str, databases: Databases) -> str:
    """The URL of a database without tables, which no other test uses meanwhile."""
    return databases.blank(postgres_server_url)


@pytest.fixture
def database_url(postgres_server_url: str, databases: Databases) -> str:
    """The URL of a database with all tables and no rows, which no other test uses meanwhile."""
    return databases.emptied(postgres_server_url)


@pytest.fixture
def shared_database_url(postgres_server_url: str, databases: Databases) -> str:
    """The URL of a database with all tables that tests share, each in a namespace of its own."""
    return databases.shared(postgres_server_url)


@pytest.fixture
def engine_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The place of a database without rows, on each engine: a path, or a URL of PostgreSQL."""
    return _place(request, tmp_path, Databases.emptied)


@pytest.fixture
def new_engine_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The place of a database without tables on each engine, for plans, which depend on what was stored."""
    return _place(request, tmp_path, Databases.blank)


@pytest.fixture
def shared_engine_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The place of a database on each engine, where a test keeps to a namespace of its own."""
    return _place(request, tmp_path, Databases.shared)


def _place(request: pytest.FixtureRequest, folder: Path, found: Callable[[Databases, str], str]) -> str:
    databases: Databases = request.getfixturevalue("databases")
    if request.param == SQLITE:
        file = folder / "test.db"
        if found is not Databases.blank:
            databases.copy_file(file)
        return str(file)
    server: Server = request.config.stash[_SERVERS][request.param]
    return found(databases, server.url)


@pytest.fixture
def redis_url(request: pytest.FixtureRequest) -> str:
    """The URL of the run's Redis, which tests share, each with a prefix of its own."""
    server = request.config.stash[_REDIS]
    assert server is not None
    return server.url


@pytest.fixture(scope="session")
def redis_cluster_url() -> Iterator[str]:
    """The URL of a node of a Redis Cluster, which the tests of one process share."""
    with redis_cluster() as url:
        yield url


@pytest.fixture
def redis_prefix() -> str:
    """What the keys of this test begin with."""
    return f"test:{uuid.uuid4().hex}:"


@pytest.fixture(scope="session")
def shared_postgres_url(request: pytest.FixtureRequest) -> str:
    """The URL of the first PostgreSQL, for what many tests share."""
    return request.config.stash[_SERVERS][0].url


@pytest.fixture(scope="session")
def shared_redis_url(request: pytest.FixtureRequest) -> str:
    """The URL of the run's Redis, for what many tests share."""
    server = request.config.stash[_REDIS]
    assert server is not None
    return server.url


def _runs_tests(config: pytest.Config) -> bool:
    return not (config.option.collectonly or config.option.help or config.option.version)


def _start(running: ExitStack, *, everything: bool) -> list[Server]:
    given = servers.given_url()
    started = [Server(f"PostgreSQL of {servers.URL_VARIABLE}", given)] if given else []
    found = servers.find_all() if everything else []
    try:
        for binaries in found or ([] if given else [servers.find()]):
            # Without fsync: what survives a crash is proved on servers that those tests start themselves.
            server = running.enter_context(servers.PostgresServer(binaries, fsync=False))
            started.append(Server(server.label, server.url()))
    except servers.ServerNotFound as missing:
        raise pytest.UsageError(str(missing)) from missing
    return started


def _start_redis(running: ExitStack) -> Server:
    given = redis_server.given_redis_url()
    if given:
        return Server(f"Redis of {redis_server.REDIS_URL_VARIABLE}", given)
    try:
        server = running.enter_context(redis_server.RedisServer())
    except servers.ServerNotFound as missing:
        raise pytest.UsageError(str(missing)) from missing
    return Server(server.label, server.url)
