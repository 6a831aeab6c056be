"""The LightningStore contract over HTTP: what reads."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from perdure.client import lightning_answers as answers
from perdure.client.lightning_answers import decoded, rollout_from
from perdure.client.lightning_exchange import Exchange, terms_of
from perdure.client.session import path_segment
from perdure.kernel.checks import check_texts, check_timeout
from perdure.rollouts.contract import LightningStore
from perdure.rollouts.records import Attempt, PaginatedResult, Rollout, Worker
from perdure.rollouts.resources import ResourcesUpdate
from perdure.rollouts.spans import Span

WAIT_SECONDS = 30.0
"""How long one request waits for rollouts to end; after that comes another."""
ROUNDING_SECONDS = 0.05


class ReadingClient(LightningStore):
    """Everything that is asked of a server and changes nothing."""

    _exchange: Exchange

    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: Any = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: Any = "asc",
    ) -> PaginatedResult[Span]:
        return await self._exchange.search("/spans/search", terms_of(locals()), Span.model_validate)

    async def query_rollouts(
        self,
        *,
        status_in: Sequence[Any] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        filter_logic: Any = "and",
        sort_by: str | None = None,
        sort_order: Any = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Sequence[Any] | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> PaginatedResult[Rollout]:
        status_in = status if status_in is None else status_in
        rollout_id_in = rollout_ids if rollout_id_in is None else rollout_id_in
        terms = terms_of(locals())
        del terms["status"], terms["rollout_ids"]
        return await self._exchange.search("/rollouts/search", terms, rollout_from)

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: Any = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        terms = terms_of(locals())
        path = f"/rollouts/{path_segment(terms.pop('rollout_id'), 'rollout_id')}/attempts/search"
        return await self._exchange.search(path, terms, Attempt.model_validate)

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        found = (await self._exchange.get("/rollouts/" + path_segment(rollout_id, "rollout_id"))).json()
        return None if found is None else rollout_from(found)

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
            begun = clock()
            seconds = min(WAIT_SECONDS, max(deadline - begun, 0))
            ended = await self._exchange.wait(ids, seconds)
            now = clock()
            # An answer before the time is up means that all have ended that are known.
            if len(ended) == len(ids) or now >= deadline or now - begun < seconds - ROUNDING_SECONDS:
                return ended

    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        sort_by: str | None = None,
        sort_order: Any = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[ResourcesUpdate]:
        return await self._exchange.listing("/resources", terms_of(locals()), ResourcesUpdate.model_validate)

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        if resources_id == "latest":
            # At that path are the latest resources, whatever their id.
            return next(iter(await self.query_resources(resources_id=resources_id)), None)
        answer = await self._exchange.get("/resources/" + path_segment(resources_id, "resources_id"))
        return decoded(answers.RESOURCES_OR_NONE, answer)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        return decoded(answers.RESOURCES_OR_NONE, await self._exchange.get("/resources/latest"))

    async def query_workers(
        self,
        *,
        status_in: Sequence[Any] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: Any = "and",
        sort_by: str | None = None,
        sort_order: Any = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Worker]:
        return await self._exchange.search("/workers/search", terms_of(locals()), Worker.model_validate)

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        answer = await self._exchange.get("/workers/" + path_segment(worker_id, "worker_id"))
        return decoded(answers.WORKER_OR_NONE, answer)
