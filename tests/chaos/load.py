"""Workers that do to a store all that its users do, and write down each call and its answer."""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

from tests.support.history import Answer, Recorder

from perdure.kernel.clock import to_micros
from perdure.rollouts.contract import LightningStore
from perdure.rollouts.model import ENDED
from perdure.rollouts.records import (
    ROLLOUT_STATUSES,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    Rollout,
    RolloutConfig,
)
from perdure.rollouts.resources import LLM
from perdure.spans.records import Span

RESOURCES = "rs-000000000000"
PAUSE_AFTER_FAILURE = 0.02
OPEN = [status for status in ROLLOUT_STATUSES if status not in ENDED]

Action = Callable[[str], Awaitable[None]]


class Load:
    """Several workers on one store. `number` sets the span ids of this process apart from all others'.

    With `rollouts` they make so many, and end when none is open any more.
    """

    def __init__(
        self,
        store: LightningStore,
        recorder: Recorder,
        *,
        number: int,
        seed: int,
        silence: float,
        rollouts: int | None = None,
    ) -> None:
        self._store = store
        self._recorder = recorder
        self._number = number
        self._random = random.Random(seed)
        self._made = 0
        self._own: list[str] = []
        self._left = math.inf if rollouts is None else rollouts
        self._finished = False
        self._config = RolloutConfig(
            max_attempts=4,
            retry_condition=["failed", "unresponsive", "timeout"],
            unresponsive_seconds=silence,
            timeout_seconds=silence * 20,
        )
        self._actions: tuple[tuple[Action, int], ...] = (
            (self._enqueue, 3),
            (self._work, 6),
            (self._start, 1),
            (self._edit, 1),
            (self._update_resources, 1),
        )

    async def run(self, workers: int, stop: asyncio.Event) -> None:
        """Work until told to stop; calls under way are finished first."""
        names = [f"{self._recorder.process}-{number}" for number in range(workers)]
        await asyncio.gather(*(self._worker(name, stop) for name in names))

    async def _worker(self, name: str, stop: asyncio.Event) -> None:
        actions, weights = zip(*self._actions, strict=True)
        while not stop.is_set() and not self._finished:
            (action,) = self._random.choices(actions, weights)
            if self._left > 0 or action not in (self._enqueue, self._start):
                await action(name)

    def _token(self) -> str:
        self._made += 1
        return f"{self._recorder.process}.{self._made}"

    def _span_ids(self, count: int) -> list[str]:
        self._made += count
        return [format((self._number << 40) + self._made - place, "016x") for place in range(count)]

    async def _call(
        self,
        function: str,
        given: dict[str, Any],
        action: Awaitable[Any],
        got: Callable[[Any], dict[str, Any]],
    ) -> Answer[Any]:
        answer = await self._recorder.call(function, given, action, got)
        if not answer.ok:
            await asyncio.sleep(PAUSE_AFTER_FAILURE)
        return answer

    # --- enqueuing and changing ---------------------------------------------------------------------------

    async def _enqueue(self, worker: str) -> None:
        kind = self._random.random()
        if kind < 0.4:
            await self._enqueue_many(self._random.randint(2, 5))
        elif kind < 0.6:
            await self._enqueue_by_key()
        else:
            await self._enqueue_one()

    async def _enqueue_one(self) -> None:
        token = self._token()
        action = self._store.enqueue_rollout(
            {"token": token}, config=self._config, priority=self._random.randint(0, 2)
        )
        self._remember(await self._call("enqueue", {"tokens": [token]}, action, _one_id))

    async def _enqueue_by_key(self) -> None:
        """With a key the caller may ask again, whatever became of the first call."""
        token = self._token()
        for again in (False, True):
            action = self._store.enqueue_rollout({"token": token}, config=self._config, idempotency_key=token)
            self._remember(await self._call("enqueue", {"tokens": [token]}, action, _one_id), again=again)

    async def _enqueue_many(self, count: int) -> None:
        tokens = [self._token() for _ in range(count)]
        requests = [EnqueueRolloutRequest(input={"token": token}, config=self._config) for token in tokens]
        action = self._store.enqueue_many_rollouts(requests)
        self._remember(await self._call("enqueue", {"tokens": tokens}, action, _many_ids))

    def _remember(self, answer: Answer[Any], *, again: bool = False) -> None:
        if answer.value is not None:
            rollouts = [answer.value] if isinstance(answer.value, Rollout) else answer.value
            self._left -= 0 if again else len(rollouts)
            self._own = (self._own + [rollout.rollout_id for rollout in rollouts])[-50:]

    async def _edit(self, worker: str) -> None:
        if not self._own:
            return
        rollout_id, token = self._random.choice(self._own), self._token()
        if self._random.random() < 0.2:
            self._own.remove(rollout_id)
            cancel = self._store.update_rollout(rollout_id, status="cancelled")
            await self._call("cancel", {"rollout": rollout_id}, cancel, _nothing)
        else:
            edit = self._store.update_rollout(rollout_id, metadata={"token": token})
            await self._call("edit", {"rollout": rollout_id, "token": token}, edit, _nothing)

    async def _update_resources(self, worker: str) -> None:
        token = self._token()
        action = self._store.update_resources(RESOURCES, {"llm": LLM(endpoint="none", model=token)})
        given = {"id": RESOURCES, "token": token}
        await self._call("resources", given, action, lambda update: {"version": update.version})

    # --- working ------------------------------------------------------------------------------------------

    async def _start(self, worker: str) -> None:
        token = self._token()
        action = self._store.start_rollout({"token": token}, config=self._config, worker_id=worker)
        given = {"tokens": [token], "worker": worker}
        answer = await self._call(
            "start", given, action, lambda rollout: {**_one_id(rollout), **_claims([rollout])}
        )
        if answer.value is not None:
            self._left -= 1
            await self._attempt(answer.value)

    async def _work(self, worker: str) -> None:
        limit = self._random.choice((1, 1, 3))
        action = self._store.dequeue_many_rollouts(limit=limit, worker_id=worker)
        answer = await self._call("dequeue", {"worker": worker, "limit": limit}, action, _claims)
        for claimed in answer.value or ():
            await self._attempt(claimed)
        if answer.ok and not answer.value and self._left <= 0:
            await self._look_around()

    async def _look_around(self) -> None:
        """See whether anything is left to do, here or elsewhere."""
        looking = self._store.query_rollouts(status_in=OPEN, limit=1)
        answer = await self._call("look", {}, looking, lambda found: {"open": len(found)})
        self._finished = answer.ok and not answer.value
        await asyncio.sleep(PAUSE_AFTER_FAILURE)

    async def _attempt(self, claimed: AttemptedRollout) -> None:
        for _ in range(self._random.randint(0, 2)):
            await self._random.choice((self._spans, self._numbered_span))(claimed)
        fate = self._random.random()
        if fate < 0.9:
            await self._report(claimed, "succeeded" if fate < 0.6 else "failed")

    async def _spans(self, claimed: AttemptedRollout) -> None:
        """Numbers first, then spans that bear them, sent a second time by chance or because none knows."""
        rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
        ids = self._span_ids(self._random.randint(1, 4))
        pairs = [(rollout_id, attempt_id)] * len(ids)
        numbers = await self._call(
            "sequence",
            {"rollouts": [rollout_id] * len(ids)},
            self._store.get_many_span_sequence_ids(pairs),
            lambda taken: {"numbers": list(taken)},
        )
        if numbers.value is None:
            return
        spans = [
            Span.from_attributes(
                attributes={"token": span_id},
                rollout_id=rollout_id,
                attempt_id=attempt_id,
                sequence_id=number,
                span_id=span_id,
            )
            for span_id, number in zip(ids, numbers.value, strict=True)
        ]
        given = {"rollout": rollout_id, "attempt": attempt_id, "spans": ids}
        answer = await self._call("spans", given, self._store.add_many_spans(spans), _stored)
        if answer.outcome == "info" or self._random.random() < 0.1:
            await self._call("spans", given, self._store.add_many_spans(spans), _stored)

    async def _numbered_span(self, claimed: AttemptedRollout) -> None:
        """A span that the store gives its number."""
        rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
        (span_id,) = self._span_ids(1)
        action = self._store.add_otel_span(rollout_id, attempt_id, _recorded_span(int(span_id, 16)))
        given = {"rollout": rollout_id, "attempt": attempt_id, "spans": [span_id]}
        await self._call("spans", given, action, _stored_and_numbered)

    async def _report(self, claimed: AttemptedRollout, status: AttemptStatus) -> None:
        """Say how the attempt ended; if nobody knows whether that was heard, say it again."""
        rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
        token = self._token()
        for _ in range(2):
            action = self._store.update_attempt(
                rollout_id, attempt_id, status=status, metadata={"token": token}
            )
            given = {"rollout": rollout_id, "attempt": attempt_id, "status": status, "token": token}
            if (await self._call("report", given, action, _reported)).outcome != "info":
                return


