"""The native routes of rollouts, attempts, spans, workers, resources and queues."""

from __future__ import annotations

from typing import Any

from perdure.rollouts.encoding import answer_from
from perdure.rollouts.records import RolloutAnswer, StoredSpans
from perdure.rollouts.resource_service import Resources
from perdure.rollouts.service import Rollouts
from perdure.rollouts.workers import Workers
from perdure.server.http.routes import Call
from perdure.server.native.derive import ByHand, arguments_for, derive_routes, get_endpoint
from perdure.service.endpoints import ItemList

JSON_SOURCE = "json"
"""Metric label for spans that arrive as JSON."""


def _rollouts(call: Call) -> Rollouts:
    return call.services.rollouts


async def claim(call: Call) -> ItemList[Any]:
    """Claim rollouts and count them."""
    claimed = await _rollouts(call).claim(**arguments_for(get_endpoint(Rollouts.claim), call))
    call.app.metrics.count_claim(len(claimed))
    return ItemList(items=claimed)


async def enqueue(call: Call) -> RolloutAnswer:
    """Enqueue a rollout, without a record between the body, its row and the response."""
    return answer_from(await _rollouts(call).enqueue_row(call.body, call.idempotency_key))


async def enqueue_many(call: Call) -> ItemList[Any]:
    """Enqueue many rollouts."""
    rows = await _rollouts(call).enqueue_rows(call.body.rollouts, call.idempotency_key)
    return ItemList(items=[answer_from(row) for row in rows])


async def add_spans(call: Call) -> StoredSpans:
    """Store spans, and count them."""
    answer = await _rollouts(call).add_spans(call.body)
    call.app.metrics.count_spans(JSON_SOURCE, sum(answer.stored), len(answer.stored))
    return answer


async def statistics(call: Call) -> Any:
    """Return the statistics of the store, with its memory use."""
    return await call.store.statistics()


ROLLOUT_ROUTES = (
    *derive_routes(
        Rollouts,
        _rollouts,
        {
            Rollouts.claim: ByHand(claim, ends_with_caller=True),
            Rollouts.enqueue: enqueue,
            Rollouts.enqueue_many: enqueue_many,
            Rollouts.add_spans: add_spans,
            Rollouts.statistics: statistics,
        },
        tag="rollouts",
    ),
    *derive_routes(Workers, lambda call: call.services.workers),
    *derive_routes(Resources, lambda call: call.services.resources),
)
