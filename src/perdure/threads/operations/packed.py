"""States of checkpoints that are packed with a later checkpoint, and the unpacking of such states."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.checkpoints.operations import Unpacked, is_packed, unpack
from perdure.kernel.storage.port import Tx
from perdure.rollouts.operations.lines import lock_lines
from perdure.threads import sql
from perdure.threads.rows import IN_CHECKPOINT, IN_PIECES, NOTHING_ASKED, StateRow

__all__ = ["PackedState", "encode_states", "is_packed", "unpack_states"]


class PackedState(msgspec.Struct, array_like=True, gc=False):
    """State of a packed checkpoint."""

    checkpoint: int
    """Index of the checkpoint in the pack."""
    before: int
    """Number of states from this state to the state of the last checkpoint."""
    next: str
    output: str | None = None
    parent_id: str | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[PackedState])


def encode_states(states: Sequence[PackedState]) -> bytes:
    return _encoder.encode(states)


async def unpack_states(tx: Tx, thread_ids: Sequence[str]) -> None:
    """Give all packed checkpoints and states of these threads their own rows."""
    await lock_lines(tx, sorted(set(thread_ids)))
    packs = await unpack(tx, thread_ids, with_states=True)
    if not packs:
        return
    threads, ids = [pack.thread_id for pack in packs], [pack.id for pack in packs]
    last = {
        (row.thread_id, row.id): row for row in await tx.all(sql.GET_CHECKPOINTS, thread_ids=threads, ids=ids)
    }
    rows: list[StateRow] = []
    for pack in packs:
        row = last.get((pack.thread_id, pack.id))
        if row is not None and pack.states is not None:
            rows += [await _state(tx, pack, packed, row) for packed in _decoder.decode(pack.states)]
    await tx.write(sql.ADD_GRAPH_STATES.of(rows))


async def _state(tx: Tx, pack: Unpacked, packed: PackedState, last: StateRow) -> StateRow:
    """Build the row of a state. States of one transaction have consecutive positions."""
    position, step = last.position - packed.before, last.step - packed.before
    parent_id = packed.parent_id
    if parent_id is None and step > 0:
        parent_id = await tx.one(sql.STATE_BEFORE, thread_id=pack.thread_id, position=position)
    return StateRow(
        thread_id=pack.thread_id,
        id=pack.checkpoints[packed.checkpoint].id,
        position=position,
        step=step,
        parent_id=parent_id,
        run_id=last.run_id,
        attempt=last.attempt,
        created_at=last.created_at,
        next=packed.next,
        interrupts=NOTHING_ASKED,
        metadata=IN_CHECKPOINT,
        body=IN_PIECES,
        state=b"",
        output=packed.output,
    )
