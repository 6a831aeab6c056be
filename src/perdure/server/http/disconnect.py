"""Notice that a client has disconnected, and act on it."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.types import Receive

from perdure.kernel.errors import Conflict, NotFound
from perdure.threads.service import Threads

OnDisconnect = Callable[[], Awaitable[None]]
"""What a long response calls when its client has disconnected."""


async def until_disconnect(receive: Receive) -> Any:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


def cancel_on_disconnect(threads: Threads, run_id: str, wanted: bool) -> OnDisconnect | None:
    """What cancels a run when its client disconnects, if that is wanted."""
    return partial(_cancel, threads, run_id) if wanted else None


async def _cancel(threads: Threads, run_id: str) -> None:
    # A run that has ended meanwhile needs no cancelling.
    with contextlib.suppress(Conflict, NotFound):
        await threads.cancel_run(run_id)
