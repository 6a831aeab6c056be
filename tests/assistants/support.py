"""A run in memory, as an agent sees it, for tests of agents without a database."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from perdure.assistants.agents import Agent
from perdure.assistants.context import Cancelled, Context, Interrupted
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import Conflict

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
    state: bytes | None


class Thread:
    """What outlives a run: the states of a thread, and the steps that were kept."""

    def __init__(self) -> None:
        self.checkpoints: list[Checkpoint] = []
        self.steps: dict[str, str] = {}


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
    ) -> None:
        self.thread = thread or Thread()
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
        self.answers = list(answers)
        self.events: list[tuple[str, Any]] = []
        self.told = asyncio.Condition()
        self.action: str | None = None
        self.loop = asyncio.get_running_loop()

    async def until(self, event: str) -> None:
        """Wait until an event was told."""
        async with asyncio.timeout(PATIENCE), self.told:
            await self.told.wait_for(lambda: any(name == event for name, _ in self.events))

    def _check(self) -> None:
        if self.action is not None:
            raise Cancelled(self.action)

    async def emit(self, data: Any, event: str = "custom") -> None:
        self._check()
        await asyncio.sleep(0)
        async with self.told:
            self.events.append((event, decode_json(encode_json(data, what=f"event {event!r}"))))
            self.told.notify_all()

    async def step(self, name: str, action: Callable[[], T | Awaitable[T]]) -> T:
        self._check()
        if name not in self.thread.steps:
            result = action()
            body = encode_json(await result if inspect.isawaitable(result) else result)
            self.thread.steps[name] = body
        kept: T = decode_json(self.thread.steps[name])
        return kept

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
        self._check()
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
        return self.thread.checkpoints[-1] if self.thread.checkpoints else None

    async def interrupt(self, value: Any) -> Any:
        self._check()
        if self.answers:
            return self.answers.pop(0)
        raise Interrupted([{"id": "0", "value": value}])

    async def heartbeat(self) -> None:
        await asyncio.sleep(0)
        self._check()

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

    def call(self, coroutine: Callable[[], Awaitable[T]]) -> T:
        async def awaited() -> T:
            return await coroutine()

        return asyncio.run_coroutine_threadsafe(awaited(), self.loop).result()


def as_context(ctx: MemoryContext) -> Context:
    """That it is a `Context` is checked here, once, by whoever checks types."""
    return ctx


async def run(agent: Agent, ctx: MemoryContext, input: Any = None) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await agent.run(as_context(ctx), input)


def start(agent: Agent, ctx: MemoryContext, input: Any = None) -> asyncio.Task[Any]:
    return asyncio.create_task(run(agent, ctx, input))
