"""What the agent of a chat gets: the messages that its turn answers, and what was said before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from perdure.executions.model import PhaseInput, PhaseOrder
from perdure.kernel.errors import NotFound
from perdure.kernel.storage.port import Storage
from perdure.messaging.model import MAX_HISTORY, MessageRow
from perdure.messaging.operations.turns import messages_of_turn

SESSION: Final = "messaging_session_id"
"""The field of a stored input that names the session of a turn."""


class TurnInputs:
    """Renders the inputs of turns when they are claimed, with the messages that came until then."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def render(self, ns: int, orders: Sequence[PhaseOrder]) -> Sequence[PhaseInput]:
        """The input of each turn; what is no turn of a session keeps its input."""
        return [await self._input(ns, order) for order in orders]

    async def _input(self, ns: int, order: PhaseOrder) -> PhaseInput:
        pointer = order.input
        if not isinstance(pointer, Mapping) or SESSION not in pointer:
            return PhaseInput(input=pointer)
        session_id = pointer[SESSION]
        try:
            found = await self._storage.read(
                messages_of_turn, session_id, order.rollout_id, MAX_HISTORY, ns=ns
            )
        except NotFound as error:
            return PhaseInput(error=error.message)
        prompt = "\n".join(row.content for row in found.sent)
        return PhaseInput(
            input={
                "prompt": prompt,
                "messages": [{"role": "user", "content": prompt}],
                "history": [_said(row) for row in found.before],
                SESSION: session_id,
            }
        )


def _said(row: MessageRow) -> dict[str, Any]:
    return {"role": row.role, "content": row.content}
