"""The native routes of rollouts, attempts, spans, workers and resources."""

from __future__ import annotations

from perdure.client import lightning_wire as shared_wire
from perdure.client import native_wire as wire
from perdure.kernel.errors import BadQuery, Conflict, NotFound, NotSupported, SpansEvicted, TooLarge
from perdure.kernel.pages import Page
from perdure.rollouts.records import Attempt, AttemptedRollout, EnqueueRolloutRequest, Rollout, Worker
from perdure.rollouts.resources import ResourcesUpdate
from perdure.rollouts.spans import Span
from perdure.server.lightning import handlers as shared
from perdure.server.native import handlers
from perdure.server.native.declare import declaring

_rollouts = declaring("rollouts")
_attempts = declaring("attempts")
_spans = declaring("spans")
_workers = declaring("workers")
_resources = declaring("resources")

_ROLLOUTS = (
    _rollouts(
        "GET",
        "/rollouts",
        handlers.list_rollouts,
        "read",
        "List rollouts, the newest first",
        query=wire.RolloutQuery,
        answer=Page[wire.ShownRollout],
        errors=(BadQuery,),
    ),
    _rollouts(
        "POST",
        "/rollouts",
        handlers.enqueue_rollout,
        "write",
        "Queue a rollout; a repeated Idempotency-Key gives the first one",
        body=EnqueueRolloutRequest,
        answer=Rollout,
        status=201,
    ),
    _rollouts(
        "POST",
        "/rollouts/batch",
        handlers.enqueue_rollouts,
        "write",
        "Queue many rollouts in their order",
        body=wire.RolloutBatch,
        answer=wire.Rollouts,
        status=201,
    ),
    _rollouts(
        "POST",
        "/rollouts/start",
        handlers.start_rollout,
        "write",
        "Start a rollout at once, past the queue",
        body=wire.NewStart,
        answer=AttemptedRollout,
        status=201,
        errors=(Conflict,),
    ),
    _rollouts(
        "POST",
        "/dequeue",
        handlers.dequeue,
        "worker",
        "Claim the next rollouts of a queue",
        body=wire.Dequeue,
        body_optional=True,
        answer=wire.Claimed,
        errors=(Conflict,),
        ends_with_caller=True,
    ),
    _rollouts(
        "GET",
        "/rollouts/{rollout_id}",
        handlers.get_rollout,
        "read",
        "A rollout with its latest attempt",
        answer=wire.ShownRollout,
        errors=(NotFound,),
    ),
    _rollouts(
        "PATCH",
        "/rollouts/{rollout_id}",
        handlers.update_rollout,
        "write",
        "Change a rollout",
        body=wire.RolloutPatch,
        answer=wire.ShownRollout,
        errors=(NotFound,),
    ),
    _rollouts(
        "POST",
        "/rollouts/{rollout_id}/cancel",
        handlers.cancel_rollout,
        "write",
        "Cancel a rollout that has not ended",
        answer=wire.ShownRollout,
        errors=(NotFound, Conflict),
    ),
    _rollouts(
        "POST",
        "/rollouts/{rollout_id}/retry",
        handlers.retry_rollout,
        "write",
        "Put a rollout that has ended into its queue again",
        answer=wire.ShownRollout,
        errors=(NotFound, Conflict),
    ),
)

_ATTEMPTS = (
    _attempts(
        "GET",
        "/rollouts/{rollout_id}/attempts",
        handlers.list_attempts,
        "read",
        "List the attempts of a rollout",
        query=wire.AttemptQuery,
        answer=Page[Attempt],
        errors=(BadQuery, NotFound),
    ),
    _attempts(
        "POST",
        "/rollouts/{rollout_id}/attempts",
        handlers.start_attempt,
        "worker",
        "Begin another attempt, whatever the rollout's status",
        body=wire.NewAttempt,
        body_optional=True,
        answer=AttemptedRollout,
        status=201,
        errors=(NotFound, Conflict),
    ),
    _attempts(
        "GET",
        "/rollouts/{rollout_id}/attempts/latest",
        handlers.get_latest_attempt,
        "read",
        "The latest attempt of a rollout",
        answer=Attempt,
        errors=(NotFound,),
    ),
    _attempts(
        "PATCH",
        "/rollouts/{rollout_id}/attempts/{attempt_id}",
        handlers.update_attempt,
        "worker",
        "Report on an attempt; its id may be latest",
        body=wire.AttemptPatch,
        answer=Attempt,
        errors=(NotFound,),
    ),
)

_SPANS = (
    _spans(
        "GET",
        "/rollouts/{rollout_id}/spans",
        handlers.list_spans,
        "read",
        "List the spans of a rollout",
        query=wire.SpanQuery,
        answer=Page[Span],
        errors=(BadQuery, NotFound, SpansEvicted),
    ),
    _spans(
        "POST",
        "/spans",
        shared.add_many_spans,
        "worker",
        "Store spans; each is told whether it was new",
        body=shared_wire.SpansBody,
        answer=shared_wire.StoredSpans,
        status=201,
        errors=(NotFound, TooLarge),
    ),
)

_WORKERS = (
    _workers(
        "GET",
        "/workers",
        handlers.list_workers,
        "read",
        "List workers",
        query=wire.WorkerQuery,
        answer=Page[Worker],
        errors=(BadQuery,),
    ),
    _workers(
        "GET",
        "/workers/{worker_id}",
        handlers.get_worker,
        "read",
        "A worker",
        answer=Worker,
        errors=(NotFound,),
    ),
    _workers(
        "POST",
        "/workers/{worker_id}/heartbeat",
        shared.update_worker,
        "worker",
        "Record a worker's heartbeat",
        body=wire.Heartbeat,
        body_optional=True,
        answer=Worker,
    ),
)

_RESOURCES = (
    _resources(
        "GET",
        "/resources",
        handlers.list_resources,
        "read",
        "List resources",
        query=wire.ResourcesQuery,
        answer=Page[ResourcesUpdate],
        errors=(BadQuery,),
    ),
    _resources(
        "POST",
        "/resources",
        shared.add_resources,
        "write",
        "Store new resources",
        body=shared_wire.NamedResourcesBody,
        answer=ResourcesUpdate,
        status=201,
        errors=(Conflict,),
    ),
    _resources(
        "GET",
        "/resources/latest",
        handlers.get_latest_resources,
        "read",
        "The resources that were written last",
        answer=ResourcesUpdate,
        errors=(NotFound,),
    ),
    _resources(
        "GET",
        "/resources/{resources_id}",
        handlers.get_resources,
        "read",
        "The newest version of resources",
        answer=ResourcesUpdate,
        errors=(NotFound,),
    ),
    _resources(
        "PUT",
        "/resources/{resources_id}",
        shared.update_resources,
        "write",
        "Store the next version of resources, or the first",
        body=shared_wire.NamedResourcesBody,
        answer=ResourcesUpdate,
    ),
    _resources(
        "GET",
        "/resources/{resources_id}/versions",
        handlers.list_versions,
        "read",
        "List the versions of resources, the newest first",
        query=wire.PageQuery,
        answer=Page[ResourcesUpdate],
        errors=(NotFound, NotSupported),
    ),
    _resources(
        "GET",
        "/resources/{resources_id}/versions/{version}",
        handlers.get_version,
        "read",
        "One version of resources",
        answer=ResourcesUpdate,
        errors=(NotFound, NotSupported),
    ),
)

WORK_ROUTES = (*_ROLLOUTS, *_ATTEMPTS, *_SPANS, *_WORKERS, *_RESOURCES)
