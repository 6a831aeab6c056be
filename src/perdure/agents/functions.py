"""Function agents: async functions, generators, sync functions in threads, and their declared input."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import functools
import inspect
import logging
import threading
import typing
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from perdure.agents.context import AgentError, Cancelled, Context, Interrupted
from perdure.agents.records import AgentSpec

logger = logging.getLogger(__name__)


class TypedInput:
    """Convert the input of a run to an object of a class."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._is_model = _is_model(kind)

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON Schema of the input, if its types have one."""
        try:
            return dict(self._kind.model_json_schema() if self._is_model else msgspec.json.schema(self._kind))
        except Exception as error:  # noqa: BLE001 - a schema is optional, and types of users may have none
            logger.debug("cannot build a schema of %s: %s", self._kind, error)
            return None

    def read(self, value: Any) -> Any:
        """Return the object for a JSON value; AgentError if the value does not fit."""
        try:
            return self._kind.model_validate(value) if self._is_model else msgspec.convert(value, self._kind)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise AgentError(
                f"the input does not fit {self._kind.__name__}: {format_reason(error)}",
                error=type(error).__name__,
            ) from error


def build_typed_input(function: Callable[..., Any]) -> TypedInput | None:
    """Return the declared input of a function `(ctx, input)`; None if it accepts any JSON value."""
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) < 2:
        return None
    try:
        hints = typing.get_type_hints(function if inspect.isroutine(function) else type(function).__call__)
    except Exception as error:  # noqa: BLE001 - annotations are code of users
        logger.debug("cannot read the annotations of %r: %s", function, error)
        return None
    kind = hints.get(parameters[1].name)
    is_record = isinstance(kind, type) and (
        dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)
    )
    return TypedInput(kind) if is_record or _is_model(kind) else None


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and all(
        callable(getattr(kind, name, None)) for name in ("model_validate", "model_json_schema")
    )


def format_reason(error: Exception) -> str:
    """Describe what is wrong with a value, without the value itself."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    wrong = errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, problem['loc'])) or 'it'}: {problem['msg']}" for problem in wrong)


GRACE_SECONDS = 1.0
"""Time for a cancelled sync function to stop before its thread is abandoned."""


class FunctionAgent:
    """Agent that is a function `(ctx, input)`.

    Its return value becomes the thread's values. Values that a generator yields become events: `(event,
    data)` with that name, any other value as `custom`; a yielded `("values", state)` saves the state like
    `ctx.save`. A sync function runs in a separate thread and uses `ctx` through `ctx.call`. If `input` is
    annotated with a dataclass or a pydantic model, it is an object of that class; a run whose input does not
    fit fails.
    """

    def __init__(self, spec: AgentSpec, function: Callable[..., Any]) -> None:
        self._typed = build_typed_input(function)
        self.spec = spec if self._typed is None else replace(spec, input_schema=self._typed.schema)
        self.function = function
        self.blocking = not _is_async(function)
        self.grace = GRACE_SECONDS

    async def run(self, ctx: Context, input: Any) -> Any:
        if self._typed is not None:
            input = self._typed.read(input)
        try:
            if not self.blocking:
                return await _finish(ctx, self.function(ctx, input))
            return await _finish(ctx, await in_thread(self.grace, self._call, ctx, input))
        except SystemExit as error:
            # An uncaught exit would end the whole worker.
            raise AgentError(f"the agent called exit({error.code!r})", error="SystemExit") from error

    def _call(self, ctx: Context, input: Any) -> Any:
        answer = self.function(ctx, input)
        return _drain(ctx, answer) if inspect.isgenerator(answer) else answer


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    targets = (function, getattr(function, "__call__", None))  # noqa: B004 - inspected, not tested
    return any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in targets)


async def _finish(ctx: Context, answer: Any) -> Any:
    """Wait for a function's return value, and emit the values that an async generator yields."""
    if inspect.isasyncgen(answer):
        return await _follow(ctx, answer)
    return await answer if inspect.isawaitable(answer) else answer


async def _follow(ctx: Context, events: AsyncGenerator[Any, Any]) -> None:
    async with aclosing(events) as stream:
        async for item in stream:
            await emit_item(ctx, item)


def _drain(ctx: Context, events: Generator[Any, Any, Any]) -> Any:
    """Emit the values that a sync generator yields, from its own thread."""
    while True:
        try:
            item = next(events)
        except StopIteration as end:
            return end.value
        ctx.call(functools.partial(emit_item, ctx, item))


async def emit_item(ctx: Context, item: Any) -> None:
    """Emit a value that a generator yielded."""
    event, data = item if _is_named(item) else ("custom", item)
    if event == "values":
        await ctx.save(data)
    else:
        await ctx.emit(data, event)


def _is_named(item: Any) -> bool:
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)


# --- threads ----------------------------------------------------------------------------------------------


class _Outcome(NamedTuple):
    value: Any = None
    error: BaseException | None = None


async def in_thread(grace: float, function: Callable[..., Any], *args: Any) -> Any:
    """Run a function in a separate thread.

    When the caller is cancelled, the function has `grace` seconds to end; then its thread is abandoned.
    """
    outcome = _start(functools.partial(function, *args))
    try:
        value, error = await asyncio.shield(outcome)
    except asyncio.CancelledError:
        await _give_grace(outcome, grace, function)
        raise
    if error is not None:
        raise error
    return value


def _start(work: Callable[[], Any]) -> asyncio.Future[_Outcome]:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_Outcome] = loop.create_future()
    inherited = contextvars.copy_context()

    def run() -> None:
        try:
            outcome = _Outcome(inherited.run(work))
        except BaseException as error:  # noqa: BLE001 - it is raised where the thread is waited for
            outcome = _Outcome(error=_replace_interrupt(error))
        try:
            loop.call_soon_threadsafe(_settle, done, outcome)
        except RuntimeError:
            logger.warning("a sync agent ended after its worker had stopped")

    threading.Thread(target=run, name="perdure-agent", daemon=True).start()
    return done


def _replace_interrupt(error: BaseException) -> BaseException:
    """Replace KeyboardInterrupt, which the agent raised and which must not end the worker."""
    if isinstance(error, KeyboardInterrupt):
        return AgentError("the agent raised KeyboardInterrupt", error="KeyboardInterrupt")
    return error


def _settle(done: asyncio.Future[_Outcome], outcome: _Outcome) -> None:
    if not done.done():
        done.set_result(outcome)


async def _give_grace(outcome: asyncio.Future[_Outcome], grace: float, function: Callable[..., Any]) -> None:
    done, _ = await asyncio.wait({outcome}, timeout=grace)
    if not done:
        name = getattr(function, "__qualname__", repr(function))
        logger.warning(
            "%s was cancelled %.0f seconds ago and still runs; its thread is abandoned", name, grace
        )
    elif isinstance(outcome.result().error, Cancelled | Interrupted):
        raise outcome.result().error or Cancelled("interrupt")
