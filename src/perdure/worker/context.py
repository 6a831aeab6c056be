"""A run as its agent sees it: called in the agent's loop, while the queue is asked in the worker's."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar, cast

import msgspec

from perdure.agents.context import Cancelled, Interrupted
from perdure.graphs.records import GraphQuery
from perdure.graphs.view import state_values
from perdure.kernel.checks import check_text
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import Fenced, InvalidInput, NotSupported, PerdureError
from perdure.kernel.retry import retry_until
from perdure.rollouts.contract import LightningStore
from perdure.streams.model import VALUES, NewEvent, Shown
from perdure.threads.queue import RunQueue
from perdure.threads.records import Checkpoint, Interrupt, NewCheckpoint
from perdure.threads.work import Assignment
from perdure.worker.emitter import Emitter
from perdure.worker.fenced_graphs import RunGraphs
from perdure.worker.run_items import RunItems
from perdure.worker.tracing import Tracing

T = TypeVar("T")

METADATA = "metadata"
RESERVED = frozenset({METADATA, "error", "end", "control"})
"""Events that only the system tells."""
MAX_NAME = 255

ORIGIN, INPUT, RESUMES = "origin", "input", "resumes"
"""What a checkpoint says, so that its run can be gone on with: where it began, with what, and the answers."""


class RunLogger(logging.LoggerAdapter[logging.Logger]):
    """Puts the run before each line, and its ids into each record."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        known = dict(self.extra or {})
        kwargs["extra"] = {**known, **(kwargs.get("extra") or {})}
        return f"run {known.get('run_id')}: {msg}", kwargs


