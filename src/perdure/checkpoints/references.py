"""The data of events that refer to checkpoints of graphs: for readers, and before a checkpoint is removed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from perdure.checkpoints import sql
from perdure.checkpoints.model import piece_key
from perdure.checkpoints.queries import read_values
from perdure.checkpoints.records import GraphValue, Typed, Version
from perdure.checkpoints.rows import decode_versions
from perdure.checkpoints.texts import decode_keys, state_text, value_text
from perdure.kernel.errors import InvalidInput, NotSupported
from perdure.kernel.storage.port import Tx
from perdure.streams.model import Reference
from perdure.streams.operations import store_bodies

Place = tuple[str, str]
"""A thread and a namespace of its checkpoints."""


async def resolve(tx: Tx, references: Collection[Reference]) -> dict[Reference, str]:
    """The states that references to checkpoints of graphs stand for, as JSON."""
    places: dict[Place, list[Reference]] = defaultdict(list)
    for each in references:
        if each.keys is not None:
            places[each.thread_id, each.checkpoint_ns or ""].append(each)
    found: dict[Reference, str] = {}
    for (thread_id, namespace), group in places.items():
        found |= await _states(tx, thread_id, namespace, group)
    return found


async def _states(
    tx: Tx, thread_id: str, namespace: str, references: Collection[Reference]
) -> dict[Reference, str]:
    ids = sorted({each.checkpoint_id for each in references})
    at = {"thread_id": thread_id, "checkpoint_ns": namespace}
    rows = await tx.all(sql.VERSIONS_OF, ids=ids, **at)
    versions = {row.id: decode_versions(row.versions) for row in rows}
    shown = [
        (each, decode_keys(each.keys), versions[each.checkpoint_id])
        for each in references
        if each.keys is not None and each.checkpoint_id in versions
    ]
    wanted = {(key, known[key]) for _, keys, known in shown for key in _listed(keys) if key in known}
    texts = await _texts(tx, thread_id, namespace, wanted)
    states: dict[Reference, str] = {}
    for each, keys, known in shown:
        pieces = {key: piece_key(key, known[key]) for key in _listed(keys) if key in known}
        state = state_text(keys, {key: texts[piece] for key, piece in pieces.items() if piece in texts})
        if state is not None:
            states[each] = state
    return states


def _listed(keys: list[str] | str) -> list[str]:
    return [keys] if isinstance(keys, str) else keys


async def _texts(
    tx: Tx, thread_id: str, namespace: str, wanted: Iterable[tuple[str, Version]]
) -> dict[str, str]:
    """The JSON texts of versions of channels, by the keys of their pieces."""
    known: dict[Typed, list[str]] = {}
    texts: dict[str, str] = {}
    for piece, value in (await read_values(tx, thread_id, namespace, list(wanted))).items():
        text = _text(value, known)
        if text is not None:
            texts[piece] = text
    return texts


def _text(value: GraphValue, known: dict[Typed, list[str]]) -> str | None:
    """The JSON text of a value; None if it has none, whatever a worker said of it."""
    try:
        return value_text(value, known)
    except (InvalidInput, NotSupported):
        return None


async def store_states(tx: Tx, removed: Mapping[Place, Collection[str]]) -> None:
    """Give the events that refer to these checkpoints their states, before the checkpoints are removed."""
    for thread_id in sorted({thread_id for thread_id, _ in removed}):

        def is_removed(each: Reference, thread_id: str = thread_id) -> bool:
            place = (thread_id, each.checkpoint_ns or "")
            return each.keys is not None and each.checkpoint_id in removed.get(place, ())

        await store_bodies(tx, thread_id, is_removed, resolve)


async def store_all_states(tx: Tx, thread_ids: Iterable[str]) -> None:
    """The same for all checkpoints of threads."""
    for thread_id in sorted(thread_ids):
        await store_bodies(tx, thread_id, lambda each: each.keys is not None, resolve)
