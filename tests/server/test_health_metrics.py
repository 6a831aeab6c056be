"""Health at every path that probes use, metrics for Prometheus and as JSON, and the page of routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families
from tests.kernel.support import until_true
from tests.server.native.support import API, KEY, bearer, own_span
from tests.server.otlp_support import ENGINES, opened
from tests.server.support import Visitor, serving

from perdure import (
    InMemoryLightningStore,
    PostgresLightningStore,
    RolloutConfig,
    SqliteLightningStore,
    __version__,
)
from perdure.kernel.storage import sqlite
from perdure.runtime import app
from perdure.server.native.docs import POLICY
from perdure.server.table import ROUTES
from perdure.testing.clock import ManualClock
from perdure.testing.servers import PostgresServer


@pytest_asyncio.fixture(params=ENGINES)
async def visitor(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Visitor]:
    async with opened(request.param, request, tmp_path) as store, serving(store) as found:
        yield found


# --- health -----------------------------------------------------------------------------------------------


async def test_every_probe_finds_its_path(visitor: Visitor) -> None:
    assert (await visitor.get("/healthz")).body == {"status": "ok"}
    assert (await visitor.get("/health")).body == {"status": "ok"}
    assert (await visitor.get("/v1/agl/health")).status == 200
    assert (await visitor.get("/ok")).body == {"ok": True}
    ready = await visitor.get("/readyz")
    assert (ready.status, ready.body) == (
        200,
        {"status": "ok", "database": "ok", "indexes_being_built": []},
    )
    assert (await visitor.ask("HEAD", "/readyz")).status == 200
    info = (await visitor.get("/info")).body
    assert (info["name"], info["version"]) == ("perdure", __version__)
    detail = (await visitor.get(API + "/health")).body
    assert (detail["status"], detail["reason"]) == ("ok", None)
    assert detail["engine"] in ENGINES


async def test_health_needs_no_token_and_the_rest_does() -> None:
    async with InMemoryLightningStore() as store, serving(store, api_key=KEY) as visitor:
        for path in ("/healthz", "/readyz", "/health", "/ok"):
            assert (await visitor.get(path)).status == 200
        for path in ("/healthz/", "/metrics", "/info", "/docs", "/openapi.json", API + "/health"):
            assert (await visitor.get(path)).status == 401


async def test_a_server_whose_database_is_gone_lives_but_is_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with PostgresServer(fsync=False) as database:
        store = PostgresLightningStore(database.url(), timeout=2.0, watchdog_interval=None)
        async with store, serving(store, api_key=KEY) as visitor:
            visitor.headers = bearer(KEY)
            # The first request creates all tables, which takes longer than other requests on a busy machine.
            await until_true(lambda: _is_ready(visitor))
            monkeypatch.setattr(app, "READY_SECONDS", 1.0)
            database.crash()
            ready = await visitor.get("/readyz")
            assert (ready.status, ready.body["status"]) == (503, "degraded")
            assert set(ready.body) == {"status", "database", "indexes_being_built"}
            assert (await visitor.get("/healthz")).status == 200
            detail = await visitor.get(API + "/health")
            assert (detail.status, bool(detail.body["reason"])) == (503, True)
            text = (await visitor.get("/metrics")).body.decode()
            assert _values(text)["perdure_database_up", ()] == 0
            database.start()
            await until_true(lambda: _is_ready(visitor))


async def test_a_server_whose_database_file_was_removed_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOOK_SECONDS", 0.02)
    store = SqliteLightningStore(tmp_path / "perdure.db")
    async with store, serving(store, api_key=KEY) as visitor:
        visitor.headers = bearer(KEY)
        assert (await visitor.get("/readyz")).status == 200
        (tmp_path / "perdure.db").unlink()
        await until_true(lambda: _refuses(visitor))
        ready = await visitor.get("/readyz")
        assert (ready.status, ready.body["database"]) == (503, "degraded")
        assert str(tmp_path) not in str(ready.body)
        refused = await visitor.post(API + "/rollouts", json={"input": 1})
        assert (refused.status, refused.body["code"]) == (503, "storage_unavailable")
        assert "was removed or replaced" in refused.body["detail"]


async def _refuses(visitor: Visitor) -> bool:
    return (await visitor.get("/readyz")).status == 503


async def _is_ready(visitor: Visitor) -> bool:
    return (await visitor.get("/readyz")).status == 200


# --- metrics ----------------------------------------------------------------------------------------------


def _values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return every sample of an exposition, by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def _work(visitor: Visitor) -> None:
    for _ in range(3):
        await visitor.post(API + "/rollouts", json={"input": 1})
    await visitor.post(API + "/rollouts", json={"input": 1, "queue": "slow", "not_before": 4e9})
    await visitor.post(API + "/dequeue", json={"worker_id": "w"})
    await visitor.post("/v1/agl/queues/rollouts/dequeue", json={"worker_id": "w", "queue": "slow"})


async def test_metrics_are_what_prometheus_reads(visitor: Visitor) -> None:
    await _work(visitor)
    answer = await visitor.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain")
    values = _values(answer.body.decode())
    here = ("namespace", "default")
    expected = {
        ("perdure_database_up", ()): 1,
        ("perdure_rollouts", (here, ("status", "queuing"))): 3,
        ("perdure_rollouts", (here, ("status", "preparing"))): 1,
        ("perdure_workers", (here, ("state", "idle"))): 1,
        ("perdure_queue_depth", (here, ("queue", "default"), ("state", "ready"))): 2,
        ("perdure_queue_depth", (here, ("queue", "slow"), ("state", "delayed"))): 1,
        ("perdure_claims_total", (("result", "found"),)): 1,
        ("perdure_claims_total", (("result", "empty"),)): 1,
    }
    assert {key: values.get(key) for key in expected} == expected
    assert values["perdure_queue_oldest_age_seconds", (here, ("queue", "default"))] >= 0
    names = {name for name, _ in values}
    assert {"perdure_build_info", "perdure_http_requests_total", "process_open_fds"} <= names
    on_postgres = (await visitor.get(API + "/health")).body["engine"] == "postgres"
    assert ("perdure_db_pool_open" in names) == on_postgres


async def test_methods_without_routes_share_one_label(visitor: Visitor) -> None:
    for method in ("PROPFIND", "LOCK", "PURGE", "REPORT"):
        await visitor.ask(method, "/api/v1/runs")
    values = _values((await visitor.get("/metrics")).body.decode())
    methods = {
        dict(labels)["method"]: value
        for (name, labels), value in values.items()
        if name == "perdure_http_requests_total"
    }
    assert set(methods) <= {"GET", "POST", "other"}
    assert methods["other"] == 4


async def test_metrics_as_json_are_the_same(visitor: Visitor) -> None:
    await _work(visitor)
    families = (await visitor.get("/metrics?format=json")).body["families"]
    text = _values((await visitor.get("/metrics")).body.decode())
    told = {
        (sample["name"], tuple(sorted(sample["labels"].items())))
        for family in families
        for sample in family["samples"]
    }
    assert {key for key in told if key[0].startswith("perdure_queue")} <= set(text)
    rollouts = next(family for family in families if family["name"] == "perdure_rollouts")
    assert sum(sample["value"] for sample in rollouts["samples"]) == 4
    assert (await visitor.get("/metrics?format=xml")).status == 422


async def test_metrics_of_an_empty_store_can_be_read(visitor: Visitor) -> None:
    values = _values((await visitor.get("/metrics")).body.decode())
    assert values["perdure_database_up", ()] == 1


async def test_a_worker_is_measured_before_the_first_run(visitor: Visitor) -> None:
    body = {"worker_id": "w1", "agents": [{"name": "echo", "kind": "function"}], "concurrency": 4}
    assert (await visitor.post(f"{API}/work/register", json=body)).status == 200
    values = _values((await visitor.get("/metrics?aliases=true")).body.decode())
    here = ("namespace", "default")
    expected = {
        ("perdure_workers", (here, ("state", "idle"))): 1,
        ("perdure_workers_alive", (here,)): 1,
        ("perdure_worker_places", (here, ("state", "available"))): 4,
        ("lg_api_workers_max", ()): 4,
    }
    assert {key: values.get(key) for key in expected} == expected


async def test_runs_are_measured_by_our_names_and_by_others(visitor: Visitor) -> None:
    agent = {"name": "echo", "kind": "function"}
    body = {"worker_id": "w1", "agents": [agent], "concurrency": 4}
    assert (await visitor.post(f"{API}/work/register", json=body)).status == 200
    for _ in range(3):
        assert (await visitor.post(API + "/runs", json={"assistant_id": "echo"})).status == 201
    await visitor.post(f"{API}/work/claim", json={"worker_id": "w1", "agents": ["echo"], "limit": 1})
    values = _values((await visitor.get("/metrics?aliases=true")).body.decode())
    here = ("namespace", "default")
    expected = {
        ("perdure_runs", (here, ("status", "pending"))): 2,
        ("perdure_runs", (here, ("status", "running"))): 1,
        ("perdure_workers_alive", (here,)): 1,
        ("perdure_worker_places", (here, ("state", "max"))): 4,
        ("perdure_worker_places", (here, ("state", "available"))): 3,
        ("perdure_webhook_deliveries_total", (("result", "dead"),)): 0,
        ("lg_api_num_pending_runs", ()): 2,
        ("lg_api_num_running_runs", ()): 1,
        ("lg_api_workers_max", ()): 4,
        ("lg_api_workers_active", ()): 1,
    }
    assert {key: values.get(key) for key in expected} == expected
    assert values["perdure_runs_pending_age_seconds", (here, ("which", "oldest"))] > 0
    names = {name for name, _ in values}
    assert {"lg_api_pending_runs_wait_time_max", "lg_api_http_requests_total"} <= names
    assert "lg_api_http_requests_latency_seconds_count" in names
    on_postgres = (await visitor.get(API + "/health")).body["engine"] == "postgres"
    assert ("lg_api_pg_pool_max" in names) == on_postgres
    plain = {name for name, _ in _values((await visitor.get("/metrics")).body.decode())}
    assert not any(name.startswith("lg_api") for name in plain)
    told = (await visitor.get(API + "/stats")).body
    assert (told["n_pending"], told["n_running"]) == (2, 1)
    assert told["workers"] == {"alive": 1, "max": 4, "active": 1, "available": 3}
    assert told["outbox"] == {"pending": 0, "dead": 0}
    assert ("database" in told["pools"]) == on_postgres


async def test_spans_are_counted(visitor: Visitor) -> None:
    started = (await visitor.post(API + "/rollouts/start", json={"input": 1})).body
    span = own_span(started, 1)
    answer = await visitor.post(API + "/spans", json=[span, span])
    assert answer.body == {"stored": [True, False]}
    values = _values((await visitor.get("/metrics")).body.decode())
    assert values["perdure_spans_ingested_total", (("source", "json"),)] == 1
    assert values["perdure_spans_rejected_total", (("reason", "known"),)] == 1


# --- information ------------------------------------------------------------------------------------------


class _Reader(HTMLParser):
    """Collects the text of a page and the resources that it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.loaded: list[Any] = []

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [value for name, value in attrs if name == "src"]
        self.loaded += [tag] if tag in ("script", "link", "iframe", "img") else []


