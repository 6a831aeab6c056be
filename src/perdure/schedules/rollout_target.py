"""Schedule target: rollouts, enqueued in the transaction that records the firing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from perdure.kernel.checks import explain
from perdure.kernel.errors import InvalidInput, PerdureError
from perdure.kernel.storage.port import Tx
from perdure.rollouts import encoding
from perdure.rollouts.model import ENDED, SUCCEEDED, TASK, Kinds
from perdure.rollouts.operations.enqueue import NewRollout, enqueue
from perdure.rollouts.operations.queries import rollouts_named
from perdure.rollouts.operations.work import ENDED_CHANNEL, ended_key
from perdure.rollouts.records import EnqueueRolloutRequest, RolloutConfig
from perdure.rollouts.rows import RolloutRecordRow
from perdure.schedules.model import FAILED, SUCCESS, FiringOutcome, FiringRequest


class RolloutTarget:
    """Enqueue rollouts. A payload has the fields of a request; the metadata is that of the schedule."""

    name = "rollout"

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds

    def prepare(self, order: FiringRequest) -> NewRollout:
        """Build the rollout of a request, checked and encoded."""
        if order.assistant_id is not None:
            raise InvalidInput("a schedule of rollouts has no assistant")
        try:
            request = msgspec.convert(dict(order.payload), EnqueueRolloutRequest)
        except msgspec.ValidationError as error:
            raise InvalidInput(
                explain(error, EnqueueRolloutRequest, "the rollout that is scheduled")
            ) from None
        if request.idempotency_key is not None or request.not_before is not None:
            raise InvalidInput("a scheduled rollout cannot have an idempotency_key or a not_before")
        request.metadata = {**(request.metadata or {}), **order.metadata}
        if order.timeout is not None:
            request.config = request.config or RolloutConfig()
            if request.config.timeout_seconds is None:
                request.config.timeout_seconds = order.timeout
        return encoding.from_request(request)

    async def refusal(self, tx: Tx, thread_id: str | None) -> PerdureError | None:
        """Refuse a thread, which a rollout cannot have."""
        return None if thread_id is None else InvalidInput("a schedule of rollouts has no thread")

    async def start(self, tx: Tx, prepared: Sequence[NewRollout]) -> Sequence[str | PerdureError]:
        """Enqueue the rollouts; return their ids."""
        return [row.id for row in await enqueue(tx, prepared, self._kinds)]

    async def find(self, tx: Tx, started: Sequence[str]) -> Mapping[str, RolloutRecordRow]:
        """Return the existing rollouts."""
        return {row.id: row for row in await rollouts_named(tx, started, [TASK])}

    def outcome(self, rollout: RolloutRecordRow) -> FiringOutcome | None:
        """Return the outcome of a rollout; None while it has not ended."""
        if rollout.status not in ENDED:
            return None
        duration = None if rollout.end_time is None else max(rollout.end_time - rollout.start_time, 0)
        if rollout.status == SUCCEEDED:
            return FiringOutcome(SUCCESS, duration)
        return FiringOutcome(FAILED, duration, f"the rollout is {rollout.status}")

    def ended_key(self, ns: int, started_id: str) -> tuple[str, str]:
        """Return the hint for the end of a rollout."""
        return ENDED_CHANNEL, ended_key(ns, started_id)
