"""The log of a session, for integrations with other SDKs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from secrets import token_hex
from typing import Any

from perdure.kernel.codec import encode_json
from perdure.kernel.errors import NotFound
from perdure.sessions.batches import in_batches
from perdure.sessions.service import Sessions
from perdure.sessions.transcripts.reading import translated
from perdure.sessions.transcripts.values import parsed

PAGE = 1000


class SessionLog:
    """Reads and appends the lines of a session; a repeated request adds its lines once."""

    def __init__(self, sessions: Sessions, session_id: str, project: str | None, sub_agent: str = "") -> None:
        self._sessions = sessions
        self._name: dict[str, Any] = {"project": project, "sub_agent": sub_agent}
        self._session_id = session_id
        self._writer = f"sdk-{token_hex(8)}"
        self._next = 1

    async def append(self, records: Sequence[dict[str, Any]]) -> None:
        lines = translated(records)
        sized = ((len(encode_json(line, what="a line of the session")), line) for line in lines)
        for batch in in_batches(sized):
            await self._sessions.append(
                self._session_id, batch, writer=self._writer, first=self._next, **self._name
            )
            self._next += len(batch)

    async def read(self, after: int = 0) -> AsyncIterator[tuple[list[dict[str, Any]], int]]:
        """Yield the original lines after a position, page by page, each page with the position after it.

        A missing session has no page. The incomplete line of a crash is left out.
        """
        while True:
            try:
                page = await self._sessions.lines(
                    self._session_id, after=after, limit=PAGE, original=True, **self._name
                )
            except NotFound:
                return
            after = page.after
            yield [record for line in page.items if isinstance(record := parsed(line), dict)], after
            if page.end:
                return
