"""The program that runs one attempt of an agent in a process of its own, on a line to the worker."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import msgspec

from perdure.agents.context import Cancelled
from perdure.agents.loading import import_target
from perdure.graphs.records import GraphDelta, GraphDeltaQuery, GraphQuery, GraphSteps, GraphTuple
from perdure.items.calls import ItemCalls
from perdure.items.records import ItemOp, ItemResult
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.config import load_settings
from perdure.kernel.errors import InvalidInput, NotSupported
from perdure.streams.model import Shown
from perdure.threads.records import Checkpoint
from perdure.worker.registry import make_agent
from perdure.worker.retry_policy import RetryPolicy, failure_of
from perdure.worker.tracing import NoTracer

T = TypeVar("T")

ORPHAN_SECONDS = 5.0
"""How long the process may live on when its worker is gone."""


class Pipe:
    """The line to the worker. Whatever the agent prints goes to stderr instead, where it disturbs nobody."""

    def __init__(self) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def say(self, message: Mapping[str, Any]) -> None:
        """Write a line; it waits while the worker reads slowly."""
        self.write(encode_json(message, what=f"the {message['type']} line").encode() + b"\n")

    def write(self, line: bytes) -> None:
        with self._lock:
            while line:
                line = line[os.write(self._out, line) :]

    def hear(self) -> dict[str, Any] | None:
        """The next line, or None when the worker has gone."""
        line = sys.stdin.buffer.readline()
        return dict(decode_json(line)) if line else None


class LogLines(logging.Handler):
    """Sends what is logged to the worker's log."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        self._pipe.say({"type": "log", "level": record.levelname.lower(), "message": self.format(record)})


