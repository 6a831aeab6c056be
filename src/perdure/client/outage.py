"""A server that is away for a while: temporary errors, and how long streams, waits and creates retry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from perdure.client.session import HttpSession
from perdure.kernel.errors import PerdureError, StorageError, TooManyRequests, Unauthorized, Unreachable
from perdure.kernel.retry import Backoff

logger = logging.getLogger(__name__)

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
SECRET_SECONDS = 30.0
"""How long a restarted server may refuse a caller, until the caller has read its new local secret."""
PASSING = (Unreachable, StorageError, TooManyRequests)
"""Errors that may be temporary."""
OnAway = Callable[[], None]


class Outage:
    """Consecutive failures of one call. `on_away` is called once per outage of the server."""

    def __init__(self, session: HttpSession, patience: float, on_away: OnAway | None = None) -> None:
        self._session = session
        self._patience = patience
        self._on_away = on_away
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._since: float | None = None
        self._refused_since: float | None = None
        self._is_reported = False

    @property
    def has_begun(self) -> bool:
        return self._since is not None

    def end(self) -> None:
        """End the outage, because the server answers."""
        self._since = self._refused_since = None
        self._is_reported = False
        self._backoff.reset()

    async def pause(self, error: PerdureError) -> None:
        """Wait before the next try. Raise the error if it is permanent or has lasted too long."""
        now = asyncio.get_running_loop().time()
        if isinstance(error, Unauthorized):
            self._check_refusal(error, now)
        elif not isinstance(error, PASSING):
            raise error
        else:
            self._refused_since = None
        if self._since is None:
            self._since = now
        if self._session.closed or now - self._since >= self._patience:
            raise error
        if self._on_away is not None and not self._is_reported and not isinstance(error, TooManyRequests):
            self._is_reported = True
            self._on_away()
        pause = self._backoff.next()
        logger.info("%s: %s; trying again in %.1f s", self._session.base_url, error, pause)
        await asyncio.sleep(pause)

    async def reconnect(self) -> None:
        """Wait before reopening a connection that was closed without an error."""
        if self._since is None:
            self._since = asyncio.get_running_loop().time()
        await asyncio.sleep(self._backoff.next())

    def _check_refusal(self, error: Unauthorized, now: float) -> None:
        """Raise the refusal, unless the session reads its secret anew for each request."""
        if self._since is None or not callable(self._session.token):
            raise error
        if self._refused_since is None:
            self._refused_since = now
        if now - self._refused_since >= SECRET_SECONDS:
            raise error
