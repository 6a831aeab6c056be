"""Metadata that runs inherit from their assistants and threads, merged outside the transaction."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from perdure.assistants.model import AssistantRow
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.storage.labels import encode_labels


class Inheritance(msgspec.Struct, frozen=True):
    """Metadata of a run and its thread, merged from what an assistant and the thread had when it was read."""

    assistant: tuple[str, str, str]
    """ID, agent and metadata of the assistant."""
    thread: str | None
    """Metadata of the thread; None for a new thread."""
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
        assistant=get_source(assistant),
        thread=thread,
        run=encode_json(run, what="metadata"),
        marked=None if after == before else encode_json(after, what="metadata"),
        labels=encode_labels(after if thread is None else marks),
    )


def get_source(assistant: AssistantRow) -> tuple[str, str, str]:
    """Return the fields of an assistant that a run inherits from."""
    return assistant.id, assistant.agent, assistant.metadata
