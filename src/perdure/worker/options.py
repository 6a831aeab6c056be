"""How a worker works."""

from __future__ import annotations

import os
import socket
from secrets import token_hex
from typing import Any

import msgspec

from perdure.kernel.config import Settings


def make_worker_id() -> str:
    """A name that no other worker has: the machine, the process, and something random."""
    return f"{socket.gethostname()}-{os.getpid()}-{token_hex(3)}"


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker can be told. Durations are in seconds."""

    worker_id: str = msgspec.field(default_factory=make_worker_id)
    concurrency: int = 1
    """How many runs it executes at once."""
    heartbeat: float = 10.0
    """How long a lease lasts without being renewed; it is renewed three times as often."""
    interval: float = 5.0
    """How long it waits for a signal before it looks into the queue by itself."""
    timeout: float | None = 300.0
    """How long an attempt may take, where the run does not say."""
    grace: float = 5.0
    """How long runs may go on once the worker was asked to stop."""
    cancel_grace: float = 3.0
    """How long an agent that was cancelled may take to stop, before it is left behind."""
    isolated_loops: bool = False
    """Whether each run gets an event loop and a thread of its own."""
    retriable: tuple[str, ...] = ()
    """Names of exceptions that are worth another attempt, besides those that always are."""
    stats_interval: float = 60.0

    @classmethod
    def from_settings(cls, settings: Settings, **more: Any) -> WorkerOptions:
        """The options that the settings hold; what is given wins, unless it is None."""
        found = {
            "concurrency": settings.jobs_per_worker,
            "heartbeat": settings.job_heartbeat,
            "interval": settings.job_interval,
            "timeout": settings.job_timeout,
            "grace": settings.shutdown_grace_period,
            "isolated_loops": settings.job_isolated_loops,
            "retriable": settings.job_retriable,
            "stats_interval": settings.stats_interval,
        }
        return cls(**{**found, **{name: value for name, value in more.items() if value is not None}})
