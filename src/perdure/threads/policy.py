"""The limits of runs: timeouts, attempts, leases and the lifetime of threads, with their defaults."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import msgspec

from perdure.agents.records import GRAPH_TIMEOUT, MAX_TIMEOUT
from perdure.kernel.clock import to_micros
from perdure.rollouts.model import TIMEOUT, UNRESPONSIVE, decode_limits
from perdure.threads.records import Lifetime, RunRequest
from perdure.threads.rows import RunLimits

BACKSTOP_SECONDS = 5.0
"""Least delay between the timeout that the worker enforces and the same timeout in the watchdog."""


def backstop(timeout: float, lease: float) -> float:
    """Return the timeout after which the watchdog ends an attempt that its worker should have ended.

    A worker that was lost earlier is unresponsive by then, so its loss does not count as a timeout.
    """
    return timeout + max(lease, BACKSTOP_SECONDS)


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of runs whose requests set no others."""

    timeout: float | None = None
    """Timeout for runs without their own timeout or one of their agent."""
    max_attempts: int = 3
    lease: float = 10.0
    grace: float = 10.0
    """Time that a worker has to stop a cancelled run."""
    linger: float = 60.0
    """How long deleted rows are kept, for callers that still wait for them."""
    check_webhook: Callable[[str], str | None] | None = None
    """Returns the URL or raises; None if webhooks are disabled."""
    lifetime: Lifetime | None = None
    """Lifetime of threads without their own; None means no expiry."""

    @property
    def grace_micros(self) -> int:
        return to_micros(self.grace)


@lru_cache(maxsize=1024)
def limits_of_phase(
    timeout: float, lease: float, max_attempts: int, retry_after: float | None, free_lapses: int
) -> str:
    """Encode the limits of a phase for storage."""
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
    """Encode the limits of a run for storage."""
    own = request.timeout_seconds
    # Only the worker that claims the run knows its agent's timeout, so the watchdog gets the upper bound.
    longest = own or max(policy.timeout or 0.0, MAX_TIMEOUT, GRAPH_TIMEOUT)
    limits = RunLimits(
        timeout_seconds=backstop(longest, policy.lease),
        unresponsive_seconds=policy.lease,
        max_attempts=request.max_attempts or policy.max_attempts,
        retry_condition=(UNRESPONSIVE,),
        run_timeout=own or 0.0,
        server_timeout=policy.timeout,
    )
    config = msgspec.json.encode(limits).decode()
    decode_limits(config)
    return config
