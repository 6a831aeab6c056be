"""Rows of threads, runs and checkpoints, and the records that callers see of them."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.kernel.clock import to_seconds, to_seconds_or_none
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.storage.port import Row
from perdure.outbox.webhooks.urls import mask_target
from perdure.rollouts.model import Limits, limits_of
from perdure.threads.model import run_status
from perdure.threads.records import Checkpoint, Failure, Interrupt, Run, RunKwargs, RunStatus, Thread


class Made(tuple[Any, ...]):
    """The answer to a creation or a claim: a row of ids, which an idempotency key keeps, and the whole of it,
    so that whoever asked for it need not read it again."""

    whole: Any

    def __new__(cls, row: tuple[Any, ...], whole: Any) -> Made:
        made = super().__new__(cls, row)
        made.whole = whole
        return made


class ThreadRow(msgspec.Struct):
    """A row of threads, in the order of `THREAD_VIEW`."""

    id: str
    status: str
    rest: str
    temporary: int | None
    gone_at: int | None
    created_at: int
    updated_at: int
    state_at: int
    checkpoint_id: str | None
    steps: int
    error: str | None
    config: str
    metadata: str

    def moved(self, ns: int | None) -> tuple[Any, ...]:
        """What `MOVE_THREADS` writes."""
        return (
            self.status,
            self.rest,
            self.gone_at,
            self.updated_at,
            self.state_at,
            self.checkpoint_id,
            self.steps,
            self.error,
            ns,
            self.id,
        )


ThreadAnswer = tuple[ThreadRow, Row | None]
"""A thread, and its state if it has one and that was asked for."""


class RunRow(msgspec.Struct):
    """A run with what its rollout says, in the order of `RUN_COLUMNS`."""

    id: str
    thread_id: str
    assistant_id: str
    agent: str
    rollout_status: str
    outcome: str | None
    metadata: str
    input: str
    strategy: str
    created_at: int
    updated_at: int
    end_time: int | None
    attempts: int
    error: str | None
    temporary: int | None
    on_disconnect: str
    on_completion: str
    webhook: str | None
    gone_at: int | None
    config: str
    resources_id: str | None

    @property
    def status(self) -> RunStatus:
        return run_status(self.rollout_status, self.outcome)

    @property
    def limits(self) -> Limits:
        return limits_of(self.config)


class RunLimits(msgspec.Struct, frozen=True):
    """What a run may take, as it is stored in its rollout's config."""

    timeout_seconds: float
    """The watchdog's; a little later than the worker's own."""
    unresponsive_seconds: float
    max_attempts: int
    retry_condition: tuple[str, ...]
    run_timeout: float


_limits = msgspec.json.Decoder(RunLimits)


def run_limits(row: RunRow) -> RunLimits:
    return _limits.decode(row.config)


def failure_of(text: str | None) -> Failure | None:
    return None if text is None else Failure(**decode_json(text))


def failure_text(failure: Failure | None) -> str | None:
    if failure is None:
        return None
    return encode_json({"error": failure.error, "message": failure.message}, what="error")


def kwargs_of(text: str) -> RunKwargs:
    return msgspec.convert(decode_json(text), RunKwargs)


def run_of(row: RunRow) -> Run:
    """The record of a run."""
    ended = to_seconds_or_none(row.end_time)
    updated = to_seconds(max(row.updated_at, row.end_time or 0))
    return Run(
        run_id=row.id,
        thread_id=row.thread_id,
        assistant_id=row.assistant_id,
        agent=row.agent,
        status=row.status,
        metadata=decode_json(row.metadata) or {},
        kwargs=kwargs_of(row.input),
        multitask_strategy=row.strategy,  # type: ignore[arg-type]
        created_at=to_seconds(row.created_at),
        updated_at=updated,
        ended_at=ended,
        attempt=row.attempts,
        error=failure_of(row.error),
        temporary=row.temporary is not None,
        on_disconnect=row.on_disconnect,  # type: ignore[arg-type]
        webhook=None if row.webhook is None else mask_target(row.webhook),
    )


def thread_of(row: ThreadRow, checkpoint: Row | None) -> Thread:
    """The record of a thread, with the values of its checkpoint if they were read."""
    return Thread(
        thread_id=row.id,
        status=row.status,  # type: ignore[arg-type]
        metadata=decode_json(row.metadata),
        config=decode_json(row.config),
        values=None if checkpoint is None else decode_json(checkpoint[11]),
        interrupts=[] if checkpoint is None else _interrupts(checkpoint[9]),
        error=failure_of(row.error),
        created_at=to_seconds(row.created_at),
        updated_at=to_seconds(row.updated_at),
        state_updated_at=to_seconds(row.state_at),
        checkpoint_id=row.checkpoint_id,
    )


def _interrupts(text: str) -> list[Interrupt]:
    return [Interrupt(**each) for each in decode_json(text)]


def is_graph(state: bytes | None) -> bool:
    """Whether a state is a graph's, which marks it so: the state is there, and it is empty."""
    return state is not None and len(state) == 0


def checkpoint_of(row: Row) -> Checkpoint:
    """The record of a checkpoint, from a row of `CHECKPOINT_VIEW`."""
    (
        thread_id,
        id,
        _,
        step,
        parent_id,
        run_id,
        attempt,
        created_at,
        following,
        asked,
        metadata,
        body,
        state,
    ) = row
    return Checkpoint(
        thread_id=thread_id,
        checkpoint_id=id,
        parent_id=parent_id,
        run_id=run_id,
        attempt=attempt,
        step=step,
        values=decode_json(body) if body else None,
        next=decode_json(following),
        interrupts=_interrupts(asked),
        metadata=decode_json(metadata),
        state=bytes(state) if state else None,
        graph=is_graph(state),
        created_at=to_seconds(created_at),
    )
