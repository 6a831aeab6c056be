"""Metadata that runs inherit from their assistants and threads.

It is merged in the transaction: reading both before it would cost more than the merge (ADR 34).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from perdure.assistants.model import AssistantRow
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.storage.labels import encode_labels


class Inheritance(msgspec.Struct, frozen=True):
    """Merged metadata of a run and its thread."""

    run: str
    marked: str | None
    """Metadata of the thread with the marks of the assistant; None if it has them already."""
    labels: Mapping[str, str]
    """Labels of the thread that change with the marks."""


def inherit(own: str, assistant: AssistantRow, thread: str | None) -> Inheritance:
    """Merge a run's metadata over its thread's, and both over its assistant's.

    A new thread, without metadata, gets that of the run.
    """
    marks = {"graph_id": assistant.agent, "assistant_id": assistant.id}
    mine = decode_json(own)
    before = mine if thread is None else decode_json(thread)
    after = {**before, **marks}
    run = {**decode_json(assistant.metadata), **after, **mine, **marks}
    return Inheritance(
        run=encode_json(run, what="metadata"),
        marked=None if after == before else encode_json(after, what="metadata"),
        labels=encode_labels(after if thread is None else marks),
    )
