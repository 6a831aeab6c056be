"""The rollouts of a database whose time moves on command."""

from __future__ import annotations

import uuid

from tests.threads.support import age

from perdure.kernel.storage.port import Storage
from perdure.rollouts.model import TASK, Kinds, RolloutKind
from perdure.rollouts.service import Rollouts
from perdure.testing.clock import ManualClock


class House:
    """The rollouts of a database, with control of its clock."""

    def __init__(self, storage: Storage, clock: ManualClock) -> None:
        self.storage = storage
        self._clock = clock
        self.namespace = f"test {uuid.uuid4().hex}"

    def rollouts(self, *kinds: RolloutKind) -> Rollouts:
        """Create the service of a process with these kinds."""
        return Rollouts(self.storage, Kinds(*kinds), namespace=self.namespace, kind=kinds[0].name)

    async def advance(self, seconds: float) -> None:
        if self.storage.engine == "postgres":
            await age(self.storage, seconds, await self.rollouts(RolloutKind(TASK)).ns())
        else:
            self._clock.advance(seconds)
