"""A gRPC server on each engine."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
from tests.server.grpc.support import Served, serving

from perdure.runtime.stores import open_store


@pytest.fixture
async def served(shared_engine_url: str) -> AsyncIterator[Served]:
    """Start a server whose anonymous callers have their own namespace."""
    namespace = f"test {uuid.uuid4().hex}"
    async with open_store(shared_engine_url, namespace=namespace) as store, serving(store) as found:
        yield found
