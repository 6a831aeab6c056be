"""Context of an agent in a worker. It calls the queue in the worker's loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import msgspec

from perdure.agents.confinement import NOT_CONFINED, Confinement
from perdure.agents.context import (
    Cancelled,
    Interrupted,
    StepKeys,
    StepResult,
    call_from_thread,
    current_branch,
    enclosing_step,
    executing,
)
from perdure.agents.records import PhaseContext, RecordedSpan
from perdure.checkpoints.records import (
    CheckpointQuery,
    GraphDelta,
    GraphDeltaQuery,
    GraphState,
    GraphSteps,
    GraphTuple,
)
from perdure.checkpoints.view import state_values
from perdure.items.calls import ItemCalls
from perdure.items.records import ItemOp, ItemResult
from perdure.kernel.checks import check_text
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import Fenced, InvalidInput, NotSupported, PerdureError
from perdure.kernel.retry import retry_until
from perdure.memory.records import SearchResult
from perdure.memory.search import check_filters
from perdure.memory.service import Memory
from perdure.rollouts.contract import LightningStore
from perdure.runs.queue import RunQueue
from perdure.sessions import envelopes
from perdure.streams.model import CONTROL, METADATA, VALUES, NewEvent, Shown
from perdure.threads.records import Checkpoint, Interrupt, NewCheckpoint
from perdure.threads.work import Assignment, Lease
from perdure.worker.emitter import Emitter, Replay
from perdure.worker.session_writer import SessionWriter
from perdure.worker.tracing import Tracing

T = TypeVar("T")

RESERVED = frozenset({METADATA, "error", "end", CONTROL})
"""Events that agents cannot emit."""
MAX_NAME = 255
MAX_STEP_KEY = 1024

ORIGIN, INPUT, RESUMES = "origin", "input", "resumes"
"""Metadata keys of a checkpoint that a resumed run needs: the first run, its input, and the answers."""


class RunLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the run to each line, and its ids to each record."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        fields = dict(self.extra or {})
        kwargs["extra"] = {**fields, **(kwargs.get("extra") or {})}
        return f"run {fields.get('run_id')}: {msg}", kwargs


class CallInControlLoop(Protocol):
    """Runs a coroutine in the worker's loop, and waits for it in the agent's loop."""

    async def __call__(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T: ...


class RunGraphs:
    """Implements `perdure.agents.context.GraphCheckpoints` for one attempt, under its lease."""

    def __init__(
        self,
        lease: Lease,
        queue: RunQueue,
        emitter: Emitter,
        call_in_control_loop: CallInControlLoop,
        check: Callable[[], None],
    ) -> None:
        self._lease = lease
        self._queue = queue
        self._emitter = emitter
        self._call_in_control_loop = call_in_control_loop
        self._check = check
        self._control = asyncio.get_running_loop()
        self.last: GraphState | None = None
        """The last state that the graph stored."""

    def put(self, steps: GraphSteps) -> None:
        for self.last in steps.states[-1:]:
            pass
        self._emitter.put_steps(steps)

    async def ready(self) -> None:
        self._check()
        if self._emitter.full:
            await self._emitter.wait_for_space()
            self._check()

    async def settle(self) -> None:
        await self._call_in_control_loop(self._emitter.drain)
        self._check()

    async def find(self, query: CheckpointQuery) -> list[GraphTuple]:
        return await self._call_in_control_loop(lambda: self._queue.find_graphs(self._lease, query))

    async def deltas(self, query: GraphDeltaQuery) -> list[GraphDelta]:
        return await self._call_in_control_loop(lambda: self._queue.find_deltas(self._lease, query))

    def wait(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(action(), self._control).result()


class RunItems(ItemCalls):
    """Item operations of one attempt."""

    def __init__(
        self, queue: RunQueue, call_in_control_loop: CallInControlLoop, check: Callable[[], None]
    ) -> None:
        self._queue = queue
        self._call_in_control_loop = call_in_control_loop
        self._check = check
        self._control = asyncio.get_running_loop()

    async def batch(self, ops: Sequence[ItemOp]) -> list[ItemResult]:
        self._check()
        return await self._call_in_control_loop(lambda: self._queue.do_items(ops))

    def wait(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(action(), self._control).result()


class AttemptMemory:
    """Implements `perdure.agents.context.MemorySearch` for one attempt."""

    def __init__(
        self, memory: Memory, call_in_control_loop: CallInControlLoop, check: Callable[[], None]
    ) -> None:
        self._memory = memory
        self._call_in_control_loop = call_in_control_loop
        self._check = check

    async def search(self, query: str, **filters: Any) -> SearchResult:
        self._check()
        return await self._call_in_control_loop(
            lambda: self._memory.search_for_agent(query, **check_filters(filters))
        )


class NewStep(NamedTuple):
    """Step to store, and the enclosing step that called it."""

    name: str
    body: str
    within: str | None


class RunContext:
    """Implements `perdure.agents.context.Context` for one attempt."""

    def __init__(
        self,
        assignment: Assignment,
        queue: RunQueue,
        emitter: Emitter,
        tracing: Tracing,
        session: SessionWriter,
        *,
        store: LightningStore | None = None,
        phase: PhaseContext | None = None,
        memory: Memory | None = None,
        still_owned: Callable[[], bool] = lambda: True,
        lease_over: Callable[[], bool] = lambda: False,
        confinement: Confinement = NOT_CONFINED,
    ) -> None:
        run = assignment.run
        self.confinement = confinement
        """How a process that executes the agent is confined."""
        self.run_id = run.run_id
        self.thread_id = run.thread_id
        self.assistant_id = run.assistant_id
        self.attempt = assignment.attempt
        self.config: Mapping[str, Any] = assignment.config
        self.context: Mapping[str, Any] = assignment.context
        self.metadata: Mapping[str, Any] = run.metadata
        self.options: Mapping[str, Any] = run.kwargs.options
        self.stream_mode = tuple(run.kwargs.stream_mode)
        self.command: Mapping[str, Any] | None = _command(assignment)
        self.from_checkpoint = run.kwargs.checkpoint_id
        self.phase = phase
        ids = {"run_id": run.run_id, "thread_id": run.thread_id, "attempt": assignment.attempt}
        self.logger: logging.LoggerAdapter[Any] = RunLogger(
            logging.getLogger(f"perdure.agent.{run.agent}"), ids
        )
        self.emitter = emitter
        self.tracing = tracing
        self._session = session
        self.saved: str | None = None
        """Last values that this attempt saved, as JSON; None before the first save."""
        self._assignment = assignment
        self._queue = queue
        self._store = store
        self._still_owned = still_owned
        self._lease_over = lease_over
        self._control = asyncio.get_running_loop()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._checkpoint = assignment.checkpoint
        self._step_results = dict(assignment.steps)
        self._replay = Replay(assignment.saved_at, assignment.last_seq)
        self._step_keys = StepKeys()
        self._interrupts = 0
        self._action: str | None = None
        self.input, self._resumes = _input_and_answers(assignment)
        self.graph = RunGraphs(assignment.held, queue, emitter, self._call_in_control_loop, self._check)
        self.items = RunItems(queue, self._call_in_control_loop, self._check)
        self.memory = (
            None if memory is None else AttemptMemory(memory, self._call_in_control_loop, self._check)
        )

    # --- called by the worker

    async def enter(self) -> None:
        """Start the agent in the current task."""
        self._loop = asyncio.get_running_loop()
        self.tracing.enter()
        if self._replay.limit:
            self._replay.begin(await self._call_in_control_loop(self._emitted))

    def cancel(self, action: str) -> None:
        """Ask the agent to stop: its next call to the context raises. Thread-safe."""
        self._action = action

    def resume_metadata(self) -> dict[str, Any]:
        """Return the metadata that a checkpoint needs for another run to resume from it."""
        return {ORIGIN: self._assignment.origin, INPUT: self.input, RESUMES: self._resumes}

    def questions(self, interrupts: Sequence[Mapping[str, Any]]) -> list[Interrupt]:
        """Convert interrupts to questions, each with an ID."""
        origin = self._assignment.origin
        return [
            Interrupt(id=str(interrupt.get("id") or f"{origin}:{number}"), value=interrupt.get("value"))
            for number, interrupt in enumerate(interrupts)
        ]

    def end_replay(self) -> None:
        """End the replay: append the held events, and hold no more."""
        for event in self._replay.end():
            self.emitter.put(event)

    # --- called by the agent

    async def emit(self, data: Any, event: str = "custom") -> None:
        await self.emit_json(encode_json(data, what=f"event {event!r}"), event)

    async def emit_json(self, body: str, event: str, shown: Shown | None = None) -> None:
        self._check()
        new = NewEvent(_event_name(event), body, shown)
        if self._replay.is_active and not self._replay.is_new(new, current_branch()):
            return
        self.emitter.put(new)
        if self.emitter.full:
            await self.emitter.wait_for_space()
            self._check()

    @property
    def session_id(self) -> str:
        return self._session.session_id

    async def session(self, id: str | None = None, cwd: str | None = None) -> str:
        self._check()
        return self._session.open(id, cwd)

    async def message(
        self,
        role: str,
        content: Any,
        model: str | None = None,
        usage: Mapping[str, Any] | None = None,
    ) -> None:
        await self._log(envelopes.message(role, content, model=model, usage=usage))

    async def tool_result(self, id: str, content: Any, is_error: bool = False) -> None:
        await self._log(envelopes.tool_result(id, content, is_error=is_error))

    async def usage(self, **figures: Any) -> None:
        await self._log(envelopes.result(**figures))

    async def transcript(self, line: Mapping[str, Any]) -> bool:
        self._check()
        is_known = self._session.put_transcript(line)
        await self._session.wait_for_space()
        return is_known

    async def step(self, name: str, action: Callable[[], T | Awaitable[T]]) -> T:
        self._check()
        key = self._step_key(check_text(name, "the name of a step", max_length=MAX_NAME), action)
        stored = self._step_results.get(key)
        with self.tracing.step(name, action, replayed=stored is not None):
            if stored is None:
                stored = await self._execute_step(name, key, action)
            elif self._replay.expects_steps:
                # Events emitted before a saved step are already in the stream.
                for event in self._replay.reach(key, current_branch()):
                    self.emitter.put(event)
        # Decoded from JSON, as later attempts get it.
        return cast(T, decode_json(stored))

    @property
    def steps(self) -> Mapping[str, Any]:
        return {name: decode_json(body) for name, body in self._step_results.items()}

    async def save(
        self,
        values: Any,
        *,
        next: tuple[str, ...] = (),
        interrupts: Sequence[Mapping[str, Any]] = (),
        metadata: Mapping[str, Any] | None = None,
        state: bytes | None = None,
        checkpoint_id: str | None = None,
        parent_id: str | None = None,
        quiet: bool = False,
    ) -> str:
        self._check()
        body = encode_json(values, what="values")
        shown = NewEvent(VALUES, body)
        shows = VALUES in self.stream_mode and not quiet
        if shows and self._replay.is_active:
            shows = self._replay.is_new(shown, current_branch())
        resumed = self.resume_metadata() if self._resumes else {}
        new = NewCheckpoint(
            values=values,
            next=list(next),
            interrupts=[Interrupt(id=str(asked["id"]), value=asked.get("value")) for asked in interrupts],
            metadata={**resumed, **(metadata or {})},
            state=state,
            checkpoint_id=checkpoint_id,
            parent_id=parent_id or self.checkpoint_id,
        )
        events = [shown] if shows else []
        self._checkpoint = await self._call_in_control_loop(lambda: self._save(new, events))
        self.saved = body
        return self._checkpoint.checkpoint_id

    async def load(self) -> Any:
        state = self._checkpoint
        if state is not None and state is self._assignment.checkpoint and state.run_id == self.run_id:
            # The agent continues from the state of an earlier attempt.
            self.end_replay()
        if state is not None and state.graph and state.values is None:
            query = CheckpointQuery(
                thread_id=self.thread_id, checkpoint_ns="", checkpoint_id=state.checkpoint_id
            )
            whole = await self.graph.find(query)
            values = state_values(whole[0]) if whole else None
            state = self._checkpoint = msgspec.structs.replace(state, values=values)
        return None if state is None else state.values

    @property
    def checkpoint(self) -> Checkpoint | None:
        return self._checkpoint

    @property
    def checkpoint_id(self) -> str | None:
        return None if self._checkpoint is None else self._checkpoint.checkpoint_id

    async def interrupt(self, value: Any) -> Any:
        self._check()
        number, self._interrupts = self._interrupts, self._interrupts + 1
        if number < len(self._resumes):
            return self._resumes[number]
        question = {"id": f"{self._assignment.origin}:{number}", "value": value}
        mode = next((mode for mode in ("updates", VALUES) if mode in self.stream_mode), None)
        encode_json(value, what="the value of an interrupt")
        if mode is not None:
            await self.emit({"__interrupt__": [question]}, mode)
        raise Interrupted([question])

    async def heartbeat(self) -> None:
        await asyncio.sleep(0)
        self._check()

    @property
    def cancelled(self) -> bool:
        return self._action is not None

    def idempotency_key(self, name: str = "") -> str:
        return f"{self._assignment.origin}:{name}" if name else self._assignment.origin

    async def resources(self) -> Any:
        resources_id = self._assignment.resources_id
        if resources_id is None:
            return None
        if self._store is None:
            raise NotSupported("this worker has no store to read resources from")
        store = self._store
        resources = await self._call_in_control_loop(lambda: store.get_resources_by_id(resources_id))
        return None if resources is None else resources.resources

    @property
    def tracer(self) -> Any:
        return self.tracing.tracer

    @property
    def traceparent(self) -> str | None:
        return self.tracing.traceparent

    @property
    def trace_content(self) -> bool:
        return self.tracing.content

    def record_span(self, span: RecordedSpan) -> None:
        self.tracing.record(span)

    def call(self, coroutine: Callable[[], Awaitable[T]]) -> T:
        if self._loop is None or _is_running(self._loop):
            raise InvalidInput("call is for sync agents; in an async agent, await the method instead")
        return call_from_thread(coroutine, self._loop)

    # --- private

    def _check(self) -> None:
        """Raise if the agent must stop. Called before each effect."""
        if self._action is not None:
            raise Cancelled(self._action)
        if self._lease_over():
            raise Cancelled("lost")
        failure = self.emitter.failure
        if isinstance(failure, Fenced):
            raise Cancelled("lost")
        if failure is not None:
            raise failure

    async def _log(self, line: envelopes.Envelope | None) -> None:
        self._check()
        self._session.put(line)
        if self._session.full:
            await self._session.wait_for_space()
            self._check()

    def _step_key(self, name: str, action: Callable[[], Any]) -> str:
        if isinstance(action, StepResult) and action.key is not None:
            return check_text(action.key, "the key of a step", max_length=MAX_STEP_KEY)
        return self._step_keys.next(name)

    async def _call_in_control_loop(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the worker's loop, to its end even if the agent is cancelled."""
        future = asyncio.run_coroutine_threadsafe(action(), self._control)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except Fenced:
            raise Cancelled(self._action or "lost") from None

    async def _emitted(self) -> list[NewEvent]:
        """Load the events that earlier attempts emitted after their last saved step."""
        events = await retry_until(
            lambda: self._queue.emitted(self._assignment.held, self._replay.after, self._replay.limit),
            what=f"events of run {self.run_id}",
            still_owned=self._still_owned,
            idempotent=True,
        )
        return [event for event in events if event.event not in RESERVED]

    async def _execute_step(self, name: str, key: str, action: Callable[[], Any]) -> str:
        """Execute a step and store its result; return the result as JSON."""
        with executing(key):
            result = action()
            value = await result if inspect.isawaitable(result) else result
        new = NewStep(key, encode_json(value, what=f"step {name!r}"), enclosing_step.get())
        if self._replay.expects_steps:
            # Let tasks that started at the same time ask for their saved steps first.
            await asyncio.sleep(0)
        self.end_replay()
        await self._call_in_control_loop(lambda: self._store_step(new))
        self._step_results[key] = new.body
        return new.body

    async def _store_step(self, step: NewStep) -> None:
        """Store a step together with, or after, the events emitted before it."""
        emitter = self.emitter
        if not emitter.is_idle:
            async with emitter.sending:
                if emitter.failure is not None:
                    raise emitter.failure
                if events := emitter.take():
                    try:
                        await self._keep(step, events)
                    except PerdureError as error:
                        self._write_failed(error, events)
                        raise
                    emitter.wrote(len(events))
                    return
        await self._keep(step, [])

    async def _keep(self, step: NewStep, events: list[NewEvent]) -> None:
        held, origin, last = self._assignment.held, self._assignment.origin, self.emitter.last
        await retry_until(
            lambda: self._queue.keep(held, origin, step.name, step.body, events, last, step.within),
            what=f"step {step.name!r} of run {self.run_id}",
            still_owned=self._still_owned,
            idempotent=last is not None or not events,
        )

    async def _save(self, new: NewCheckpoint, events: list[NewEvent]) -> Checkpoint:
        async with self.emitter.sending:
            pending = self.emitter.take()
            try:
                saved = await retry_until(
                    lambda: self._queue.save(self._assignment.held, new, [*pending, *events]),
                    what=f"checkpoint of run {self.run_id}",
                    still_owned=self._still_owned,
                )
            except PerdureError as error:
                self._write_failed(error, pending)
                raise
            self.emitter.wrote(len(pending) + len(events))
            return saved

    def _write_failed(self, error: PerdureError, pending: list[NewEvent]) -> None:
        """Let the agent correct a refused write. After other errors the stream cannot continue."""
        if error.http_status < 500 and not isinstance(error, Fenced):
            self.emitter.restore(pending)
        else:
            self.emitter.fail(error)


