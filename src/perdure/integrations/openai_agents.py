"""A session for the OpenAI Agents SDK: its items are lines of a perdure session."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from perdure.eventlog.port import CHAT_PROJECT, check_session_id
from perdure.integrations.session_log import SessionLog
from perdure.kernel.errors import InvalidInput
from perdure.sessions.service import Sessions

POPPED = "perdure.item_popped"
CLEARED = "perdure.items_cleared"

Item = dict[str, Any]


class PerdureSession:
    """Session for the SDK: `Runner.run(agent, input, session=PerdureSession("s-1", perdure.sessions))`.

    `sessions` belongs to `Perdure` or `PerdureClient`. The log is append-only: popped and cleared items stay
    in it, followed by a line that marks them.
    """

    def __init__(
        self,
        session_id: str,
        sessions: Sessions,
        *,
        project: str = CHAT_PROJECT,
        session_settings: Any = None,
    ) -> None:
        self.session_id = check_session_id(session_id)
        self.session_settings = session_settings
        """The SDK's session settings; `limit` is the default number of items to read."""
        self._log = SessionLog(sessions, session_id, project)
        self._lock = asyncio.Lock()
        self._items: list[Item] = []
        self._after = 0

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the items in order, or the latest `limit` of them."""
        async with self._lock:
            await self._read()
            if limit is None:
                limit = getattr(self.session_settings, "limit", None)
            chosen = self._items if limit is None else self._items[-limit:] if limit > 0 else []
            return deepcopy(chosen)

    async def add_items(self, items: Sequence[Item]) -> None:
        """Add items."""
        for item in items:
            if item.get("type") in (POPPED, CLEARED):
                raise InvalidInput(f"the type {item['type']} is reserved")
        async with self._lock:
            await self._log.append([dict(item) for item in items])

    async def pop_item(self) -> Item | None:
        """Remove the latest item, and return it; None if there is none."""
        async with self._lock:
            await self._read()
            if not self._items:
                return None
            item = deepcopy(self._items[-1])
            await self._log.append([{"type": POPPED}])
            return item

    async def clear_session(self) -> None:
        """Remove all items."""
        async with self._lock:
            await self._read()
            if self._items:
                await self._log.append([{"type": CLEARED}])

    async def _read(self) -> None:
        """Read new lines, and apply them."""
        async for lines, after in self._log.read(self._after):
            for line in lines:
                kind = line.get("type")
                if kind == CLEARED:
                    self._items = []
                elif kind == POPPED:
                    del self._items[-1:]
                else:
                    self._items.append(line)
            self._after = after
