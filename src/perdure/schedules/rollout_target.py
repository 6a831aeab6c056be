"""What schedules start: rollouts, enqueued in the transaction that records the firing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from perdure.kernel.errors import InvalidInput, PerdureError
from perdure.kernel.storage.port import Tx
from perdure.kernel.validation import explain
from perdure.rollouts import encoding
from perdure.rollouts.model import ENDED, SUCCEEDED, TASK, Kinds
from perdure.rollouts.operations.enqueue import NewRollout, enqueue
from perdure.rollouts.operations.queries import rollouts_named
from perdure.rollouts.operations.work import ENDED_CHANNEL, ended_key
from perdure.rollouts.records import EnqueueRolloutRequest, RolloutConfig
from perdure.rollouts.rows import RolloutRecordRow
from perdure.schedules.model import FAILED, SUCCESS, FiringOutcome, FiringRequest


class RolloutTarget:
    """Enqueues rollouts. A payload holds the fields of a request; the metadata is that of the schedule."""

    name = "rollout"

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds

    def prepare(self, order: FiringRequest) -> NewRollout:
        """The rollout that an order asks for, checked and encoded."""
        if order.assistant_id is not None:
            raise InvalidInput("a schedule of rollouts has no assistant")
        try:
            request = msgspec.convert(dict(order.payload), EnqueueRolloutRequest)
        except msgspec.ValidationError as error:
            raise InvalidInput(
                explain(error, EnqueueRolloutRequest, "the rollout that is scheduled")
            ) from None
        if request.idempotency_key is not None or request.not_before is not None:
            raise InvalidInput("a scheduled rollout has neither an idempotency_key nor a not_before")
        request.metadata = {**(request.metadata or {}), **order.metadata}
        if order.timeout is not None:
            request.config = request.config or RolloutConfig()
            if request.config.timeout_seconds is None:
                request.config.timeout_seconds = order.timeout
        return encoding.from_request(request)

    async def refusal(self, tx: Tx, thread_id: str | None) -> PerdureError | None:
        """A rollout has no thread."""
        return None if thread_id is None else InvalidInput("a schedule of rollouts has no thread")

    async def start(self, tx: Tx, prepared: Sequence[NewRollout]) -> Sequence[str | PerdureError]:
        """Enqueue the rollouts; answers each with its id."""
        return [row.id for row in await enqueue(tx, prepared, self._kinds)]

    async def find(self, tx: Tx, started: Sequence[str]) -> Mapping[str, RolloutRecordRow]:
        """Read rollouts."""
        return {row.id: row for row in await rollouts_named(tx, started, [TASK])}

    def outcome(self, found: RolloutRecordRow) -> FiringOutcome | None:
        """How a rollout has ended, or None while it has not."""
        if found.status not in ENDED:
            return None
        duration = None if found.end_time is None else max(found.end_time - found.start_time, 0)
        if found.status == SUCCEEDED:
            return FiringOutcome(SUCCESS, duration)
        return FiringOutcome(FAILED, duration, f"the rollout is {found.status}")

    def ended_key(self, ns: int, started_id: str) -> tuple[str, str]:
        """The hint that a rollout has ended."""
        return ENDED_CHANNEL, ended_key(ns, started_id)
