"""The simulated agents of the demo: some attempts fail, and one worker stops sending heartbeats once."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from perdure import AttemptedRollout, LightningStore, RolloutConfig, Span, TraceStatus
from perdure.rollouts.records import AttemptStatus

WORKERS = ("worker-1", "worker-2")
QUEUE = "demo"
"""The demo's own queue, so that its workers never claim other work."""
MAX_ATTEMPTS = 3
SILENCE_SECONDS = 1.0
MODEL = "gpt-4o-mini"
"""The model of simulated calls, which gives them a price. No model is called."""
CONFIG = RolloutConfig(
    max_attempts=MAX_ATTEMPTS,
    unresponsive_seconds=SILENCE_SECONDS,
    retry_condition=["failed", "unresponsive"],
)
QUESTIONS = (
    "Which river runs through Vienna?",
    "How many moons does Mars have?",
    "Who wrote The Left Hand of Darkness?",
    "What is the boiling point of ethanol?",
    "When was the first lighthouse lit?",
    "Which metal is liquid at room temperature?",
)
_FAILURE_RATE = 0.3
_STEP_SECONDS = (0.06, 0.18)
_AWAY_SECONDS = 0.8
_LOOK_SECONDS = 0.05

Say = Callable[[str], None]


@dataclass(frozen=True)
class DemoPlan:
    """The size and the random seed of the demo."""

    rollouts: int
    seed: int

    @property
    def pace(self) -> float:
        """Factor for the duration of a step, so that more rollouts do not take longer."""
        return min(1.0, 24 / self.rollouts)

    def inputs(self) -> list[dict[str, object]]:
        return [
            {"number": number, "question": QUESTIONS[number % len(QUESTIONS)]}
            for number in range(self.rollouts)
        ]

    def falls_silent(self, number: int, attempt: int) -> bool:
        return attempt == 1 and number == self.rollouts // 4

    def chance(self, number: int, attempt: int) -> random.Random:
        """Return the random numbers of one attempt: the same for a seed, on any worker."""
        return random.Random(f"{self.seed}/{number}/{attempt}")  # noqa: S311 - no secret


@dataclass
class DemoTally:
    """How the attempts of a worker ended."""

    succeeded: int = 0
    failed: int = 0
    silent: int = 0
    retries: int = 0


async def pause(ended: asyncio.Event, seconds: float) -> None:
    """Wait for some seconds, or until the demo has ended."""
    with suppress(TimeoutError):
        await asyncio.wait_for(ended.wait(), seconds)


class DemoWorker:
    """Claims rollouts and simulates an agent until `ended` is set."""

    def __init__(
        self, store: LightningStore, worker_id: str, plan: DemoPlan, say: Say, ended: asyncio.Event
    ) -> None:
        self.store = store
        self.worker_id = worker_id
        self.plan = plan
        self.say = say
        self.ended = ended
        self.tally = DemoTally()

    async def work(self) -> None:
        """Claim rollouts, and poll an empty queue, because a retry may enter it."""
        while not self.ended.is_set():
            claimed = await self.store.dequeue_rollout(self.worker_id, queue=QUEUE)
            if claimed is None:
                await pause(self.ended, _LOOK_SECONDS)
            else:
                await self._attempt(claimed)

    async def _attempt(self, claimed: AttemptedRollout) -> None:
        number, attempt = claimed.input["number"], claimed.attempt.sequence_id
        chance = self.plan.chance(number, attempt)
        self.tally.retries += attempt > 1
        trace = DemoTrace(self.store, claimed, chance, self.plan.pace)
        await trace.chat("plan")
        if self.plan.falls_silent(number, attempt):
            await self._fall_silent(claimed)
        elif chance.random() < _FAILURE_RATE:
            await self._fail(claimed, trace)
        else:
            await self._succeed(claimed, trace)

    async def _succeed(self, claimed: AttemptedRollout, trace: DemoTrace) -> None:
        await trace.tool("search")
        await trace.chat("answer")
        await trace.end("succeeded")
        self.tally.succeeded += 1
        if claimed.attempt.sequence_id > 1:
            self.say(f"{claimed.rollout_id} succeeded at attempt {claimed.attempt.sequence_id}")

    async def _fail(self, claimed: AttemptedRollout, trace: DemoTrace) -> None:
        await trace.tool("search", error="the index did not answer")
        await trace.end("failed")
        self.tally.failed += 1
        attempt = claimed.attempt.sequence_id
        next_step = "queued again" if attempt < MAX_ATTEMPTS else "that was its last attempt"
        self.say(f"{claimed.rollout_id} failed at attempt {attempt}: {next_step}")

    async def _fall_silent(self, claimed: AttemptedRollout) -> None:
        """Send no heartbeat until the watchdog has ended the attempt."""
        self.tally.silent += 1
        self.say(f"{self.worker_id} stops sending heartbeats during {claimed.rollout_id}")
        while await self._is_running(claimed):
            await pause(self.ended, _LOOK_SECONDS)
        self.say(
            f"the watchdog got no heartbeat for {SILENCE_SECONDS:g} s and queued {claimed.rollout_id} again"
        )
        await pause(self.ended, _AWAY_SECONDS)
        self.say(f"{self.worker_id} is back")

    async def _is_running(self, claimed: AttemptedRollout) -> bool:
        latest = await self.store.get_latest_attempt(claimed.rollout_id)
        return latest is not None and (latest.attempt_id, latest.status) == (
            claimed.attempt.attempt_id,
            "running",
        )


