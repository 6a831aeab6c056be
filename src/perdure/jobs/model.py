"""The rules of jobs: their names, their limits, and the functions that execute them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import msgspec

from perdure.jobs.records import Job
from perdure.kernel.checks import check_name, check_object, optional_id
from perdure.kernel.clock import to_micros, to_seconds, to_seconds_or_none
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import TooLarge
from perdure.kernel.retry import Backoff
from perdure.kernel.storage.port import Storage
from perdure.rollouts.model import UNRESPONSIVE, Limits

JOB: Final = "job"
INTERNAL_QUEUE: Final = "internal"

LEASE_SECONDS: Final = 15.0
"""How long the process that executes a job may be silent before another gets it."""
LOST_ATTEMPTS: Final = 10
"""How many attempts a job has whose processes are lost; failures count by the limit of the job."""
TIMEOUT_SECONDS: Final = 300.0
MAX_ATTEMPTS: Final = 3
RETRY_SECONDS: Final = (1.0, 60.0)
"""The first and the longest pause before a job that failed is tried again."""
MAX_BODY: Final = 256 << 10
"""How many characters a payload and a result may have as JSON."""
LOST: Final = f"the process that executed the job was lost {LOST_ATTEMPTS} times"
CANCELLED_TEXT: Final = "the job was cancelled"


def timed_out(seconds: float) -> str:
    """What is kept of a job that took too long."""
    return f"Job timed out after {seconds:g} seconds"


# --- what is executed ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """What the function of a job knows beside its payload."""

    storage: Storage
    ns: int
    namespace: str
    job_id: str
    name: str
    key: str | None
    """What the job is about, if it was enqueued with a key."""
    attempt: int
    """The number of this attempt, from 1."""


JobFunction = Callable[[JobContext, Mapping[str, Any]], Awaitable[Mapping[str, Any] | None]]
"""Executes a job; what it returns is kept as its result.

It runs in the event loop of a server, so that whatever computes for long belongs into a thread. It may run
again after a crash: what it writes is the same then.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A function, and the limits of the jobs that it executes where these name no others."""

    name: str
    function: JobFunction
    timeout: float
    max_attempts: int
    retry: tuple[float, float]

    def pause(self, attempt: int) -> float:
        """The seconds before the next attempt after one that failed."""
        first, longest = self.retry
        return Backoff(first, longest).delay(attempt)


class JobRegistry:
    """The functions that this process has, by name. Jobs of any other name are left to other processes."""

    def __init__(self) -> None:
        self._specs: dict[str, JobSpec] = {}

    def register(
        self,
        name: str,
        function: JobFunction,
        *,
        timeout: float = TIMEOUT_SECONDS,
        max_attempts: int = MAX_ATTEMPTS,
        retry: tuple[float, float] = RETRY_SECONDS,
    ) -> None:
        """Add a function, before the executor starts. A job that fails has `max_attempts` in all.

        A job that takes longer than `timeout` seconds has failed, and is not tried again.
        """
        check_name(name, "the name of a job")
        if name in self._specs:
            raise AssertionError(f"job {name} is registered twice")
        self._specs[name] = JobSpec(
            name=name, function=function, timeout=timeout, max_attempts=max_attempts, retry=retry
        )

    def replace(self, name: str, function: JobFunction) -> None:
        """Execute the next jobs of a registered name with another function."""
        self._specs[name] = replace(self._specs[name], function=function)

    def __getitem__(self, name: str) -> JobSpec:
        return self._specs[name]

    def __contains__(self, name: object) -> bool:
        return name in self._specs

    def names(self) -> list[str]:
        return sorted(self._specs)


# --- what is enqueued ---------------------------------------------------------------------------------------


class JobLimits(Limits, frozen=True):
    """The limits of a job as they are stored. None is what its function was registered with."""

    job_timeout: float | None = None
    job_attempts: int | None = None


_limits = msgspec.json.Decoder(JobLimits)


def job_limits(config: str) -> JobLimits:
    """The limits in a stored config."""
    return _limits.decode(config)


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be enqueued, checked and encoded by `new_job`."""

    name: str
    payload: str
    config: str
    key: str | None = None
    """Of one name and key at most one job waits to begin: another one is answered with its id."""
    idempotency_key: str | None = None
    """A key that was used before is answered with the job that came with it first, while that is kept."""
    delay: int = 0
    """The microseconds before it may begin."""


