"""Rules of jobs: their names, their limits, and the functions that execute them."""

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
from perdure.rollouts.model import UNRESPONSIVE, EndReport, Limits

JOB: Final = "job"
INTERNAL_QUEUE: Final = "internal"

LEASE_SECONDS: Final = 15.0
"""How long the process that executes a job may stop renewing before another process gets the job."""
LOST_ATTEMPTS: Final = 10
"""Maximum number of attempts whose processes are lost; failures count by the limit of the job."""
TIMEOUT_SECONDS: Final = 300.0
MAX_ATTEMPTS: Final = 3
RETRY_SECONDS: Final = (1.0, 60.0)
"""The first and the longest pause before a failed job is retried."""
MAX_BODY: Final = 256 << 10
"""Maximum length of a payload and a result, in characters of JSON."""
LOST: Final = f"the process that executed the job was lost {LOST_ATTEMPTS} times"
CANCELLED_TEXT: Final = "the job was cancelled"


def timed_out(seconds: float) -> str:
    """Return the error of a job that took too long."""
    return f"Job timed out after {seconds:g} seconds"


# --- execution ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """The context of a job's function, besides its payload."""

    storage: Storage
    ns: int
    namespace: str
    job_id: str
    name: str
    key: str | None
    """The subject of the job, if it was enqueued with a key."""
    attempt: int
    """Number of this attempt, from 1."""


JobFunction = Callable[[JobContext, Mapping[str, Any]], Awaitable[Mapping[str, Any] | None]]
"""Function that executes a job; its return value is stored as the result.

It runs in the event loop of a server, so long computations belong in a thread. It may run again after a
crash, so its writes must be idempotent.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A function, and the default limits of the jobs that it executes."""

    name: str
    function: JobFunction
    timeout: float
    max_attempts: int
    retry: tuple[float, float]

    def pause(self, attempt: int) -> float:
        """Return the seconds before the next attempt after a failed one."""
        first, longest = self.retry
        return Backoff(first, longest).delay(attempt)


class JobRegistry:
    """The functions of this process by name. Other processes execute jobs of other names."""

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
        """Add a function, before the executor starts. A failing job has at most `max_attempts` attempts.

        A job that takes longer than `timeout` seconds fails without a retry.
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


# --- new jobs -----------------------------------------------------------------------------------------------


class JobLimits(Limits, frozen=True):
    """Stored limits of a job. None means the limit of its function."""

    job_timeout: float | None = None
    job_attempts: int | None = None


_limits = msgspec.json.Decoder(JobLimits)


def job_limits(config: str) -> JobLimits:
    """Decode the limits from a stored config."""
    return _limits.decode(config)


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job to enqueue, checked and encoded by `new_job`."""

    name: str
    payload: str
    config: str
    key: str | None = None
    """Only one job of a name and key waits to start: a second one is answered with the id of the first."""
    idempotency_key: str | None = None
    """A repeated key is answered with the first job that had it, while that job is stored."""
    delay: int = 0
    """Microseconds before it may start."""


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
    """Build a job for `enqueue_jobs`; `timeout` and `max_attempts` override those of its function."""
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
    """Encode a payload or a result to store."""
    text = encode_json(value, what=what)
    if len(text) > MAX_BODY:
        raise TooLarge(f"the {what} of a job has {len(text):,} characters; at most {MAX_BODY:,} are allowed")
    return text


# --- ends ---------------------------------------------------------------------------------------------------


class JobLease(NamedTuple):
    """A claim on a job: its end must carry the attempt as a token."""

    job_id: str
    attempt_id: str


@dataclass(frozen=True, slots=True)
class JobEnd(EndReport):
    """The end of an attempt: with a result as JSON, or with an error."""

    lease: JobLease
    result: str | None = None
    error: str | None = None
    timeout: bool = False
    max_attempts: int = 1
    """Maximum number of attempts if this one failed."""
    delay: int = 0
    """Microseconds before the next attempt."""


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
    """A job that waits to start, by its name and key."""

    id: str
    name: str
    waiting_key: str


class JobEndRow(NamedTuple):
    """The columns to write when a job has ended or failed."""

    id: str
    waiting_key: str | None
    ended_at: int | None
    error: str | None
    result: str | None


class JobWithRollout(NamedTuple):
    """A job with the status of its rollout."""

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
    """A namespace with ready jobs."""

    id: int
    name: str


class EndedJobRow(NamedTuple):
    """A job that ended before a time."""

    ns: int
    id: str


def row_to_job(row: JobWithRollout) -> Job:
    """Convert a row to the record of a job."""
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
