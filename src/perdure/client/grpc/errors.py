"""Errors of a gRPC connection, with hints."""

from __future__ import annotations

from typing import ClassVar

from perdure.kernel.errors import PerdureError, Unreachable


class ConnectionFailed(Unreachable):
    """The connection to the gRPC server failed."""

    code = "connection_failed"
    hint: ClassVar[str] = "verify that the server is running, and its address"
    retried: ClassVar[bool] = True
    """Whether a retry may help."""


class DnsFailure(ConnectionFailed):
    """The name of the gRPC server cannot be resolved."""

    code = "dns_failure"
    hint = "check the host name; the client retries with back-off"


class ConnectTimeout(ConnectionFailed):
    """The gRPC server did not accept the connection in time."""

    code = "connect_timeout"
    hint = "check the address and the network; the client retries with back-off"


class TlsFailure(ConnectionFailed):
    """The TLS handshake with the gRPC server failed."""

    code = "tls_failure"
    hint = "check the certificates of both sides"
    retried = False


class ServerUnavailable(Unreachable):
    """The gRPC server became unavailable during a request."""

    code = "server_unavailable"
    hint: ClassVar[str] = "the client reconnects; verify that the server is running"


class CallTimeout(PerdureError, TimeoutError):
    """The gRPC server did not answer before the deadline of the request."""

    code = "call_timeout"
    http_status = 504
    hint: ClassVar[str] = "retry the request; increase the deadline, or check the network"


class CallCancelled(PerdureError):
    """The request was cancelled."""

    code = "call_cancelled"
    http_status = 499
    hint: ClassVar[str] = "the request was cancelled; send it again if it is still wanted"


def connection_failure(detail: str) -> ConnectionFailed:
    """Build the error for gRPC's text about a failed connection."""
    text = detail.lower()
    if "dns" in text or "name resolution" in text:
        return DnsFailure(detail)
    if any(word in text for word in ("ssl", "tls", "handshake", "certificate", "peer name")):
        return TlsFailure(detail)
    if "timed out" in text or "timeout" in text or "deadline" in text:
        return ConnectTimeout(detail)
    return ConnectionFailed(detail)
