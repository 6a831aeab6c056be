"""A database for a LangGraph program: named and opened here, or given and already open."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from perdure.kernel.background import Background
from perdure.kernel.storage.port import Storage
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.perdure import Perdure
from perdure.runtime.stores import open_store

T = TypeVar("T")

Place = str | os.PathLike[str] | DatabaseLightningStore | Perdure | Storage
"""A file, the URL of a database, or something that has one open."""


class Opened:
    """An open database, and one thread through which callers without an event loop reach it.

    Closing it closes the database only if it was opened here.
    """

    def __init__(self, place: Place, namespace: str | None = None) -> None:
        self._own: DatabaseLightningStore | None = None
        if isinstance(place, Perdure):
            place = place.store
        if isinstance(place, str | os.PathLike):
            # Nobody claims or times anything out here, so that no watchdog is needed.
            place = self._own = open_store(os.fspath(place), watchdog_interval=None)
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
        if self._own is not None:
            await self._own.close()
        self._portal.close()

    def close(self) -> None:
        """The same, for callers without an event loop."""
        if self._own is not None:
            self._portal.wait(self._own.close)
        self._portal.close()
