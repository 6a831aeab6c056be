"""A client, a flaky proxy and a store behind both, shared by the tests of the client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.client.flaky import FlakyServer
from tests.server.support import serving

from perdure import LightningStore, LightningStoreClient, SqliteLightningStore

AGL = "/v1/agl"
PATIENT: dict[str, Any] = {"retry_delays": (0.01, 0.01, 0.01), "health_retry_delays": (0.01, 0.01)}


class Line(NamedTuple):
    """A client, the flaky proxy that it uses, and the store behind both."""

    client: LightningStoreClient
    proxy: FlakyServer
    store: LightningStore


@asynccontextmanager
async def open_line(path: Path) -> AsyncIterator[Line]:
    async with (
        SqliteLightningStore(path) as store,
        serving(store) as server,
        FlakyServer(server.url) as proxy,
        LightningStoreClient(proxy.url, **PATIENT) as client,
    ):
        yield Line(client, proxy, store)


def hasty(proxy: FlakyServer) -> LightningStoreClient:
    """Return a client that waits 0.5 s for a response."""
    return LightningStoreClient(proxy.url, request_timeout=0.5, **PATIENT)
