"""What a check is, and what it is given. This runs in the peer's environment: no perdure here."""

import asyncio
import json
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TextIO
from urllib.parse import urlsplit

import aiohttp
from agentlightning.store import LightningStoreClient
from agentlightning.types import OtelResource, RolloutConfig, Span, TraceStatus

PATIENCE = 20.0
"""Seconds within which anything that must happen has happened."""
AT_ONCE = 1.0
"""Seconds below which nothing can have been retried: the client's first pause is as long."""


class Run:
    """A server to check, one namespace of it, and the runner that can end and restart it."""

    def __init__(self, engine: str, url: str, key: str, namespace: str, runner: "Runner") -> None:
        self.key = key
        self.namespace = namespace
        self._engine = engine
        self._runner = runner
        self._address = urlsplit(url).netloc

    async def kill_server(self) -> None:
        """Have the server killed and restarted, and wait until it answers."""
        await self._runner.ask_to_kill(self._engine)

    def url(self, secret: str | None = None, namespace: str | None = None) -> str:
        """The server's address with credentials in it, which is all that this client can be told."""
        return f"http://{namespace or self.namespace}:{secret or self.key}@{self._address}"

    @property
    def bare_url(self) -> str:
        return f"http://{self._address}"

    @asynccontextmanager
    async def client(self, url: str | None = None, **options: Any) -> AsyncIterator[Any]:
        store = LightningStoreClient(url or self.url(), **options)
        try:
            yield store
        finally:
            await store.close()


class Runner:
    """The process on the other side of the pipe, which holds the server."""

    def __init__(self, answers: TextIO, lines: TextIO) -> None:
        self._answers = answers
        self._lines = lines

    def tell(self, **message: Any) -> None:
        print(json.dumps(message), file=self._answers, flush=True)

    async def ask_to_kill(self, engine: str) -> None:
        self.tell(kill=engine)
        if not await asyncio.to_thread(self._lines.readline):
            raise RuntimeError("the runner is gone")


Body = Callable[[Any, Run], Awaitable[None]]


class Check(NamedTuple):
    words: str
    body: Body


CHECKS: list[Check] = []


def check(words: str) -> Callable[[Body], Body]:
    """Add a check, told in words; it gets a client with a namespace of its own."""

    def add(body: Body) -> Body:
        CHECKS.append(Check(words, body))
        return body

    return add


async def run_all(engine: str, url: str, key: str, runner: Runner) -> None:
    """Every check in turn; each is told to the runner."""
    for number, each in enumerate(CHECKS):
        run = Run(engine, url, key, f"check-{number}", runner)
        started = time.monotonic()
        error = await _run(each, run)
        runner.tell(engine=engine, check=each.words, seconds=time.monotonic() - started, error=error)


async def _run(each: Check, run: Run) -> str | None:
    try:
        async with asyncio.timeout(PATIENCE * 2), run.client() as store:
            await each.body(store, run)
    except Exception:  # noqa: BLE001 - whatever goes wrong is the check's result
        return "".join(traceback.format_exc().splitlines(keepends=True)[-12:])
    return None


# --- what checks share --------------------------------------------------------------------------------------


@asynccontextmanager
async def refused(status: int) -> AsyncIterator[None]:
    """The server must say no with this status, and the client must not try again."""
    started = time.monotonic()
    answered = 200
    try:
        yield
    except aiohttp.ClientResponseError as error:
        answered = error.status
    assert answered == status, f"answered with {answered}, not {status}"
    assert time.monotonic() - started < AT_ONCE, "it was tried again before it failed"


async def until(condition: Callable[[], Awaitable[Any]], what: str) -> Any:
    """Ask until there is an answer."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := await condition():
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"{what} did not happen within {PATIENCE:.0f} s")


def make_span(rollout: Any, number: int, name: str = "step", **fields: Any) -> Any:
    made = Span.from_attributes(
        attributes={"number": number, "text": "ü", "flags": [True, False]},
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        sequence_id=number,
        name=name,
        trace_id=f"{number % 3 + 1:032x}",
        span_id=f"{number:016x}",
        parent_id=f"{number - 1:016x}" if number > 1 else None,
        start_time=100.0 + number,
        end_time=200.0 - number,
        resource=OtelResource(attributes={"service.name": "conformance"}, schema_url=""),
        status=TraceStatus(status_code="OK"),
    )
    return Span.model_validate({**made.model_dump(), **fields})


def retrying(*statuses: str, max_attempts: int = 2, **limits: float) -> Any:
    return RolloutConfig(max_attempts=max_attempts, retry_condition=list(statuses), **limits)


async def started(store: Any, **options: Any) -> Any:
    return await store.start_rollout({"task": "conformance"}, **options)