class ChildContext:
    """Implements `perdure.agents.context.Context` by asking the worker."""

    def __init__(self, start: Mapping[str, Any], pipe: Pipe) -> None:
        self.run_id: str = start["run_id"]
        self.thread_id: str = start["thread_id"]
        self.assistant_id: str = start["assistant_id"]
        self.attempt: int = start["attempt"]
        self.config: Mapping[str, Any] = start["config"]
        self.context: Mapping[str, Any] = start["context"]
        self.metadata: Mapping[str, Any] = start["metadata"]
        self.options: Mapping[str, Any] = start["options"]
        self.stream_mode = tuple(start["stream_mode"])
        self.command: Mapping[str, Any] | None = start["command"]
        self.from_checkpoint: str | None = start.get("from_checkpoint")
        logger = logging.getLogger("perdure.agent")
        logger.addHandler(LogLines(pipe))
        logger.setLevel(logging.INFO)
        logger.propagate = False
        self.logger: logging.LoggerAdapter[Any] = logging.LoggerAdapter(logger, {"run_id": self.run_id})
        self.tracer: Any = NoTracer()
        self.checkpoint = _checkpoint(start.get("checkpoint"))
        self._key: str = start["idempotency_key"]
        self._kept: dict[str, Any] = dict(start["steps"])
        self._pipe = pipe
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._seen: dict[str, int] = {}
        self._action: str | None = None

    @property
    def graph(self) -> ChildGraphs:
        return ChildGraphs(self, self._pipe)

    @property
    def items(self) -> ChildItems:
        return ChildItems(self)

    # --- what the worker says

    def told(self, message: dict[str, Any]) -> None:
        """An answer has come."""
        waiting = self._waiting.pop(message.get("id", 0), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def cancel(self, action: str) -> None:
        self._action = action

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Say something, and wait for the answer."""
        self._check()
        number = next(self._numbers)
        self._waiting[number] = self._loop.create_future()
        self._pipe.say({**message, "id": number})
        return await self._waiting[number]

    def _check(self) -> None:
        if self._action is not None:
            raise Cancelled(self._action)

    # --- what the agent does

    async def emit(self, data: Any, event: str = "custom") -> None:
        self._check()
        self._pipe.say({"type": "event", "event": event, "data": data})

    async def emit_json(self, body: str, event: str, shown: Shown | None = None) -> None:
        self._check()
        head = encode_json({"type": "event", "event": event, "shown": shown})[:-1]
        self._pipe.write(f'{head},"data":{body}}}\n'.encode())

    async def step(self, name: str, action: Callable[[], T | Awaitable[T]]) -> T:
        self._check()
        number = self._seen[name] = self._seen.get(name, 0) + 1
        key = name if number == 1 else f"{name}#{number}"
        if key not in self._kept:
            result = action()
            self._kept[key] = await result if inspect.isawaitable(result) else result
        # The worker counts the steps as well, so that it hears of every one.
        answer = await self.ask({"type": "step", "name": name, "result": self._kept[key]})
        self._kept[key] = answer["result"]
        return cast(T, answer["result"])

    @property
    def steps(self) -> Mapping[str, Any]:
        return dict(self._kept)

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
        saving = {
            "values": values,
            "next": next,
            "interrupts": interrupts,
            "metadata": metadata,
            "state": msgspec.to_builtins(state),
            "checkpoint_id": checkpoint_id,
            "parent_id": parent_id,
            "quiet": quiet,
        }
        saved = await self.ask({"type": "save", **saving})
        known = {**saving, "metadata": metadata or {}, "checkpoint_id": saved["checkpoint_id"]}
        self.checkpoint = _checkpoint(
            {**known, "thread_id": self.thread_id, "run_id": self.run_id, "step": 0, "created_at": 0.0}
        )
        return str(saved["checkpoint_id"])

    async def load(self) -> Any:
        return None if self.checkpoint is None else self.checkpoint.values

    async def interrupt(self, value: Any) -> Any:
        return (await self.ask({"type": "interrupt", "value": value}))["value"]

    async def heartbeat(self) -> None:
        await asyncio.sleep(0)
        self._check()

    @property
    def cancelled(self) -> bool:
        return self._action is not None

    def idempotency_key(self, name: str = "") -> str:
        return f"{self._key}:{name}" if name else self._key

    async def resources(self) -> Any:
        raise NotSupported("an agent in a process of its own gets no resources")

    def call(self, coroutine: Callable[[], Awaitable[T]]) -> T:
        if threading.current_thread() is threading.main_thread():
            raise NotSupported("a process of its own has one loop: await what would wait for it here")

        async def awaited() -> T:
            return await coroutine()

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result()


class ChildGraphs:
    """Implements `perdure.agents.context.GraphCheckpoints` by asking the worker."""

    def __init__(self, context: ChildContext, pipe: Pipe) -> None:
        self._context = context
        self._pipe = pipe

    def put(self, steps: GraphSteps) -> None:
        self._pipe.say({"type": "record", "steps": msgspec.to_builtins(steps)})

    async def ready(self) -> None:
        await self._context.heartbeat()

    async def settle(self) -> None:
        await self._context.ask({"type": "settle"})

    async def find(self, query: GraphQuery) -> list[GraphTuple]:
        answer = await self._context.ask({"type": "find", "query": msgspec.to_builtins(query)})
        return msgspec.convert(answer["found"], list[GraphTuple])

    async def deltas(self, query: GraphDeltaQuery) -> list[GraphDelta]:
        answer = await self._context.ask({"type": "deltas", "query": msgspec.to_builtins(query)})
        return msgspec.convert(answer["found"], list[GraphDelta])

    def wait(self, asking: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._context.call(asking)


class ChildItems(ItemCalls):
    """What is remembered beyond a thread, by asking the worker."""

    def __init__(self, context: ChildContext) -> None:
        self._context = context

    async def batch(self, ops: Sequence[ItemOp]) -> list[ItemResult]:
        answer = await self._context.ask({"type": "items", "ops": msgspec.to_builtins(list(ops))})
        if "refused" in answer:
            raise InvalidInput(answer["refused"])
        return msgspec.convert(answer["results"], list[ItemResult])

    def wait(self, asking: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._context.call(asking)


def _checkpoint(told: dict[str, Any] | None) -> Checkpoint | None:
    return None if told is None else msgspec.convert(told, Checkpoint, strict=False)


async def _run(path: str, start: dict[str, Any], pipe: Pipe) -> None:
    context = ChildContext(start, pipe)
    task = asyncio.current_task()
    assert task is not None
    threading.Thread(target=_listen, args=(pipe, context, task), daemon=True).start()
    agent = make_agent("agent", import_target(path))
    pipe.say({"type": "result", "values": await agent.run(context, start["input"])})


def _listen(pipe: Pipe, context: ChildContext, task: asyncio.Task[Any]) -> None:
    loop = task.get_loop()
    while (message := pipe.hear()) is not None:
        if message["type"] == "cancel":
            context.cancel(message["action"])
            loop.call_soon_threadsafe(task.cancel)
        else:
            loop.call_soon_threadsafe(context.told, message)
    context.cancel("lost")
    loop.call_soon_threadsafe(task.cancel)
    threading.Event().wait(ORPHAN_SECONDS)
    os._exit(1)


def main() -> NoReturn:
    """Run the attempt that the first line tells of."""
    pipe = Pipe()
    start = pipe.hear()
    if start is None:
        os._exit(1)
    sys.path.insert(0, str(Path.cwd()))
    try:
        asyncio.run(_run(sys.argv[1], start, pipe))
    except (Cancelled, asyncio.CancelledError):
        _leave(0)
    except BaseException as error:  # noqa: BLE001 - it is the worker's to judge
        traceback.print_exc()
        retriable = RetryPolicy(load_settings().job_retriable).is_retriable(error)
        failure = failure_of(error)
        pipe.say(
            {"type": "error", "error": failure.error, "message": failure.message, "retriable": retriable}
        )
    _leave(0)


def _leave(code: int) -> NoReturn:
    """End at once: threads that an agent left behind would keep the process waiting."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
