"""A database for a LangGraph program: named and opened here, or given and already open."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from perdure.kernel.background import Background
from perdure.kernel.storage.port import Storage
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.perdure import Perdure
from perdure.runtime.stores import MEMORY_URLS, open_store, sqlite_file

T = TypeVar("T")

Place = str | os.PathLike[str] | DatabaseLightningStore | Perdure | Storage
"""A file, the URL of a database, or something that has one open."""


_lock = threading.Lock()
_shared: dict[tuple[int, str], tuple[DatabaseLightningStore, int]] = {}
"""Databases that were opened here by their name, with how many hold each: a file has one owner."""


def _acquire(place: str) -> DatabaseLightningStore:
    key = _key(place)
    with _lock:
        # Nobody claims or times anything out here, so that no watchdog is needed.
        store, holders = _shared.get(key) or (open_store(place, watchdog_interval=None), 0)
        if place not in MEMORY_URLS:
            _shared[key] = (store, holders + 1)
        return store


def _release(place: str) -> bool:
    """Give a database up; whether nobody else holds it."""
    key = _key(place)
    with _lock:
        store, holders = _shared.pop(key, (None, 1))
        if store is not None and holders > 1:
            _shared[key] = (store, holders - 1)
        return holders <= 1


def _key(place: str) -> tuple[int, str]:
    file = sqlite_file(place)
    return os.getpid(), place if file is None else str(Path(file).expanduser().resolve())


class Opened:
    """An open database, and one thread through which callers without an event loop reach it.

    Closing it closes the database only if it was opened here; what was named twice is opened once, and
    closed with the last who holds it.
    """

    def __init__(self, place: Place, namespace: str | None = None) -> None:
        self._own: DatabaseLightningStore | None = None
        self._name = ""
        if isinstance(place, Perdure):
            place = place.store
        if isinstance(place, str | os.PathLike):
            self._name = os.fspath(place)
            place = self._own = _acquire(self._name)
        if isinstance(place, DatabaseLightningStore):
            self.storage: Storage = place.storage
            self.namespace = namespace or place.namespace
        else:
            self.storage, self.namespace = place, namespace or "default"
        self._portal = Background("perdure-langgraph")

    def wait(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the thread and stand still until it has ended."""
        return self._portal.wait(action)

    async def aclose(self) -> None:
        """End the thread, and close the database if it was opened here."""
        own, self._own = self._own, None
        if own is not None and _release(self._name):
            await own.close()
        self._portal.close()

    def close(self) -> None:
        """The same, for callers without an event loop."""
        own, self._own = self._own, None
        if own is not None and _release(self._name):
            self._portal.wait(own.close)
        self._portal.close()
