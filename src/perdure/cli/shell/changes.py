"""Hints from the server's change feed, after which a following command reads again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress

from perdure.cli.shell.target import CommandConnection
from perdure.kernel.errors import MethodNotAllowed, NotFound, NotSupported, PerdureError, UnknownRoute

CHANGES = "/api/v1/changes"
POLL_SECONDS = 1.0
LONGEST_POLL = 10.0
SHORTEST_POLL = 0.1
DIRECT_SECONDS = 0.25
"""Poll interval for a database that this process has opened, because it has no feed."""


class Hints:
    """Wakes the watcher when the server reports a change, and at intervals in case a report is lost."""

    def __init__(self, kinds: Collection[str], object_id: str | None = None) -> None:
        self._kinds = kinds
        self._id = object_id
        self._changed = asyncio.Event()
        self._seconds = POLL_SECONDS

    async def wait(self) -> None:
        """Wait for a hint or the poll interval; then wait shortly, so that several hints are joined."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), self._seconds)
        await asyncio.sleep(SHORTEST_POLL)
        self._changed.clear()

    async def listen(self, connection: CommandConnection) -> None:
        """Read the change feed, if the server has one."""
        if connection.session is None:
            self._seconds = DIRECT_SECONDS
            return
        while True:
            try:
                async for line in connection.session.lines(CHANGES):
                    if self._seconds != LONGEST_POLL:
                        # Changes before the start of the feed are not in it.
                        self._changed.set()
                    self._seconds = LONGEST_POLL
                    self._read_line(line)
            except (NotFound, UnknownRoute, MethodNotAllowed, NotSupported):
                return
            except PerdureError:
                # The command's own read fails in the same way, and reports the error.
                pass
            self._seconds = POLL_SECONDS
            await asyncio.sleep(POLL_SECONDS)

    def _read_line(self, line: bytes) -> None:
        if line.startswith(b"event: resync"):
            self._changed.set()
        if not line.startswith(b"data:"):
            return
        try:
            change = json.loads(line[5:])
            kind, object_id = change.get("kind"), change.get("id")
        except (ValueError, AttributeError):
            return
        if kind in self._kinds and self._id in (None, object_id):
            self._changed.set()


@asynccontextmanager
async def hints(
    connection: CommandConnection, kinds: Collection[str], object_id: str | None = None
) -> AsyncIterator[Hints]:
    """Yield hints from the server: about all objects of some kinds, or about one object."""
    hints_ = Hints(kinds, object_id)
    listening = asyncio.ensure_future(hints_.listen(connection))
    try:
        yield hints_
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
