"""The route table of the native protocol: /api/v1, health, metrics and documentation."""

from __future__ import annotations

from typing import Any

from perdure.access.service import Access
from perdure.approvals.service import Approvals
from perdure.assistants.service import Assistants
from perdure.diagnostics.service import Diagnostics
from perdure.executions.service import Executions
from perdure.graph_requests.graphs import AgentGraphs
from perdure.items.service import Items
from perdure.jobs.service import Jobs
from perdure.kernel.errors import (
    Conflict,
    Forbidden,
    NotFound,
    NotSupported,
    StorageUnavailable,
    UnsupportedMedia,
)
from perdure.memory.service import Memory
from perdure.outbox.service import Outbox
from perdure.retention.service import Upkeep
from perdure.schedules.service import Schedules
from perdure.server.http.long_responses import MEDIA_TYPE
from perdure.server.http.routes import Route
from perdure.server.native import approval_page, changes, docs, guide, health, mcp, metrics, wire
from perdure.server.native.declare import declaring
from perdure.server.native.derive import derive_routes
from perdure.server.native.messaging_routes import MESSAGING_ROUTES
from perdure.server.native.rollouts import ROLLOUT_ROUTES
from perdure.server.native.run_queue_routes import GRAPH_REQUEST_ROUTES, RUN_QUEUE_ROUTES
from perdure.server.native.thread_routes import THREAD_ROUTES
from perdure.service.endpoints import PREFIX
from perdure.sessions.service import Sessions
from perdure.threads.bulk import Bulk
from perdure.traces.service import Traces
from perdure.workflows.override_service import WorkflowOverrides
from perdure.workflows.service import Workflows

_overview = declaring("overview")
_server = declaring("server")
_at_root = declaring("server", "")

_OVERVIEW = (
    _overview(
        "GET",
        "/changes",
        changes.follow_changes,
        "read",
        "Changes, as server-sent events",
        answer=str,
        answer_form=MEDIA_TYPE,
        errors=(NotSupported,),
    ),
)

PROBES = (
    _at_root("GET", "/healthz", health.live, None, "Whether the server is alive", answer=wire.Health),
    _at_root("GET", "/health", health.live, None, "Whether the server is alive", answer=wire.Health),
    _at_root(
        "GET", "/ok", health.ok, None, "Whether the server is alive", query=wire.OkQuery, answer=wire.Ok
    ),
    _at_root(
        "GET",
        "/readyz",
        health.ready,
        None,
        "Whether the server can work",
        answer=wire.ReadyAnswer,
        errors=(StorageUnavailable,),
    ),
)
"""Liveness and readiness, at the paths that probes use."""

_SERVER = (
    _server(
        "POST",
        "/mcp",
        mcp.serve,
        "read",
        "Tools for coding agents, over the Model Context Protocol",
        body=bytes,
        answer=dict[str, Any],
        errors=(NotSupported,),
    ),
    _server(
        "GET",
        "/health",
        health.detail,
        "read",
        "Whether the server can work, and why not",
        answer=wire.HealthDetail,
        errors=(StorageUnavailable,),
    ),
    *(
        _at_root("GET", path, health.info, "read", "What this server is", answer=wire.Info)
        for path in ("/info", PREFIX + "/info")
    ),
    _at_root(
        "GET",
        "/metrics",
        metrics.metrics,
        "read",
        "Counters and gauges, for Prometheus or as JSON",
        query=wire.MetricsQuery,
        answer=str,
        answer_form="text/plain",
    ),
    *(
        _at_root("GET", path, docs.openapi, "read", "The OpenAPI document", answer=dict[str, Any])
        for path in ("/openapi.json", PREFIX + "/openapi.json")
    ),
    _at_root(
        "GET",
        "/docs",
        docs.page,
        "read",
        "All routes on a page",
        answer=str,
        answer_form="text/html",
        opens_in_tab=True,
    ),
)

GUIDE = (
    *(
        _at_root("GET", path, handler, None, about, answer=str, answer_form="text/plain", status=307)
        for path, handler, about in (
            ("/docs/guide", guide.enter, "Leads to the start of the guide"),
            ("/llms.txt", guide.llms, "Leads to the guide's table of contents for coding agents"),
            ("/llms-full.txt", guide.llms, "Leads to all pages of the guide in one file"),
        )
    ),
    _at_root(
        "GET",
        "/docs/guide/{path}",
        guide.show,
        None,
        "A page or file of the guide",
        answer=str,
        answer_form="text/html",
        opens_in_tab=True,
        takes_rest=True,
        errors=(NotFound,),
    ),
)
"""Public, because it is the same for every server of a release."""

_APPROVAL_PAGE = (
    _at_root(
        "GET",
        "/approve/{token}",
        approval_page.show,
        None,
        "The page of an approval link; showing it changes nothing",
        answer=str,
        answer_form="text/html",
        opens_in_tab=True,
        errors=(NotFound,),
    ),
    _at_root(
        "POST",
        "/approve/{token}",
        approval_page.answer,
        None,
        "Answer an approval as the link's assignee, once",
        body=bytes,
        body_form=approval_page.FORM,
        max_body=approval_page.MAX_FORM,
        answer=str,
        answer_form="text/html",
        errors=(NotFound, Conflict, Forbidden, UnsupportedMedia),
    ),
)
"""Public, because the token in the path authorizes the request."""

ROUTES: tuple[Route, ...] = (
    *ROLLOUT_ROUTES,
    *derive_routes(Assistants, lambda call: call.services.assistants),
    *THREAD_ROUTES,
    *derive_routes(AgentGraphs, lambda call: call.app.graphs_for(call.caller)),
    *derive_routes(Bulk, lambda call: call.services.bulk),
    *RUN_QUEUE_ROUTES,
    *GRAPH_REQUEST_ROUTES,
    *derive_routes(Items, lambda call: call.services.items),
    *derive_routes(Traces, lambda call: call.services.traces),
    *derive_routes(Outbox, lambda call: call.services.outbox),
    *derive_routes(Jobs, lambda call: call.services.jobs),
    *derive_routes(Schedules, lambda call: call.services.schedules),
    *derive_routes(Sessions, lambda call: call.services.sessions),
    *MESSAGING_ROUTES,
    *derive_routes(Executions, lambda call: call.services.executions),
    *derive_routes(Workflows, lambda call: call.services.workflows),
    *derive_routes(Approvals, lambda call: call.services.approvals),
    *derive_routes(WorkflowOverrides, lambda call: call.services.workflow_overrides),
    *derive_routes(Memory, lambda call: call.services.memory),
    *_OVERVIEW,
    *derive_routes(Diagnostics, lambda call: call.services.diagnostics, tag="overview"),
    *derive_routes(Upkeep, lambda call: call.services.upkeep),
    *derive_routes(Access, lambda call: call.services.access),
    *_APPROVAL_PAGE,
    *GUIDE,
    *PROBES,
    *_SERVER,
)
