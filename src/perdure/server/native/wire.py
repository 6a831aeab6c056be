"""What health, metrics and information of the server answer with."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from perdure.kernel.signals.port import CarrierStatus
from perdure.service.endpoints import Ok as Ok

HealthStatus = Literal["ok", "degraded"]
Readiness = Literal["ok", "degraded", "stopping"]


class Health(msgspec.Struct, kw_only=True):
    """Whether the server answers."""

    status: HealthStatus = "ok"


class ReadyAnswer(msgspec.Struct, kw_only=True):
    """Whether the server can do its work."""

    status: Readiness
    """`stopping` if the process finishes what it has begun, and wants no more requests."""
    database: HealthStatus
    indexes_being_built: list[str]
    redis: CarrierStatus | UnsetType = UNSET
    """Said where one carries hints; without it everything works, a poll later."""


class HealthDetail(ReadyAnswer, kw_only=True):
    """The same for those who may know more."""

    reason: str | None
    engine: str | None
    connections: dict[str, int] | None
    process_id: int
    started_at: float
    """When this process began to serve."""
    redis_reason: str | UnsetType | None = UNSET
    redis_connections: dict[str, int] | UnsetType = UNSET


class Info(msgspec.Struct, kw_only=True):
    """What this is."""

    name: str
    version: str
    protocols: list[str]
    langgraph_py_version: str | None = None
    """The release of LangGraph that is installed beside it, if any."""
    flags: dict[str, bool] = msgspec.field(default_factory=dict)
    """What clients of LangGraph's server ask for, and whether it is there."""
    host: dict[str, str | None] = msgspec.field(default_factory=dict)
    grpc_ports: list[int] = msgspec.field(default_factory=list)
    """Where gRPC is served, if it is."""


class OkQuery(msgspec.Struct, kw_only=True):
    """Whether the database must answer too."""

    check_db: bool = False


class MetricsQuery(msgspec.Struct, kw_only=True):
    """In which form, and whether also by the names that boards for LangGraph's server read.

    `prometheus` is text with those names.
    """

    format: Literal["text", "json", "prometheus"] = "text"
    aliases: bool = False


class Sample(msgspec.Struct, kw_only=True):
    """One number, with what tells it from others of its name."""

    name: str
    labels: dict[str, str]
    value: float


class MetricFamily(msgspec.Struct, kw_only=True):
    """What is counted under one name."""

    name: str
    type: str
    help: str
    samples: list[Sample]
