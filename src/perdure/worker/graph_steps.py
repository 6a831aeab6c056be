"""What a graph has done, on its way: how much it is, and several batches of it as one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.graphs.records import GraphChanges, GraphPut, GraphState, GraphSteps, GraphWrite

ROW = 200
"""About what a row takes beside its value."""


def size_of(steps: GraphSteps) -> int:
    """About how many bytes it is."""
    changes = steps.changes
    puts = sum(ROW + len(put.checkpoint[1]) + _pieces(put) for put in changes.puts)
    writes = sum(ROW + len(write.value[1]) for write in changes.writes)
    return puts + writes + sum(ROW + len(state.body or "") for state in steps.states)


def _pieces(put: GraphPut) -> int:
    return sum(ROW + (len(piece.value[1]) if piece.value else 0) for piece in put.pieces)


def joined(batches: Sequence[GraphSteps]) -> GraphSteps:
    """All of it in its order. A state that comes again before it was kept is kept as it came last."""
    if len(batches) == 1:
        return batches[0]
    puts: list[GraphPut] = []
    writes: list[GraphWrite] = []
    states: dict[str, GraphState] = {}
    for steps in batches:
        puts += steps.changes.puts
        writes += steps.changes.writes
        for state in steps.states:
            before = states.get(state.checkpoint_id)
            states[state.checkpoint_id] = state if before is None else _updated(before, state)
    return GraphSteps(changes=GraphChanges(puts=puts, writes=writes), states=list(states.values()))


def _updated(before: GraphState, state: GraphState) -> GraphState:
    return msgspec.structs.replace(state, again=before.again, parent_id=before.parent_id)


def last_of(steps: GraphSteps) -> GraphSteps:
    """Only the last state, with its values: nobody goes on from the others."""
    if not steps.states or steps.states[-1].body is None:
        return steps
    return GraphSteps(states=[msgspec.structs.replace(steps.states[-1], whole=True)])
