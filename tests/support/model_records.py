"""Records of the model of rollouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class Unknown(Exception):
    """Raised if a call names a missing object; it changes nothing."""


class Diverged(AssertionError):
    """Raised if the store did something that the contract does not allow."""


@dataclass
class ModelConfig:
    """When an attempt expires, and which endings are retried."""

    timeout_seconds: float | None = None
    unresponsive_seconds: float | None = None
    max_attempts: int = 1
    retry_condition: tuple[str, ...] = ()


@dataclass
class ModelAttempt:
    attempt_id: str
    sequence_id: int
    start_time: float
    worker_id: str | None = None
    status: str = "preparing"
    end_time: float | None = None
    last_heartbeat_time: float | None = None
    metadata: dict[str, Any] | None = None


@dataclass
class ModelRollout:
    rollout_id: str
    start_time: float
    input: Any = None
    mode: str | None = None
    resources_id: str | None = None
    config: ModelConfig = field(default_factory=ModelConfig)
    metadata: dict[str, Any] | None = field(default_factory=dict)
    status: str = "queuing"
    end_time: float | None = None
    queue: str = "default"
    priority: int = 0
    place: tuple[float, int] = (0.0, 0)
    """Its place in the queue: the time it came (or may come) and the number of the call that added it."""
    not_before: float | None = None
    key: str | None = None
    silenced: bool = False
    """Failed only because of silence."""
    attempts: list[ModelAttempt] = field(default_factory=list)
    spans: dict[tuple[str, str], int] = field(default_factory=dict)
    """(attempt_id, span_id) to sequence_id, in order of arrival."""

    @property
    def latest(self) -> ModelAttempt:
        return self.attempts[-1]

    def attempt(self, attempt_id: str) -> ModelAttempt:
        if attempt_id == "latest" and self.attempts:
            return self.latest
        for attempt in self.attempts:
            if attempt.attempt_id == attempt_id:
                return attempt
        raise Unknown(attempt_id)


@dataclass
class ModelWorker:
    status: str = "unknown"
    heartbeat_stats: dict[str, Any] | None = None
    last_heartbeat_time: float | None = None
    last_dequeue_time: float | None = None
    last_busy_time: float | None = None
    last_idle_time: float | None = None
    current_rollout_id: str | None = None
    current_attempt_id: str | None = None


@dataclass
class ModelResources:
    version: int
    create_time: float
    update_time: float
    resources: Any


def expect(wanted: Any, found: Any, what: str) -> None:
    if wanted != found:
        raise Diverged(f"{what}: the model says {wanted!r}, the store {found!r}")
