"""What lasts: streams that are resumed, and waits that are taken up again, while a server is away."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import aiohttp

from perdure.access.endpoints import PREFIX
from perdure.client.api import Api, decoded, encoded, keyed
from perdure.client.lightning_exchange import new_key
from perdure.client.session import Query, error_from, path_segment
from perdure.client.sse import FIRST_PAUSE, LONGEST_PAUSE, PASSING, Resumed
from perdure.kernel.checks import check_timeout
from perdure.kernel.retry import Backoff
from perdure.streams.model import Event
from perdure.threads.records import RunEnd, RunRequest

logger = logging.getLogger(__name__)

T = TypeVar("T")

BEGINNING = "-1"
WAIT_SECONDS = 25.0
"""How long one request waits for the end of a run; after that comes another."""
_END: Any = RunEnd | None
_PROBLEM = b'{"type":"urn:perdure:error:'


class Streaming:
    """Waits and streams, for as long as they take; a server may be away for `patience` seconds."""

    def __init__(self, api: Api, patience: float) -> None:
        self._api = api
        self._session = api.session
        self._patience = patience

    # --- waiting ------------------------------------------------------------------------------------------

    async def wait(self, request: RunRequest, *, idempotency_key: str | None = None) -> RunEnd:
        """Ask for a run and wait for its end."""
        headers = keyed(idempotency_key or new_key())
        body = encoded(request)
        end = await self._patiently(partial(self._awaited, "POST", "/runs/wait", body=body, headers=headers))
        assert end is not None
        return end

    async def join_run(self, run_id: str, timeout: float | None = None) -> RunEnd:
        """Wait for the end of a run. TimeoutError when the time is up."""
        check_timeout(timeout)
        path = f"/runs/{path_segment(run_id, 'run_id')}/wait"
        clock = asyncio.get_running_loop().time
        deadline = math.inf if timeout is None else clock() + max(timeout, 0)
        while True:
            seconds = min(WAIT_SECONDS, max(deadline - clock(), 0))
            asking = partial(self._awaited, "GET", path, query=[("timeout", str(seconds))])
            end = await self._patiently(asking)
            if end is not None:
                return end
            if clock() >= deadline:
                raise TimeoutError(f"run {run_id} has not ended within {timeout} s")

    async def _awaited(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        query: Query = (),
        headers: Mapping[str, str] | None = None,
    ) -> RunEnd | None:
        """An end that is waited for; what goes wrong meanwhile stands in the body."""
        async with self._session.opened(
            method, PREFIX + path, body=body, query=query, headers=headers
        ) as response:
            data = (await response.read()).lstrip()
        if data.startswith(_PROBLEM):
            raise error_from(503, data)
        end: RunEnd | None = decoded(_END, data)
        return end

    async def _patiently(self, action: Callable[[], Awaitable[T]]) -> T:
        """Do something again while what hinders it may pass."""
        clock = asyncio.get_running_loop().time
        failing: float | None = None
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            begun = clock()
            try:
                return await action()
            except PASSING as error:
                # A wait that was cut after a while begins anew; one that is refused at once is still refused.
                if failing is None or clock() - begun > LONGEST_PAUSE:
                    failing = clock()
                    backoff.reset()
                if self._session.closed or clock() - failing >= self._patience:
                    raise
                pause = backoff.next()
                logger.info("a wait was cut off: %s; waiting again in %.1f s", error, pause)
            await asyncio.sleep(pause)

    # --- streams ------------------------------------------------------------------------------------------

    async def stream(
        self, request: RunRequest, *, idempotency_key: str | None = None
    ) -> AsyncIterator[Sequence[Event]]:
        """Ask for a run and get its events, in bursts, until its end."""
        key, body = keyed(idempotency_key or new_key()), encoded(request)
        place = ""

        @asynccontextmanager
        async def opening(headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
            nonlocal place
            method, path = ("GET", place) if place else ("POST", PREFIX + "/runs/stream")
            sent = {**headers, **({} if place else key)}
            async with self._session.opened(
                method, path, body=None if place else body, headers=sent
            ) as response:
                place = response.headers.get("Location", place)
                yield response

        async for burst in Resumed(self._session, "", BEGINNING, self._patience).read(opening):
            yield burst

    def stream_run(self, run_id: str, after: str | None = BEGINNING) -> AsyncIterator[Sequence[Event]]:
        """The events of a run after an id, in bursts, until its end; None is from now on."""
        return self._read(f"/runs/{path_segment(run_id, 'run_id')}/stream", run_id, after)

    def stream_thread(self, thread_id: str, after: str | None = None) -> AsyncIterator[Sequence[Event]]:
        """The events of all runs of a thread after an id, without end."""
        return self._read(f"/threads/{path_segment(thread_id, 'thread_id')}/stream", thread_id, after)

    def _read(self, path: str, source: str, after: str | None) -> AsyncIterator[Sequence[Event]]:
        @asynccontextmanager
        async def opening(headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
            query = () if headers else (("since", "now"),)
            async with self._session.opened("GET", PREFIX + path, query=query, headers=headers) as response:
                yield response

        return Resumed(self._session, source, after, self._patience).read(opening)
