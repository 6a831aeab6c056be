"""Inputs of the agent of a chat: the messages that its turn answers, and the messages before them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from perdure.executions.model import PhaseInput, PhaseOrder
from perdure.kernel.errors import NotFound
from perdure.kernel.storage.port import Storage
from perdure.messaging.model import MAX_HISTORY
from perdure.messaging.operations.turns import get_turn_messages

SESSION: Final = "messaging_session_id"
"""Field of a stored input that names the session of a turn."""


class TurnInputs:
    """Renderer of the inputs of claimed turns, with all messages sent until the claim."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def render(self, ns: int, orders: Sequence[PhaseOrder]) -> Sequence[PhaseInput]:
        """Return the input of each turn. A phase that is not a turn of a session keeps its input."""
        return [await self._input(ns, order) for order in orders]

    async def _input(self, ns: int, order: PhaseOrder) -> PhaseInput:
        pointer = order.input
        if not isinstance(pointer, Mapping) or SESSION not in pointer:
            return PhaseInput(input=pointer)
        session_id = pointer[SESSION]
        try:
            messages = await self._storage.read(
                get_turn_messages, session_id, order.rollout_id, MAX_HISTORY, ns=ns
            )
        except NotFound as error:
            return PhaseInput(error=error.message)
        prompt = "\n".join(row.content for row in messages.sent)
        return PhaseInput(
            input={
                "prompt": prompt,
                "messages": [{"role": "user", "content": prompt}],
                "history": [{"role": row.role, "content": row.content} for row in messages.before],
                SESSION: session_id,
            }
        )
