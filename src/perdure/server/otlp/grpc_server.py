"""OTLP over gRPC, with the services for health and reflection: what the extra `grpc` adds."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any, NoReturn

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from perdure.access.model import Caller, allows
from perdure.kernel.errors import Forbidden, InvalidInput, PerdureError, RequestTimeout, StartRefused
from perdure.kernel.lifecycle import Phase, Step
from perdure.runtime.app import StoreApp
from perdure.server.grpc.drain import CallsInFlight, Health
from perdure.server.http.gate import Gate
from perdure.server.http.problems import public_error
from perdure.server.otlp.answers import encode_outcome, encode_status, grpc_code
from perdure.server.otlp.decode import PROTOBUF_FORM, decode
from perdure.server.otlp.ingest import ingest

TRACE_SERVICE: str = trace_service_pb2.DESCRIPTOR.services_by_name["TraceService"].full_name
HEALTH_SERVICE: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
SERVICES = (TRACE_SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME)
SOURCE = "otlp_grpc"
SCOPE = "worker"
DRAIN_SECONDS = 10.0
"""How long calls may take to end, if nobody says otherwise."""
GRACE_SECONDS = 0.5
"""How long calls that may last for ever, such as reflection, may go on after that."""
MAX_METADATA = 16 << 10
MAX_CALLS = 256
MAX_CONNECTIONS = 256
IDLE_MILLISECONDS = 300_000
"""How long a connection may have no call; exporters open another one by themselves."""
_CODES = {code.value[0]: code for code in grpc.StatusCode}

logger = logging.getLogger(__name__)

Context = Any
"""grpc's context of a call; the package has no types."""


class GrpcServer:
    """Serves OTLP over gRPC in the event loop that starts it. Health answers anybody, the rest callers.

    Several processes may listen on one port if each of them says that it is `shared`.
    """

    def __init__(
        self,
        app: StoreApp,
        *,
        host: str | None = None,
        port: int | None = None,
        shared: bool = False,
        drain: float = DRAIN_SECONDS,
    ) -> None:
        self._app = app
        self._gate = Gate(app)
        self._host = host or app.settings.host
        self._asked = port if port is not None else app.settings.grpc_port or 0
        self._shared = shared
        self._drain = drain
        self._calls = CallsInFlight()
        self._server: Any = None
        self._health = Health(("", TRACE_SERVICE))
        self.port = 0

    async def start(self) -> None:
        """Listen; refused, as all servers are, where anyone could come in."""
        await self._app.check_start()
        server = grpc.aio.server(options=self._options(), maximum_concurrent_rpcs=MAX_CALLS)
        self._add_services(server)
        address = f"[{self._host}]" if ":" in self._host else self._host
        try:
            self.port = server.add_insecure_port(f"{address}:{self._asked}")
        except RuntimeError:
            raise StartRefused(f"gRPC cannot listen on {self._host} port {self._asked}") from None
        await server.start()
        self._server = server

    def stop_steps(self) -> Mapping[Phase, Step]:
        return {
            Phase.ANNOUNCE: self._announce_stop,
            Phase.STREAMS: self._end_watches,
            Phase.REQUESTS: self.stop,
        }

    async def _announce_stop(self) -> None:
        """Health becomes NOT_SERVING, also for those who watch it; calls are still answered."""
        self._health.stop_serving()

    async def _end_watches(self) -> None:
        self._health.end_watches()

    async def stop(self) -> None:
        """Answer what is under way, then end."""
        await self._announce_stop()
        await self._end_watches()
        server, self._server = self._server, None
        if server is not None:
            try:
                await self._calls.until_none(self._drain)
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
        # The message is read by ourselves: what cannot be read is the caller's error and not the server's.
        # It is received by ourselves too: a caller that sends nothing would hold the call for ever.
        export = self._calls.counting(grpc.stream_unary_rpc_method_handler(self._export))
        handler = grpc.method_handlers_generic_handler(TRACE_SERVICE, {"Export": export})
        server.add_generic_rpc_handlers((handler,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflecting = _Reflection(self, SERVICES)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflecting, server)

    async def _export(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        caller = await self.admit(context)
        try:
            request = await self._receive(requests)
            outcome = await ingest(self._app, caller, decode(request, PROTOBUF_FORM), SOURCE)
        except PerdureError as error:
            await refuse(context, error)
        except Exception:
            logger.exception("an export over gRPC failed")
            await refuse(context, PerdureError())
        return encode_outcome(outcome, PROTOBUF_FORM)

    async def _receive(self, requests: AsyncIterator[bytes]) -> bytes:
        """The one message of a call."""
        seconds = self._app.settings.body_timeout
        try:
            async with asyncio.timeout(seconds):
                return await anext(requests)
        except TimeoutError:
            raise RequestTimeout(
                f"the message did not arrive within {seconds:g} s (setting body_timeout)"
            ) from None
        except StopAsyncIteration:
            raise InvalidInput("the call has no message") from None

    async def admit(self, context: Context) -> Caller:
        """The caller by its metadata, which has the names of the headers; or the call is refused."""
        metadata = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        try:
            caller = await self._gate.admit(metadata.get, _host_of(context.peer()))
            if not allows(caller.scopes, SCOPE):
                raise Forbidden(f"this needs a token with the scope {SCOPE!r}")
        except PerdureError as error:
            await refuse(context, error)
        return caller


class _Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    """Tells callers which services there are."""

    def __init__(self, server: GrpcServer, names: tuple[str, ...]) -> None:
        super().__init__(names)
        self._server = server

    async def ServerReflectionInfo(  # noqa: N802 - the protocol's name
        self, request_iterator: AsyncIterator[Any], context: Context
    ) -> AsyncIterator[Any]:
        await self._server.admit(context)
        async for answer in super().ServerReflectionInfo(request_iterator, context):
            yield answer


async def refuse(context: Context, error: PerdureError) -> NoReturn:
    """End a call with an error; its details, as over HTTP, are in the trailing metadata."""
    request_id = secrets.token_hex(8)
    shown = public_error(error, request_id)
    metadata = (("grpc-status-details-bin", encode_status(shown, request_id, PROTOBUF_FORM)),)
    await context.abort(_CODES[grpc_code(shown)], shown.message, metadata)
    raise AssertionError("abort always raises")


def _host_of(peer: str) -> str:
    """`ipv4:127.0.0.1:5000` without its port."""
    return peer.rpartition(":")[0]
