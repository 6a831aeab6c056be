"""Program of an isolated agent: it executes one attempt, and exchanges JSON lines with the worker."""

from __future__ import annotations

import asyncio
import gc
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

from perdure.agents.context import (
    AgentError,
    Cancelled,
    StepKeys,
    call_from_thread,
    current_branch,
    enclosing_step,
    executing,
)
from perdure.agents.loading import import_target
from perdure.agents.records import PhaseContext, RecordedSpan
from perdure.checkpoints.records import CheckpointQuery, GraphDelta, GraphDeltaQuery, GraphSteps, GraphTuple
from perdure.items.calls import ItemCalls
from perdure.items.records import ItemOp, ItemResult
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.config import load_settings
from perdure.kernel.errors import InvalidInput, NotSupported
from perdure.kernel.lifecycle import settle_garbage_collector
from perdure.memory.records import SearchResult
from perdure.rollouts.resources import validate_resources
from perdure.sessions import envelopes
from perdure.sessions.transcripts.reading import find_format
from perdure.spans.recording import SpanRecorder, enter_span, parse_traceparent, share_span
from perdure.streams.model import Shown
from perdure.threads.records import Checkpoint
from perdure.worker.registry import make_agent
from perdure.worker.retry_policy import RetryPolicy, build_failure
from perdure.worker.tracing import NoTracer, follow_langchain, make_tracer, step_span

T = TypeVar("T")

ORPHAN_SECONDS = 5.0
"""How long the process may continue after the worker has exited."""


class Pipe:
    """Connection to the worker on stdin and stdout. Output of the agent goes to stderr instead."""

    def __init__(self) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; block while the worker reads slowly."""
        self.write(encode_json(message, what=f"the {message['type']} line").encode() + b"\n")

    def write(self, line: bytes) -> None:
        with self._lock:
            while line:
                line = line[os.write(self._out, line) :]

    def receive(self) -> dict[str, Any] | None:
        """Return the next message, or None after the worker has exited."""
        line = sys.stdin.buffer.readline()
        return dict(decode_json(line)) if line else None


class LogLines(logging.Handler):
    """Log handler that sends records to the worker's log."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        self._pipe.send({"type": "log", "level": record.levelname.lower(), "message": self.format(record)})