class DemoTrace:
    """The steps of one attempt; each records a span."""

    def __init__(
        self, store: LightningStore, claimed: AttemptedRollout, chance: random.Random, pace: float
    ) -> None:
        self._store = store
        self._claimed = claimed
        self._chance = chance
        self._pace = pace
        self._trace_id = secrets.token_hex(16)
        self._root_id = secrets.token_hex(8)
        self._start_time = time.time()

    async def chat(self, purpose: str) -> None:
        """Simulate a model call."""
        attributes: dict[str, str | int] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": MODEL,
            "gen_ai.usage.input_tokens": self._chance.randrange(200, 900),
            "gen_ai.usage.output_tokens": self._chance.randrange(20, 200),
            "purpose": purpose,
        }
        await self._step(f"chat {MODEL}", attributes)

    async def tool(self, name: str, error: str | None = None) -> None:
        """Simulate a tool call, which may fail."""
        attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
        await self._step(f"execute_tool {name}", attributes, error)

    async def end(self, status: AttemptStatus) -> None:
        """Record the root span and complete the attempt."""
        error = None if status == "succeeded" else "a tool failed"
        attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "trivia"}
        await self._record("invoke_agent trivia", attributes, self._start_time, error, self._root_id, None)
        attempt = self._claimed.attempt
        await self._store.update_attempt(attempt.rollout_id, attempt.attempt_id, status=status)

    async def _step(self, name: str, attributes: Mapping[str, str | int], error: str | None = None) -> None:
        start_time = time.time()
        await asyncio.sleep(self._chance.uniform(*_STEP_SECONDS) * self._pace)
        await self._record(name, attributes, start_time, error, secrets.token_hex(8), self._root_id)

    async def _record(
        self,
        name: str,
        attributes: Mapping[str, str | int],
        start_time: float,
        error: str | None,
        span_id: str,
        parent_id: str | None,
    ) -> None:
        attempt = self._claimed.attempt
        sequence_id = await self._store.get_next_span_sequence_id(attempt.rollout_id, attempt.attempt_id)
        span = Span.from_attributes(
            rollout_id=attempt.rollout_id,
            attempt_id=attempt.attempt_id,
            sequence_id=sequence_id,
            trace_id=self._trace_id,
            span_id=span_id,
            parent_id=parent_id,
            name=name,
            attributes={**attributes},
            start_time=start_time,
            end_time=time.time(),
            status=TraceStatus(status_code="ERROR" if error else "OK", description=error),
        )
        await self._store.add_span(span)
