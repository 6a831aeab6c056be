"""OTLP over gRPC."""

from __future__ import annotations

from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from perdure.server.grpc.calls import Calls
from perdure.server.otlp.ingest import ingest
from perdure.server.otlp.messages import PROTOBUF_FORM, decode, encode_outcome
from perdure.service.callers import Caller, Scope

FILE = trace_service_pb2.DESCRIPTOR
TRACE_SERVICE: str = FILE.services_by_name["TraceService"].full_name
SOURCE = "otlp_grpc"
SCOPE: Scope = "worker"


OTHER_SERVICES = (
    "opentelemetry.proto.collector.logs.v1.LogsService",
    "opentelemetry.proto.collector.metrics.v1.MetricsService",
)
"""Services whose batches are accepted and discarded if `discard_other_signals` is set."""


def discarding_services(calls: Calls) -> list[Any]:
    """Build the handlers of logs and metrics, which store nothing."""

    async def discard(caller: Caller, data: bytes) -> bytes:
        return b""

    return [
        grpc.method_handlers_generic_handler(name, {"Export": calls.unary(SCOPE, discard)})
        for name in OTHER_SERVICES
    ]


def trace_service(calls: Calls) -> Any:
    """Build the handlers of the trace service."""

    async def export(caller: Caller, data: bytes) -> bytes:
        outcome = await ingest(calls.app, caller, decode(data, PROTOBUF_FORM), SOURCE)
        return encode_outcome(outcome, PROTOBUF_FORM)

    return grpc.method_handlers_generic_handler(TRACE_SERVICE, {"Export": calls.unary(SCOPE, export)})
