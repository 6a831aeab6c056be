"""The life of a client's connection to a server."""

from __future__ import annotations

from typing import Final, Literal, get_args

from perdure.kernel.machine import Machine

ConnectionState = Literal["disconnected", "connecting", "connected", "streaming", "conn_failed"]
STATES: Final[tuple[ConnectionState, ...]] = get_args(ConnectionState)
DISCONNECTED, CONNECTING, CONNECTED, STREAMING, CONN_FAILED = STATES

CONNECT: Final = "connect"
ESTABLISHED: Final = "established"
FAILED: Final = "transport error"
GIVEN_UP: Final = "connection given up"
STARTED: Final = "request started"
ENDED: Final = "last response or error"
LOST: Final = "server unavailable"
CLOSED: Final = "closed"

CONNECTION = (
    Machine("grpc connection", STATES, start={"created": DISCONNECTED}, final=[])
    .on(CONNECT, [DISCONNECTED], CONNECTING)
    .on(ESTABLISHED, [CONNECTING], CONNECTED)
    .on(FAILED, [CONNECTING], CONN_FAILED)
    .on(GIVEN_UP, [CONN_FAILED], DISCONNECTED)
    .on(STARTED, [CONNECTED], STREAMING)
    .on(ENDED, [STREAMING], CONNECTED)
    .on(LOST, [CONNECTED, STREAMING], DISCONNECTED)
    .on(CLOSED, [CONNECTING, CONNECTED, STREAMING, CONN_FAILED], DISCONNECTED)
)
"""Requests may overlap: the connection is streaming while there is at least one."""
