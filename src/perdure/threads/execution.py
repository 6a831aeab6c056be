"""Runs on the database, as those who execute them see them: the local side of `RunQueue`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from perdure.agents.records import AgentSpec
from perdure.assistants.operations import outdated, register
from perdure.graphs.queries import delta as find_deltas
from perdure.graphs.queries import find as find_graphs
from perdure.graphs.records import GraphDelta, GraphDeltaQuery, GraphQuery, GraphSteps, GraphTuple
from perdure.graphs.rows import tuple_of
from perdure.items.records import ItemOp, ItemResult
from perdure.items.service import Items
from perdure.kernel.checks import check_id, check_text
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import Fenced, NotFound
from perdure.kernel.signals.port import until
from perdure.kernel.storage.port import Storage
from perdure.rollouts.model import ENDED, LIVE, Kinds
from perdure.rollouts.operations.claim import Claim
from perdure.rollouts.operations.work import ENDED_CHANNEL, READY_CHANNEL, ended_key
from perdure.rollouts.operations.workers import Beat, beat
from perdure.rollouts.running import Keys, Runner
from perdure.streams.model import NewEvent
from perdure.streams.service import Streams
from perdure.threads.encoding import MAX_BODY, check_events, check_lease, checked, finish_of, steps_of
from perdure.threads.local_completions import LocalCompletions
from perdure.threads.model import AGENTS_QUEUE
from perdure.threads.operations import (
    assign,
    execute,
    finish,
    graphs,
    noted,  # noqa: F401 - it says what the writes of this room are called in the audit
    queries,
)
from perdure.threads.operations.cancel import CONTROL_CHANNEL, control_key
from perdure.threads.operations.execute import AppendEvents, SaveCheckpoint, SaveStep, State
from perdure.threads.operations.finish import Finish, Finished
from perdure.threads.operations.graphs import RecordSteps
from perdure.threads.operations.rows import Made, checkpoint_of, run_of
from perdure.threads.operations.settle import STOPPED_CHANNEL, StreamAppend, load_runs
from perdure.threads.records import Checkpoint, NewCheckpoint, Run
from perdure.threads.redis_markers import RedisMarkers
from perdure.threads.work import Assignment, Ending, Lease, Verdict

FRESH_SECONDS = 0.05
"""How long a run that was made just now may take before it is looked at."""
POLL_SECONDS = 2.0
"""How often a waiter looks by itself, should a hint be lost."""


class RunExecution(Runner):
    """What a worker does with the runs of one namespace."""

    def __init__(
        self,
        storage: Storage,
        kinds: Kinds,
        streams: Streams,
        *,
        namespace: str = "default",
        actor: str | None = None,
    ) -> None:
        super().__init__(storage, kinds, namespace=namespace, actor=actor)
        self.streams = streams
        self.local_completions = LocalCompletions()
        self.items = Items(storage, namespace=namespace)
        self._redis_markers = RedisMarkers(storage.signals)

    async def register(
        self, worker_id: str, agents: Sequence[AgentSpec], concurrency: int | None = None
    ) -> None:
        """Say which agents a worker can run, and how many runs at once; each gets its system assistant."""
        ns = await self._ns()
        if await self.storage.read(outdated, agents, ns=ns):
            await self.storage.run(register, agents, ns=ns, actor=self.actor)
        stats = {"queue": AGENTS_QUEUE, "max": concurrency, "agents": [spec.name for spec in agents]}
        await self.storage.run(beat, [Beat(worker_id, encode_json(stats))], ns=ns)

    # --- claiming ---------------------------------------------------------------------------------------

    async def claim(
        self, worker_id: str, limit: int, wait: float, idempotency_key: str | None = None
    ) -> list[Assignment]:
        """Up to `limit` runs, as soon as there is one; none if none came within `wait` seconds."""
        check_id(worker_id, "worker_id")
        claimed = await until(
            self.storage.signals,
            READY_CHANNEL,
            [AGENTS_QUEUE],
            lambda _: self._claim(Claim(worker_id, limit), idempotency_key),
            timeout=wait,
        )
        self._redis_markers.claimed(claimed, limit)
        return claimed

    async def _claim(self, claim: Claim, key: str | None) -> list[Assignment]:
        if key is not None:
            claimed = await self._once("claim", self._claim_batch, claim, key)
        else:
            answer = self._merger.call(
                "claim", self._claim_batch, claim, rows=claim.limit, undelivered=self._unclaimed
            )
            try:
                claimed = await answer
            except asyncio.CancelledError:
                if answer.done() and not answer.cancelled() and answer.exception() is None:
                    self._unclaimed(answer.result())
                raise
        if all(isinstance(each, Made) for each in claimed):
            return [each.whole for each in claimed if each.whole is not None]
        return await self._assignments(claimed)

    async def _assignments(self, claimed: Sequence[Sequence[Any]]) -> list[Assignment]:
        """What belongs to a claim whose first answer was lost."""
        try:
            return await self._read(assign.assignments, [tuple(each) for each in claimed])
        except BaseException:
            # Nobody else knows of this claim.
            self._unclaimed(claimed)
            raise

    async def _claim_batch(self, claims: Sequence[Claim], keys: Keys = None) -> Sequence[Any]:
        return await self._write_watched(assign.claim_runs, claims, self._kinds, keys=keys)

    def _unclaimed(self, claimed: Sequence[Sequence[Any]]) -> None:
        """The caller went away while its claim was made: others may have the runs at once."""
        if claimed:
            self._return(partial(self._give_back, claimed))

    async def _give_back(self, claimed: Sequence[Sequence[Any]]) -> None:
        runs = await self._read(load_runs, [each[0] for each in claimed])
        await self.hand_back([Lease(id, runs[id].thread_id, at) for id, at, *_ in claimed if id in runs])

    # --- while a run is executed ------------------------------------------------------------------------

    async def renew(self, worker_id: str, held: Sequence[Lease]) -> list[Verdict]:
        """Keep the leases; the verdicts are in the order of `held`."""
        check_id(worker_id, "worker_id")
        verdicts: list[Verdict] = await self._write(execute.renew, worker_id, tuple(map(check_lease, held)))
        self._redis_markers.renewed(held, verdicts)
        return verdicts

    async def controls(self, held: Sequence[Lease], wait: float) -> dict[str, Verdict]:
        """The runs among `held` that are not to go on, as soon as there is one, or after `wait` seconds."""
        ns = await self._ns()
        keys = [control_key(ns, each.run_id) for each in held]

        async def stopped(_: frozenset[str]) -> dict[str, Verdict]:
            verdicts = await self._read(execute.verdicts, tuple(map(check_lease, held)))
            return {each.run_id: v for each, v in zip(held, verdicts, strict=True) if v != "go"}

        return await until(self.storage.signals, CONTROL_CHANNEL, keys, stopped, timeout=wait)

    async def append(self, held: Lease, events: Sequence[NewEvent], after: int | None = None) -> int:
        """Add events to the run's stream; gives the `seq` of the last one once they are durable."""
        size = sum(len(event.body) for event in events)
        call = AppendEvents(check_lease(held), check_events(events), after)
        answer: StreamAppend | int = await self._merger.call(
            "tell", self._tell_batch, call, rows=max(len(events), 1), size=size
        )
        return answer if isinstance(answer, int) else answer[1].last_seq

    async def _tell_batch(self, calls: Sequence[AppendEvents]) -> Sequence[StreamAppend | int | Exception]:
        return self._offered(await self._write(execute.tell, calls))

    def _offered(self, answers: list[Any]) -> list[Any]:
        """What is durable goes to its readers in this process, before anybody else is told."""
        for answer in answers:
            placed = answer.placed if isinstance(answer, State | Finished) else answer
            if isinstance(placed, tuple) and self._number is not None:
                self.streams.offer(self._number, *placed)
        return answers

    async def save(
        self,
        held: Lease,
        checkpoint: NewCheckpoint,
        events: Sequence[NewEvent] = (),
        after: int | None = None,
    ) -> Checkpoint:
        """Keep a state of the thread, with the events that tell of it."""
        call = SaveCheckpoint(check_lease(held), checked(checkpoint), check_events(events), after)
        size = len(call.checkpoint.values) + sum(len(event.body) for event in events)
        state: State = await self._merger.call("save", self._save_batch, call, size=size)
        return checkpoint_of(state.row[1:])

    async def _save_batch(self, calls: Sequence[SaveCheckpoint]) -> Sequence[State | Exception]:
        return self._offered(list(await self._write(execute.save, calls)))

    async def record(
        self, held: Lease, steps: GraphSteps, events: Sequence[NewEvent] = (), after: int | None = None
    ) -> int:
        """Keep what the run's graph has done, with events; gives the `seq` of the last one."""
        new = steps_of(steps, held.thread_id)
        call = RecordSteps(check_lease(held), new, check_events(events), after)
        rows = 1 + len(events) + len(steps.changes.puts) + len(steps.changes.writes)
        answer: StreamAppend | int = await self._merger.call("record", self._record_batch, call, rows=rows)
        return answer if isinstance(answer, int) else answer[1].last_seq

    async def _record_batch(self, calls: Sequence[RecordSteps]) -> Sequence[StreamAppend | int | Exception]:
        return self._offered(await self._write(graphs.record, calls))

    async def find_graphs(self, held: Lease, query: GraphQuery) -> list[GraphTuple]:
        """Checkpoints of the graphs of the run's thread."""
        own = msgspec.structs.replace(query, thread_id=held.thread_id)
        return [tuple_of(found) for found in await self._read(find_graphs, own)]

    async def find_deltas(self, held: Lease, query: GraphDeltaQuery) -> list[GraphDelta]:
        """What the ancestors of a checkpoint say of channels that are kept as changes."""
        return await self._read(find_deltas, msgspec.structs.replace(query, thread_id=held.thread_id))

    async def do_items(self, ops: Sequence[ItemOp]) -> list[ItemResult]:
        """Read and change what is remembered beyond threads."""
        return await self.items.run(ops)

    async def keep(self, held: Lease, origin: str, name: str, body: str) -> None:
        """Keep the result of a step, for every later attempt of this run and of those that resume it."""
        check_id(origin, "origin")
        check_text(name, "the name of a step")
        check_text(body, "the result of a step", max_length=MAX_BODY)
        call = SaveStep(check_lease(held), origin, name, body)
        await self._merger.call("keep", self._keep_batch, call, size=len(body))

    async def _keep_batch(self, calls: Sequence[SaveStep]) -> Sequence[Fenced | None]:
        return await self._write(execute.keep, calls)

    # --- the end ----------------------------------------------------------------------------------------

    async def finish(self, ending: Ending) -> Run:
        """End the attempt. Doing it twice does it once."""
        done = await self._finish(ending)
        self._redis_markers.released([ending.held.run_id])
        if done.run is not None:
            return run_of(done.run)
        try:
            found = await self._merger.call("get_end", self._ends, done.run_id)
        except NotFound:
            raise Fenced(f"run {done.run_id} was removed while it was executed") from None
        return run_of(found[0])

    async def _finish(self, ending: Ending) -> Finished:
        new = finish_of(ending)
        size = sum(len(event.body) for event in new.events)
        key = (await self._ns(), ending.held.run_id)
        done: Finished | None = None
        self.local_completions.begin(key)
        try:
            done = await self._merger.call("finish", self._finish_batch, new, size=size)
        finally:
            self.local_completions.done(key, done)
        return done

    async def _finish_batch(self, endings: Sequence[Finish]) -> Sequence[Any]:
        return self._offered(list(await self._write_watched(finish.finish, endings, self._kinds)))

    async def _ends(self, run_ids: Sequence[str]) -> Sequence[Any]:
        return await self._read(queries.get_ends, run_ids)

    async def hand_back(self, held: Sequence[Lease]) -> None:
        """Give runs back, uncharged and at their old place, so that another worker goes on at once."""
        if held:
            await self._write(finish.hand_back, tuple(map(check_lease, held)), self._kinds)
            self._redis_markers.released([each.run_id for each in held])

    # --- waiting ----------------------------------------------------------------------------------------

    async def ended(self, run_id: str, timeout: float | None, *, fresh: bool = False) -> Any:
        """Wait until a run has ended, and give it with its thread; None when the time is up.

        One that was made just now is not looked at before it had the time to end.
        """
        check_id(run_id, "run_id")
        ns = await self._ns()
        found: Any = None
        here = self.local_completions.watch((ns, run_id))

        async def done(_: frozenset[str]) -> bool:
            nonlocal found
            if self.local_completions.is_under_way((ns, run_id)) or here.done():
                end = await here
                if end is not None and end.run is not None and end.thread is not None:
                    found = (end.run, end.thread)
                    return True
            found = await self._merger.call("get_end", self._ends, run_id)
            return found[0].rollout_status in ENDED

        try:
            has_ended = await until(
                self.storage.signals,
                ENDED_CHANNEL,
                [ended_key(ns, run_id)],
                done,
                timeout=timeout,
                poll=POLL_SECONDS,
                first=FRESH_SECONDS if fresh else 0.0,
            )
        finally:
            self.local_completions.forget((ns, run_id), here)
        return found if has_ended else None

    async def stopped(self, run_id: str, timeout: float | None = None) -> bool:
        """Wait until nobody executes a run any longer."""
        ns = await self._ns()

        async def done(_: frozenset[str]) -> bool:
            rows = await self._read(queries.latest_attempts, [run_id])
            return all(row[2] not in LIVE for row in rows)

        signals, key = self.storage.signals, control_key(ns, run_id)
        return await until(signals, STOPPED_CHANNEL, [key], done, timeout=timeout, poll=POLL_SECONDS)

    async def close(self) -> None:
        """Finish giving back what nobody took. The storage belongs to whoever opened it."""
        await self._finish_returns()
