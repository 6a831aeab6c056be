"""Sessions as lists describe them, remembered until their logs change."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, NamedTuple

from perdure.eventlog.port import LogInfo, LogName
from perdure.sessions.model import Session

MAX_DESCRIBED: Final = 1_000
"""How many sessions are remembered: the largest page of a list. Each takes 1 to 2 KB of memory."""


class _Described(NamedTuple):
    """A session as it was described, and its log at that time."""

    info: LogInfo
    session: Session


class DescribedSessions:
    """What lists said of sessions last, for as long as their logs do not change."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, LogName], _Described] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, ns: int, info: LogInfo) -> Session | None:
        with self._lock:
            found = self._known.get((ns, info.name))
            if found is None or found.info != info:
                return None
            self._known.move_to_end((ns, info.name))
            return found.session

    def put(self, ns: int, info: LogInfo, session: Session) -> None:
        with self._lock:
            self._known[ns, info.name] = _Described(info, session)
            self._known.move_to_end((ns, info.name))
            if len(self._known) > MAX_DESCRIBED:
                self._known.popitem(last=False)
