"""The port through which workflows and chats create phases, over the operations of threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from perdure.executions.model import LoadedPhases, NewPhase
from perdure.kernel.errors import NotFound
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import Kinds
from perdure.threads.operations import phases
from perdure.threads.operations.phases import LockedPhases
from perdure.threads.policy import Policy


class ThreadPhases:
    """Implements `perdure.executions.model.PhaseStarter`."""

    def __init__(self, kinds: Kinds, policy: Policy) -> None:
        self._kinds = kinds
        self._policy = policy

    async def create(self, tx: Tx, requests: Sequence[NewPhase]) -> list[str | NotFound]:
        return await phases.create_phases(tx, requests, self._kinds, self._policy)

    async def enter(self, tx: Tx, requests: Sequence[NewPhase]) -> list[str | NotFound]:
        return await phases.enter_phases(tx, requests, self._kinds, self._policy)

    async def load(self, tx: Tx, rollout_ids: Sequence[str]) -> LockedPhases:
        return await phases.load_phases(tx, rollout_ids, self._kinds)

    async def cancel(self, tx: Tx, loaded: LoadedPhases) -> list[str]:
        return await phases.cancel_phases(tx, cast(LockedPhases, loaded), self._policy)
