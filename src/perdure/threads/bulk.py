"""Cancel or retry many rollouts or runs in one call. Each item gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, TypeVar

from msgspec import Meta

from perdure.kernel.checks import Id, check_choice, check_ids, check_number
from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.kernel.record import Record
from perdure.rollouts.records import RolloutStatus
from perdure.rollouts.service import Rollouts
from perdure.service.base import Service
from perdure.service.endpoints import MAX_BATCH, POST, call
from perdure.threads.model import LIVE_STATUSES
from perdure.threads.records import MULTITASK_STRATEGIES, MultitaskStrategy, Run, RunRequest, RunStatus
from perdure.threads.service import Threads

T = TypeVar("T")

Ids = Annotated[list[str], Meta(max_length=MAX_BATCH)]


class BulkAnswer(Record, kw_only=True):
    """Result for one item of a bulk call: its new status, or the error."""

    id: str
    status: str | None = None
    run_id: str | None = None
    """The new run, if a run was retried."""
    code: str | None = None
    """The code of the error, if nothing was changed."""
    error: str | None = None


class Bulk(Service):
    """Cancels and retries many rollouts or runs of one namespace, selected by ID or by status."""

    def __init__(self, rollouts: Rollouts, threads: Threads) -> None:
        super().__init__(threads.storage, namespace=threads.namespace, caller=threads.caller)
        self._rollouts = rollouts
        self._threads = threads

    @call(POST("/rollouts/cancel"), scope="write", repeatable=True)
    async def cancel_rollouts(
        self, *, rollout_ids: Ids | None = None, status: list[RolloutStatus] | None = None
    ) -> list[BulkAnswer]:
        """Cancel rollouts that have not ended: by their IDs, or the newest 1,000 with one of the statuses."""
        return await self._each(await self._chosen(rollout_ids, status), self._cancel_rollout)

    async def _cancel_rollout(self, rollout_id: str) -> BulkAnswer:
        return BulkAnswer(id=rollout_id, status=(await self._rollouts.cancel(rollout_id)).status)

    @call(POST("/rollouts/retry"), scope="write")
    async def retry_rollouts(
        self, *, rollout_ids: Ids | None = None, status: list[RolloutStatus] | None = None
    ) -> list[BulkAnswer]:
        """Enqueue ended rollouts again: by their IDs, or the newest 1,000 with one of the statuses."""
        return await self._each(await self._chosen(rollout_ids, status), self._retry_rollout)

    async def _retry_rollout(self, rollout_id: str) -> BulkAnswer:
        return BulkAnswer(id=rollout_id, status=(await self._rollouts.retry(rollout_id)).status)

    async def _chosen(
        self, rollout_ids: Sequence[str] | None, status: list[RolloutStatus] | None
    ) -> list[str]:
        if rollout_ids is not None:
            return _checked(rollout_ids, status, "rollout_ids")
        rollouts = await self._rollouts.search(status=_given(status, "rollout_ids"), limit=MAX_BATCH)
        return [rollout.rollout_id for rollout in rollouts]

    @call(POST("/runs/{run_id}/retry"), scope="write", status=201, errors=(NotFound, Conflict))
    async def retry_run(
        self,
        run_id: Id,
        *,
        multitask_strategy: MultitaskStrategy = "reject",
        idempotency_key: str | None = None,
    ) -> Run:
        """Retry an ended run: create a new run with the same input on the same thread.

        The metadata of the new run names the old one as `retry_of`. The new run has no webhook.
        """
        check_choice(multitask_strategy, MULTITASK_STRATEGIES, "multitask_strategy")
        old = await self._threads.get_run(run_id)
        return await self._threads.create_run(
            retried(old, multitask_strategy), idempotency_key=idempotency_key
        )

    @call(POST("/runs/retry"), scope="write")
    async def retry_runs(
        self,
        *,
        run_ids: Ids | None = None,
        status: RunStatus | None = None,
        multitask_strategy: MultitaskStrategy = "enqueue",
    ) -> list[BulkAnswer]:
        """Retry ended runs: by their IDs, or the newest 1,000 with a status."""
        check_choice(multitask_strategy, MULTITASK_STRATEGIES, "multitask_strategy")
        if run_ids is not None:
            ids = _checked(run_ids, status, "run_ids")
        else:
            runs = await self._threads.list_runs(status=_given(status, "run_ids"), limit=MAX_BATCH)
            ids = [run.run_id for run in runs]

        async def retry(run_id: str) -> BulkAnswer:
            run = await self.retry_run(run_id, multitask_strategy=multitask_strategy)
            return BulkAnswer(id=run_id, status=run.status, run_id=run.run_id)

        return await self._each(ids, retry)

    async def _each(
        self, ids: Sequence[str], change: Callable[[str], Awaitable[BulkAnswer]]
    ) -> list[BulkAnswer]:
        """Apply `change` to all items concurrently, so that they share transactions."""

        async def one(id: str) -> BulkAnswer:
            try:
                return await change(id)
            except (NotFound, Conflict, InvalidInput) as error:
                return BulkAnswer(id=id, code=error.code, error=error.message)

        return list(await asyncio.gather(*map(one, dict.fromkeys(ids))))


def retried(old: Run, strategy: MultitaskStrategy) -> RunRequest:
    """Build the request that repeats an ended run."""
    if old.status in LIVE_STATUSES:
        raise Conflict(f"run {old.run_id} has not ended yet: it is {old.status}")
    if old.kind == "phase":
        raise Conflict(f"run {old.run_id} is a phase: retry the workflow run {old.parent}")
    kwargs = old.kwargs
    return RunRequest(
        assistant_id=old.assistant_id,
        thread_id=None if old.temporary else old.thread_id,
        on_completion="delete" if old.temporary else "keep",
        multitask_strategy=strategy,
        input=kwargs.input,
        command=kwargs.command,
        config=kwargs.config,
        context=kwargs.context,
        checkpoint_id=kwargs.checkpoint_id,
        stream_mode=kwargs.stream_mode,
        options=kwargs.options,
        metadata={**old.metadata, "retry_of": old.run_id},
    )


def _checked(ids: Sequence[str], status: object, what: str) -> list[str]:
    if status is not None:
        raise InvalidInput(f"give {what} or a status, not both")
    check_number(len(ids), f"the number of {what}", 1, MAX_BATCH)
    return check_ids(ids, what)


def _given(status: T | None, what: str) -> T:
    if not status:
        raise InvalidInput(f"give {what} or a status")
    return status
