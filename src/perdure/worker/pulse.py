"""Detection of freezes of the process, by a signal, a debugger or the sleep of its machine."""

from __future__ import annotations

import math

from perdure.kernel.clock import boottime

BEAT_SECONDS = 0.25
FROZEN_SECONDS = 1.0


class Pulse:
    """Beats every `BEAT_SECONDS`. A gap of more than `FROZEN_SECONDS` means that the process was frozen."""

    def __init__(self) -> None:
        self._last = boottime()
        self._frozen, self._thawed = -math.inf, -math.inf

    async def beat(self) -> None:
        self._look()

    def _look(self) -> float:
        now = boottime()
        if now - self._last > FROZEN_SECONDS:
            self._frozen, self._thawed = self._last, now
        self._last = now
        return now

    def answered(self, sent: float) -> float:
        """Return the earliest time at which an answer that is here now may have arrived.

        The request was sent at `sent`. If the process froze since then, the answer may have arrived when the
        freeze began. Otherwise it arrived just now.
        """
        now = self._look()
        return max(sent, self._frozen) if self._thawed > sent else now
