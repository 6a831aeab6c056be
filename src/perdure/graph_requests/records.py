"""Requests of a server to a worker with the code of a graph, and the worker's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from perdure.kernel.checks import check_id
from perdure.threads.records import Checkpoint

Place = Mapping[str, Any]
"""Config keys that identify a checkpoint: its id, its namespace, and the ids of its parents."""


class ReadState(msgspec.Struct, frozen=True, kw_only=True, tag="read_state"):
    """Read a state of a thread, or of a subgraph."""

    place: Place | None = None
    subgraphs: bool = False


class ListStates(msgspec.Struct, frozen=True, kw_only=True, tag="list_states"):
    """List states of a thread, or of a subgraph, the newest first."""

    place: Place | None = None
    limit: int = 10
    before: str | None = None
    metadata: Mapping[str, Any] | None = None


class UpdateState(msgspec.Struct, frozen=True, kw_only=True, tag="update_state"):
    """Add a state to a thread, as if a node had written the values."""

    values: Any = None
    as_node: str | None = None
    place: Place | None = None


class ApplySupersteps(msgspec.Struct, frozen=True, kw_only=True, tag="apply_supersteps"):
    """Add states to a thread, each by several updates at once."""

    supersteps: Sequence[Mapping[str, Any]]


GraphCall: TypeAlias = ReadState | ListStates | UpdateState | ApplySupersteps


class RequestLease(msgspec.Struct, frozen=True):
    """A claim on a request: its answer must carry the attempt as a token."""

    request_id: str
    attempt_id: str


class GraphAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """A request that a worker has claimed."""

    held: RequestLease
    agent: str
    thread_id: str
    call: GraphCall
    checkpoint: Checkpoint | None = None
    """The latest state of the thread."""
    lease_seconds: float
    seconds_left: float
    """How long the caller will still wait."""


class GraphError(msgspec.Struct, frozen=True, kw_only=True):
    """The error of a worker that could not answer."""

    code: str
    message: str


def check_lease(held: RequestLease) -> RequestLease:
    check_id(held.request_id, "request_id")
    check_id(held.attempt_id, "attempt_id")
    return held
