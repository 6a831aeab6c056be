"""Cache of the sessions in lists, valid until their logs change."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, NamedTuple

from perdure.eventlog.port import LogInfo, LogName
from perdure.sessions.model import Session

MAX_DESCRIBED: Final = 1_000
"""Number of cached sessions: the largest page of a list. Each takes 1 to 2 KB of memory."""


class _Described(NamedTuple):
    """A session as described, with the state of its log at that time."""

    info: LogInfo
    session: Session


class DescribedSessions:
    """Cache of descriptions of sessions."""

    def __init__(self) -> None:
        self._cache: OrderedDict[tuple[int, LogName], _Described] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, ns: int, info: LogInfo) -> Session | None:
        with self._lock:
            cached = self._cache.get((ns, info.name))
            if cached is None or cached.info != info:
                return None
            self._cache.move_to_end((ns, info.name))
            return cached.session

    def put(self, ns: int, info: LogInfo, session: Session) -> None:
        with self._lock:
            self._cache[ns, info.name] = _Described(info, session)
            self._cache.move_to_end((ns, info.name))
            if len(self._cache) > MAX_DESCRIBED:
                self._cache.popitem(last=False)
