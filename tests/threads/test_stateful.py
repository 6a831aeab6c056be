"""Random calls on every engine, compared with the model: threads, strategies, cancels, dead workers.

`PERDURE_EXAMPLES` and `PERDURE_STEPS` set the size; `run` is the long run.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tests.reliability.engines import TickingClock
from tests.reliability.test_model import exactly, size
from tests.support.thread_model import ModelRun, ThreadModel
from tests.threads.support import AGENT_NAMES, AGENTS, INLINE, World, open_storage, told
from tests.threads.thread_checks import LIMITS, POLICY, compare

from perdure.kernel.errors import Conflict, Fenced, NotFound
from perdure.kernel.storage.port import Storage
from perdure.threads.records import Failure, NewCheckpoint, RunRequest
from perdure.threads.work import Ending, Lease

FAILURE = Failure(error="ValueError", message="bad")
NAMES = ("a", "b")
"""Threads that are created, removed and created again."""

USUAL = {"strategy": "enqueue", "delay": 0.0, "priority": 0, "max_attempts": 3}

picks = st.integers(0, 1000)
names = st.sampled_from(NAMES)
states = st.sampled_from([None, 1, 2])
actions = st.sampled_from(["interrupt", "rollback"])
results = st.sampled_from(["success", "success", "error", "timeout", "retriable", "retriable", "stopped"])
runs = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(["reject", "enqueue", "enqueue", "interrupt", "rollback"]),
        "delay": st.sampled_from([0.0, 0.0, 0.0, 25.0, 125.0]),
        "priority": st.sampled_from([0, 0, 0, 5]),
        "max_attempts": st.sampled_from([1, 2, 3]),
    }
)


class Bench:
    """Engine: a new database, or on PostgreSQL a new namespace, for each example."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._folder = tempfile.TemporaryDirectory()
        self._numbers = itertools.count()
        self._runner = asyncio.Runner()
        self._storage: Storage | None = None

    def open(self) -> World:
        number = next(self._numbers)
        clock = TickingClock()
        if self._url.startswith("postgres"):
            self._storage = self._storage or open_storage(self._url)
        else:
            self._end()
            url = self._url.replace("FILE", str(Path(self._folder.name) / f"{number}.db"))
            self._storage = open_storage(url, clock=clock)
        world = World(self._storage, clock, POLICY, f"example {number}")
        self.do(world.queue.register("w1", AGENTS))
        return world

    def do(self, work: Any) -> Any:
        return self._runner.run(work)

    def _end(self) -> None:
        if self._storage is not None:
            self.do(self._storage.close())
            self._storage = None

    def close(self) -> None:
        self._end()
        self._runner.close()
        self._folder.cleanup()


