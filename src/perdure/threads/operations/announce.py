"""Events of a thread that no run of it has told."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.errors import NotFound
from perdure.kernel.storage.port import Tx
from perdure.streams.model import NewEvent
from perdure.streams.operations import Append, append
from perdure.threads.operations.settle import StreamAppend, load_threads, own_stream, thread_stream


async def announce(tx: Tx, thread_id: str, events: Sequence[NewEvent]) -> StreamAppend:
    """Tell something in the stream of a thread, beside what its runs tell there."""
    thread = (await load_threads(tx, [thread_id], lock=True)).get(thread_id)
    if thread is None or thread.gone_at is not None:
        raise NotFound(f"Thread {thread_id} not found")
    told = Append(own_stream(thread_id), events, into=thread_stream(thread_id))
    (place,) = await append(tx, [told])
    return told, place
