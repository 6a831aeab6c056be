"""Every write that comes through a protocol leaves its entry in the audit: who, what, which object.

Heartbeats, renewals and batches of events of workers leave none.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.access.support import AccessHelper, access_of
from tests.security import graph_runs
from tests.security.crons import cron_lines
from tests.security.graph_runs import graph_run_lines
from tests.security.graphs import agents, graph_lines
from tests.security.items import item_lines
from tests.security.memory import memory_lines
from tests.security.runs import API, AWAITED, NOT_AUDITED, lines, work_on
from tests.security.workflows import ANSWERED, WORKFLOW, workflow_lines
from tests.server.support import Visitor, serving

from perdure import AttemptedRollout, InMemoryLightningStore
from perdure.server.table import ROUTES
from perdure.service.audit import AuditEntry
from perdure.testing.contract.support import make_span

PROMPT = {"prompt": {"resource_type": "prompt_template", "template": "hello", "engine": "f-string"}}
NOT_WRITTEN = {
    "/v1/metrics",
    "/v1/logs",
    "/v1/development/profiles",
    "/api/v1/work/controls",
    "/api/v1/work/events/find",
    "/api/v1/work/graphs/find",
    "/api/v1/work/graphs/deltas",
}
numbers = itertools.count(1 << 40)


@pytest_asyncio.fixture
async def store() -> AsyncIterator[InMemoryLightningStore]:
    async with InMemoryLightningStore() as opened:
        yield opened


def span_of(work: AttemptedRollout) -> dict[str, Any]:
    return make_span(work).model_dump(mode="json")


def export_of(work: AttemptedRollout) -> bytes:
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    ids = {"agentlightning.rollout_id": work.rollout_id, "agentlightning.attempt_id": work.attempt.attempt_id}
    for name, value in ids.items():
        group.resource.attributes.add(key=name).value.string_value = value
    number = next(numbers)
    group.scope_spans.add().spans.add(
        trace_id=number.to_bytes(16, "big"), span_id=number.to_bytes(8, "big"), name="step"
    )
    return bytes(request.SerializeToString())


async def requests(store: InMemoryLightningStore) -> dict[str, tuple[str, str, Any, str]]:
    """For each route that writes: method, path, body, and the action that the audit calls it."""
    work = await store.start_rollout("work", worker_id="worker-1")
    ended = await store.start_rollout("ended")
    await store.update_attempt(ended.rollout_id, ended.attempt.attempt_id, status="failed")
    for _ in range(3):
        await store.enqueue_rollout("waiting")
    cancelled = await store.start_rollout("cancelled")
    bulk = await store.start_rollout("bulk")
    kept = await store.add_resources({})
    rollout, attempt = work.rollout_id, work.attempt.attempt_id
    agl = "/v1/agl/rollouts"
    api = "/api/v1/rollouts"
    pair = {"rollout_id": rollout, "attempt_id": attempt}
    report = {"rollout_id": rollout, "attempt_id": attempt, "metadata": {"n": 1}}
    table = [
        ("POST", "/api/v1/rollouts", "", {"input": 1}, "enqueue_rollout"),
        ("POST", "/api/v1/rollouts/batch", "", {"rollouts": [{"input": 1}]}, "enqueue_rollout"),
        ("POST", "/api/v1/rollouts/start", "", {"input": 1}, "start_rollout"),
        ("POST", "/api/v1/dequeue", "", {"worker_id": "w"}, "dequeue_rollout"),
        ("PATCH", api + "/{rollout_id}", f"{api}/{rollout}", {"metadata": {"a": 1}}, "update_rollout"),
        (
            "POST",
            api + "/{rollout_id}/cancel",
            f"{api}/{cancelled.rollout_id}/cancel",
            None,
            "update_rollout",
        ),
        ("POST", api + "/cancel", "", {"rollout_ids": [bulk.rollout_id]}, "update_rollout"),
        ("POST", api + "/retry", "", {"rollout_ids": [bulk.rollout_id]}, "update_rollout"),
        ("POST", "/api/v1/queues/{queue}/pause", "/api/v1/queues/some/pause", None, "pause_queue"),
        ("POST", "/api/v1/queues/{queue}/resume", "/api/v1/queues/some/resume", None, "resume_queue"),
        (
            "POST",
            "/api/v1/workers/{worker_id}/drain",
            "/api/v1/workers/worker-1/drain",
            None,
            "drain_worker",
        ),
        (
            "POST",
            "/api/v1/workers/{worker_id}/undrain",
            "/api/v1/workers/worker-1/undrain",
            None,
            "undrain_worker",
        ),
        ("POST", api + "/{rollout_id}/retry", f"{api}/{ended.rollout_id}/retry", None, "update_rollout"),
        ("POST", api + "/{rollout_id}/attempts", f"{api}/{ended.rollout_id}/attempts", {}, "start_attempt"),
        (
            "PATCH",
            api + "/{rollout_id}/attempts/{attempt_id}",
            f"{api}/{rollout}/attempts/{attempt}",
            {"metadata": {"a": 1}},
            "update_attempt",
        ),
        ("POST", "/api/v1/attempts/reports", "", {"reports": [report]}, "update_attempt"),
        ("POST", "/api/v1/spans", "", [span_of(work)], "add_spans"),
        ("POST", "/api/v1/workers/{worker_id}/heartbeat", "/api/v1/workers/w/heartbeat", {}, NOT_AUDITED),
        ("PUT", "/api/v1/views", "", {"name": "mine", "screen": "rollouts"}, "save_view"),
        ("DELETE", "/api/v1/views", "/api/v1/views?name=mine&screen=rollouts", None, "delete_view"),
        ("POST", "/api/v1/resources", "", PROMPT, "add_resources"),
        (
            "PUT",
            "/api/v1/resources/{resources_id}",
            f"/api/v1/resources/{kept.resources_id}",
            PROMPT,
            "update_resources",
        ),
        ("POST", "/api/v1/db/gc", "", {}, NOT_AUDITED),
        ("POST", "/api/v1/tokens", "", {"name": "one", "scopes": ["admin"]}, "create_token"),
        ("POST", "/v1/agl/queues/rollouts/enqueue", "", {"rollouts": [{"input": 1}]}, "enqueue_rollout"),
        ("POST", "/v1/agl/queues/rollouts/dequeue", "", {"worker_id": "w"}, "dequeue_rollout"),
        (
            "POST",
            "/v1/agl/queues/rollouts/dequeue/bulk",
            "",
            {"claims": [{"worker_id": "w", "limit": 1, "idempotency_key": "k"}]},
            "dequeue_rollout",
        ),
        ("POST", agl, "", {"input": 1}, "start_rollout"),
        ("POST", agl + "/{rollout_id}", f"{agl}/{rollout}", {"metadata": {"b": 1}}, "update_rollout"),
        ("POST", agl + "/{rollout_id}/attempts", f"{agl}/{ended.rollout_id}/attempts", None, "start_attempt"),
        (
            "POST",
            agl + "/{rollout_id}/attempts/{attempt_id}",
            f"{agl}/{rollout}/attempts/{attempt}",
            {"metadata": {"b": 1}},
            "update_attempt",
        ),
        ("POST", "/v1/agl/attempts/bulk", "", {"reports": [report]}, "update_attempt"),
        ("POST", "/v1/agl/resources", "", PROMPT, "add_resources"),
        (
            "POST",
            "/v1/agl/resources/{resources_id}",
            f"/v1/agl/resources/{kept.resources_id}",
            PROMPT,
            "update_resources",
        ),
        ("POST", "/v1/agl/spans", "", span_of(work), "add_spans"),
        ("POST", "/v1/agl/spans/bulk", "", [span_of(work)], "add_spans"),
        ("POST", "/v1/agl/spans/next", "", pair, "next_sequence_id"),
        ("POST", "/v1/agl/spans/next/bulk", "", {"pairs": [[rollout, attempt]]}, "next_sequence_id"),
        ("POST", "/v1/agl/workers/{worker_id}", "/v1/agl/workers/w", {}, NOT_AUDITED),
        ("POST", "/v1/traces", "", export_of(work), "add_spans"),
    ]
    table += [
        (method, API + path, real and API + real, *rest) for method, path, real, *rest in await lines(store)
    ]
    table += await cron_lines(store)
    table += item_lines()
    table += memory_lines()
    table += await graph_lines(store)
    table += await graph_run_lines(store)
    table += await workflow_lines(store)
    return {
        f"{method} {path}": (method, real or path, body, action) for method, path, real, body, action in table
    }


async def newest(access: AccessHelper) -> AuditEntry | None:
    return next(iter(await access.query_audit(limit=1)), None)


async def ask(visitor: Visitor, method: str, path: str, body: Any) -> int:
    if isinstance(body, bytes):
        headers = {"Content-Type": "application/x-protobuf"}
        return (await visitor.ask(method, path, data=body, headers=headers)).status
    return (await visitor.ask(method, path, **({} if body is None else {"json": body}))).status


async def test_every_route_that_writes_leaves_its_entry(store: InMemoryLightningStore) -> None:
    writing = {
        f"{route.method} {route.path}"
        for route in ROUTES
        if route.method != "GET" and route.scope not in (None, "read") and route.path not in NOT_WRITTEN
    }
    asked = await requests(store)
    assert writing == {*asked, "DELETE /api/v1/tokens/{token_id}"}
    async with serving(store, api_key="only-the-operator-knows") as visitor:
        access = access_of(visitor.app)
        assert access is not None
        visitor.app.agents = agents()
        visitor.app.services.definitions.add(WORKFLOW)
        token, secret = await access.create_token("tester", scopes=("admin",), actor="operator")
        visitor.headers = {"Authorization": f"Bearer {secret}"}
        for route, (method, path, body, action) in asked.items():
            before = await newest(access)
            awaited = path in AWAITED | graph_runs.AWAITED or path.endswith(ANSWERED)
            working = asyncio.ensure_future(work_on(store)) if awaited else None
            status = await ask(visitor, method, path, body)
            if working is not None:
                working.cancel()
                await asyncio.wait([working])
            entry = await newest(access)
            assert status in (200, 201, 204), (route, status)
            if action == NOT_AUDITED:
                assert entry == before, route
                continue
            assert entry is not None
            assert entry != before, route
            assert (entry.actor, entry.action, entry.count) == (token.token_id, action, 1), route
            assert entry.object, route
        assert await ask(visitor, "DELETE", f"/api/v1/tokens/{token.token_id}", None) == 200
        entry = await newest(access)
        assert entry is not None
        assert (entry.actor, entry.action, entry.object) == (token.token_id, "revoke_token", token.token_id)


async def test_what_was_refused_leaves_nothing(store: InMemoryLightningStore) -> None:
    async with serving(store) as visitor:
        for path, body in (
            ("/v1/agl/rollouts/nobody", {"status": "cancelled"}),
            ("/v1/agl/rollouts/nobody/attempts", None),
            ("/api/v1/rollouts", {"input": 1, "mode": "wrong"}),
            ("/v1/agl/queues/rollouts/dequeue", None),
        ):
            await visitor.post(path, **({} if body is None else {"json": body}))
        assert await newest(access_of(visitor.app)) is None
