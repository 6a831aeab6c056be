"""Records of the model of threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

LIVE = ("pending", "running")


class ModelLimits(NamedTuple):
    """Limits of every run, in seconds."""

    lease: float
    timeout: float
    """The watchdog's limit, a little later than the worker's own."""
    grace: float
    linger: float


@dataclass(eq=False)
class ModelAttempt:
    """One execution of a run. `said` is the end that its holder reported, if any."""

    attempt_id: str
    started: float
    heard: float
    live: bool = True
    charged: bool = True
    said: str | None = None


@dataclass(eq=False)
class ModelState:
    values: Any
    run: ModelRun | None
    unfinished: bool = False


@dataclass(eq=False)
class ModelRun:
    run_id: str
    thread_id: str
    place: tuple[float, int]
    priority: int
    max_attempts: int
    temporary: bool
    due: float | None = None
    status: str = "pending"
    attempts: list[ModelAttempt] = field(default_factory=list)
    events: list[tuple[str, int]] = field(default_factory=list)
    steps: dict[str, tuple[int | None, str | None]] = field(default_factory=dict)
    """By name: the number of events in the stream at that time, if its worker knew it, and the outer step."""
    stop_by: float | None = None
    gone_at: float | None = None
    purged: bool = False

    @property
    def live(self) -> bool:
        return self.status in LIVE

    @property
    def latest(self) -> ModelAttempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def executed(self) -> bool:
        return self.latest is not None and self.latest.live

    @property
    def tries(self) -> int:
        return sum(attempt.charged for attempt in self.attempts)


@dataclass(eq=False)
class ModelThread:
    thread_id: str
    temporary: bool = False
    rest: str = "idle"
    failed: bool = False
    states: list[ModelState] = field(default_factory=list)
    gone_at: float | None = None
    hidden: bool = False
    """Whether it is a temporary thread whose run has failed."""

    @property
    def state(self) -> ModelState | None:
        """The newest state that no rollback has removed."""
        left = [each for each in self.states if each.run is None or each.run.status != "rollback"]
        return left[-1] if left else None
