"""A gRPC server on a store, and channels to it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from tests.server.grpc.original import Stub, kind

from perdure.kernel.config import Settings
from perdure.kernel.ids import RandomIds, ulid
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.app import App
from perdure.runtime.components import build_components, running
from perdure.server.grpc.server import GrpcServer

CLIENT_ERROR = "Internal error from Core"
T0 = 1_706_540_400_000


class Served:
    """A running server, with a channel without TLS."""

    def __init__(self, app: App, server: GrpcServer, channel: Any) -> None:
        self.app, self.server, self.channel = app, server, channel
        self.address = f"127.0.0.1:{server.port}"

    def stub(self, **metadata: str) -> Stub:
        """Return a client of agent-memory."""
        return Stub(self.channel, **metadata)


@asynccontextmanager
async def serving(store: DatabaseLightningStore, *, port: int = 0, **settings: Any) -> AsyncIterator[Served]:
    """Start a gRPC server with the components that run with it."""
    app = App(store, Settings(**settings))
    server = GrpcServer(app, port=port)
    async with running([*build_components(app), server]), insecure_channel(server) as channel:
        yield Served(app, server, channel)


def insecure_channel(server: GrpcServer) -> Any:
    """Open a channel without TLS, after the start of the server."""
    return grpc.aio.insecure_channel(f"127.0.0.1:{server.port}")


async def status_of(make_call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    """Return how a call ends, with the message of an error.

    After a write that follows the server's answer, grpc.aio's client forgets that answer; then repeat the
    call.
    """
    while True:
        call = make_call()
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            if error.details() != CLIENT_ERROR:
                return error.code(), error.details() or ""
        else:
            return await call.code(), ""


def free_port() -> int:
    """Find a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def event(number: int = 0, **changes: Any) -> Any:
    """Build an event as an original client sends it."""
    fields = {
        "event_id": ulid(T0 + number * 1000, RandomIds()),
        "session_id": "s1",
        "timestamp_ms": T0 + number * 1000,
        "event_type": 2,
        "role": 1,
        "text": f"message {number}",
    }
    return kind("Event")(**{**fields, **changes})
