"""Closed unless opened: every route of the table asks for a token, and for the scope that it names."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.access.support import access_of
from tests.server.native.support import Worker, request
from tests.server.support import Answer, Visitor, serving

from perdure import AttemptedRollout, InMemoryLightningStore, PromptTemplate, SqliteLightningStore
from perdure.assistants.service import Assistants
from perdure.kernel.config import SecretKey
from perdure.runs.queue import RunQueue
from perdure.server.http.routes import Route
from perdure.server.table import ROUTES
from perdure.service.callers import SCOPES
from perdure.testing.contract.support import make_span

KEY = SecretKey("only-the-operator-knows")
PUBLIC = {
    "/health",
    "/healthz",
    "/ok",
    "/readyz",
    "/v1/agl/health",
}
LINKED = {"/approve/{token}"}
"""Public, but for whoever has the token in the path."""
GUIDE = {"/docs/guide", "/docs/guide/{path}", "/llms.txt", "/llms-full.txt"}
"""Public, since it is the documentation of a release and holds nothing of a server."""
PAGES = {"/", "/ui", "/ui/{path}"}
"""Public, since the files of the dashboard hold no data."""
ENDLESS = {"/api/v1/changes"}
THEIR_THREAD = "018f0000-0000-7000-8000-000000000001"
CLOSED = [route for route in ROUTES if route.scope is not None]


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


def path_of(route: Route) -> str:
    """The route's path with something in the place of each parameter."""
    return re.sub(r"\{\w+\}", "some-id", route.path)


def code_of(answer: Answer) -> str:
    """The code in an error of any door."""
    if isinstance(answer.body, dict):
        return str(answer.body["code"] if "code" in answer.body else answer.body["message"])
    return bytes(answer.body).decode("utf-8", "replace")


@pytest_asyncio.fixture
async def store() -> AsyncIterator[InMemoryLightningStore]:
    async with InMemoryLightningStore() as opened:
        yield opened


@pytest_asyncio.fixture
async def closed(store: InMemoryLightningStore) -> AsyncIterator[Visitor]:
    async with serving(store, api_key=KEY) as visitor:
        yield visitor


def test_the_public_paths_are_these_and_no_others() -> None:
    assert {route.path for route in ROUTES if route.scope is None} == PUBLIC | LINKED | GUIDE | PAGES


async def test_without_a_token_every_route_answers_401(closed: Visitor) -> None:
    for route in CLOSED:
        for headers in ({}, {"Authorization": "Bearer pdr_nobody"}, {"x-api-key": KEY[:-1]}):
            answer = await closed.ask(route.method, path_of(route), headers=headers)
            assert answer.status in (401, 429), name_of(route)
    for path in (
        "/uix",
        "/nothing",
        "/v1/agl/nothing",
        "/api/v1/nothing",
        "/healthz/",
        "/healthz/x",
        "//healthz",
    ):
        assert (await closed.get(path)).status == 401, path


async def test_a_token_in_the_url_is_no_token(closed: Visitor) -> None:
    for name in ("token", "api_key", "key", "access_token"):
        assert (await closed.get("/api/v1/rollouts", params={name: str(KEY)})).status == 401


async def test_public_routes_answer_everybody(closed: Visitor) -> None:
    for path in sorted(PUBLIC):
        assert (await closed.get(path)).status == 200, path


async def test_each_route_wants_its_own_scope(store: InMemoryLightningStore) -> None:
    async with serving(store) as visitor:
        secrets = {
            scope: (await access_of(visitor.app).create_token(scope, scopes=(scope,), actor="test"))[1]
            for scope in SCOPES
        }
        for route in CLOSED:
            if route.path in ENDLESS:
                continue
            for scope, secret in secrets.items():
                answer = await visitor.ask(
                    route.method, path_of(route), headers={"Authorization": f"Bearer {secret}"}
                )
                may = scope in ("admin", route.scope)
                assert (answer.status not in (401, 403)) == may, f"{name_of(route)} with {scope}"
                assert answer.status < 500 or answer.status == 501, f"{name_of(route)}: {answer}"


async def test_no_secret_reaches_the_log_or_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.db"
    with caplog.at_level(logging.DEBUG):
        async with SqliteLightningStore(path) as store, serving(store, api_key=KEY) as visitor:
            _, secret = await access_of(visitor.app).create_token("one", scopes=("read",), actor="test")
            for headers in (
                {"Authorization": f"Bearer {secret}"},
                {"x-api-key": str(KEY)},
                {"x-api-key": "wrong-one"},
            ):
                await visitor.get("/api/v1/rollouts", headers=headers)
                await visitor.get("/api/v1/rollouts/nobody", headers=headers)
            assert repr(visitor.app.settings).count("***") >= 1
            assert KEY not in repr(visitor.app.settings)
    stored = b"".join(map(Path.read_bytes, tmp_path.iterdir()))  # noqa: ASYNC240 - nobody else is waiting
    for hidden in (secret, str(KEY), "wrong-one"):
        assert hidden not in caplog.text
        assert hidden.encode() not in stored


# --- namespaces -------------------------------------------------------------------------------------------


