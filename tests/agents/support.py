"""A run in memory, as an agent sees it, for tests of agents without a database."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from perdure.access.tables import TABLES as ACCESS_TABLES
from perdure.agents.context import Agent, Cancelled, Context, Interrupted
from perdure.agents.records import PhaseContext, RecordedSpan
from perdure.checkpoints.records import (
    CheckpointQuery,
    GraphDelta,
    GraphDeltaQuery,
    GraphState,
    GraphSteps,
    GraphTuple,
)
from perdure.checkpoints.service import StoredCheckpoints
from perdure.checkpoints.tables import TABLES as GRAPH_TABLES
from perdure.checkpoints.view import state_values
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import Conflict
from perdure.kernel.storage.sqlite import SqliteStorage
from perdure.sessions.transcripts.reading import find_format
from perdure.streams.model import Shown
from perdure.streams.tables import TABLES as STREAM_TABLES
from perdure.worker.emitter import joined

T = TypeVar("T")
PATIENCE = 20.0
"""Seconds within which anything that must happen has happened, on the slowest machine."""


class Checkpoint(msgspec.Struct, kw_only=True):
    checkpoint_id: str
    run_id: str
    values: Any
    next: tuple[str, ...]
    interrupts: list[Any]
    metadata: Any
    state: bytes | None = None
    graph: bool = False
    parent_id: str | None = None


OPENED: list[SqliteStorage] = []
"""The databases of threads, closed after each test."""


class Thread:
    """What outlives a run: the states of a thread, what its graphs keep, and the steps that were kept."""

    def __init__(self) -> None:
        self.checkpoints: list[Checkpoint] = []
        self.steps: dict[str, str] = {}
        self._graphs: StoredCheckpoints | None = None

    @property
    def graphs(self) -> StoredCheckpoints:
        if self._graphs is None:
            OPENED.append(SqliteStorage(":memory:", (*ACCESS_TABLES, *STREAM_TABLES, *GRAPH_TABLES)))
            self._graphs = StoredCheckpoints(OPENED[-1])
        return self._graphs


class MemoryGraphs:
    """Where the graph of a run keeps its checkpoints."""

    def __init__(self, ctx: MemoryContext) -> None:
        self.settled = 0
        self.reads = 0
        self.lost = False
        """Whether the worker has died: what is put arrives nowhere."""
        self._ctx = ctx
        self._waiting: list[GraphSteps] = []

    def put(self, steps: GraphSteps) -> None:
        self._waiting.append(steps)

    async def ready(self) -> None:
        self._ctx.check()

    async def settle(self) -> None:
        self._ctx.check()
        waiting, self._waiting = self._waiting, []
        if not waiting or self.lost:
            return
        self.settled += 1
        steps = joined(waiting)
        # It travels as it would to a server.
        steps = msgspec.convert(msgspec.to_builtins(steps), GraphSteps)
        await self._ctx.thread.graphs.put(steps.changes)
        for state in steps.states:
            await self._show(state)

    async def _show(self, state: GraphState) -> None:
        thread = self._ctx.thread
        found = [each for each in thread.checkpoints if each.checkpoint_id == state.checkpoint_id]
        assert bool(found) == state.again
        if not found:
            shown = Checkpoint(
                checkpoint_id=state.checkpoint_id,
                run_id=self._ctx.run_id,
                values=None,
                next=(),
                interrupts=[],
                metadata=state.metadata,
                graph=True,
                parent_id=state.parent_id,
            )
            thread.checkpoints.append(shown)
            found = [shown]
        found[0].next, found[0].interrupts = tuple(state.next), state.interrupts
        query = CheckpointQuery(
            thread_id=self._ctx.thread_id, checkpoint_ns="", checkpoint_id=state.checkpoint_id
        )
        kept = await thread.graphs.find(query)
        found[0].values = decode_json(encode_json(state_values(kept[0])))
        if state.body is not None:
            body, pieces = decode_json(state.body), found[0].values
            # A channel that nothing was written to is not in pieces, but may have a value all the same.
            assert state.whole or not isinstance(body, dict) or {**body, **pieces} == body
            found[0].values = body

    async def find(self, query: CheckpointQuery) -> list[GraphTuple]:
        self.reads += 1
        return await self._ctx.thread.graphs.find(query)

    async def deltas(self, query: GraphDeltaQuery) -> list[GraphDelta]:
        return await self._ctx.thread.graphs.delta(query)

    def wait(self, asking: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(asking(), self._ctx.loop).result()


class MemoryContext:
    """One attempt of a run on a thread."""

    def __init__(
        self,
        thread: Thread | None = None,
        *,
        run_id: str = "00000000-0000-7000-8000-000000000001",
        attempt: int = 1,
        config: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
        command: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        stream_mode: Sequence[str] = ("values",),
        answers: Sequence[Any] = (),
        from_checkpoint: str | None = None,
    ) -> None:
        self.thread = thread or Thread()
        self.from_checkpoint = from_checkpoint
        self.traceparent: str | None = None
        self.trace_content = True
        self.spans: list[RecordedSpan] = []
        self.graph = MemoryGraphs(self)
        self.items: Any = None
        self.memory: Any = None
        self.run_id = run_id
        self.thread_id = "00000000-0000-7000-8000-00000000000a"
        self.assistant_id = "00000000-0000-7000-8000-00000000000b"
        self.attempt = attempt
        self.config = config or {}
        self.context = context or {}
        self.metadata: Mapping[str, Any] = {"given": "metadata"}
        self.options = options or {}
        self.stream_mode = tuple(stream_mode)
        self.command = command
        self.logger = logging.LoggerAdapter(logging.getLogger("tests.agent"), {})
        self.phase: PhaseContext | None = None
        self.answers = list(answers)
        self.events: list[tuple[str, Any]] = []
        self.shown: list[Shown | None] = []
        """The checkpoint that each of the events shows, if it shows one."""
        self.told = asyncio.Condition()
        self.action: str | None = None
        self.loop = asyncio.get_running_loop()
        self.session_id = self.thread_id
        self.logged: list[tuple[Any, ...]] = []
        """What was written to the session."""

    async def until(self, event: str) -> None:
        """Wait until an event was told."""
        async with asyncio.timeout(PATIENCE), self.told:
            await self.told.wait_for(lambda: any(name == event for name, _ in self.events))

    def check(self) -> None:
        if self.action is not None:
            raise Cancelled(self.action)

    async def emit(self, data: Any, event: str = "custom") -> None:
        await self.emit_json(encode_json(data, what=f"event {event!r}"), event)

    async def emit_json(self, body: str, event: str, shown: Shown | None = None) -> None:
        self.check()
        await asyncio.sleep(0)
        assert "\n" not in body
        async with self.told:
            self.events.append((event, decode_json(body)))
            self.shown.append(shown)
            self.told.notify_all()

    async def session(self, id: str | None = None, cwd: str | None = None) -> str:
        self.session_id = id or self.session_id
        self.logged.append(("session", self.session_id, cwd))
        return self.session_id

    async def message(
        self, role: str, content: Any, model: str | None = None, usage: Mapping[str, Any] | None = None
    ) -> None:
        self.logged.append(("message", role, content, model, usage))

    async def tool_result(self, id: str, content: Any, is_error: bool = False) -> None:
        self.logged.append(("tool_result", id, content, is_error))

    async def usage(self, **figures: Any) -> None:
        told = {name: figure for name, figure in figures.items() if figure is not None}
        self.logged.append(("usage", told))

    async def transcript(self, line: Mapping[str, Any]) -> bool:
        known = find_format(line) is not None or bool(self.logged)
        if known:
            self.logged.append(("transcript", line))
        return known

    async def step(self, name: str, action: Callable[[], T | Awaitable[T]]) -> T:
        self.check()
        if name not in self.thread.steps:
            result = action()
            body = encode_json(await result if inspect.isawaitable(result) else result)
            self.thread.steps[name] = body
        kept: T = decode_json(self.thread.steps[name])
        return kept

    def end_replay(self) -> None:
        pass

    @property
    def steps(self) -> Mapping[str, Any]:
        return {name: decode_json(body) for name, body in self.thread.steps.items()}

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
        self.check()
        made = checkpoint_id or f"checkpoint-{len(self.thread.checkpoints)}"
        if any(each.checkpoint_id == made for each in self.thread.checkpoints):
            raise Conflict(f"checkpoint {made} is there")
        plain = decode_json(encode_json(values, what="values"))
        encode_json(metadata, what="metadata")
        self.thread.checkpoints.append(
            Checkpoint(
                checkpoint_id=made,
                run_id=self.run_id,
                values=plain,
                next=next,
                interrupts=decode_json(encode_json(list(interrupts))),
                metadata=metadata,
                state=state,
            )
        )
        if not quiet and "values" in self.stream_mode:
            await self.emit(values, "values")
        return made

    async def load(self) -> Any:
        return self.checkpoint.values if self.checkpoint else None

    @property
    def checkpoint(self) -> Checkpoint | None:
        known = self.thread.checkpoints
        if self.from_checkpoint is not None and known[-1].run_id != self.run_id:
            return next(each for each in known if each.checkpoint_id == self.from_checkpoint)
        return known[-1] if known else None

    async def interrupt(self, value: Any) -> Any:
        self.check()
        if self.answers:
            return self.answers.pop(0)
        raise Interrupted([{"id": "0", "value": value}])

    async def heartbeat(self) -> None:
        await asyncio.sleep(0)
        self.check()

    @property
    def cancelled(self) -> bool:
        return self.action is not None

    def idempotency_key(self, name: str = "") -> str:
        return f"{self.run_id}:{name}" if name else self.run_id

    async def resources(self) -> Any:
        return None

    @property
    def tracer(self) -> Any:
        return None

    def record_span(self, span: RecordedSpan) -> None:
        self.spans.append(span)

    def call(self, coroutine: Callable[[], Awaitable[T]]) -> T:
        async def awaited() -> T:
            return await coroutine()

        return asyncio.run_coroutine_threadsafe(awaited(), self.loop).result()


def as_context(ctx: MemoryContext) -> Context:
    """That it is a `Context` is checked here, once, by whoever checks types."""
    return ctx


async def run(agent: Agent, ctx: MemoryContext, input: Any = None) -> Any:
    async with asyncio.timeout(PATIENCE):
        try:
            return await agent.run(as_context(ctx), input)
        finally:
            if ctx.action is None:
                await ctx.graph.settle()


def start(agent: Agent, ctx: MemoryContext, input: Any = None) -> asyncio.Task[Any]:
    return asyncio.create_task(run(agent, ctx, input))
