"""Any calls in any order, on every engine, against the model.

The size is `PERDURE_EXAMPLES` and `PERDURE_STEPS`; `run` is the long run.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tests.reliability.calls import Caller
from tests.reliability.engines import Bench, EmbeddedBench, PostgresBench, check_rules
from tests.support.comparison import Comparison
from tests.support.model import Model, ModelConfig

from perdure import PromptTemplate
from perdure.testing.contract.support import soon

# Times are multiples of 100 s and limits lie between, so that a slow machine changes no answer.
TOLERANCE = 40.0
CONFIGS = (
    ModelConfig(),
    ModelConfig(max_attempts=2, retry_condition=("failed",)),
    ModelConfig(timeout_seconds=250.0, max_attempts=3, retry_condition=("timeout", "failed")),
    ModelConfig(unresponsive_seconds=150.0, max_attempts=2, retry_condition=("unresponsive",)),
    ModelConfig(unresponsive_seconds=150.0),
    ModelConfig(timeout_seconds=350.0, unresponsive_seconds=150.0, max_attempts=2),
)
ROLLOUTS = ("queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing")
ATTEMPTS = ("preparing", "running", "failed", "succeeded", "unresponsive", "timeout")

picks = st.integers(0, 30)
workers = st.sampled_from([None, "w1", "w2", "w3"])
queues = st.sampled_from(["default", "default", "gpu"])
configs = st.sampled_from(CONFIGS)
requests = st.fixed_dictionaries(
    {
        "input": st.integers(0, 3),
        "config": configs,
        "queue": queues,
        "priority": st.sampled_from([0, 0, 0, 5, -1]),
        "not_before": st.sampled_from([None, None, None, -100.0, 25.0, 125.0, 225.0]),
        "key": st.sampled_from([None, None, None, "a", "b"]),
    }
)
spans = st.tuples(picks, picks, st.integers(0, 8), st.sampled_from([0, 1, 2, 5, 9, 30]))
reports = st.tuples(
    picks,
    picks,
    st.fixed_dictionaries(
        {},
        optional={
            "status": st.sampled_from(ATTEMPTS),
            "worker_id": st.sampled_from(["w1", "w2", ""]),
            "last_heartbeat_time": st.sampled_from([0.0, -100.0, -200.0]),
            "metadata": st.sampled_from([{"k": 1}, {}]),
        },
    ),
)
changes = st.tuples(
    picks,
    st.fixed_dictionaries(
        {},
        optional={
            "status": st.sampled_from(ROLLOUTS),
            "config": configs,
            "metadata": st.sampled_from([{"m": 1}, {}, None]),
            "input": st.integers(0, 3),
            "mode": st.sampled_from([None, "train"]),
        },
    ),
)


def few(strategy: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[list[Any]]:
    return st.lists(strategy, min_size=1, max_size=most)


class StoreMachine(RuleBasedStateMachine):
    """Each rule makes one call, or a burst of calls of one kind that the store may merge."""

    bench: ClassVar[Bench]

    @initialize()
    def begin(self) -> None:
        self.store = self.bench.open()
        self.model = Model()
        self.compare = Comparison(self.model, self.bench.epoch(), TOLERANCE)
        self.caller = Caller(self.store, self.model, self.compare)

    def _do(self, work: Any) -> None:
        self.bench.do(self._checked(work))

    async def _checked(self, work: Any) -> None:
        await soon(work)
        await soon(self.compare.rollouts(self.store))

    @rule(seconds=st.sampled_from([100.0, 200.0, 300.0]))
    def time_passes(self, seconds: float) -> None:
        self.bench.advance(seconds)
        self.model.now += seconds
        self.compare.start = self.bench.epoch()

    @rule(burst=few(requests))
    def enqueue(self, burst: list[dict[str, Any]]) -> None:
        self._do(self.caller.enqueue(burst))

    @rule(batch=st.lists(requests, max_size=4))
    def enqueue_many(self, batch: list[dict[str, Any]]) -> None:
        self._do(self.caller.enqueue_many(batch))

    @rule(config=configs, worker_id=workers)
    def start_rollout(self, config: ModelConfig, worker_id: str | None) -> None:
        self._do(self.caller.start_rollout(config, worker_id))

    @rule(burst=few(st.tuples(st.integers(0, 3), workers)), queue=queues)
    def dequeue(self, burst: list[tuple[int, str | None]], queue: str) -> None:
        self._do(self.caller.dequeue(burst, queue))

    @rule(turns=st.integers(0, 12), queue=queues)
    def dequeue_and_go_away(self, turns: int, queue: str) -> None:
        self._do(self.caller.abandon(turns, queue))

    @rule(burst=few(st.tuples(picks, workers), most=2))
    def start_attempt(self, burst: list[tuple[int, str | None]]) -> None:
        self._do(self.caller.start_attempts(burst))

    @rule(burst=few(few(spans)))
    def add_spans(self, burst: list[list[Any]]) -> None:
        self._do(self.caller.add_spans(burst))

    @rule(span=spans)
    def add_otel_span(self, span: Any) -> None:
        self._do(self.caller.add_otel_span(*span[:3]))

    @rule(burst=few(reports))
    def update_attempt(self, burst: list[Any]) -> None:
        self._do(self.caller.update_attempts(burst))

    @rule(burst=few(changes, most=2))
    def update_rollout(self, burst: list[Any]) -> None:
        self._do(self.caller.update_rollouts(burst))

    @rule(wanted=st.lists(picks, max_size=5))
    def sequence_ids(self, wanted: list[int]) -> None:
        self._do(self.caller.sequence_ids(wanted))

    @rule(worker_id=st.sampled_from(["w1", "w4"]), stats=st.sampled_from([None, {"cpu": 1}, {}]))
    def update_worker(self, worker_id: str, stats: dict[str, Any] | None) -> None:
        self._do(self.caller.update_worker(worker_id, stats))

    @rule(name=st.sampled_from([None, "mine", "yours"]), text=st.sampled_from(["x", "y"]))
    def keep_resources(self, name: str | None, text: str) -> None:
        bundle = {"prompt": PromptTemplate(template=text, engine="f-string")}
        self._do(self.caller.keep_resources(name, bundle))

    @rule(statuses=st.sets(st.sampled_from(ROLLOUTS)), limit=st.integers(0, 4), offset=st.integers(0, 3))
    def query(self, statuses: set[str], limit: int, offset: int) -> None:
        self._do(self.caller.query(sorted(statuses), limit, offset))

    @rule()
    def wait_for_nothing(self) -> None:
        self._do(self.caller.finished())

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.bench.do(self._end())

    async def _end(self) -> None:
        await self.compare.everything(self.store)
        await check_rules(self.store)
        for queue in ("default", "gpu"):
            await self.caller.dequeue([(100, "last")], queue)
        await self.compare.everything(self.store)
        await check_rules(self.store)


def size(examples: int, steps: int) -> settings:
    examples = int(os.environ.get("PERDURE_EXAMPLES", examples))
    return exactly(examples, int(os.environ.get("PERDURE_STEPS", steps)))


def exactly(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def run_on(bench: Bench, limits: settings) -> None:
    machine = type("Machine", (StoreMachine,), {"bench": bench})
    run_state_machine_as_test(machine, settings=limits)


def run(engine: str = "memory", examples: int = 20_000, steps: int = 100, url: str = "") -> None:
    """The long run, on `memory`, `sqlite` or `postgres` (which needs the URL of a database)."""
    bench: Bench = PostgresBench(url) if engine == "postgres" else EmbeddedBench(file=engine == "sqlite")
    with closing(bench):
        run_on(bench, exactly(examples, steps))


@pytest.mark.timeout(300)
def test_in_memory() -> None:
    with closing(EmbeddedBench(file=False)) as bench:
        run_on(bench, size(40, 40))


@pytest.mark.timeout(300)
def test_in_a_file() -> None:
    with closing(EmbeddedBench(file=True)) as bench:
        run_on(bench, size(10, 30))


@pytest.mark.timeout(300)
def test_on_postgresql(postgres_url: str) -> None:
    with closing(PostgresBench(postgres_url)) as bench:
        run_on(bench, size(8, 25))
