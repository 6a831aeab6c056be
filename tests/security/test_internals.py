"""A failing database is named to callers as a part; path, host and the engine's words are only logged."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from tests.server.otlp_support import Batch, Home
from tests.server.support import Answer, Visitor, serving

from perdure.kernel import errors
from perdure.kernel.errors import error_text
from perdure.runtime.stores import open_store
from perdure.server.grpc.otlp import TRACE_SERVICE
from perdure.server.grpc.server import GrpcServer
from perdure.server.http.bodies import encode
from perdure.server.table import ROUTES
from perdure.service.endpoints import Refusal
from perdure.testing.servers import free_port
from perdure.worker.retry_policy import build_failure

KEY = {"x-api-key": "key-of-this-test"}
EXPORT = f"/{TRACE_SERVICE}/Export"
DATABASE = "inner_name"
INSIDE = re.compile(rf"{DATABASE}|127\.0\.0\.1|localhost|PostgreSQL|asyncpg|Errno|refused|user_of_it")


@pytest_asyncio.fixture
async def visitor() -> AsyncIterator[Visitor]:
    """A server whose database nobody serves."""
    url = f"postgresql://user_of_it:word@127.0.0.1:{free_port()}/{DATABASE}"
    store = open_store(url)
    async with serving(store, api_key=KEY["x-api-key"]) as found:
        found.headers = dict(KEY)
        yield found
    await store.close()


def shown(answer: Answer) -> str:
    body = answer.body if isinstance(answer.body, bytes) else encode(answer.body)
    return body.decode(errors="replace")


async def test_no_response_tells_where_the_database_is(
    visitor: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    unavailable = 0
    for route in ROUTES:
        path = re.sub(r"\{\w+(:\w+)?\}", "01a1e72e-2d5d-75c2-9be7-070d3101344d", route.path)
        answer = await visitor.ask(route.method, path, json={} if route.body is not None else None)
        text = shown(answer)
        assert answer.status < 400 or not INSIDE.search(text), (route.method, route.path, text)
        if answer.status in (503, 504) and route.path not in ("/readyz", "/api/v1/health"):
            unavailable += 1
            assert "database" in text, (route.method, route.path, text)
            assert answer.headers["X-Request-ID"] in text, (route.method, route.path, text)
    assert unavailable > 80
    assert DATABASE in caplog.text


async def test_health_names_the_part_and_the_log_the_reason(
    visitor: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await visitor.get("/api/v1/health")
    assert (answer.status, answer.body["database"]) == (503, "degraded")
    assert answer.body["reason"] == errors.StorageUnavailable().public
    assert not INSIDE.search(shown(answer))
    assert DATABASE in caplog.text


async def test_grpc_tells_no_more(visitor: Visitor, caplog: pytest.LogCaptureFixture) -> None:
    server = GrpcServer(visitor.app, host="127.0.0.1", port=0)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            batch = Batch(Home("rollout", "attempt"))
            batch.add()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(EXPORT)(batch.bytes(), metadata=tuple(KEY.items()))
    finally:
        await server.stop()
    told = f"{caught.value.details()} {caught.value.trailing_metadata()}"
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "database" in told
    assert not INSIDE.search(told)
    assert DATABASE in caplog.text


def test_what_is_stored_of_an_error_tells_no_more(tmp_path: Path) -> None:
    for kind in errors.all_errors():
        if not issubclass(kind, errors.StorageError):
            continue
        error = kind(f"PostgreSQL at 127.0.0.1:5432/{DATABASE}: {tmp_path} is unknown to localhost")
        told = [
            error.public,
            build_failure(error).message,
            error_text(error),
            Refusal.of(error).detail,
        ]
        assert not any(INSIDE.search(each) or str(tmp_path) in each for each in told), told
        assert all(told)
        assert "database" in error.public or issubclass(kind, errors.StorageClosed)