class RunContext:
    """Implements `perdure.agents.context.Context` for one attempt."""

    def __init__(
        self,
        assignment: Assignment,
        queue: RunQueue,
        emitter: Emitter,
        tracing: Tracing,
        *,
        store: LightningStore | None = None,
        still_owned: Callable[[], bool] = lambda: True,
    ) -> None:
        run = assignment.run
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
        ids = {"run_id": run.run_id, "thread_id": run.thread_id, "attempt": assignment.attempt}
        self.logger: logging.LoggerAdapter[Any] = RunLogger(
            logging.getLogger(f"perdure.agent.{run.agent}"), ids
        )
        self.emitter = emitter
        self.tracing = tracing
        self.saved: str | None = None
        """The values that were kept last in this attempt, as JSON; None while none were."""
        self._assignment = assignment
        self._queue = queue
        self._store = store
        self._worthwhile = still_owned
        self._control = asyncio.get_running_loop()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._checkpoint = assignment.checkpoint
        self._kept = dict(assignment.steps)
        self._steps: Counter[str] = Counter()
        self._asked = 0
        self._action: str | None = None
        self.input, self._resumes = _beginning(assignment)
        self.graph = RunGraphs(assignment.held, queue, emitter, self._call_in_control_loop, self._check)
        self.items = RunItems(queue, self._call_in_control_loop, self._check)

    # --- what the worker does with it

    def enter(self) -> None:
        """The agent begins, in the task that calls this."""
        self._loop = asyncio.get_running_loop()
        self.tracing.enter()

    def cancel(self, action: str) -> None:
        """Ask the agent to stop: its next call here raises. Safe from any thread."""
        self._action = action

    def told(self) -> dict[str, Any]:
        """What the metadata of a checkpoint must tell, so that another run can go on from it."""
        return {ORIGIN: self._assignment.origin, INPUT: self.input, RESUMES: self._resumes}

    def questions(self, interrupts: Sequence[Mapping[str, Any]]) -> list[Interrupt]:
        """What a person is asked, each with an id."""
        origin = self._assignment.origin
        return [
            Interrupt(id=str(each.get("id") or f"{origin}:{number}"), value=each.get("value"))
            for number, each in enumerate(interrupts)
        ]

    # --- what the agent does with it

    async def emit(self, data: Any, event: str = "custom") -> None:
        await self.emit_json(encode_json(data, what=f"event {event!r}"), event)

    async def emit_json(self, body: str, event: str, shown: Shown | None = None) -> None:
        self._check()
        self.emitter.put(NewEvent(_event_name(event), body, shown))
        if self.emitter.full:
            await self.emitter.room()
            self._check()

    async def step(self, name: str, action: Callable[[], T | Awaitable[T]]) -> T:
        self._check()
        key = self._key(check_text(name, "the name of a step", max_length=MAX_NAME))
        kept = self._kept.get(key)
        if kept is None:
            result = action()
            body = encode_json(await result if inspect.isawaitable(result) else result, what=f"step {name!r}")
            await self._call_in_control_loop(lambda: self._keep(key, body))
            kept = self._kept[key] = body
        # What JSON makes of it, as later attempts will see it.
        return cast(T, decode_json(kept))

    @property
    def steps(self) -> Mapping[str, Any]:
        return {name: decode_json(body) for name, body in self._kept.items()}

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
        resumed = self.told() if self._resumes else {}
        new = NewCheckpoint(
            values=values,
            next=list(next),
            interrupts=[Interrupt(id=str(each["id"]), value=each.get("value")) for each in interrupts],
            metadata={**resumed, **(metadata or {})},
            state=state,
            checkpoint_id=checkpoint_id,
            parent_id=parent_id or self.checkpoint_id,
        )
        events = [NewEvent(VALUES, body)] if VALUES in self.stream_mode and not quiet else []
        self._checkpoint = await self._call_in_control_loop(lambda: self._save(new, events))
        self.saved = body
        return self._checkpoint.checkpoint_id

    async def load(self) -> Any:
        found = self._checkpoint
        if found is not None and found.graph and found.values is None:
            query = GraphQuery(thread_id=self.thread_id, checkpoint_ns="", checkpoint_id=found.checkpoint_id)
            whole = await self.graph.find(query)
            values = state_values(whole[0]) if whole else None
            found = self._checkpoint = msgspec.structs.replace(found, values=values)
        return None if found is None else found.values

    @property
    def checkpoint(self) -> Checkpoint | None:
        return self._checkpoint

    @property
    def checkpoint_id(self) -> str | None:
        return None if self._checkpoint is None else self._checkpoint.checkpoint_id

    async def interrupt(self, value: Any) -> Any:
        self._check()
        number, self._asked = self._asked, self._asked + 1
        if number < len(self._resumes):
            return self._resumes[number]
        asking = {"id": f"{self._assignment.origin}:{number}", "value": value}
        mode = next((mode for mode in ("updates", VALUES) if mode in self.stream_mode), None)
        encode_json(value, what="the value of an interrupt")
        if mode is not None:
            await self.emit({"__interrupt__": [asking]}, mode)
        raise Interrupted([asking])

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
            raise NotSupported("this worker was given no store to read resources from")
        store = self._store
        found = await self._call_in_control_loop(lambda: store.get_resources_by_id(resources_id))
        return None if found is None else found.resources

    @property
    def tracer(self) -> Any:
        return self.tracing.tracer

    def call(self, coroutine: Callable[[], Awaitable[T]]) -> T:
        if self._loop is None or _is_running(self._loop):
            raise InvalidInput("call is for agents that are no coroutines; await the method instead")
        return asyncio.run_coroutine_threadsafe(_awaited(coroutine), self._loop).result()

    # --- how

    def _check(self) -> None:
        if self._action is not None:
            raise Cancelled(self._action)
        failure = self.emitter.failure
        if isinstance(failure, Fenced):
            raise Cancelled("lost")
        if failure is not None:
            raise failure

    def _key(self, name: str) -> str:
        self._steps[name] += 1
        number = self._steps[name]
        return name if number == 1 else f"{name}#{number}"

    async def _call_in_control_loop(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do something in the worker's loop; once begun it is done, even if the agent is cancelled."""
        asked = asyncio.run_coroutine_threadsafe(action(), self._control)
        try:
            return await asyncio.shield(asyncio.wrap_future(asked))
        except Fenced:
            raise Cancelled(self._action or "lost") from None

    async def _keep(self, key: str, body: str) -> None:
        await retry_until(
            lambda: self._queue.keep(self._assignment.held, self._assignment.origin, key, body),
            what=f"step {key!r} of run {self.run_id}",
            still_owned=self._worthwhile,
            idempotent=True,
        )

    async def _save(self, new: NewCheckpoint, events: list[NewEvent]) -> Checkpoint:
        async with self.emitter.sending:
            waiting = self.emitter.take()
            try:
                saved = await retry_until(
                    lambda: self._queue.save(self._assignment.held, new, [*waiting, *events]),
                    what=f"checkpoint of run {self.run_id}",
                    still_owned=self._worthwhile,
                )
            except PerdureError as error:
                self._unsaved(error, waiting)
                raise
            self.emitter.wrote(len(waiting) + len(events))
            return saved

    def _unsaved(self, error: PerdureError, waiting: list[NewEvent]) -> None:
        """A refused checkpoint is the agent's to mend; of anything else the stream cannot go on after."""
        if error.http_status < 500 and not isinstance(error, Fenced):
            self.emitter.restore(waiting)
        else:
            self.emitter.fail(error)


def _event_name(event: object) -> str:
    name = check_text(event, "the name of an event", max_length=MAX_NAME)
    if not name or not name.isprintable():
        raise InvalidInput(f"an event cannot be called {name!r}")
    if name in RESERVED:
        raise InvalidInput(f"the event {name!r} is told by the system alone")
    return name


def _command(assignment: Assignment) -> dict[str, Any] | None:
    command = assignment.run.kwargs.command
    return None if command is None else dict(msgspec.to_builtins(command))


def _beginning(assignment: Assignment) -> tuple[Any, list[Any]]:
    """What the agent begins with, and the answers to what it asked before."""
    command = assignment.run.kwargs.command
    found = assignment.checkpoint
    told = found.metadata if found is not None else {}
    if command is None or command.resume is msgspec.UNSET or found is None or RESUMES not in told:
        return assignment.run.kwargs.input, []
    resumes = list(told[RESUMES])
    if found.run_id != assignment.run.run_id:
        # An earlier attempt of this run has kept the answer already.
        resumes.append(_answer(command.resume, found.interrupts))
    return told.get(INPUT), resumes


def _answer(resume: Any, interrupts: list[Interrupt]) -> Any:
    """The answer, which may be given by the id of what was asked."""
    for asked in interrupts:
        if isinstance(resume, dict) and set(resume) == {asked.id}:
            return resume[asked.id]
    return resume


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


async def _awaited(coroutine: Callable[[], Awaitable[T]]) -> T:
    return await coroutine()
