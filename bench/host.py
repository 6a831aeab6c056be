"""Resources of a run: scratch files, databases, peers, each created at its first use."""

import asyncio
import shutil
import sys
import tempfile
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import asyncpg

from bench.cpu import Clock, parent_of, seconds_of_tree
from bench.environments import PeerError, make_scratch
from bench.peer import PeerProcess
from bench.sizes import Sizes
from perdure.testing import servers
from perdure.testing.redis_server import RedisServer, given_redis_url

T = TypeVar("T")

# Large enough that no checkpoint disturbs only one side's round.
POSTGRES_SETTINGS = {"max_wal_size": "8GB", "checkpoint_timeout": "1h", "shared_buffers": "256MB"}


class Host:
    """The scratch folder, the servers and the peers of one run."""

    def __init__(self, sizes: Sizes, *, with_peer: bool = True, postgres_url: str | None = None) -> None:
        self.sizes = sizes
        self.with_peer = with_peer
        self._server_url = postgres_url
        self._peer: PeerProcess | None = None
        self._peer_asked = False
        self._redis_url: str | None = given_redis_url()
        self._made = 0
        self._stack = AsyncExitStack()
        self._folder = Path()

    async def __aenter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="run-", dir=make_scratch()))
        self._stack.callback(shutil.rmtree, self._folder)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def _number(self) -> int:
        self._made += 1
        return self._made

    def new_file(self) -> Path:
        """Return the path of a database file that does not exist yet."""
        return self._folder / f"{self._number()}.db"

    def new_folder(self) -> Path:
        """Create an empty folder."""
        folder = self._folder / str(self._number())
        folder.mkdir()
        return folder

    async def new_database(self) -> str:
        """Create an empty PostgreSQL database, and return its URL."""
        server_url = await asyncio.to_thread(self._start_postgres)
        name = f"{self._folder.name}-{self._number()}"
        await asyncio.to_thread(servers.create_database, server_url, name)
        self._stack.push_async_callback(partial(asyncio.to_thread, servers.drop_database, server_url, name))
        return servers.with_database(server_url, name)

    def _start_postgres(self) -> str:
        if self._server_url is None:
            server = self._stack.enter_context(servers.PostgresServer(settings=POSTGRES_SETTINGS))
            self._server_url = server.url()
        return self._server_url

    async def database_clock(self) -> Clock | None:
        """Return the CPU clock of all PostgreSQL processes, if PostgreSQL runs on this machine."""
        connection = await asyncpg.connect(await asyncio.to_thread(self._start_postgres))
        try:
            postmaster = parent_of(await connection.fetchval("SELECT pg_backend_pid()"))
        finally:
            await connection.close()
        return partial(seconds_of_tree, postmaster) if postmaster else None

    async def redis_url(self) -> str:
        """Return the address of a Redis or Valkey."""
        if self._redis_url is None:
            server = await asyncio.to_thread(RedisServer().start)
            self._stack.callback(server.close)
            self._redis_url = server.url
        return self._redis_url

    async def peer(self) -> PeerProcess | None:
        """Return the store's peer, or None if the run leaves it out."""
        if not self._peer_asked:
            self._peer_asked = True
            self._peer = await self.try_peer(self._stack, PeerProcess())
        return self._peer

    async def try_peer(self, stack: AsyncExitStack, peer: AbstractAsyncContextManager[T]) -> T | None:
        """Return a peer. Return None if the run leaves peers out, or after a message if it is unavailable."""
        if not self.with_peer:
            return None
        try:
            return await stack.enter_async_context(peer)
        except (PeerError, servers.ServerFailed) as error:
            print(f"a peer is left out: {error}", file=sys.stderr, flush=True)
            return None