async def test_another_namespace_does_not_exist(store: InMemoryLightningStore) -> None:
    """What one namespace holds is found by none of the routes that read, with a token of another."""
    mine = await store.in_namespace("theirs").start_rollout({"secret": "plans"}, worker_id="their-worker")
    theirs = store.in_namespace("theirs")
    kept = await theirs.add_resources({"p": PromptTemplate(template="hidden", engine="jinja")})
    async with serving(store) as visitor:
        _, secret = await access_of(visitor.app).create_token(
            "mine", scopes=("read", "write", "worker"), namespaces=("mine",), actor="test"
        )
        visitor.headers = {"Authorization": f"Bearer {secret}"}
        ids = {
            "rollout_id": mine.rollout_id,
            "attempt_id": mine.attempt.attempt_id,
            "worker_id": "their-worker",
            "resources_id": kept.resources_id,
            **await _their_runs(visitor),
        }
        for route in CLOSED:
            if route.path in ENDLESS or route.method != "GET":
                continue
            path = re.sub(r"\{(\w+)\}", lambda found: ids.get(found[1], "1"), route.path)
            answer = await visitor.get(path, params={"rollout_id": mine.rollout_id})
            shown = str(answer.body)
            assert not any(word in shown for word in ("plans", "hidden")), path
        before = await theirs.get_rollout_by_id(mine.rollout_id)
        for path, body in _attacks(ids, mine):
            answer = await visitor.post(path, json=body)
            assert answer.status in (400, 404, 409, 422), (path, answer)
        assert await theirs.get_rollout_by_id(mine.rollout_id) == before
        assert list(await theirs.query_spans(mine.rollout_id)) == []


async def _their_runs(visitor: Visitor) -> dict[str, str]:
    """A thread with a run that is under way, and an assistant, where the caller is not."""
    threads = visitor.app.services.threads.in_namespace("theirs")
    worker = Worker(RunQueue.beside(threads))
    await worker.register()
    thread = await threads.create_thread(THEIR_THREAD, values={"secret": "plans"})
    await threads.create_run(request(thread_id=thread.thread_id, input={"secret": "plans"}))
    work = await worker.claim()
    await worker.emit(work.held, {"secret": "plans"})
    made = Assistants(threads.storage, namespace="theirs")
    assistant = await made.create("echo", config={"secret": "plans"})
    return {
        "run_id": work.run.run_id,
        "id": work.run.run_id,
        "thread_id": thread.thread_id,
        "assistant_id": assistant.assistant_id,
        "run_attempt": work.attempt_id,
    }


def _attacks(ids: dict[str, str], stolen: AttemptedRollout) -> list[tuple[str, Any]]:
    rollout, attempt = ids["rollout_id"], ids["attempt_id"]
    span = make_span(stolen).model_dump(mode="json")
    return [
        (f"/v1/agl/rollouts/{rollout}", {"status": "cancelled"}),
        (f"/v1/agl/rollouts/{rollout}/attempts", None),
        (f"/v1/agl/rollouts/{rollout}/attempts/{attempt}", {"status": "succeeded"}),
        ("/v1/agl/spans", span),
        ("/v1/agl/spans/bulk", [span]),
        (f"/api/v1/rollouts/{rollout}/cancel", None),
        (f"/api/v1/rollouts/{rollout}/retry", None),
        *_attacks_on_runs(ids),
        *_attacks_on_graphs(ids),
    ]


def _attacks_on_graphs(ids: dict[str, str]) -> list[tuple[str, Any]]:
    """The same through the LangGraph door."""
    thread, assistant = ids["thread_id"], ids["assistant_id"]
    return [
        (f"/threads/{thread}/state", {"values": {"n": 1}}),
        (f"/threads/{thread}/state/checkpoint", {"checkpoint": {}}),
        (f"/threads/{thread}/history", {}),
        (f"/threads/{thread}/copy", None),
        (f"/assistants/{assistant}/latest", {"version": 1}),
        (f"/assistants/{assistant}/versions", {}),
    ]


def _attacks_on_runs(ids: dict[str, str]) -> list[tuple[str, Any]]:
    run, thread, assistant = ids["run_id"], ids["thread_id"], ids["assistant_id"]
    held = {"run_id": run, "thread_id": thread, "attempt_id": ids["run_attempt"]}
    return [
        (f"/api/v1/runs/{run}/cancel", None),
        ("/api/v1/runs", {"assistant_id": assistant}),
        ("/api/v1/runs/wait", {"assistant_id": assistant}),
        ("/api/v1/runs/stream", {"assistant_id": assistant}),
        (f"/api/v1/threads/{thread}/state", {"values": 1}),
        (f"/api/v1/threads/{thread}/copy", None),
        (f"/api/v1/assistants/{assistant}/latest", {"version": 1}),
        ("/api/v1/work/checkpoints", {"held": held, "checkpoint": {"values": 1}}),
        ("/api/v1/work/graphs", {"held": held, "steps": {"states": [{"checkpoint_id": "c"}]}}),
        ("/api/v1/work/steps", {"held": held, "origin": run, "name": "s", "body": "1"}),
    ]