async def test_the_page_lists_every_route_and_loads_nothing(visitor: Visitor) -> None:
    answer = await visitor.get("/docs")
    assert answer.headers["Content-Type"].startswith("text/html")
    policies = {value for name, value in answer.headers.items() if name.lower() == "content-security-policy"}
    assert policies == {POLICY}
    reader = _Reader()
    reader.feed(answer.body.decode())
    assert reader.loaded == []
    assert {route.path for route in ROUTES} <= set(reader.words)


async def test_the_document_knows_every_route(visitor: Visitor) -> None:
    for path in ("/openapi.json", API + "/openapi.json"):
        document = (await visitor.get(path)).body
        assert set(document["paths"]) == {route.path for route in ROUTES}
        assert document["info"]["version"] == __version__


async def test_what_the_watchdog_ended_is_counted() -> None:
    clock = ManualClock()
    async with (
        InMemoryLightningStore(clock=clock, watchdog_interval=None) as store,
        serving(store) as visitor,
    ):
        await store.start_rollout(1, config=RolloutConfig(timeout_seconds=10))
        await store.start_rollout(2, config=RolloutConfig(unresponsive_seconds=10))
        clock.advance(11)
        await store.query_rollouts()
        values = _values((await visitor.get("/metrics")).body.decode())
        for status in ("timeout", "unresponsive"):
            assert values["perdure_watchdog_transitions_total", (("to", status),)] == 1
