"""Calls that are made of a store and of the model alike, and whose answers are compared."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, Status, StatusCode
from tests.support.comparison import Comparison
from tests.support.model import FINISHED, Diverged, Model, ModelConfig, ModelRollout, Unknown, expect

from perdure import Attempt, EnqueueRolloutRequest, RolloutConfig, Span
from perdure.kernel.errors import NotFound
from perdure.rollouts.store import DatabaseLightningStore
from perdure.testing.contract.support import make_span

MISSING = "at-missing"


def config_of(config: ModelConfig) -> RolloutConfig:
    return RolloutConfig(
        timeout_seconds=config.timeout_seconds,
        unresponsive_seconds=config.unresponsive_seconds,
        max_attempts=config.max_attempts,
        retry_condition=list(config.retry_condition),  # type: ignore[arg-type]
    )


async def answer(call: Awaitable[Any]) -> Any:
    """What the store answers, or that it knows no such thing."""
    try:
        return await call
    except NotFound as error:
        return error


class Caller:
    """Makes each call twice: once of the store, once of the model."""

    def __init__(self, store: DatabaseLightningStore, model: Model, compare: Comparison) -> None:
        self.store = store
        self.model = model
        self.compare = compare

    def _pick(self, number: int) -> str:
        """A rollout's id; now and then one that does not exist."""
        ids = [*self.model.rollouts, "ro-missing"]
        return ids[number % len(ids)]

    def _attempt(self, rollout_id: str, number: int) -> str:
        rollout = self.model.rollouts.get(rollout_id)
        attempts = [attempt.attempt_id for attempt in rollout.attempts] if rollout else []
        ids = [*reversed(attempts), MISSING]
        return ids[number % len(ids)]

    def _foresee(self, found: Any, foretell: Callable[[], Any]) -> Any:
        """What the model says; both know what is asked for, or neither does."""
        try:
            wanted = foretell()
        except Unknown as error:
            if isinstance(found, NotFound):
                return None
            raise Diverged(f"the store knows {error}: {found}") from error
        if isinstance(found, NotFound):
            raise Diverged(f"the store does not know what the model knows: {found}")
        return wanted

    # --- new rollouts -------------------------------------------------------------------------------------

    def _arguments(self, request: dict[str, Any]) -> dict[str, Any]:
        """The request in the store's words."""
        given = dict(request)
        given["config"] = config_of(given["config"])
        given["idempotency_key"] = given.pop("key")
        if given["not_before"] is not None:
            given["not_before"] += self.compare.start + self.model.now
        return given

    def _foretell_enqueue(self, requests: list[dict[str, Any]], found: list[Any]) -> None:
        told = []
        for request in requests:
            later = request["not_before"]
            told.append({**request, "not_before": None if later is None else later + self.model.now})
        wanted = self.model.enqueue(told, [rollout.rollout_id for rollout in found])
        for one, rollout in zip(wanted, found, strict=True):
            self.compare.fields(one, rollout)

    async def enqueue(self, requests: list[dict[str, Any]]) -> None:
        calls = [self.store.enqueue_rollout(**self._arguments(request)) for request in requests]
        self._foretell_enqueue(requests, await asyncio.gather(*calls))

    async def enqueue_many(self, requests: list[dict[str, Any]]) -> None:
        batch = [EnqueueRolloutRequest(**self._arguments(request)) for request in requests]
        self._foretell_enqueue(requests, list(await self.store.enqueue_many_rollouts(batch)))

    async def start_rollout(self, config: ModelConfig, worker_id: str | None) -> None:
        found = await self.store.start_rollout(7, config=config_of(config), worker_id=worker_id)
        wanted = self.model.start_rollout(
            found.rollout_id, found.attempt.attempt_id, worker_id, input=7, config=config
        )
        self.compare.rollout(wanted, found)

    # --- attempts -----------------------------------------------------------------------------------------

    async def dequeue(self, claims: list[tuple[int, str | None]], queue: str) -> None:
        calls = [
            self.store.dequeue_many_rollouts(limit=limit, worker_id=worker_id, queue=queue)
            for limit, worker_id in claims
        ]
        answers = await asyncio.gather(*calls)
        with self.model.at_once():
            for (limit, worker_id), claimed in zip(claims, answers, strict=True):
                pairs = [(one.rollout_id, one.attempt.attempt_id) for one in claimed]
                wanted = self.model.dequeue(pairs, limit, worker_id, queue)
                for rollout, found in zip(wanted, claimed, strict=True):
                    self.compare.rollout(rollout, found)

    async def abandon(self, turns: int, queue: str) -> None:
        """Claim, and go away after some turns of the loop: nobody has asked, or the claim is ours."""
        call = asyncio.create_task(self.store.dequeue_many_rollouts(limit=2, queue=queue))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        await self.settle()
        self.model.watchdog()
        if not call.cancelled():
            pairs = [(one.rollout_id, one.attempt.attempt_id) for one in call.result()]
            self.model.dequeue(pairs, 2, None, queue)

    async def settle(self) -> None:
        """Let the store finish what it does on its own."""
        rollouts = self.store.rollouts
        while rollouts._merger._tasks or rollouts._releases:
            await asyncio.wait([*rollouts._merger._tasks, *rollouts._releases])

    async def start_attempts(self, burst: list[tuple[int, str | None]]) -> None:
        picked = [(self._pick(number), worker_id) for number, worker_id in burst]
        calls = [answer(self.store.start_attempt(*pair)) for pair in picked]
        answers = await asyncio.gather(*calls)
        with self.model.at_once():
            for (rollout_id, worker_id), found in zip(picked, answers, strict=True):
                attempt_id = "" if isinstance(found, NotFound) else found.attempt.attempt_id
                self._foresee(found, partial(self.model.start_attempt, rollout_id, attempt_id, worker_id))

    async def update_attempts(self, burst: list[tuple[int, int, dict[str, Any]]]) -> None:
        calls, told = [], []
        for number, which, said in burst:
            rollout_id = self._pick(number)
            attempt_id = self._attempt(rollout_id, which)
            given, meant = dict(said), dict(said)
            if "last_heartbeat_time" in said:
                meant["last_heartbeat_time"] = self.model.now + said["last_heartbeat_time"]
                given["last_heartbeat_time"] = meant["last_heartbeat_time"] + self.compare.start
            calls.append(answer(self.store.update_attempt(rollout_id, attempt_id, **given)))
            told.append((rollout_id, attempt_id, meant))
        answers = await asyncio.gather(*calls)
        with self.model.at_once():
            for (rollout_id, attempt_id, meant), found in zip(told, answers, strict=True):
                foretell = partial(self.model.update_attempt, rollout_id, attempt_id, **meant)
                wanted = self._foresee(found, foretell)
                if wanted is not None:
                    self.compare.attempt(wanted, found)

    async def update_rollouts(self, burst: list[tuple[int, dict[str, Any]]]) -> None:
        """The answers of calls that were merged may show each other's effect, so the state is compared."""
        picked = [(self._pick(number), said) for number, said in burst]
        calls = []
        for rollout_id, said in picked:
            given = {**said, "config": config_of(said["config"])} if "config" in said else said
            calls.append(answer(self.store.update_rollout(rollout_id, **given)))
        answers = await asyncio.gather(*calls)
        with self.model.at_once():
            for (rollout_id, said), found in zip(picked, answers, strict=True):
                self._foresee(found, partial(self.model.update_rollout, rollout_id, **said))

    # --- spans --------------------------------------------------------------------------------------------

    async def add_spans(self, burst: list[list[tuple[int, int, int, int]]]) -> None:
        calls: list[list[Span]] = []
        for call in burst:
            made = []
            for number, which, name, sequence_id in call:
                rollout_id = self._pick(number)
                attempt_id = self._attempt(rollout_id, which)
                made.append(self._span(rollout_id, attempt_id, f"{name:016x}", sequence_id))
            calls.append(made)
        answers = await asyncio.gather(*(answer(self.store.add_many_spans(call)) for call in calls))
        for spans, found in zip(calls, answers, strict=True):
            told = [(span.rollout_id, span.attempt_id, span.span_id, span.sequence_id) for span in spans]
            numbers = self._foresee(found, partial(self.model.add_spans, told))
            if numbers is not None:
                stored = [id(span) for span, number in zip(spans, numbers, strict=True) if number is not None]
                expect(stored, [id(span) for span in found], "which spans were stored")

    def _span(self, rollout_id: str, attempt_id: str, span_id: str, sequence_id: int) -> Span:
        attempt = Attempt(rollout_id=rollout_id, attempt_id=attempt_id, sequence_id=1, start_time=0.0)
        return make_span(attempt, sequence_id, span_id=span_id)

    async def add_otel_span(self, number: int, which: int, name: int) -> None:
        """A span that the store numbers."""
        rollout_id = self._pick(number)
        attempt_id = self._attempt(rollout_id, which)
        context = SpanContext(trace_id=1, span_id=name + 1000, is_remote=False)
        span = ReadableSpan(
            name="otel", context=context, status=Status(StatusCode.OK), start_time=1, end_time=2
        )
        found = await answer(self.store.add_otel_span(rollout_id, attempt_id, span))
        span_id = f"{name + 1000:016x}"
        numbers = self._foresee(
            found, partial(self.model.add_spans, [(rollout_id, attempt_id, span_id, None)])
        )
        if numbers is not None:
            expect(numbers[0], found and found.sequence_id, "the number of a span")

    async def sequence_ids(self, picked: list[int]) -> None:
        pairs = [(self._pick(number), "any") for number in picked]
        found = list(await self.store.get_many_span_sequence_ids(pairs))
        expect([self.model.next_sequence_id(rollout_id) for rollout_id, _ in pairs], found, "sequence ids")

    # --- the rest -----------------------------------------------------------------------------------------

    async def update_worker(self, worker_id: str, stats: dict[str, Any] | None) -> None:
        said = {} if stats is None else {"heartbeat_stats": stats}
        found = await self.store.update_worker(worker_id, **said)
        self.compare.worker(self.model.update_worker(worker_id, **said), found)

    async def keep_resources(self, name: str | None, bundle: Any) -> None:
        if name is None:
            found = await self.store.add_resources(bundle)
            wanted = self.model.add_resources(found.resources_id, bundle)
        else:
            found = await self.store.update_resources(name, bundle)
            wanted = self.model.update_resources(name, bundle)
        self.compare.resources(wanted, found)

    async def query(self, statuses: list[Any], limit: int, offset: int) -> None:
        found = await self.store.query_rollouts(status_in=statuses or None, limit=limit, offset=offset)
        self.model.watchdog()
        matching = [r for r in self.model.rollouts.values() if not statuses or r.status in statuses]
        page: list[ModelRollout] = matching[offset : offset + limit]
        expect(len(matching), found.total, f"how many are {statuses}")
        expect([one.rollout_id for one in page], [one.rollout_id for one in found], f"a page of {statuses}")

    async def finished(self) -> None:
        found = await self.store.wait_for_rollouts(
            rollout_ids=[*self.model.rollouts, "ro-missing"], timeout=0
        )
        self.model.watchdog()
        ended = [r.rollout_id for r in self.model.rollouts.values() if r.status in FINISHED]
        expect(ended, [rollout.rollout_id for rollout in found], "what has finished")
