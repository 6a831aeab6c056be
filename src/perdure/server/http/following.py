"""A stream of events on its way into a feed: what many read alike is encoded once."""

from __future__ import annotations

from perdure.streams.model import Burst, Encoding
from perdure.streams.service import Follower

JOIN_BYTES = 64 << 10


class Following:
    """What a follower gets, in the form that its reader wants; `last` comes after the stream's own end."""

    def __init__(self, follower: Follower, encoding: Encoding, last: bytes = b"") -> None:
        self._follower = follower
        self._encoding = encoding
        self._last = last
        self._ended = False

    async def next(self) -> bytes | None:
        """What is to be sent next, once there is something; None after the last."""
        data = b""
        while not data and not self._ended:
            burst = await self._follower.next()
            self._ended = burst is None
            data = self._last if burst is None else self._joined(burst)
        return data or None

    def _joined(self, burst: Burst) -> bytes:
        """One who is behind gets what is at hand at once."""
        data = burst.encoded(self._encoding)
        while len(data) < JOIN_BYTES and (more := self._follower.take()) is not None:
            data += more.encoded(self._encoding)
        return data

    def close(self) -> None:
        self._follower.close()
