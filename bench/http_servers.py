"""The measured servers, each in its own process on loopback."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, get_args

from bench import peer
from bench.host import Host
from perdure.testing.serving import ServerProcess

Engine = Literal["sqlite", "postgres"]
ENGINES: tuple[Engine, ...] = get_args(Engine)

START_SECONDS = 180.0
SERVE = (sys.executable, "-m", "perdure.cli", "serve", "--log-level", "warning", "--database")


async def new_url(host: Host, engine: Engine) -> str:
    """Return the address of a new database."""
    return f"sqlite:///{host.new_file()}" if engine == "sqlite" else await host.new_database()


@asynccontextmanager
async def running(server: ServerProcess) -> AsyncIterator[ServerProcess]:
    try:
        await asyncio.to_thread(server.start)
        yield server
    finally:
        await asyncio.to_thread(server.close)


@asynccontextmanager
async def our_server(
    host: Host,
    engine: Engine = "sqlite",
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> AsyncIterator[ServerProcess]:
    """Start our server on a new database, as `perdure serve` does."""
    command = (*SERVE, await new_url(host, engine), *options)
    async with running(
        ServerProcess(command, folder=folder, environment=environment, start_seconds=START_SECONDS)
    ) as server:
        yield server


@asynccontextmanager
async def peer_server() -> AsyncIterator[ServerProcess]:
    """Start the peer's server over its store in memory."""
    python = await asyncio.to_thread(peer.ensure_environment)
    server = ServerProcess(
        peer.command(python), folder=peer.ROOT, environment=peer.variables(), start_seconds=START_SECONDS
    )
    async with running(server):
        yield server
