"""Shortcuts for programs: run an assistant with an input, and with options as keyword arguments."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, TypedDict

import msgspec

from perdure.kernel.checks import explain
from perdure.kernel.errors import InvalidInput
from perdure.streams.model import StreamEvent
from perdure.threads.records import (
    IfNotExists,
    MultitaskStrategy,
    OnCompletion,
    OnDisconnect,
    RunCommand,
    RunEnd,
    RunRequest,
)
from perdure.threads.service import Threads


class RunOptions(TypedDict, total=False):
    """Fields of `RunRequest` except the assistant and the input, as keyword arguments."""

    thread_id: str | None
    command: RunCommand | dict[str, Any] | None
    config: dict[str, Any]
    context: dict[str, Any] | None
    metadata: dict[str, Any]
    inherit_metadata: bool
    checkpoint_id: str | None
    multitask_strategy: MultitaskStrategy
    if_not_exists: IfNotExists
    after_seconds: float | None
    on_disconnect: OnDisconnect
    on_completion: OnCompletion | None
    webhook: str | None
    stream_mode: list[str]
    options: dict[str, Any]
    priority: int
    timeout_seconds: float | None
    max_attempts: int | None
    traceparent: str | None


def run_request(assistant: str, input: Any, options: RunOptions) -> RunRequest:
    """Build the request for a run; InvalidInput if an option is unknown or its value does not fit."""
    try:
        return msgspec.convert({"assistant_id": assistant, "input": input, **options}, RunRequest)
    except msgspec.ValidationError as error:
        raise InvalidInput(explain(error, RunRequest, "the run request")) from None


async def run(threads: Threads, assistant: str, input: Any, options: RunOptions) -> RunEnd:
    """Run an assistant and wait for its end."""
    return await threads.wait(run_request(assistant, input, options))


async def stream_events(
    threads: Threads, assistant: str, input: Any, options: RunOptions
) -> AsyncGenerator[StreamEvent, None]:
    """Run an assistant and yield its events one by one."""
    async with aclosing(threads.stream(run_request(assistant, input, options))) as bursts:
        async for burst in bursts:
            for event in burst:
                yield event
