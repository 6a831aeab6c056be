"""Databases that the tests of one process share, because a new one costs more than most tests."""

from __future__ import annotations

import asyncio
import uuid
from concurrent.futures import ThreadPoolExecutor

from perdure.kernel.storage.port import Tx
from perdure.kernel.storage.postgres import PostgresStorage
from perdure.runtime.stores import TABLES
from perdure.testing import servers


class Databases:
    """On each PostgreSQL server: a template with all tables, and one database for tests with namespaces."""

    def __init__(self) -> None:
        self._templates: dict[str, str] = {}
        self._shared: dict[str, str] = {}

    def copy(self, server_url: str) -> str:
        """The name of a new database with all tables and no rows."""
        if server_url not in self._templates:
            self._templates[server_url] = self._migrated(server_url)
        name = f"test_{uuid.uuid4().hex}"
        servers.create_database(server_url, name, self._templates[server_url])
        return name

    def shared(self, server_url: str) -> str:
        """The URL of the database that the tests of this process share."""
        if server_url not in self._shared:
            self._shared[server_url] = self._migrated(server_url)
        return servers.with_database(server_url, self._shared[server_url])

    def drop(self) -> None:
        for made in (self._shared, self._templates):
            for server_url, name in made.items():
                servers.drop_database(server_url, name)

    def _migrated(self, server_url: str) -> str:
        name = f"test_{uuid.uuid4().hex}"
        servers.create_database(server_url, name)
        # A thread of its own, since the caller's may be running an event loop.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, _migrate(servers.with_database(server_url, name))).result()
        return name


async def _migrate(url: str) -> None:
    storage = PostgresStorage(url, TABLES)
    try:
        await storage.run(_nothing)
    finally:
        await storage.close()


async def _nothing(tx: Tx) -> None:
    """The first operation on a database makes its tables."""
