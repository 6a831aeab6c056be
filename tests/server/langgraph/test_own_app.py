"""`http.app` of a langgraph.json: the operator's application with our routes and authentication."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.langgraph.auth_project import AUTH
from tests.server.langgraph.conftest import serving
from tests.server.langgraph.project import HERE, project

from perdure.testing.serving import ServerProcess

KEY = "only-the-operator-knows"
HEADERS = {"x-api-key": KEY}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def with_app(folder: Path, **http: Any) -> Path:
    project(folder, ("noop",), http={"app": "./own_app.py:app", **http})
    shutil.copy(HERE / "own_app.py", folder / "own_app.py")
    return folder


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = with_app(tmp_path_factory.mktemp("app"), mount_prefix="/agents")
    options = {"PERDURE_API_KEY": KEY, "PERDURE_MAX_BODY_BYTES": "1024"}
    with serving(folder, "memory:", **options) as started:
        yield started


def test_its_routes_answer_with_its_middleware_and_its_lifespan(closed: ServerProcess) -> None:
    answer = httpx.get(f"{closed.url}/hello", headers=HEADERS)
    assert answer.json() == {"user": None, "made": "at startup", "path": "/hello"}
    assert answer.headers["x-stamped"] == "yes"
    assert answer.headers["x-content-type-options"] == "nosniff"
    below = httpx.get(f"{closed.url}/agents/hello", headers=HEADERS)
    assert below.json()["path"] == "/agents/hello"
    taken = httpx.post(f"{closed.url}/take/a/b", content="a=1", headers={**HEADERS, **FORM})
    assert taken.json() == {"got": "a=1"}
    assert taken.headers["x-frame-options"] == "SAMEORIGIN"
    ours = httpx.post(f"{closed.url}/assistants/search", json={}, headers=HEADERS)
    assert "x-stamped" not in ours.headers
    assert httpx.get(f"{closed.url}/threads", headers=HEADERS).status_code == 405
    missing = httpx.get(f"{closed.url}/nothing", headers=HEADERS)
    assert (missing.status_code, missing.text) == (404, "Not Found")


def test_nobody_reaches_it_without_the_key(closed: ServerProcess) -> None:
    for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        for path in ("/hello", "/take/x", "/fail", "/nothing", "/agents/hello", "//hello", "/hello/"):
            for headers in ({}, {"x-api-key": KEY[:-1]}, {"Origin": "https://evil.example"}):
                answer = httpx.request(method, closed.url + path, headers=headers)
                assert answer.status_code in (401, 429), (method, path)
                assert "x-stamped" not in answer.headers


def test_what_it_gets_is_bounded_and_what_it_raises_stays_inside(closed: ServerProcess) -> None:
    large = httpx.post(f"{closed.url}/take/x", content=b"x" * 2000, headers=HEADERS)
    assert large.status_code == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(10):
            yield b"x" * 500

    assert httpx.post(f"{closed.url}/take/x", content=pieces(), headers=HEADERS).status_code == 413
    failed = httpx.get(f"{closed.url}/fail", headers=HEADERS)
    assert failed.status_code == 500
    assert "nobody must see" not in failed.text


def test_an_operator_may_open_it_to_everybody(tmp_path: Path) -> None:
    folder = with_app(tmp_path, enable_custom_route_auth=False)
    with serving(folder, "memory:", PERDURE_API_KEY=KEY) as started:
        assert httpx.get(f"{started.url}/hello").status_code == 200
        assert httpx.get(f"{started.url}/hello", headers={"Host": "evil.example"}).status_code == 403
        assert httpx.post(f"{started.url}/assistants/search", json={}).status_code == 401


def test_one_without_a_lifespan_is_served_and_one_that_fails_is_not(tmp_path: Path) -> None:
    folder = with_app(tmp_path)
    (folder / "own_app.py").write_text(
        "from starlette.applications import Starlette\n"
        "def start():\n    raise RuntimeError('no startup today')\n"
        "class Broken:\n"
        "    async def __call__(self, scope, receive, send):\n"
        "        await receive()\n"
        "        await send({'type': 'lifespan.startup.failed', 'message': 'no startup today'})\n"
        "app = Broken()\n"
    )
    with serving(folder, "memory:") as started:
        assert httpx.get(f"{started.url}/hello").status_code == 404
        assert httpx.post(f"{started.url}/assistants/search", json={}).json()[0]["graph_id"] == "noop"
        assert "http.app does not start, and is not served: no startup today" in started.log()


def test_custom_auth_authenticates_its_callers_too(tmp_path: Path) -> None:
    folder = with_app(tmp_path)
    (folder / "auth.py").write_text(AUTH, encoding="utf-8")
    content = json.loads((folder / "langgraph.json").read_text(encoding="utf-8"))
    content["auth"] = {"path": "./auth.py:auth"}
    (folder / "langgraph.json").write_text(json.dumps(content), encoding="utf-8")
    with serving(folder, "memory:") as started:
        known = httpx.get(f"{started.url}/hello", headers={"Authorization": "Bearer ann"})
        assert known.json()["user"] == "ann"
        for headers in ({}, {"Authorization": "Bearer nobody"}):
            unknown = httpx.get(f"{started.url}/hello", headers=headers)
            assert (unknown.status_code, "x-stamped" in unknown.headers) == (401, False)