DEFAULT_LIMITS: Final = encode_json(
    JobLimits(unresponsive_seconds=LEASE_SECONDS, max_attempts=LOST_ATTEMPTS, retry_condition=(UNRESPONSIVE,))
)


def new_job(
    name: str,
    payload: Mapping[str, Any] | None = None,
    *,
    key: str | None = None,
    idempotency_key: str | None = None,
    delay: float = 0.0,
    timeout: float | None = None,
    max_attempts: int | None = None,
) -> NewJob:
    """A job for `enqueue_jobs`; `timeout` and `max_attempts` go before those of its function."""
    config = DEFAULT_LIMITS
    if timeout is not None or max_attempts is not None:
        limits = job_limits(DEFAULT_LIMITS)
        config = encode_json(msgspec.structs.replace(limits, job_timeout=timeout, job_attempts=max_attempts))
    return NewJob(
        name=check_name(name, "the name of a job"),
        payload=check_body(check_object(payload or {}, "payload"), "payload"),
        config=config,
        key=optional_id(key, "key"),
        idempotency_key=optional_id(idempotency_key, "idempotency_key"),
        delay=to_micros(delay),
    )


def check_body(value: Mapping[str, Any], what: str) -> str:
    """A payload or a result as it is stored."""
    text = encode_json(value, what=what)
    if len(text) > MAX_BODY:
        raise TooLarge(f"the {what} of a job has {len(text):,} characters; at most {MAX_BODY:,} are allowed")
    return text


# --- how it ended -------------------------------------------------------------------------------------------


class JobLease(NamedTuple):
    """A claim on a job: the attempt is the token that its end carries."""

    job_id: str
    attempt_id: str


class JobEnd(NamedTuple):
    """How an attempt ended: with a result as JSON, or with an error."""

    lease: JobLease
    result: str | None = None
    error: str | None = None
    timeout: bool = False
    max_attempts: int = 1
    """How many attempts it has in all, if this one failed."""
    delay: int = 0
    """The microseconds before the next one."""


class ClaimedJob(NamedTuple):
    """A claimed job; payload and limits are JSON."""

    lease: JobLease
    name: str
    key: str | None
    attempt: int
    payload: str
    config: str


# --- rows ---------------------------------------------------------------------------------------------------


class JobRow(NamedTuple):
    """A row of `jobs`."""

    id: str
    name: str
    key: str | None
    waiting_key: str | None
    created_at: int
    ended_at: int | None
    error: str | None
    payload: str
    result: str | None


class WaitingRow(NamedTuple):
    """A job that waits to begin, by its name and key."""

    id: str
    name: str
    waiting_key: str


class JobEndRow(NamedTuple):
    """What is written of a job that has ended or failed."""

    id: str
    waiting_key: str | None
    ended_at: int | None
    error: str | None
    result: str | None


class JobWithRollout(NamedTuple):
    """A job with what its rollout knows."""

    id: str
    name: str
    key: str | None
    status: str
    outcome: str | None
    attempts: int
    created_at: int
    ended_at: int | None
    error: str | None
    payload: str
    result: str | None


class ReadyNamespaceRow(NamedTuple):
    """A namespace in which jobs are ready."""

    id: int
    name: str


class EndedJobRow(NamedTuple):
    """A job that ended a while ago."""

    ns: int
    id: str


def job_of(row: JobWithRollout) -> Job:
    """The record of a job."""
    return Job(
        job_id=row.id,
        name=row.name,
        key=row.key,
        status=row.status,
        outcome=row.outcome,
        attempts=row.attempts,
        created_at=to_seconds(row.created_at),
        ended_at=to_seconds_or_none(row.ended_at),
        error=row.error,
        payload=decode_json(row.payload),
        result=None if row.result is None else decode_json(row.result),
    )