def _nothing(_: object) -> dict[str, Any]:
    return {}


def _one_id(rollout: Rollout) -> dict[str, Any]:
    return {"ids": [rollout.rollout_id]}


def _many_ids(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    return {"ids": [rollout.rollout_id for rollout in rollouts]}


def _claims(claimed: Sequence[AttemptedRollout]) -> dict[str, Any]:
    return {
        "claims": [(each.rollout_id, each.attempt.attempt_id, each.attempt.sequence_id) for each in claimed]
    }


def _stored(spans: Sequence[Span]) -> dict[str, Any]:
    return {"stored": [span.span_id for span in spans]}


def _stored_and_numbered(span: Span | None) -> dict[str, Any]:
    return {"stored": [span.span_id], "numbers": [span.sequence_id]} if span else {"stored": []}


def _reported(attempt: Attempt) -> dict[str, Any]:
    return {"status": attempt.status, "end_time": to_micros(attempt.end_time or 0)}


def _recorded_span(number: int) -> SimpleNamespace:
    """A span in the shape of OpenTelemetry's, without loading its SDK in every process that is killed."""
    context = SimpleNamespace(
        trace_id=number, span_id=number, is_remote=False, trace_state=None, trace_flags=1
    )
    return SimpleNamespace(
        name="step",
        get_span_context=lambda: context,
        parent=None,
        status=SimpleNamespace(status_code=SimpleNamespace(name="OK"), description=None),
        kind=SimpleNamespace(name="INTERNAL"),
        resource=SimpleNamespace(attributes={}, schema_url=""),
        attributes={},
        events=(),
        links=(),
        start_time=1,
        end_time=2,
        dropped_attributes=0,
        dropped_events=0,
        dropped_links=0,
    )
