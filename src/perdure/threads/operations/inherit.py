"""What a run's metadata has from its assistant and its thread, and what its thread keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.assistants.records import Assistant
from perdure.kernel.storage.labels import set_labels
from perdure.kernel.storage.port import Tx
from perdure.threads import sql
from perdure.threads.operations.remove import THREAD
from perdure.threads.rows import ThreadRow, merge_metadata, metadata_of


def _labels(assistant: Assistant) -> dict[str, Any]:
    """What tells threads and runs by the assistant that works on them."""
    return {"graph_id": assistant.agent, "assistant_id": assistant.assistant_id}


def run_metadata(own: str, assistant: Assistant, thread: ThreadRow) -> str:
    """A run's metadata on top of its thread's, on top of its assistant's."""
    below = {**assistant.metadata, **metadata_of(thread.metadata)}
    text, _ = merge_metadata("{}", {**below, **metadata_of(own), **_labels(assistant)})
    return text


async def mark_threads(tx: Tx, worked_on: Mapping[str, tuple[ThreadRow, Assistant, bool]]) -> None:
    """Let threads be found by the assistant that worked on them last; each comes with whether it is new."""
    labels: dict[str, dict[str, Any]] = {}
    known: list[ThreadRow] = []
    for thread, assistant, is_new in worked_on.values():
        before = metadata_of(thread.metadata)
        text, after = merge_metadata(thread.metadata, _labels(assistant))
        if thread.temporary is not None or after == before:
            continue
        thread.metadata, thread.updated_at = text, tx.now
        labels[thread.id] = after
        if not is_new:
            known.append(thread)
    if labels:
        await tx.write(sql.EDIT_THREADS.of(known))
        await set_labels(tx, THREAD, labels)