class ThreadMachine(RuleBasedStateMachine):
    """All claims are kept, because each may be used again long after it has expired."""

    bench: ClassVar[Bench]

    @initialize()
    def begin(self) -> None:
        self.world = self.bench.open()
        self.model = ThreadModel(LIMITS)
        self.held: list[Lease] = []

    def _do(self, call: Any) -> Any:
        """Return the answer of a call in the model's form: refusals by name."""

        async def answer() -> Any:
            try:
                result = await call
            except (Conflict, Fenced, NotFound) as error:
                result = {Conflict: "conflict", Fenced: "fenced", NotFound: "not found"}[type(error)]
            return result

        return self.bench.do(answer())

    def _compare(self) -> None:
        self.bench.do(compare(self.world, self.model))

    def _pick(self, pick: int) -> Lease | None:
        """Pick a claim: mostly a live one, sometimes any earlier one."""
        among = self._working() if pick % 4 else self.held
        return among[pick // 4 % len(among)] if among else None

    def _working(self) -> list[Lease]:
        """Return the claims that hold their runs; if there are none, create some if possible."""
        if not self._holding():
            self._claim(10, "w3")
        if not self._holding() and self.model.may_create_run("a", "reject"):
            self._create("a", USUAL, True)
            self._claim(10, "w3")
        return self._holding()

    def _holding(self) -> list[Lease]:
        return [each for each in self.held if self.model.holds(each.run_id, each.attempt_id)]

    def _run(self, pick: int) -> ModelRun | None:
        found = list(self.model.runs.values())
        return found[-1 - pick % len(found)] if found else None

    # --- callers ------------------------------------------------------------------------------------------

    @rule(name=names, values=states)
    def create_thread(self, name: str, values: Any) -> None:
        answer = self._do(self.world.threads.create_thread(name, values=values))
        made = self.model.create_thread(name, values)
        assert (answer != "conflict") == made
        self._compare()

    @rule(name=names, options=runs, makes=st.booleans())
    def create_run(self, name: str, options: dict[str, Any], makes: bool) -> None:
        self._create(name, options, makes)

    @rule(name=names, options=runs)
    def create_another_run(self, name: str, options: dict[str, Any]) -> None:
        self._create(name, options, True)

    @rule(options=runs)
    def create_stateless_run(self, options: dict[str, Any]) -> None:
        self._create(None, options, False)

    @rule(pick=picks, options=runs)
    def create_run_anywhere(self, pick: int, options: dict[str, Any]) -> None:
        there = [thread.thread_id for thread in self.model.threads.values() if thread.gone_at is None]
        if there:
            self._create(there[pick % len(there)], options, False)

    def _create(self, name: str | None, options: dict[str, Any], makes: bool) -> None:
        request = RunRequest(
            assistant_id="echo",
            thread_id=name,
            multitask_strategy=options["strategy"],
            after_seconds=options["delay"] or None,
            priority=options["priority"],
            max_attempts=options["max_attempts"],
            if_not_exists="create" if makes else "reject",
            on_completion="delete",
        )
        made = self._do(self.world.threads.create_run(request))
        if name is not None and not makes and self.model.thread(name) is None:
            assert made == "not found"
        elif name is not None and not self.model.may_create_run(name, options["strategy"]):
            assert made == "conflict"
        else:
            fields = {key: value for key, value in options.items() if key != "strategy"}
            self.model.create_run(
                made.run_id, made.thread_id, options["strategy"], temporary=name is None, **fields
            )
        self._compare()

    @rule(pick=picks, action=actions)
    def cancel(self, pick: int, action: Any) -> None:
        run = self._run(pick)
        if run is not None:
            answer = self._do(self.world.threads.cancel_run(run.run_id, action=action))
            expected = self.model.cancel(run.run_id, action)
            assert (answer if isinstance(answer, str) else "ok") == expected
            self._compare()

    @rule(status=st.sampled_from(["pending", "running", "all"]), action=actions, chance=st.integers(0, 4))
    def cancel_many(self, status: Any, action: Any, chance: int) -> None:
        if chance:
            return
        ended = self._do(self.world.threads.cancel_runs(status=status, action=action))
        assert {run.run_id for run in ended} == self.model.cancel_all(status, action)
        self._compare()

    @rule(pick=picks)
    def delete_run(self, pick: int) -> None:
        run = self._run(pick)
        if run is not None:
            answer = self._do(self.world.threads.delete_run(run.run_id))
            assert (answer is None) == self.model.delete_run(run.run_id)
            self._compare()

    @rule(name=names, chance=st.integers(0, 2))
    def delete_thread(self, name: str, chance: int) -> None:
        if chance:
            return
        answer = self._do(self.world.threads.delete_thread(name))
        assert (answer is None) == self.model.delete_thread(name)
        self._compare()

    @rule(name=names, values=st.integers(0, 9), unfinished=st.booleans())
    def update_state(self, name: str, values: int, unfinished: bool) -> None:
        following = ["more"] if unfinished else []
        answer = self._do(self.world.threads.update_state(name, values, next=following))
        expected = self.model.update_state(name, values, unfinished=unfinished)
        assert (answer if isinstance(answer, str) else "ok") == expected
        self._compare()

    # --- workers ------------------------------------------------------------------------------------------

    @rule(limit=st.sampled_from([1, 2]), worker_id=st.sampled_from(["w1", "w2"]))
    def claim_some(self, limit: int, worker_id: str) -> None:
        self._claim(limit, worker_id)

    @rule()
    def claim_all(self) -> None:
        self._claim(10, "w3")

    def _claim(self, limit: int, worker_id: str) -> None:
        claimed = self._do(self.world.queue.claim(worker_id, AGENT_NAMES, limit, 0))
        assert [each.run.run_id for each in claimed] == [run.run_id for run in self.model.ready()[:limit]]
        for each in claimed:
            run = self.model.claim(each.run.run_id, each.attempt_id)
            thread = self.model.threads[run.thread_id]
            state = None if thread.state is None else thread.state.values
            assert each.attempt == len(run.attempts)
            assert each.last_attempt == (run.tries >= run.max_attempts)
            assert each.last_seq == (len(run.events) if len(run.attempts) > 1 else 0)
            assert (None if each.checkpoint is None else each.checkpoint.values) == state
            assert set(each.steps) == set(run.steps)
            assert each.saved_at == self.model.asked_again(run.run_id)
            self.held.append(each.held)
        self._compare()

    @rule(pick=picks, count=st.integers(1, 3))
    def append(self, pick: int, count: int) -> None:
        held = self._pick(pick)
        if held is not None:
            events = ["custom"] * count
            answer = self._do(self.world.queue.append(held, told(*events)))
            written = self.model.append(held.run_id, held.attempt_id, events)
            assert answer == (len(self.model.runs[held.run_id].events) if written else "fenced")
            self._compare()

    @rule(
        pick=picks,
        name=names,
        count=st.integers(0, 2),
        off=st.sampled_from([0, 0, 0, 5]),
        knows=st.sampled_from([True, True, False]),
        within=st.sampled_from([None, None, "b", "c"]),
    )
    def keep(self, pick: int, name: str, count: int, off: int, knows: bool, within: str | None) -> None:
        """Store a step with the events before it: both are stored, or neither is."""
        held = self._pick(pick)
        if held is not None:
            after = len(self.model.runs[held.run_id].events) + off if knows else None
            events = told(*["custom"] * count)
            answer = self._do(self.world.queue.keep(held, held.run_id, name, "1", events, after, within))
            expected = self.model.keep(held.run_id, held.attempt_id, name, count, after, within)
            assert (answer or "ok") == expected
            self._compare()

    @rule(pick=picks, values=st.integers(0, 9), unfinished=st.booleans())
    def save(self, pick: int, values: int, unfinished: bool) -> None:
        held = self._pick(pick)
        if held is not None:
            state = NewCheckpoint(values=values, next=["more"] if unfinished else [])
            answer = self._do(self.world.queue.save(held, state))
            kept = self.model.save(held.run_id, held.attempt_id, values, unfinished=unfinished)
            assert (answer != "fenced") == kept
            self._compare()

    @rule(
        pick=picks,
        result=results,
        values=st.sampled_from([None, None, 7]),
        unfinished=st.booleans(),
        retry_after=st.sampled_from([0.0, 0.0, 75.0]),
        events=st.sampled_from([[], ["custom"]]),
    )
    def finish(
        self, pick: int, result: Any, values: Any, unfinished: bool, retry_after: float, events: list[str]
    ) -> None:
        held = self._pick(pick)
        if held is not None:
            self._finish(held, result, values, unfinished, retry_after, events)

    @rule(pick=picks, retry_after=st.sampled_from([0.0, 75.0]))
    def fail_for_now(self, pick: int, retry_after: float) -> None:
        held = self._pick(pick)
        if held is not None:
            self._finish(held, "retriable", None, False, retry_after, [])

    @rule(pick=picks, result=results)
    def give_back_and_speak(self, pick: int, result: Any) -> None:
        """An attempt that has released its run may report nothing more."""
        held = self._pick(pick)
        if held is not None:
            self.hand_back([held])
            self._finish(held, result, 8, False, 0.0, ["custom"])

    def _finish(
        self, held: Lease, result: Any, values: Any, unfinished: bool, retry_after: float, events: list[str]
    ) -> None:
        following = ["more"] if unfinished else []
        state = None if values is None else NewCheckpoint(values=values, next=following)
        error = None if result in ("success", "stopped", "retriable") else FAILURE
        ending = Ending(
            held=held,
            result=result,
            error=error,
            retry_after=retry_after,
            checkpoint=state,
            events=told(*events),
        )
        answer = self._do(self.world.queue.finish(ending))
        expected = self.model.finish(
            held.run_id,
            held.attempt_id,
            result,
            values=values,
            unfinished=unfinished,
            retry_after=retry_after,
            names=events,
        )
        assert (answer if answer == "fenced" else answer.status) == (expected or "fenced")
        self._compare()

    @rule(some=st.lists(picks, max_size=3))
    def hand_back_some(self, some: list[int]) -> None:
        found = [self._pick(pick) for pick in some]
        self.hand_back([each for each in dict.fromkeys(found) if each is not None])

    def hand_back(self, held: list[Lease]) -> None:
        self._do(self.world.queue.hand_back(held))
        for each in held:
            self.model.hand_back(each.run_id, each.attempt_id)
        self._compare()

    @rule()
    def renew(self) -> None:
        verdicts = self._do(self.world.queue.renew("w1", self.held))
        assert verdicts == [self.model.renew(each.run_id, each.attempt_id) for each in self.held]
        self._compare()

    @rule(pick=picks)
    def renew_one(self, pick: int) -> None:
        held = self._pick(pick)
        if held is not None:
            (verdict,) = self._do(self.world.queue.renew("w1", [held]))
            assert verdict == self.model.renew(held.run_id, held.attempt_id)
            self._compare()

    @rule(pick=picks, name=st.sampled_from(["x", "y", "z"]))
    def span(self, pick: int, name: str) -> None:
        """The state is stored, and nothing else changes."""
        held = self._pick(pick)
        if held is not None:
            assert self._do(self.world.span(held, name)) is None
            self._compare()

    # --- time ---------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([100.0, 100.0, 200.0, 300.0]))
    def time_passes(self, seconds: float) -> None:
        """Workers without a heartbeat are treated as dead."""
        self.bench.do(self.world.advance(seconds))
        self.model.pass_time(seconds)
        self._compare()

    @rule(long=st.booleans())
    def purge(self, long: bool) -> None:
        if long:
            self.time_passes(1200.0)
        self.bench.do(self.world.threads.purge())
        self.model.purge()
        self._compare()

    def teardown(self) -> None:
        """Every live run can be brought to its end."""
        if not hasattr(self, "world"):
            return
        for _ in range(200):
            self.time_passes(300.0)
            if not any(run.live for run in self.model.runs.values()):
                return
            for each in self.bench.do(self.world.queue.claim("last", AGENT_NAMES, 50, 0)):
                self.model.claim(each.run.run_id, each.attempt_id)
                self.model.finish(each.run.run_id, each.attempt_id, "success")
                self.bench.do(self.world.finish(each.held))
        raise AssertionError("some runs never end")


def run_on(url: str, limits: settings) -> None:
    with closing(Bench(url)) as bench:
        machine = type("Machine", (ThreadMachine,), {"bench": bench})
        run_state_machine_as_test(machine, settings=limits)


def run(url: str = INLINE, examples: int = 20_000, steps: int = 100) -> None:
    """Execute the long run on `inline`, `:memory:`, `FILE` or the URL of a PostgreSQL."""
    run_on(url, exactly(examples, steps))


@pytest.mark.timeout(300)
def test_without_threads() -> None:
    run_on(INLINE, size(40, 40))


@pytest.mark.timeout(300)
def test_in_a_file() -> None:
    run_on("FILE", size(8, 25))


@pytest.mark.timeout(300)
def test_on_postgresql(database_url: str) -> None:
    run_on(database_url, size(8, 25))
