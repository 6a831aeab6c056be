"""States for events that refer to graph checkpoints: for readers, and before a checkpoint is removed."""

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
"""Thread and checkpoint namespace."""


async def resolve(tx: Tx, references: Collection[Reference]) -> dict[Reference, str]:
    """Return the states that references name, as JSON."""
    places: dict[Place, list[Reference]] = defaultdict(list)
    for reference in references:
        if reference.keys is not None:
            places[reference.thread_id, reference.checkpoint_ns or ""].append(reference)
    states: dict[Reference, str] = {}
    for (thread_id, namespace), group in places.items():
        states |= await _states(tx, thread_id, namespace, group)
    return states


async def _states(
    tx: Tx, thread_id: str, namespace: str, references: Collection[Reference]
) -> dict[Reference, str]:
    ids = sorted({reference.checkpoint_id for reference in references})
    at = {"thread_id": thread_id, "checkpoint_ns": namespace}
    rows = await tx.all(sql.VERSIONS_OF, ids=ids, **at)
    versions = {row.id: decode_versions(row.versions) for row in rows}
    shown = [
        (reference, decode_keys(reference.keys), versions[reference.checkpoint_id])
        for reference in references
        if reference.keys is not None and reference.checkpoint_id in versions
    ]
    wanted = {(key, named[key]) for _, keys, named in shown for key in _listed(keys) if key in named}
    texts = await _texts(tx, thread_id, namespace, wanted)
    states: dict[Reference, str] = {}
    for reference, keys, named in shown:
        pieces = {key: piece_key(key, named[key]) for key in _listed(keys) if key in named}
        state = state_text(keys, {key: texts[piece] for key, piece in pieces.items() if piece in texts})
        if state is not None:
            states[reference] = state
    return states


def _listed(keys: list[str] | str) -> list[str]:
    return [keys] if isinstance(keys, str) else keys


async def _texts(
    tx: Tx, thread_id: str, namespace: str, wanted: Iterable[tuple[str, Version]]
) -> dict[str, str]:
    """Return the JSON texts of versions of channels, by the keys of their pieces."""
    item_texts: dict[Typed, list[str]] = {}
    texts: dict[str, str] = {}
    for piece, value in (await read_values(tx, thread_id, namespace, list(wanted))).items():
        text = _text(value, item_texts)
        if text is not None:
            texts[piece] = text
    return texts


def _text(value: GraphValue, item_texts: dict[Typed, list[str]]) -> str | None:
    """Return the JSON text of a value; None if it has none, since a worker may refer to any value."""
    try:
        return value_text(value, item_texts)
    except (InvalidInput, NotSupported):
        return None


async def store_states(tx: Tx, removed: Mapping[Place, Collection[str]]) -> None:
    """Store the states of events that refer to these checkpoints, before the checkpoints are removed."""
    for thread_id in sorted({thread_id for thread_id, _ in removed}):

        def is_removed(reference: Reference, thread_id: str = thread_id) -> bool:
            place = (thread_id, reference.checkpoint_ns or "")
            return reference.keys is not None and reference.checkpoint_id in removed.get(place, ())

        await store_bodies(tx, thread_id, is_removed, resolve)


async def store_all_states(tx: Tx, thread_ids: Iterable[str]) -> None:
    """Store the states of events that refer to any checkpoint of these threads."""
    for thread_id in sorted(thread_ids):
        await store_bodies(tx, thread_id, lambda reference: reference.keys is not None, resolve)
