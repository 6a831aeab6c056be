"""The port through which workflows and chats create phases, implemented by operations of threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from perdure.executions.model import LoadedPhases, NewPhase, PhaseInput, PhaseInputs, PhaseOrder
from perdure.kernel.errors import NotFound
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import Kinds
from perdure.threads.operations import phases
from perdure.threads.operations.phases import LockedPhases
from perdure.threads.policy import Policy


class ComposedInputs:
    """Renders the inputs of phases: parts of workflow runs and turns of chats."""

    def __init__(self, workflows: PhaseInputs, chats: PhaseInputs) -> None:
        self._workflows, self._chats = workflows, chats

    async def render(self, ns: int, orders: Sequence[PhaseOrder]) -> Sequence[PhaseInput]:
        """Return the input of each phase, in order."""
        parts = [order for order in orders if order.parent is not None]
        turns = [order for order in orders if order.parent is None]
        part_inputs = iter(await self._workflows.render(ns, parts) if parts else ())
        turn_inputs = iter(await self._chats.render(ns, turns) if turns else ())
        return [next(turn_inputs if order.parent is None else part_inputs) for order in orders]


class ThreadPhases:
    """Implements `perdure.executions.model.PhaseStarter`."""

    def __init__(self, kinds: Kinds, policy: Policy) -> None:
        self._kinds = kinds
        self.policy = policy

    async def create(self, tx: Tx, requests: Sequence[NewPhase]) -> list[str | NotFound]:
        return await phases.create_phases(tx, requests, self._kinds, self.policy)

    async def enter(self, tx: Tx, requests: Sequence[NewPhase]) -> list[str | NotFound]:
        return await phases.enter_phases(tx, requests, self._kinds, self.policy)

    async def load(self, tx: Tx, rollout_ids: Sequence[str]) -> LockedPhases:
        return await phases.load_phases(tx, rollout_ids, self._kinds)

    async def cancel(self, tx: Tx, loaded: LoadedPhases) -> list[str]:
        return await phases.cancel_phases(tx, cast(LockedPhases, loaded), self.policy)