class ChildContext:
    """Implements `perdure.agents.context.Context` with requests to the worker."""

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
        phase = start.get("phase")
        self.phase: PhaseContext | None = None if phase is None else msgspec.convert(phase, PhaseContext)
        logger = logging.getLogger("perdure.agent")
        logger.addHandler(LogLines(pipe))
        logger.setLevel(logging.INFO)
        logger.propagate = False
        self.logger: logging.LoggerAdapter[Any] = logging.LoggerAdapter(logger, {"run_id": self.run_id})
        self.traceparent: str | None = start.get("traceparent")
        self.trace_content: bool = start.get("trace_content", True)
        self._tracer: Any = None
        self.recorder = self._new_recorder()
        self.checkpoint = self._first_checkpoint = _checkpoint(start.get("checkpoint"))
        self._key: str = start["idempotency_key"]
        self.session_id: str = start["session_id"]
        self._step_results: dict[str, Any] = dict(start["steps"])
        self._pipe = pipe
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._step_keys = StepKeys()
        self._action: str | None = None

    @property
    def graph(self) -> ChildGraphs:
        return ChildGraphs(self, self._pipe)

    @property
    def items(self) -> ChildItems:
        return ChildItems(self)

    @property
    def memory(self) -> ChildMemory:
        return ChildMemory(self)

    def _new_recorder(self) -> SpanRecorder | None:
        """Create the recorder of this attempt's spans, if the attempt is traced."""
        parent = parse_traceparent(self.traceparent)
        if parent is None:
            return None
        ref, sampled = parent
        enter_span(ref)
        return SpanRecorder(ref, self.record_span, content=self.trace_content) if sampled else None

    # --- messages of the worker

    def receive_answer(self, message: dict[str, Any]) -> None:
        """Pass an answer to the call that waits for it."""
        waiting = self._waiting.pop(message.get("id", 0), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def cancel(self, action: str) -> None:
        self._action = action

    async def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a request, and wait for its answer."""
        self._check()
        number = next(self._numbers)
        self._waiting[number] = self._loop.create_future()
        self._pipe.send({**message, "id": number, "branch": current_branch()})
        return await self._waiting[number]

    def _check(self) -> None:
        if self._action is not None:
            raise Cancelled(self._action)

    # --- called by the agent

    async def emit(self, data: Any, event: str = "custom") -> None:
        self._check()
        self._pipe.send({"type": "event", "event": event, "data": data, "branch": current_branch()})

    async def emit_json(self, body: str, event: str, shown: Shown | None = None) -> None:
        self._check()
        branch = current_branch()
        head = encode_json({"type": "event", "event": event, "shown": shown, "branch": branch})[:-1]
        self._pipe.write(f'{head},"data":{body}}}\n'.encode())

    async def session(self, id: str | None = None, cwd: str | None = None) -> str:
        answer = await self.request({"type": "session", "session_id": id, "cwd": cwd})
        self.session_id = answer["session_id"]
        return self.session_id

    async def message(
        self,
        role: str,
        content: Any,
        model: str | None = None,
        usage: Mapping[str, Any] | None = None,
    ) -> None:
        envelopes.message(role, content, model=model, usage=usage)
        self._log({"type": "message", "role": role, "content": content, "model": model, "usage": usage})

    async def tool_result(self, id: str, content: Any, is_error: bool = False) -> None:
        envelopes.tool_result(id, content, is_error=is_error)
        self._log({"type": "tool_result", "tool_use_id": id, "content": content, "is_error": is_error})

    async def usage(self, **figures: Any) -> None:
        envelopes.result(**figures)
        self._log({"type": "usage", **figures})

    async def transcript(self, line: Mapping[str, Any]) -> bool:
        is_known = find_format(line) is not None
        if is_known:
            self._log({"type": "transcript", "line": line})
        return is_known

    def _log(self, message: Mapping[str, Any]) -> None:
        """Send a line of the session. It was checked here, so that the agent gets the error."""
        self._check()
        self._pipe.send(message)

    async def step(self, name: str, action: Callable[[], T | Awaitable[T]]) -> T:
        self._check()
        key = self._step_keys.next(name)
        with step_span(self.recorder, name, action, replayed=key in self._step_results):
            if key not in self._step_results:
                with executing(key):
                    result = action()
                    self._step_results[key] = await result if inspect.isawaitable(result) else result
                # Let tasks that started at the same time ask for their saved steps first.
                await asyncio.sleep(0)
            # Send every step: the worker drops events emitted before a saved step.
            step = {"name": name, "key": key, "result": self._step_results[key]}
            answer = await self.request(
                {"type": "step", "traced": True, "within": enclosing_step.get(), **step}
            )
        self._step_results[key] = answer["result"]
        return cast(T, answer["result"])

    def end_replay(self) -> None:
        self._pipe.send({"type": "load"})

    @property
    def steps(self) -> Mapping[str, Any]:
        return dict(self._step_results)

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
        saved = await self.request({"type": "save", **saving})
        stored = {**saving, "metadata": metadata or {}, "checkpoint_id": saved["checkpoint_id"]}
        self.checkpoint = _checkpoint(
            {**stored, "thread_id": self.thread_id, "run_id": self.run_id, "step": 0, "created_at": 0.0}
        )
        return str(saved["checkpoint_id"])

    async def load(self) -> Any:
        state = self.checkpoint
        if state is not None and state is self._first_checkpoint and state.run_id == self.run_id:
            self.end_replay()
        return None if state is None else state.values

    async def interrupt(self, value: Any) -> Any:
        return (await self.request({"type": "interrupt", "value": value}))["value"]

    async def heartbeat(self) -> None:
        await asyncio.sleep(0)
        self._check()

    @property
    def cancelled(self) -> bool:
        return self._action is not None

    def idempotency_key(self, name: str = "") -> str:
        return f"{self._key}:{name}" if name else self._key

    async def resources(self) -> Any:
        answer = await self.request({"type": "resources"})
        if "refused" in answer:
            raise NotSupported(answer["refused"])
        resources = answer["resources"]
        return None if resources is None else validate_resources(resources)

    @property
    def tracer(self) -> Any:
        if self._tracer is None:
            parent = parse_traceparent(self.traceparent)
            self._tracer = make_tracer(self.record_span, parent[0].trace_id) if parent else NoTracer()
        share_span()
        return self._tracer

    def record_span(self, span: RecordedSpan) -> None:
        self._pipe.send({"type": "span", "span": msgspec.to_builtins(span)})

    def call(self, coroutine: Callable[[], Awaitable[T]]) -> T:
        if threading.current_thread() is threading.main_thread():
            raise NotSupported("an isolated agent has one event loop: await the method instead")
        return call_from_thread(coroutine, self._loop)


class ChildGraphs:
    """Implements `perdure.agents.context.GraphCheckpoints` with requests to the worker."""

    def __init__(self, context: ChildContext, pipe: Pipe) -> None:
        self._context = context
        self._pipe = pipe

    def put(self, steps: GraphSteps) -> None:
        self._pipe.send({"type": "record", "steps": msgspec.to_builtins(steps)})

    async def ready(self) -> None:
        await self._context.heartbeat()

    async def settle(self) -> None:
        await self._context.request({"type": "settle"})

    async def find(self, query: CheckpointQuery) -> list[GraphTuple]:
        answer = await self._context.request({"type": "find", "query": msgspec.to_builtins(query)})
        return msgspec.convert(answer["found"], list[GraphTuple])

    async def deltas(self, query: GraphDeltaQuery) -> list[GraphDelta]:
        answer = await self._context.request({"type": "deltas", "query": msgspec.to_builtins(query)})
        return msgspec.convert(answer["found"], list[GraphDelta])

    def wait(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._context.call(action)


class ChildItems(ItemCalls):
    """Item operations, with requests to the worker."""

    def __init__(self, context: ChildContext) -> None:
        self._context = context

    async def batch(self, ops: Sequence[ItemOp]) -> list[ItemResult]:
        answer = await self._context.request({"type": "items", "ops": msgspec.to_builtins(list(ops))})
        if "refused" in answer:
            raise InvalidInput(answer["refused"])
        return msgspec.convert(answer["results"], list[ItemResult])

    def wait(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._context.call(action)


class ChildMemory:
    """Searches memory, with requests to the worker."""

    def __init__(self, context: ChildContext) -> None:
        self._context = context

    async def search(self, query: str, **filters: Any) -> SearchResult:
        answer = await self._context.request({"type": "memory", "query": query, "filters": filters})
        if "refused" in answer:
            raise InvalidInput(answer["refused"])
        return msgspec.convert(answer["found"], SearchResult)


def _checkpoint(fields: dict[str, Any] | None) -> Checkpoint | None:
    return None if fields is None else msgspec.convert(fields, Checkpoint, strict=False)


async def _run(path: str, start: dict[str, Any], pipe: Pipe) -> None:
    context = ChildContext(start, pipe)
    task = asyncio.current_task()
    assert task is not None
    threading.Thread(target=_listen, args=(pipe, context, task), daemon=True).start()
    agent = make_agent("agent", import_target(path))
    settle_garbage_collector(collect=False)
    if context.recorder is not None:
        follow_langchain(context.recorder)
    pipe.send({"type": "result", "values": await agent.run(context, start["input"])})


def _listen(pipe: Pipe, context: ChildContext, task: asyncio.Task[Any]) -> None:
    loop = task.get_loop()
    while (message := pipe.receive()) is not None:
        if message["type"] == "cancel":
            context.cancel(message["action"])
            loop.call_soon_threadsafe(task.cancel)
        else:
            loop.call_soon_threadsafe(context.receive_answer, message)
    context.cancel("lost")
    loop.call_soon_threadsafe(task.cancel)
    threading.Event().wait(ORPHAN_SECONDS)
    os._exit(1)


def main() -> NoReturn:
    """Execute the attempt that the first message describes."""
    # Loading an agent creates many long-lived objects, so collection starts afterwards.
    gc.disable()
    pipe = Pipe()
    start = pipe.receive()
    if start is None:
        os._exit(1)
    sys.path.insert(0, str(Path.cwd()))
    try:
        asyncio.run(_run(sys.argv[1], start, pipe))
    except (Cancelled, asyncio.CancelledError):
        _exit(0)
    except BaseException as error:  # noqa: BLE001 - the worker decides what it means
        traceback.print_exc()
        retriable = RetryPolicy(load_settings().job_retriable).is_retriable(error)
        failure = build_failure(error)
        agent_error = error if isinstance(error, AgentError) else AgentError()
        pipe.send(
            {
                "type": "error",
                "error": failure.error,
                "message": failure.message,
                "retriable": retriable,
                "stop_reason": agent_error.stop_reason,
                "output": agent_error.output,
            }
        )
    _exit(0)


def _exit(code: int) -> NoReturn:
    """Exit at once, without waiting for threads of the agent."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
