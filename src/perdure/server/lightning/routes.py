"""The table of the Agent-lightning protocol under /v1/agl."""

from __future__ import annotations

from functools import partial
from typing import Any

from perdure.client import lightning_wire as wire
from perdure.client.lightning_wire import PREFIX
from perdure.kernel.errors import BadQuery, NotFound, TooLarge
from perdure.kernel.pages import Page
from perdure.rollouts.records import Attempt, AttemptedRollout, Rollout, Worker
from perdure.rollouts.resources import ResourcesUpdate
from perdure.rollouts.spans import Span
from perdure.server.http.routes import Route
from perdure.server.lightning import handlers
from perdure.server.lightning.protocol import DOOR


def _route(method: str, path: str, handler: Any, scope: Any, summary: str, **rest: Any) -> Route:
    return Route(
        method=method,
        path=PREFIX + path,
        handler=handler,
        protocol=DOOR,
        scope=scope,
        summary=summary,
        tag="agent-lightning",
        **rest,
    )


_get = partial(_route, "GET")
_post = partial(_route, "POST")

_STORE = (
    _get("/health", handlers.health, None, "Whether the server answers", answer=wire.Health),
    _get("/statistics", handlers.statistics, "read", "How much the store holds", answer=dict[str, Any]),
    _get("/capabilities", handlers.capabilities, "read", "What the store can do", answer=dict[str, bool]),
)

_QUEUE = (
    _post(
        "/queues/rollouts/enqueue",
        handlers.enqueue_rollouts,
        "write",
        "Queue rollouts",
        body=wire.EnqueueRollouts,
        answer=list[Rollout],
        status=201,
    ),
    _post(
        "/queues/rollouts/dequeue",
        handlers.dequeue_rollouts,
        "worker",
        "Claim rollouts",
        body=wire.DequeueRollouts,
        body_optional=True,
        answer=list[AttemptedRollout],
        ends_with_caller=True,
    ),
    _post(
        "/queues/rollouts/dequeue/bulk",
        handlers.dequeue_for_many,
        "worker",
        "Claim rollouts for many callers",
        body=wire.Claims,
        answer=list[list[AttemptedRollout]],
    ),
)

_ROLLOUTS = (
    _post(
        "/rollouts",
        handlers.start_rollout,
        "write",
        "Start a rollout past the queue",
        body=wire.StartRollout,
        answer=AttemptedRollout,
        status=201,
    ),
    _get(
        "/rollouts",
        handlers.query_rollouts,
        "read",
        "Search rollouts",
        query=wire.RolloutSearch,
        answer=Page[Any],
        errors=(BadQuery,),
    ),
    _post(
        "/rollouts/search",
        handlers.query_rollouts,
        "read",
        "Search rollouts",
        body=wire.RolloutSearch,
        answer=Page[Any],
        errors=(BadQuery,),
    ),
    _get("/rollouts/{rollout_id}", handlers.get_rollout, "read", "A rollout, or null", answer=Rollout | None),
    _post(
        "/rollouts/{rollout_id}",
        handlers.update_rollout,
        "write",
        "Change a rollout",
        body=wire.UpdateRollout,
        answer=Rollout,
        errors=(NotFound,),
    ),
    _post(
        "/waits/rollouts",
        handlers.wait_for_rollouts,
        "read",
        "Wait until rollouts have ended",
        body=wire.WaitForRollouts,
        answer=list[Rollout],
        ends_with_caller=True,
    ),
)

_ATTEMPTS = (
    _get(
        "/rollouts/{rollout_id}/attempts",
        handlers.query_attempts,
        "read",
        "List a rollout's attempts",
        query=wire.AttemptSearch,
        answer=Page[Attempt],
        errors=(BadQuery,),
    ),
    _post(
        "/rollouts/{rollout_id}/attempts",
        handlers.start_attempt,
        "worker",
        "Begin another attempt",
        body=wire.StartAttempt,
        body_optional=True,
        answer=AttemptedRollout,
        status=201,
        errors=(NotFound,),
    ),
    _post(
        "/rollouts/{rollout_id}/attempts/search",
        handlers.query_attempts,
        "read",
        "List a rollout's attempts",
        body=wire.AttemptSearch,
        answer=Page[Attempt],
        errors=(BadQuery,),
    ),
    _get(
        "/rollouts/{rollout_id}/attempts/latest",
        handlers.get_latest_attempt,
        "read",
        "A rollout's latest attempt, or null",
        answer=Attempt | None,
    ),
    _post(
        "/rollouts/{rollout_id}/attempts/{attempt_id}",
        handlers.update_attempt,
        "worker",
        "Change an attempt; its id may be latest",
        body=wire.UpdateAttempt,
        answer=Attempt,
        errors=(NotFound,),
    ),
)

