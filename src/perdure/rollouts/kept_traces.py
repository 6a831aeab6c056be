"""Traces that belong to no rollout: each gets one of its own, so that any instrumented program shows up."""

from __future__ import annotations

import msgspec

from perdure.kernel.codec import encode_json
from perdure.rollouts import encoding
from perdure.rollouts.operations.enqueue import NewRollout
from perdure.rollouts.records import RolloutConfig

SILENT_SECONDS = 600.0
"""A trace whose root never comes ends so long after its last span."""


class KeptTrace(msgspec.Struct, frozen=True):
    """A trace and what made it. Its rollout has an id made of the trace's, so that later spans find it.

    The rollout is never in the queue: it is running from its first span on, and ends with the root span.
    """

    trace_id: str
    service: str | None = None

    @property
    def rollout_id(self) -> str:
        return "ro-" + self.trace_id

    @property
    def attempt_id(self) -> str:
        return "at-" + self.trace_id[:16]

    def request(self) -> NewRollout:
        return NewRollout(
            input=encode_json({"trace_id": self.trace_id, "service": self.service}),
            config=encoding.encode_config(RolloutConfig(unresponsive_seconds=SILENT_SECONDS)),
            metadata=encode_json({"trace_id": self.trace_id, "source": "otlp"}),
            rollout_id=self.rollout_id,
            attempt_id=self.attempt_id,
        )
