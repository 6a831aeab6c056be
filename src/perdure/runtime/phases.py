"""Phases: the port through which workflows and chats create them, and the handler of their ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from perdure.executions.model import (
    LoadedPhases,
    NewPhase,
    PhaseInput,
    PhaseInputs,
    PhaseOrder,
    PhaseStarter,
)
from perdure.executions.operations import EXECUTIONS, build_ended_phases, close_attempts, drop_seeds
from perdure.kernel.errors import NotFound
from perdure.kernel.storage.port import Tx
from perdure.memory.feed import feed_ended
from perdure.messaging.operations.turns import CHAT, end_turns
from perdure.rollouts.model import Kinds, RolloutEnds, RolloutKind
from perdure.threads.operations import phases
from perdure.threads.operations.phases import LockedPhases
from perdure.threads.operations.settle import PHASE_KIND, find_interrupts, settle_runs
from perdure.threads.policy import Policy
from perdure.workflows.operations.advance import advance_runs, lock_parents


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


# --- the end of a phase -----------------------------------------------------------------------------------


async def end_phases(tx: Tx, ends: RolloutEnds, starter: PhaseStarter) -> None:
    """Apply the ends of phases and of their attempts to every domain, in the order of locks in AGENTS.md."""
    runs = await lock_parents(tx, ends)  # workflow_runs
    interrupts = await find_interrupts(tx, ends.attempts)
    attempts = await close_attempts(tx, ends.attempts)  # executions, execution_stats, chat_threads
    ended = build_ended_phases(ends.rollouts, attempts, interrupts)
    await advance_runs(tx, runs, attempts, ended, starter)  # nodes and approvals of the locked runs
    await end_turns(tx, ended)  # messaging_sessions
    await settle_runs(tx, ends.rollouts)  # threads of locked lines, stream heads, outbox
    await drop_seeds(tx, [end.rollout_id for end in ends.rollouts])
    await feed_ended(tx, ends.rollouts)  # outbox


def build_phase_kind(starter: PhaseStarter) -> RolloutKind:
    """Build the kind of phases with the handlers of all domains; `starter` creates the phases that follow."""

    async def on_ends(tx: Tx, ends: RolloutEnds) -> None:
        await end_phases(tx, ends, starter)

    return replace(PHASE_KIND, on_ends=on_ends).with_listeners(EXECUTIONS, CHAT)
