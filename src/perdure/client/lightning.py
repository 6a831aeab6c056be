"""The LightningStore contract over HTTP."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, cast

from perdure.client import lightning_requests as answers
from perdure.client.lightning_requests import (
    Batches,
    Exchange,
    decoded,
    given,
    new_key,
    pair_item,
    rollout_from,
    rollout_item,
)
from perdure.client.lightning_wire import PREFIX
from perdure.client.session import HEALTH_RETRY_DELAYS, RETRY_DELAYS, Effect, HttpSession, path_segment
from perdure.client.tls import ClientTls
from perdure.kernel.checks import check_text, check_texts, check_timeout, optional_text
from perdure.kernel.errors import InvalidInput
from perdure.kernel.merge import Merger
from perdure.rollouts.contract import LightningStore, Queried
from perdure.rollouts.records import (
    UNSET,
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    PaginatedResult,
    Rollout,
    Unset,
    Worker,
)
from perdure.rollouts.resources import NamedResources, ResourcesUpdate
from perdure.spans.records import Span

MAX_CLAIM = 1000
WAIT_SECONDS = 30.0
"""Maximum seconds of one request that waits for rollouts to end; another request follows."""
ROUNDING_SECONDS = 0.05


_RECORDS: Mapping[Queried, Callable[[Any], Any]] = {
    "rollouts": rollout_from,
    "attempts": Attempt.model_validate,
    "spans": Span.model_validate,
    "resources": ResourcesUpdate.model_validate,
    "workers": Worker.model_validate,
}


class LightningStoreClient(LightningStore):
    """A store behind a server, for any number of threads, event loops and processes.

    Concurrent calls share requests. A request whose response was lost is retried and never executed twice.
    Errors are the same as those of the server's own store.

    `token` and `namespace` may also be in the address: `http://namespace:token@host:4747`. A failed request
    is retried after each of `retry_delays` seconds, if a health check succeeds. The health check is repeated
    after each of `health_retry_delays`; without them there is no health check.
    """

    session_kind: ClassVar[type[HttpSession]] = HttpSession
    """The class that sends requests."""

    def __init__(
        self,
        server_address: str,
        *,
        token: str | None = None,
        namespace: str | None = None,
        retry_delays: Sequence[float] = RETRY_DELAYS,
        health_retry_delays: Sequence[float] = HEALTH_RETRY_DELAYS,
        request_timeout: float = 30.0,
        connection_timeout: float = 5.0,
        tls: ClientTls | None = None,
    ) -> None:
        self._session = self.session_kind(
            server_address,
            token=token,
            namespace=namespace,
            retry_delays=retry_delays,
            health_retry_delays=health_retry_delays,
            request_timeout=request_timeout,
            connection_timeout=connection_timeout,
            tls=tls,
        )
        self._merger = Merger()
        self._speak()

    def _speak(self) -> None:
        self._exchange = Exchange(self._session)
        self._batches = Batches(self._session, self._merger)

    @property
    def server_address(self) -> str:
        """The base URL of the Agent-lightning protocol."""
        return self._session.base_url + PREFIX

    @property
    def server_address_root(self) -> str:
        return self._session.base_url

    def in_namespace(self, namespace: str) -> Self:
        sibling = object.__new__(type(self))
        sibling.__dict__.update(self.__dict__)
        sibling._session = self._session.in_namespace(namespace)
        sibling._speak()
        return sibling

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(thread_safe=True, async_safe=True, zero_copy=True, otlp_traces=True)

    def otlp_traces_endpoint(self) -> str:
        return self._session.base_url + "/v1/traces"

    async def statistics(self) -> LightningStoreStatistics:
        statistics = (await self._exchange.get("/statistics")).json()
        return cast("LightningStoreStatistics", {**statistics, "name": type(self).__name__})

    async def close(self) -> None:
        await self._session.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self._session.base_url, self._session.options())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._session.base_url!r})"

    # --- reading ------------------------------------------------------------------------------------------

    async def _query(self, what: Queried, terms: dict[str, Any]) -> PaginatedResult[Any]:
        record = _RECORDS[what]
        if what == "resources":
            return await self._exchange.listing("/resources", terms, record)
        path = f"/{what}/search"
        if what == "attempts":
            path = f"/rollouts/{path_segment(terms.pop('rollout_id'), 'rollout_id')}/attempts/search"
        return await self._exchange.search(path, terms, record)

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        record = (await self._exchange.get("/rollouts/" + path_segment(rollout_id, "rollout_id"))).json()
        return None if record is None else rollout_from(record)

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        answer = await self._exchange.get(
            f"/rollouts/{path_segment(rollout_id, 'rollout_id')}/attempts/latest"
        )
        return decoded(answers.ATTEMPT_OR_NONE, answer)

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> list[Rollout]:
        check_timeout(timeout)
        ids = list(dict.fromkeys(check_texts(rollout_ids, "rollout_ids")))
        clock = asyncio.get_running_loop().time
        deadline = math.inf if timeout is None else clock() + max(timeout, 0)
        while True:
            started = clock()
            seconds = min(WAIT_SECONDS, max(deadline - started, 0))
            ended = await self._exchange.wait(ids, seconds)
            now = clock()
            # An answer before the timeout means that all existing rollouts have ended.
            if len(ended) == len(ids) or now >= deadline or now - started < seconds - ROUNDING_SECONDS:
                return ended

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        if resources_id == "latest":
            # This path returns the latest resources, not those with the id "latest".
            return next(iter(await self.query_resources(resources_id=resources_id)), None)
        answer = await self._exchange.get("/resources/" + path_segment(resources_id, "resources_id"))
        return decoded(answers.RESOURCES_OR_NONE, answer)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        return decoded(answers.RESOURCES_OR_NONE, await self._exchange.get("/resources/latest"))

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        answer = await self._exchange.get("/workers/" + path_segment(worker_id, "worker_id"))
        return decoded(answers.WORKER_OR_NONE, answer)

    # --- the queue ----------------------------------------------------------------------------------------

    async def start_rollout(
        self,
        input: Any,
        mode: Any = None,
        resources_id: str | None = None,
        config: Any = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> AttemptedRollout:
        body = {
            "input": input,
            "mode": mode,
            "resources_id": optional_text(resources_id, "resources_id"),
            "config": config,
            "metadata": metadata,
            "worker_id": optional_text(worker_id, "worker_id"),
        }
        answer = await self._exchange.post_keyed("/rollouts", body, idempotency_key)
        return decoded(answers.ATTEMPTED, answer)

    async def enqueue_rollout(
        self,
        input: Any,
        mode: Any = None,
        resources_id: str | None = None,
        config: Any = None,
        metadata: dict[str, Any] | None = None,
        *,
        queue: str = "default",
        priority: int = 0,
        not_before: float | None = None,
        idempotency_key: str | None = None,
    ) -> Rollout:
        request = EnqueueRolloutRequest(
            input=input,
            mode=mode,
            resources_id=resources_id,
            config=config,
            metadata=metadata,
            queue=queue,
            priority=priority,
            not_before=not_before,
            idempotency_key=new_key() if idempotency_key is None else idempotency_key,
        )
        return await self._batches.enqueue(request)

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRolloutRequest]) -> Sequence[Rollout]:
        return await self._batches.enqueue_all([rollout_item(request) for request in rollouts])

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, queue: str = "default", idempotency_key: str | None = None
    ) -> AttemptedRollout | None:
        claimed = await self.dequeue_many_rollouts(
            worker_id=worker_id, queue=queue, idempotency_key=idempotency_key
        )
        return claimed[0] if claimed else None

    async def dequeue_many_rollouts(
        self,
        *,
        limit: int = 1,
        worker_id: str | None = None,
        queue: str = "default",
        idempotency_key: str | None = None,
    ) -> Sequence[AttemptedRollout]:
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise InvalidInput(f"limit must be a whole number, not {limit!r}")
        wanted = {
            "limit": min(limit, MAX_CLAIM),
            "worker_id": optional_text(worker_id, "worker_id"),
            "queue": check_text(queue, "queue"),
            "idempotency_key": idempotency_key or new_key(),
        }
        return await self._batches.claim(wanted) if limit > 0 else []

    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None, *, idempotency_key: str | None = None
    ) -> AttemptedRollout:
        path = f"/rollouts/{path_segment(rollout_id, 'rollout_id')}/attempts"
        body = {"worker_id": optional_text(worker_id, "worker_id")}
        return decoded(answers.ATTEMPTED, await self._exchange.post_keyed(path, body, idempotency_key))

    # --- spans --------------------------------------------------------------------------------------------

    async def add_span(self, span: Span) -> Span | None:
        return span if await self._batches.add_span(span) else None

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        stored = await self._batches.add_many_spans(spans)
        return [span for span, new in zip(spans, stored, strict=True) if new]

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        if sequence_id is None:
            sequence_id = await self.get_next_span_sequence_id(rollout_id, attempt_id)
        span = Span.from_opentelemetry(readable_span, rollout_id, attempt_id, sequence_id)
        return await self.add_span(span)

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        return await self._batches.next_sequence_id((rollout_id, attempt_id))

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        return await self._batches.number_all([pair_item(pair) for pair in rollout_attempt_ids])

    # --- rollouts and attempts ----------------------------------------------------------------------------

    async def update_rollout(
        self,
        rollout_id: str,
        input: Any = UNSET,
        mode: Any = UNSET,
        resources_id: str | Unset | None = UNSET,
        status: Any = UNSET,
        config: Any = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Rollout:
        body = given(
            input=input, mode=mode, resources_id=resources_id, status=status, config=config, metadata=metadata
        )
        optional_text(body.get("resources_id"), "resources_id")
        # Setting a status again could undo a change made after the first time.
        effect: Effect = "once" if "status" in body else "repeatable"
        answer = await self._exchange.post(
            "/rollouts/" + path_segment(rollout_id, "rollout_id"), body, effect=effect
        )
        return decoded(answers.ROLLOUT, answer)

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: Any = UNSET,
        worker_id: Any = UNSET,
        last_heartbeat_time: Any = UNSET,
        metadata: Any = UNSET,
    ) -> Attempt:
        body = given(
            status=status, worker_id=worker_id, last_heartbeat_time=last_heartbeat_time, metadata=metadata
        )
        optional_text(body.get("worker_id"), "worker_id")
        check_text(rollout_id, "rollout_id")
        if attempt_id != "latest":
            ids = {"rollout_id": rollout_id, "attempt_id": check_text(attempt_id, "attempt_id")}
            return await self._batches.report({**ids, **body})
        # A retry could reach another attempt than the first try.
        path = f"/rollouts/{path_segment(rollout_id, 'rollout_id')}/attempts/latest"
        return decoded(answers.ATTEMPT, await self._exchange.post(path, body, effect="once"))

    # --- resources ----------------------------------------------------------------------------------------

    async def add_resources(
        self, resources: NamedResources, *, idempotency_key: str | None = None
    ) -> ResourcesUpdate:
        answer = await self._exchange.post_keyed("/resources", resources, idempotency_key)
        return decoded(answers.RESOURCES, answer)

    async def update_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        path = "/resources/" + path_segment(resources_id, "resources_id")
        return decoded(answers.RESOURCES, await self._exchange.post(path, resources, effect="once"))

    # --- workers ------------------------------------------------------------------------------------------

    async def update_worker(self, worker_id: str, heartbeat_stats: Any = UNSET) -> Worker:
        if heartbeat_stats is None:
            raise TypeError("heartbeat_stats cannot be None; leave it out to keep the last ones")
        if worker_id == "search":
            raise InvalidInput("over HTTP, no worker can have the id 'search'")
        body = given(heartbeat_stats=heartbeat_stats)
        answer = await self._exchange.post("/workers/" + path_segment(worker_id, "worker_id"), body)
        return decoded(answers.WORKER, answer)


def _rebuilt(kind: type[LightningStoreClient], address: str, options: dict[str, Any]) -> LightningStoreClient:
    return kind(address, **options)
