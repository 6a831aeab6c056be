"""The gRPC server: OTLP, memory, health and reflection, on one or more ports.

Reflection lists services and their message types. Its protocol has two versions with equal messages and
different names; clients try the newer one first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from perdure.kernel.errors import StartRefused
from perdure.kernel.lifecycle import Step, StopPhase
from perdure.runtime.app import App, StoreApp
from perdure.runtime.tls import Tls
from perdure.server.grpc import otlp
from perdure.server.grpc.calls import Calls, Context, GrpcHealth
from perdure.server.grpc.memory import FILE as MEMORY_FILE
from perdure.server.grpc.memory import MEMORY_SERVICE, MemoryServicer
from perdure.server.grpc.otlp import TRACE_SERVICE
from perdure.server.http.server import is_free

# --- reflection -------------------------------------------------------------------------------------------


VERSIONS = ("grpc.reflection.v1.ServerReflection", reflection.SERVICE_NAME)
METHOD = "ServerReflectionInfo"
FILE = reflection_pb2.DESCRIPTOR


class Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    """Lists the services to callers."""

    def __init__(self, calls: Calls, services: Iterable[str], pool: Any) -> None:
        super().__init__((*services, *VERSIONS), pool)
        self._calls = calls

    async def ServerReflectionInfo(  # noqa: N802 - the protocol's name
        self, request_iterator: AsyncIterator[Any], context: Context
    ) -> AsyncIterator[Any]:
        await self._calls.admit(context)
        async for answer in super().ServerReflectionInfo(request_iterator, context):
            yield answer

    def handlers(self) -> list[Any]:
        """Build the handlers of both versions."""
        method = grpc.stream_stream_rpc_method_handler(
            self.ServerReflectionInfo,
            reflection_pb2.ServerReflectionRequest.FromString,
            reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        return [grpc.method_handlers_generic_handler(name, {METHOD: method}) for name in VERSIONS]


def build_pool(files: Iterable[Any]) -> Any:
    """Build a pool of these files and of all files that they import."""
    pool, added = descriptor_pool.DescriptorPool(), set()

    def add(file: Any) -> None:
        if file.name not in added:
            added.add(file.name)
            for dependency in file.dependencies:
                add(dependency)
            described = descriptor_pb2.FileDescriptorProto()
            file.CopyToProto(described)
            pool.Add(described)

    for file in files:
        add(file)
    return pool


# --- the server -------------------------------------------------------------------------------------------


HEALTH_SERVICE: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
DRAIN_SECONDS = 10.0
"""Default time that calls have to end."""
GRACE_SECONDS = 0.5
"""Additional time for endless calls, such as reflection."""
MAX_METADATA = 16 << 10
MAX_CALLS = 256
MAX_CONNECTIONS = 256
IDLE_MILLISECONDS = 300_000
"""Idle time after which a connection is closed; clients reconnect by themselves."""


class GrpcServer:
    """Serves gRPC in the event loop that starts it. Health is public; other services need an admitted caller.

    It also listens on those `further` ports that are free. With `shared`, several processes may listen on
    one port. With `any_port` it takes a free port if its own is in use.
    """

    def __init__(
        self,
        app: StoreApp,
        *,
        host: str | None = None,
        port: int | None = None,
        further: Sequence[int] = (),
        shared: bool = False,
        any_port: bool = False,
        drain: float = DRAIN_SECONDS,
    ) -> None:
        self._app = app
        self._host = host or app.settings.host
        self._asked = port if port is not None else app.settings.grpc_port or 0
        self._further = further
        self._shared = shared
        self._any_port = any_port
        self._drain = drain
        self._calls = Calls(app)
        self._memory = MemoryServicer(self._calls, app) if isinstance(app, App) else None
        names = (TRACE_SERVICE,) if self._memory is None else (TRACE_SERVICE, MEMORY_SERVICE)
        self._services = names
        self._health = GrpcHealth(("", *names))
        self._server: Any = None
        self.ports: tuple[int, ...] = ()

    @property
    def port(self) -> int:
        """The first port; 0 before the start."""
        return self.ports[0] if self.ports else 0

    async def start(self) -> None:
        """Listen. Raise StartRefused if the settings would leave the server open to anyone."""
        await self._app.check_start()
        server = grpc.aio.server(options=self._options(), maximum_concurrent_rpcs=MAX_CALLS)
        self._add_services(server)
        ports = [self._listen_first(server)]
        for port in self._further:
            if port not in ports and is_free(self._host, port):
                with suppress(StartRefused):
                    ports.append(self._listen(server, port))
        await server.start()
        self._server = server
        self.ports = self._app.grpc_ports = tuple(ports)

    def _listen_first(self, server: Any) -> int:
        try:
            return self._listen(server, self._asked)
        except StartRefused:
            if not self._any_port:
                raise
        return self._listen(server, 0)

    def _listen(self, server: Any, port: int) -> int:
        address = f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"
        try:
            if self._app.tls is None:
                return int(server.add_insecure_port(address))
            return int(server.add_secure_port(address, build_credentials(self._app.tls)))
        except RuntimeError:
            raise StartRefused(f"gRPC cannot listen on {self._host} port {port}") from None

    def stop_steps(self) -> Mapping[StopPhase, Step]:
        return {
            StopPhase.ANNOUNCE: self._announce_stop,
            StopPhase.STREAMS: self._end_streams,
            StopPhase.REQUESTS: self.stop,
        }

    async def _announce_stop(self) -> None:
        """Set health to NOT_SERVING, and notify watchers. Calls are still answered."""
        self._health.stop_serving()

    async def _end_streams(self) -> None:
        """End health watches and event streams. Received events are still stored."""
        self._health.end_watches()
        if self._memory is not None:
            self._memory.end_streams()

    async def stop(self) -> None:
        """Finish running calls, then stop."""
        await self._announce_stop()
        await self._end_streams()
        server, self._server = self._server, None
        if server is not None:
            try:
                await self._calls.in_flight.drain(self._drain)
            finally:
                await server.stop(GRACE_SECONDS)

    def _options(self) -> list[tuple[str, int]]:
        settings = self._app.settings
        return [
            ("grpc.max_receive_message_length", settings.max_decompressed_bytes),
            ("grpc.max_metadata_size", MAX_METADATA),
            ("grpc.so_reuseport", int(self._shared)),
            ("grpc.server_handshake_timeout_ms", round(settings.head_timeout * 1000)),
            ("grpc.max_connection_idle_ms", IDLE_MILLISECONDS),
            ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
            ("grpc.max_concurrent_streams", MAX_CALLS),
        ]

    def _add_services(self, server: Any) -> None:
        files = [health_pb2.DESCRIPTOR, FILE, otlp.FILE]
        handlers = [otlp.trace_service(self._calls)]
        if self._app.settings.discard_other_signals:
            handlers += otlp.discarding_services(self._calls)
        if self._memory is not None:
            files.append(MEMORY_FILE)
            handlers.append(self._memory.handlers())
        names = (*self._services, HEALTH_SERVICE)
        reflecting = Reflection(self._calls, names, build_pool(files))
        server.add_generic_rpc_handlers((*handlers, *reflecting.handlers()))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)


def build_credentials(tls: Tls) -> Any:
    """Build server credentials. Each new connection uses the current certificate."""
    configured = None

    def current() -> Any:
        nonlocal configured
        configured = tls.pem
        pair = (tls.pem.key, tls.pem.certificate)
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=tls.pem.client_ca)

    def changed() -> Any:
        return None if tls.pem is configured else current()

    return grpc.dynamic_ssl_server_credentials(
        current(), changed, require_client_authentication=tls.pem.client_ca is not None
    )
