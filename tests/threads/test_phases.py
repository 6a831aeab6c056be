"""Phases: runs that workflows and chats create, in their own queue and invisible to callers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.kinds import KINDS
from tests.threads.support import AGENT_NAMES, AGENTS, ATTEMPTS, POLICY, World

from perdure.agents.records import AgentSpec
from perdure.executions.model import (
    PHASE,
    ExecutionSeed,
    NewPhase,
    PhaseInput,
    PhaseOrder,
    PhaseReport,
)
from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import AttemptEnd, AttemptStart, EndedRollout, Kinds, Listener
from perdure.runs.queue import RunQueue
from perdure.runtime.stores import ThreadPhases
from perdure.threads.operations.settle import PHASE_KIND
from perdure.threads.records import Failure, Interrupt, NewCheckpoint
from perdure.threads.service import Threads
from perdure.threads.work import Assignment, Ending

QUEUES: Any = ("agents", "workflows")
SEED = ExecutionSeed(trigger_type="api", trigger_id="t1", skill="build:plan", label="plan")


def phase(**fields: Any) -> NewPhase:
    given: dict[str, Any] = {
        "input": '{"node": "plan", "label": "plan"}',
        "execution": SEED,
        "agent": "echo",
        "parent": "w1",
    }
    return NewPhase(**(given | fields))


class Phases:
    """Phases of a world, as the engine and a worker see them."""

    def __init__(self, world: World, inputs: Any = None) -> None:
        self.world = world
        self.starts: list[AttemptStart] = []
        self.tries: list[AttemptEnd] = []
        self.ends: list[EndedRollout] = []
        listener = Listener(
            on_claimed=self._keep(self.starts),
            on_attempt_ended=self._keep(self.tries),
            on_ended=self._keep(self.ends),
        )
        others = [KINDS[name] for name in KINDS.names() if name != PHASE]
        kinds = Kinds(*others, PHASE_KIND.with_listeners(listener))
        self.starter = ThreadPhases(kinds, POLICY)
        self.threads = Threads(world.storage, kinds, policy=POLICY, namespace=world.namespace)
        self.queue = RunQueue.beside(self.threads, inputs=inputs)

    def _keep(self, kept: list[Any]) -> Any:
        async def handler(tx: Tx, items: Sequence[Any]) -> None:
            # The watchdog also works in the namespaces of other tests.
            if tx.ns == self.world.ns:
                kept.extend(items)

        return handler

    async def create(self, *requests: NewPhase) -> list[Any]:
        return await self.queue.write(self.starter.create, requests)

    async def enter(self, *requests: NewPhase) -> list[Any]:
        return await self.queue.write(self.starter.enter, requests)

    async def cancel(self, *rollout_ids: str) -> list[str]:
        async def cancel(tx: Tx) -> list[str]:
            return await self.starter.cancel(tx, await self.starter.load(tx, rollout_ids))

        return await self.queue.write(cancel)

    async def claim(self, queues: Any = QUEUES, limit: int = 10) -> list[Assignment]:
        return await self.queue.claim("w1", AGENT_NAMES, limit, 0, queues)

    async def take(self) -> Assignment:
        (taken,) = await self.claim()
        return taken

    async def finish(self, taken: Assignment, **ending: Any) -> None:
        await self.queue.finish(Ending(held=taken.held, **({"result": "success"} | ending)))


@pytest.fixture
def phases(world: World) -> Phases:
    return Phases(world)


async def test_a_phase_is_executed_like_a_run_and_its_end_says_what_came_out(phases: Phases) -> None:
    (made,) = await phases.create(phase())
    taken = await phases.take()
    assert (taken.run.run_id, taken.run.kind, taken.run.parent, taken.run.agent) == (
        made,
        "phase",
        "w1",
        "echo",
    )
    assert taken.phase is not None
    assert (taken.phase.workflow_run_id, taken.phase.label) == ("w1", "plan")
    assert [(each.rollout_id, each.queue, each.parent) for each in phases.starts] == [
        (made, "workflows", "w1")
    ]
    await phases.finish(taken, output_text="done", stop_reason="success", turns=3, api_duration_ms=20)
    (end,), (ended,) = phases.tries, phases.ends
    assert isinstance(end.note, PhaseReport)
    assert (end.note.output, end.note.stop_reason, end.note.turns, end.note.api_duration_ms) == (
        "done",
        "success",
        3,
        20,
    )
    assert (end.status, end.charged, ended.status, ended.parent) == ("succeeded", True, "succeeded", "w1")
    assert end.note.interrupts is None


async def test_lists_leave_phases_out_unless_they_are_asked_for(world: World, phases: Phases) -> None:
    run = await world.run(on_completion="delete")
    (made,) = await phases.create(phase())
    listed = await world.threads.list_runs()
    assert ([each.run_id for each in listed.items], listed.total) == ([run.run_id], 1)
    asked = await world.threads.list_runs(kind="phase")
    assert ([each.run_id for each in asked.items], asked.total) == ([made], 1)
    assert (await world.threads.search_threads()).total == 0
    assert (await world.threads.queue_stats()).n_pending == 1
    of_thread = await world.threads.list_thread_runs(asked.items[0].thread_id)
    assert of_thread.items == []


async def test_callers_neither_end_nor_delete_a_phase_nor_use_its_thread(
    world: World, phases: Phases
) -> None:
    (made,) = await phases.create(phase())
    thread_id = (await world.threads.get_run(made)).thread_id
    with pytest.raises(Conflict, match=f"Run {made} is a phase of workflow run w1: cancel that"):
        await world.threads.cancel_run(made)
    with pytest.raises(Conflict, match="is a phase of workflow run w1"):
        await world.threads.delete_run(made)
    with pytest.raises(Conflict, match="belongs to a workflow or a chat"):
        await world.threads.delete_thread(thread_id)
    with pytest.raises(Conflict, match="belongs to a workflow or a chat"):
        await world.run(thread_id, "enqueue")
    assert await world.threads.prune_threads([thread_id]) == 0
    assert await world.threads.cancel_runs() == []
    assert (await phases.take()).run.run_id == made


async def test_a_worker_claims_from_the_queues_that_it_serves(world: World, phases: Phases) -> None:
    run = await world.run()
    first, second = await phases.create(phase(priority=1), phase(agent="other"))
    assert [each.run.run_id for each in await world.claim()] == [run.run_id]
    assert [each.run.run_id for each in await phases.claim(("workflows",), 1)] == [first]
    again = await world.run()
    assert {each.run.run_id for each in await phases.claim()} == {again.run_id, second}
    with pytest.raises(InvalidInput, match="at least one queue"):
        await phases.claim(())


async def test_the_input_is_rendered_when_a_phase_is_claimed(world: World) -> None:
    class Inputs:
        async def render(self, ns: int, orders: Sequence[PhaseOrder]) -> list[PhaseInput]:
            return [
                PhaseInput(error="{{ is left in the command")
                if order.input == {"node": "bad"}
                else PhaseInput(input={"was": order.input, "attempt": order.attempt})
                for order in orders
            ]

    phases = Phases(world, Inputs())
    good, bad = await phases.create(
        phase(), phase(input='{"node": "bad"}', max_attempts=3, retry_seconds=0.0)
    )
    (turn,) = await phases.create(phase(parent=None, input='"hello"'))
    claimed = {each.run.run_id: each for each in await phases.claim()}
    assert set(claimed) == {good, turn}
    assert claimed[good].run.kwargs.input == {"was": {"node": "plan", "label": "plan"}, "attempt": 1}
    assert claimed[turn].run.kwargs.input == {"was": "hello", "attempt": 1}
    (end,) = phases.tries
    assert (end.rollout_id, end.note.error) == (bad, "InputNotRendered: {{ is left in the command")
    assert [each.rollout_id for each in phases.ends] == [bad]


async def test_a_claim_whose_input_cannot_be_read_is_given_back(world: World) -> None:
    class Broken:
        async def render(self, ns: int, orders: Sequence[PhaseOrder]) -> list[PhaseInput]:
            raise RuntimeError("no database")

    phases = Phases(world, Broken())
    (made,) = await phases.create(phase())
    with pytest.raises(RuntimeError, match="no database"):
        await phases.claim()
    await phases.queue.finish_releases()
    assert [(each.reason, each.charged) for each in phases.tries] == [("released", False)]
    whole = Phases(world)
    assert (await whole.take()).run.run_id == made


async def test_a_phase_that_fails_is_tried_again_as_it_says(world: World, phases: Phases) -> None:
    (made,) = await phases.create(phase(max_attempts=2, retry_seconds=30.0))
    failure = Failure(error="ValueError", message="no such city")
    await phases.finish(await phases.take(), result="error", error=failure, stop_reason="error_fatal")
    assert await phases.claim() == []
    await world.advance(31)
    taken = await phases.take()
    assert (taken.attempt, taken.last_attempt) == (2, True)
    await phases.finish(taken, result="timeout", error=failure)
    assert [(each.status, each.reason, each.note.error) for each in phases.tries] == [
        ("failed", "retriable", "ValueError: no such city"),
        ("timeout", "timeout", "ValueError: no such city"),
    ]
    assert [(each.rollout_id, each.status) for each in phases.ends] == [(made, "failed")]


async def test_lost_workers_are_not_charged_as_often_as_the_phase_says(world: World, phases: Phases) -> None:
    (made,) = await phases.create(phase(free_lapses=2))
    for _ in range(3):
        await phases.take()
        await world.advance(61)
        await phases.queue.watchdog.sweep()
    assert [tuple(row) for row in await world.rows(ATTEMPTS, run_id=made)] == [
        (1, "unresponsive", "unresponsive", 0),
        (2, "unresponsive", "unresponsive", 0),
        (3, "unresponsive", "unresponsive", 1),
    ]


async def test_the_engine_cancels_phases_that_it_has_locked(phases: Phases) -> None:
    waiting, running, ended = await phases.create(phase(), phase(priority=2), phase(priority=3))
    done, held = await phases.claim(limit=2)
    await phases.finish(done)
    assert await phases.cancel(waiting, running, ended) == sorted([waiting, running])
    assert {(each.rollout_id, each.outcome) for each in phases.ends} == {
        (ended, "success"),
        (waiting, "interrupt"),
        (running, "interrupt"),
    }
    assert await phases.queue.renew("w1", [held.held]) == ["interrupt"]
    await phases.finish(held, result="stopped", turns=1)
    assert [(each.rollout_id, each.reason) for each in phases.tries] == [
        (ended, "succeeded"),
        (running, "stopped"),
    ]
    assert phases.tries[-1].note.turns == 1


async def test_a_phase_that_asks_goes_on_in_its_thread(world: World, phases: Phases) -> None:
    (made,) = await phases.create(phase())
    taken = await phases.take()
    asked = [Interrupt(id="q1", value="Really?")]
    state = NewCheckpoint(values={"n": 1}, next=["echo"], interrupts=asked)
    await phases.finish(taken, checkpoint=state)
    (end,) = phases.tries
    assert end.note.interrupts == '[{"id":"q1","value":"Really?"}]'
    assert end.line == taken.run.thread_id
    with pytest.raises(Conflict):
        await world.run(end.line, "enqueue")
    (again,) = await phases.enter(phase(thread_id=end.line, resume='"yes"'))
    resumed = await phases.take()
    assert (resumed.run.run_id, resumed.run.thread_id) == (again, end.line)
    assert resumed.run.kwargs.command is not None
    assert resumed.run.kwargs.command.resume == "yes"
    assert resumed.checkpoint is not None
    assert resumed.checkpoint.values == {"n": 1}
    await phases.finish(resumed, checkpoint=NewCheckpoint(values={"n": 2}))
    with pytest.raises(NotFound):
        await world.threads.get_thread(taken.run.thread_id)
    (gone,) = await phases.enter(phase(thread_id=end.line))
    assert isinstance(gone, NotFound)
    assert made != again


async def test_the_thread_of_a_phase_that_asks_goes_when_it_is_cancelled(
    world: World, phases: Phases
) -> None:
    (made,) = await phases.create(phase())
    taken = await phases.take()
    state = NewCheckpoint(next=["echo"], interrupts=[Interrupt(id="q1", value="Really?")])
    await phases.finish(taken, checkpoint=state)
    assert (await world.threads.get_thread(taken.run.thread_id)).status == "interrupted"
    assert await phases.cancel(made) == []
    with pytest.raises(NotFound):
        await world.threads.get_thread(taken.run.thread_id)


async def test_turns_of_a_chat_follow_one_another_in_a_thread_that_stays(
    world: World, phases: Phases
) -> None:
    turn = {"parent": None, "thread_id": "chat-1", "keeps_thread": True}
    first, second = await phases.enter(phase(**turn), phase(**turn))
    taken = await phases.take()
    assert taken.run.run_id == first
    await phases.finish(taken, checkpoint=NewCheckpoint(values=["hello"]))
    taken = await phases.take()
    assert (taken.run.run_id, taken.checkpoint and taken.checkpoint.values) == (second, ["hello"])
    await phases.finish(taken)
    assert (await world.threads.get_thread("chat-1")).status == "idle"
    assert (await world.threads.search_threads()).total == 0


async def test_unknown_assistants_and_threads_are_answered_and_change_nothing(
    world: World, phases: Phases
) -> None:
    unknown, known = await phases.create(
        phase(agent=None, assistant="nobody"), phase(agent=None, assistant="echo")
    )
    assert isinstance(unknown, NotFound)
    assert "Assistant nobody not found" in unknown.message
    assert (await phases.take()).run.run_id == known
    (gone,) = await phases.enter(phase(thread_id="gone", resume="1"))
    assert isinstance(gone, NotFound)
    mine = await world.thread()
    (refused,) = await phases.enter(phase(thread_id=mine, keeps_thread=False))
    assert isinstance(refused, NotFound)


async def test_names_of_built_in_agents_are_reserved(world: World) -> None:
    with pytest.raises(InvalidInput, match="built-in"):
        await world.queue.register("w2", [*AGENTS, AgentSpec(name="perdure.command")])