def _event_name(event: object) -> str:
    name = check_text(event, "the name of an event", max_length=MAX_NAME)
    if not name or not name.isprintable():
        raise InvalidInput(f"{name!r} is not a valid name of an event")
    if name in RESERVED:
        raise InvalidInput(f"event {name!r} is reserved; choose another name")
    return name


def _command(assignment: Assignment) -> dict[str, Any] | None:
    command = assignment.run.kwargs.command
    return None if command is None else dict(msgspec.to_builtins(command))


def _input_and_answers(assignment: Assignment) -> tuple[Any, list[Any]]:
    """Return the input of the agent, and the answers to its earlier interrupts."""
    command = assignment.run.kwargs.command
    checkpoint = assignment.checkpoint
    metadata = checkpoint.metadata if checkpoint is not None else {}
    if command is None or command.resume is msgspec.UNSET or checkpoint is None or RESUMES not in metadata:
        return assignment.run.kwargs.input, []
    resumes = list(metadata[RESUMES])
    if checkpoint.run_id != assignment.run.run_id:
        # Otherwise an earlier attempt of this run has already stored the answer.
        resumes.append(_answer(command.resume, checkpoint.interrupts))
    return metadata.get(INPUT), resumes


def _answer(resume: Any, interrupts: list[Interrupt]) -> Any:
    """Return the answer. A mapping with the ID of an interrupt contains the answer to that interrupt."""
    for asked in interrupts:
        if isinstance(resume, dict) and set(resume) == {asked.id}:
            return resume[asked.id]
    return resume


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
