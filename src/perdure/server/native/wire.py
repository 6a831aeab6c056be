"""Responses of health, metrics and server information."""

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
    """`stopping` if the process finishes accepted requests and wants no new ones."""
    database: HealthStatus
    indexes_being_built: list[str]
    redis: CarrierStatus | UnsetType = UNSET
    """Present if Redis carries hints. Without Redis everything works, with the delay of a poll."""


class HealthDetail(ReadyAnswer, kw_only=True):
    """Readiness with details for authorized callers."""

    reason: str | None
    engine: str | None
    connections: dict[str, int] | None
    process_id: int
    started_at: float
    """When this process started to serve."""
    redis_reason: str | UnsetType | None = UNSET
    redis_connections: dict[str, int] | UnsetType = UNSET


class Info(msgspec.Struct, kw_only=True):
    """Description of the server."""

    name: str
    version: str
    protocols: list[str]
    langgraph_py_version: str | None = None
    """The installed release of LangGraph, if any."""
    flags: dict[str, bool] = msgspec.field(default_factory=dict)
    """Features that clients of LangGraph's server ask for, and whether they exist."""
    host: dict[str, str | None] = msgspec.field(default_factory=dict)
    grpc_ports: list[int] = msgspec.field(default_factory=list)
    """The ports of the gRPC server, if it runs."""


class OkQuery(msgspec.Struct, kw_only=True):
    """Whether the database must answer too."""

    check_db: bool = False


class MetricsQuery(msgspec.Struct, kw_only=True):
    """The format, and whether to add the names that dashboards of LangGraph's server read.

    `prometheus` is text with these names.
    """

    format: Literal["text", "json", "prometheus"] = "text"
    aliases: bool = False


class Sample(msgspec.Struct, kw_only=True):
    """A value with the labels that distinguish it from others of its name."""

    name: str
    labels: dict[str, str]
    value: float


class MetricFamily(msgspec.Struct, kw_only=True):
    """The samples of one metric name."""

    name: str
    type: str
    help: str
    samples: list[Sample]