_REPORTS = (
    _post(
        "/attempts/bulk",
        handlers.update_many_attempts,
        "worker",
        "Change many attempts",
        body=wire.Reports,
        answer=list[Attempt],
        errors=(NotFound,),
    ),
)

_RESOURCES = (
    _get(
        "/resources",
        handlers.query_resources,
        "read",
        "Search resources",
        query=wire.ResourcesSearch,
        answer=Page[ResourcesUpdate],
        errors=(BadQuery,),
    ),
    _post(
        "/resources",
        handlers.add_resources,
        "write",
        "Store new resources",
        body=wire.NamedResourcesBody,
        answer=ResourcesUpdate,
        status=201,
    ),
    _get(
        "/resources/latest",
        handlers.get_latest_resources,
        "read",
        "The resources that were written last, or null",
        answer=ResourcesUpdate | None,
    ),
    _get(
        "/resources/{resources_id}",
        handlers.get_resources,
        "read",
        "Resources, or null",
        answer=ResourcesUpdate | None,
    ),
    _post(
        "/resources/{resources_id}",
        handlers.update_resources,
        "write",
        "Store the next version of resources",
        body=wire.NamedResourcesBody,
        answer=ResourcesUpdate,
    ),
)

_SPANS = (
    _post(
        "/spans",
        handlers.add_span,
        "worker",
        "Store a span; null if it was stored before",
        body=Span,
        answer=Span,
        status=201,
        errors=(NotFound,),
    ),
    _post(
        "/spans/bulk",
        handlers.add_many_spans,
        "worker",
        "Store many spans",
        body=wire.SpansBody,
        answer=wire.StoredSpans,
        status=201,
        errors=(NotFound, TooLarge),
    ),
    _get(
        "/spans",
        handlers.query_spans,
        "read",
        "Search a rollout's spans",
        query=wire.SpanSearch,
        answer=Page[Any],
        errors=(BadQuery,),
    ),
    _post(
        "/spans/search",
        handlers.query_spans,
        "read",
        "Search a rollout's spans",
        body=wire.SpanSearch,
        answer=Page[Any],
        errors=(BadQuery,),
    ),
    _post(
        "/spans/next",
        handlers.next_sequence_id,
        "worker",
        "The next number for a span",
        body=wire.NextSequenceId,
        answer=wire.SequenceId,
    ),
    _post(
        "/spans/next/bulk",
        handlers.next_sequence_ids,
        "worker",
        "The next numbers for many spans",
        body=wire.NextSequenceIds,
        answer=wire.SequenceIds,
    ),
)

_WORKERS = (
    _get(
        "/workers",
        handlers.query_workers,
        "read",
        "Search workers",
        query=wire.WorkerSearch,
        answer=Page[Worker],
        errors=(BadQuery,),
    ),
    _post(
        "/workers/search",
        handlers.query_workers,
        "read",
        "Search workers",
        body=wire.WorkerSearch,
        answer=Page[Worker],
        errors=(BadQuery,),
    ),
    _get("/workers/{worker_id}", handlers.get_worker, "read", "A worker, or null", answer=Worker | None),
    _post(
        "/workers/{worker_id}",
        handlers.update_worker,
        "worker",
        "Record a worker's heartbeat",
        body=wire.UpdateWorker,
        body_optional=True,
        answer=Worker,
    ),
)

ROUTES: tuple[Route, ...] = (
    *_STORE,
    *_QUEUE,
    *_ROLLOUTS,
    *_ATTEMPTS,
    *_REPORTS,
    *_RESOURCES,
    *_SPANS,
    *_WORKERS,
)
