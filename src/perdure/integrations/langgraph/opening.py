"""The database of a LangGraph program: opened here by name, or passed in open."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from perdure.kernel.background import Background
from perdure.kernel.storage.port import Storage
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.stores import MEMORY_URLS, open_store, sqlite_file

T = TypeVar("T")


class StoreHolder(Protocol):
    """A `Perdure`, or another object with an open store."""

    @property
    def store(self) -> DatabaseLightningStore: ...


Database = DatabaseLightningStore | StoreHolder | Storage
"""An open database."""

Place = str | os.PathLike[str] | Database
"""A file, the URL of a database, or an open database."""


_lock = threading.Lock()
_shared: dict[tuple[int, str], tuple[DatabaseLightningStore, int]] = {}
"""Databases opened here by name, with their number of users, because a file has one owner."""


def _acquire(place: str) -> DatabaseLightningStore:
    key = _key(place)
    with _lock:
        # These users claim nothing, so no watchdog is needed.
        store, holders = _shared.get(key) or (open_store(place, watchdog_interval=None), 0)
        if place not in MEMORY_URLS:
            _shared[key] = (store, holders + 1)
        return store


def _release(place: str) -> bool:
    """Release a database. Return True if it has no other users."""
    key = _key(place)
    with _lock:
        store, holders = _shared.pop(key, (None, 1))
        if store is not None and holders > 1:
            _shared[key] = (store, holders - 1)
        return holders <= 1


def _get_storage(database: Database) -> tuple[Storage, str]:
    """Return the storage of an open database, and its default namespace."""
    store = database if isinstance(database, DatabaseLightningStore) else getattr(database, "store", None)
    if isinstance(store, DatabaseLightningStore):
        return store.storage, store.namespace
    return cast(Storage, database), "default"


def _key(place: str) -> tuple[int, str]:
    file = sqlite_file(place)
    return os.getpid(), place if file is None else str(Path(file).expanduser().resolve())


class OpenedDatabase:
    """An open database, and one thread through which callers without an event loop use it.

    Closing it closes the database only if it was opened here. A database that is named twice is opened once,
    and closed by the last of its users.
    """

    def __init__(self, place: Place, namespace: str | None = None) -> None:
        self._own: DatabaseLightningStore | None = None
        self._name = ""
        if isinstance(place, str | os.PathLike):
            self._name = os.fspath(place)
            place = self._own = _acquire(self._name)
        self.storage, default = _get_storage(place)
        self.namespace = namespace or default
        self._portal = Background("perdure-langgraph")

    def wait(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the thread, and block until it has ended."""
        return self._portal.wait(action)

    async def aclose(self) -> None:
        """End the thread, and close the database if it was opened here."""
        own, self._own = self._own, None
        if own is not None and _release(self._name):
            await own.close()
        self._portal.close()

    def close(self) -> None:
        """End the thread and close the database, for callers without an event loop."""
        own, self._own = self._own, None
        if own is not None and _release(self._name):
            self._portal.wait(own.close)
        self._portal.close()
