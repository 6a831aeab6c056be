"""All data of a namespace, read in one transaction, to compare it with the callers' history."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from tests.support.invariants import broken_rules

from perdure.kernel.codec import decode_json
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Storage, Tx
from perdure.service.namespaces import list_namespaces

_ROLLOUTS = statement("SELECT id, status, input, metadata FROM rollouts WHERE ns = :ns")
_ATTEMPTS = statement(
    "SELECT rollout_id, sequence_id, id, status, end_time, worker_id, metadata FROM attempts WHERE ns = :ns"
    " ORDER BY rollout_id, sequence_id"
)
_SPANS = statement("SELECT rollout_id, span_id FROM spans WHERE ns = :ns")
_COUNTERS = statement("SELECT rollout_id, sequence FROM span_counters WHERE ns = :ns")
_RESOURCES = statement("SELECT id, version, body FROM resource_versions WHERE ns = :ns")


class RolloutRow(NamedTuple):
    """The fields of a rollout that checks read."""

    id: str
    status: str
    input: str
    metadata: str

    @property
    def token(self) -> str:
        """The token that the rollout was enqueued with, as `{"token": …}` in its input."""
        return _token(self.input)

    @property
    def edit(self) -> str:
        """The token of the last change of the metadata."""
        return _token(self.metadata)


class AttemptRow(NamedTuple):
    """The fields of an attempt that checks read."""

    rollout_id: str
    sequence_id: int
    id: str
    status: str
    end_time: int | None
    worker_id: str | None
    metadata: str | None

    @property
    def report(self) -> str:
        """The token of the report that ended the attempt."""
        return _token(self.metadata)


class SpanRow(NamedTuple):
    """The fields of a span that checks read."""

    rollout_id: str
    span_id: str


class Snapshot(msgspec.Struct):
    """One namespace, with the moments between which it was read."""

    rollouts: dict[str, RolloutRow]
    attempts: dict[str, list[AttemptRow]]
    spans: list[SpanRow]
    counters: dict[str, int]
    resources: dict[tuple[str, int], str]
    broken_rules: list[str]
    began: int = 0
    ended: int = 0


def _token(body: str | None) -> str:
    value: Any = decode_json(body) if body else None
    return str(value.get("token", "")) if isinstance(value, Mapping) else ""


async def take(storage: Storage, namespace: str) -> Snapshot:
    """Read a namespace of an open database; a missing one is empty."""
    numbers = {name: number for number, name in (await storage.read(list_namespaces)).items()}
    began = time.monotonic_ns()
    snapshot = await storage.read(_take, ns=numbers.get(namespace, -1))
    snapshot.began, snapshot.ended = began, time.monotonic_ns()
    return snapshot


async def _take(tx: Tx) -> Snapshot:
    attempts: dict[str, list[AttemptRow]] = {}
    for row in await tx.all(_ATTEMPTS):
        attempts.setdefault(row[0], []).append(AttemptRow(*row))
    return Snapshot(
        rollouts={row[0]: RolloutRow(*row) for row in await tx.all(_ROLLOUTS)},
        attempts=attempts,
        spans=[SpanRow(*row) for row in await tx.all(_SPANS)],
        counters={row[0]: row[1] for row in await tx.all(_COUNTERS)},
        resources={(row[0], row[1]): row[2] for row in await tx.all(_RESOURCES)},
        broken_rules=await broken_rules(tx),
    )
