"""The limits of runs: timeouts, attempts, leases and the lifetime of threads, with their defaults."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import msgspec

from perdure.agents.records import GRAPH_TIMEOUT, MAX_TIMEOUT
from perdure.kernel.clock import to_micros
from perdure.rollouts.model import TIMEOUT, UNRESPONSIVE
from perdure.threads.records import Lifetime, RunRequest
from perdure.threads.rows import RunLimits

BACKSTOP_SECONDS = 5.0
"""How long after a worker should have ended a run that takes too long the watchdog does, at least."""


def backstop(timeout: float, lease: float) -> float:
    """After how many seconds the watchdog ends an attempt that its worker should have ended.

    A worker that was lost before that has fallen silent by then, so that it does not count as a timeout.
    """
    return timeout + max(lease, BACKSTOP_SECONDS)


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that hold for a run whose request names no others."""

    timeout: float | None = None
    """The timeout that the server sets for all runs that have none of their own, nor of their agent."""
    max_attempts: int = 3
    lease: float = 10.0
    grace: float = 10.0
    """How long a worker may take to stop a run that was cancelled."""
    linger: float = 60.0
    """How long what was deleted is kept for those who still wait for it."""
    check_webhook: Callable[[str], str | None] | None = None
    """Refuses a URL, or gives it; None where webhooks are disabled."""
    lifetime: Lifetime | None = None
    """The lifetime of threads that have none of their own; None is for ever."""

    @property
    def grace_micros(self) -> int:
        return to_micros(self.grace)


@lru_cache(maxsize=1024)
def limits_of_phase(
    timeout: float, lease: float, max_attempts: int, retry_after: float | None, free_lapses: int
) -> str:
    """The limits of a phase, as they are stored."""
    limits = RunLimits(
        timeout_seconds=backstop(timeout, lease),
        unresponsive_seconds=lease,
        max_attempts=max_attempts,
        retry_condition=(UNRESPONSIVE,) if retry_after is None else (UNRESPONSIVE, TIMEOUT),
        run_timeout=timeout,
        free_lapses=free_lapses,
        retry_after=retry_after,
    )
    return msgspec.json.encode(limits).decode()


def encode_limits(request: RunRequest, policy: Policy) -> str:
    """The limits of a run, as they are stored."""
    own = request.timeout_seconds
    # Without one, the worker that claims the run knows what its agent sets; the watchdog knows the bound.
    longest = own or max(policy.timeout or 0.0, MAX_TIMEOUT, GRAPH_TIMEOUT)
    limits = RunLimits(
        timeout_seconds=backstop(longest, policy.lease),
        unresponsive_seconds=policy.lease,
        max_attempts=request.max_attempts or policy.max_attempts,
        retry_condition=(UNRESPONSIVE,),
        run_timeout=own or 0.0,
        server_timeout=policy.timeout,
    )
    return msgspec.json.encode(limits).decode()
