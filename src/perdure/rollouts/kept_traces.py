"""Traces without a rollout: each gets its own rollout, so that any instrumented program is shown."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from perdure.kernel.codec import encode_json
from perdure.kernel.ids import uuid_text
from perdure.rollouts import encoding
from perdure.rollouts.joining_sql import KeptTraceRow
from perdure.rollouts.model import ENDED, KEPT_TRACE
from perdure.rollouts.operations.enqueue import NewRollout
from perdure.rollouts.records import Attempt, Rollout, RolloutConfig

SILENT_SECONDS = 600.0
"""A trace without a root span ends this long after its last span."""
_PREFIX = "ro-"
_DIGITS = 32


class KeptTrace(msgspec.Struct, frozen=True):
    """A trace and its service. The rollout's id is derived from the trace id, so that later spans find it.

    The rollout is never in the queue: it runs from its first span on, and ends with the root span.
    """

    trace_id: str
    service: str | None = None

    @property
    def rollout_id(self) -> str:
        return _PREFIX + self.trace_id

    @property
    def attempt_id(self) -> str:
        return "at-" + self.trace_id[:16]

    @property
    def run_id(self) -> str:
        """The id of the run that has this trace, unless a caller started the trace."""
        return uuid_text(bytes.fromhex(self.trace_id))

    def request(self) -> NewRollout:
        return NewRollout(
            input=encode_json({"trace_id": self.trace_id, "service": self.service}),
            config=_config(),
            metadata=encode_json({"trace_id": self.trace_id, "source": "otlp"}),
            kind=KEPT_TRACE,
            rollout_id=self.rollout_id,
            attempt_id=self.attempt_id,
        )


@lru_cache(maxsize=1)
def _config() -> str:
    return encoding.encode_config(RolloutConfig(unresponsive_seconds=SILENT_SECONDS))


def is_kept_id(rollout_id: str) -> bool:
    """Return whether the id belongs to the rollout of a kept trace."""
    return len(rollout_id) == len(_PREFIX) + _DIGITS and rollout_id.startswith(_PREFIX)


def show_kept(rollout: Rollout, rows: Mapping[str, KeptTraceRow]) -> None:
    """Set the times of a trace's rollout from its spans, and mark it if it ended without a root span."""
    row = rows.get(rollout.rollout_id)
    if row is None:
        return
    ended = rollout.status in ENDED
    marks: dict[str, object] = {}
    if ended and not row.rooted:
        marks["incomplete"] = True
    if row.linked:
        marks["linked"] = row.linked.split("\n")
    rollout.start_time = row.start_ns / 1e9
    rollout.end_time = row.end_ns / 1e9 if ended else None
    rollout.metadata = {**(rollout.metadata or {}), **marks}
    attempt = getattr(rollout, "attempt", None)
    if attempt is not None:
        show_kept_attempt(attempt, rows)


def show_kept_attempt(attempt: Attempt, rows: Mapping[str, KeptTraceRow]) -> None:
    """Set the times of a trace's attempt from its spans."""
    row = rows.get(attempt.rollout_id)
    if row is not None:
        attempt.start_time = row.start_ns / 1e9
        attempt.end_time = None if attempt.end_time is None else row.end_ns / 1e9
