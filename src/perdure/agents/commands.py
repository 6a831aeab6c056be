"""Agents that are commands: a process for each attempt, which speaks JSON lines on stdin and stdout.

It reads one `start` line and writes `event`, `save`, `step`, `interrupt`, `log`, `result` and `error` lines;
it is answered with `saved`, `step` and `answer` lines, and asked to stop with a `cancel` line. What is
remembered beyond the thread it asks for with `items` lines, answered with such lines. A graph in a process of
its own also writes `record`, `settle`, `find` and `deltas` lines, answered with `found` lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET

from perdure.agents.context import AgentError, Cancelled, Context
from perdure.agents.messages import (
    DECODER,
    Deltas,
    Error,
    Event,
    Find,
    Interrupt,
    Items,
    Log,
    Record,
    Result,
    Said,
    Save,
    Step,
)
from perdure.agents.records import AgentSpec
from perdure.kernel.codec import encode_json
from perdure.kernel.config import PREFIX, SECRETS, VARIABLES
from perdure.kernel.errors import InvalidInput

MAX_LINE = 4 << 20
GRACE_SECONDS = 5.0
KEPT_LINES = 20
KEPT_WIDTH = 500
ERRORS_SECONDS = 1.0
LOOK_SECONDS = 0.05
CHUNK = 1 << 16
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


@dataclass(frozen=True)
class Command:
    """A program that is an agent. Its environment is the worker's without perdure's secrets, and `env`.

    After a cancel it has `grace` seconds to end; then it is killed with all that it started.
    """

    argv: Sequence[str]
    cwd: str | os.PathLike[str] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    grace: float = GRACE_SECONDS
    max_line: int = MAX_LINE
    whole: bool = False
    """Whether its start line has the whole checkpoint, its state in base64."""

    def __post_init__(self) -> None:
        if (
            isinstance(self.argv, str)
            or not self.argv
            or not all(isinstance(part, str) for part in self.argv)
        ):
            raise InvalidInput(f"a command is a list of texts, the program first, not {self.argv!r}")
        if not isinstance(self.env, Mapping) or not all(
            isinstance(text, str) for pair in self.env.items() for text in pair
        ):
            raise InvalidInput("the env of a command must be an object of texts")


# --- the agent --------------------------------------------------------------------------------------------


class CommandAgent:
    """Runs a command as an agent."""

    blocking = False

    def __init__(self, spec: AgentSpec, command: Command) -> None:
        self.spec = spec
        self.command = command

    async def run(self, ctx: Context, input: Any) -> Any:
        start = await _start_line(ctx, input)
        if self.command.whole:
            start["checkpoint"] = msgspec.to_builtins(ctx.checkpoint)
            start["from_checkpoint"] = ctx.from_checkpoint
        process = await _start(self.command)
        talk = _Conversation(ctx, process, self.command)
        async with talk.until_it_ends():
            return await talk.hold(start)


async def _start_line(ctx: Context, input: Any) -> dict[str, Any]:
    return {
        "type": "start",
        "run_id": ctx.run_id,
        "thread_id": ctx.thread_id,
        "assistant_id": ctx.assistant_id,
        "attempt": ctx.attempt,
        "input": input,
        "command": ctx.command,
        "config": ctx.config,
        "context": ctx.context,
        "metadata": ctx.metadata,
        "options": ctx.options,
        "stream_mode": ctx.stream_mode,
        "values": await ctx.load(),
        "steps": ctx.steps,
        "idempotency_key": ctx.idempotency_key(),
    }


async def _start(command: Command) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            *command.argv,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            limit=command.max_line,
            cwd=command.cwd,
            env=_environment(command),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise AgentError(f"cannot start {command.argv[0]!r}: {reason}", error=type(error).__name__) from error


def _environment(command: Command) -> dict[str, str]:
    secret = secret_variables()
    return {name: text for name, text in os.environ.items() if name not in secret} | dict(command.env)


def secret_variables() -> frozenset[str]:
    """The variables that hold perdure's own secrets, or name the files that do."""
    names = [name for secret in SECRETS for name in VARIABLES.get(secret, (PREFIX + secret.upper(),))]
    return frozenset((*names, *(name + "_FILE" for name in names), PREFIX + "TOKEN"))


class _Conversation:
    """What is said between a run and its process, from the start line to the end of the process."""

    def __init__(self, ctx: Context, process: asyncio.subprocess.Process, command: Command) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._ctx = ctx
        self._process = process
        self._command = command
        self._stdin, self._stdout = process.stdin, process.stdout
        self._last: deque[str] = deque(maxlen=KEPT_LINES)
        self._errors = asyncio.create_task(self._log_errors(process.stderr))
        self._lines = 0

    async def hold(self, start: Mapping[str, Any]) -> Any:
        """Talk until there is a result; gives its values, or None if the process just ended well."""
        self._say(start)
        async for line in self._heard():
            said = self._parse(line)
            if isinstance(said, Result):
                return said.values
            if said is not None:
                await self._answer(said)
        return await self._ended()

    # --- hearing ----------------------------------------------------------------------------------------

    async def _heard(self) -> AsyncIterator[bytes]:
        try:
            while line := await self._stdout.readline():
                self._lines += 1
                yield line
        except ValueError as error:
            limit = self._command.max_line
            raise AgentError(f"{self._name} wrote a line of more than {limit} bytes") from error

    def _parse(self, line: bytes) -> Said | None:
        """What a line says. What does not look like a message is output like any other, and logged."""
        if not line.lstrip().startswith(b"{"):
            self._log(line)
            return None
        try:
            said: Said = DECODER.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise AgentError(f"line {self._lines} of {self._name} is not a message: {error}") from error
        return said

    async def _answer(self, said: Said) -> None:
        match said:
            case Event():
                body = encode_json(said.data, what=f"event {said.event!r}")
                await self._ctx.emit_json(body, said.event, said.shown)
            case Save():
                checkpoint_id = await self._ctx.save(
                    said.values,
                    next=said.next,
                    interrupts=said.interrupts,
                    metadata=said.metadata,
                    state=said.state,
                    checkpoint_id=said.checkpoint_id,
                    parent_id=said.parent_id,
                    quiet=said.quiet,
                )
                self._say({"type": "saved", "checkpoint_id": checkpoint_id}, said.id)
            case Step():
                kept = await self._ctx.step(said.name, lambda: said.result)
                self._say({"type": "step", "name": said.name, "result": kept}, said.id)
            case Interrupt():
                answer = await self._ctx.interrupt(said.value)
                self._say({"type": "answer", "value": answer}, said.id)
            case Log():
                self._ctx.logger.log(LEVELS.get(said.level.lower(), logging.INFO), "%s", said.message)
            case Error():
                raise AgentError(said.message, error=said.error, retriable=said.retriable)
            case Record():
                self._ctx.graph.put(said.steps)
            case Items():
                self._say({"type": "items", **await self._items(said)}, said.id)
            case _:
                self._say({"type": "found", "found": await self._found(said)}, said.id)

    async def _items(self, said: Items) -> dict[str, Any]:
        """What the process asks of the items, or why that is refused."""
        if self._ctx.items is None:
            return {"refused": "there are no items here"}
        try:
            return {"results": await self._ctx.items.batch(said.ops)}
        except InvalidInput as error:
            return {"refused": error.message}

    async def _found(self, said: Said) -> Any:
        """What the graph of the process asks of the stored checkpoints."""
        match said:
            case Find():
                return msgspec.to_builtins(await self._ctx.graph.find(said.query))
            case Deltas():
                return msgspec.to_builtins(await self._ctx.graph.deltas(said.query))
            case _:
                return await self._ctx.graph.settle()

    async def _log_errors(self, stderr: asyncio.StreamReader) -> None:
        rest = b""
        while chunk := await stderr.read(CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[:CHUNK]
            for line in lines:
                self._last.append(self._log(line))
        if rest:
            self._last.append(self._log(rest))

    def _log(self, line: bytes) -> str:
        text = line.decode("utf-8", "replace").rstrip()[:KEPT_WIDTH]
        self._ctx.logger.info("%s", text)
        return text

    # --- saying -----------------------------------------------------------------------------------------

    def _say(self, message: Mapping[str, Any], id: Any = UNSET) -> None:
        if self._stdin.is_closing():
            return
        body = message if id is UNSET else {**message, "id": id}
        self._stdin.write(encode_json(body, what=f"the {message['type']} line").encode() + b"\n")
        # Waiting here could wait for ever: the process may be waiting for us to read what it says.
        waiting = self._stdin.transport.get_write_buffer_size()
        if message["type"] != "start" and waiting > 2 * self._command.max_line:
            raise AgentError(f"{self._name} does not read its answers: {waiting} bytes wait for it")

    # --- the end ----------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return repr(self._command.argv[0])

    async def _ended(self) -> None:
        """The process closed its stdout without a result: that is fine only if it ended well."""
        code = await self._wait(self._command.grace)
        if code == 0:
            return
        await self._settle_errors()
        said = "\n".join(self._last)
        raise AgentError(f"{self._name} {_how(code)}" + (f"; it said:\n{said}" if said else ""))

    @contextlib.asynccontextmanager
    async def until_it_ends(self) -> AsyncIterator[None]:
        """However the conversation ends, the process ends too, and all that it started."""
        grace = 0.0
        try:
            yield
            self._stdin.close()
            grace = self._command.grace
        except asyncio.CancelledError:
            self._say({"type": "cancel", "action": await self._action()})
            grace = self._command.grace
            raise
        except Cancelled as cancelled:
            self._say({"type": "cancel", "action": cancelled.action})
            grace = self._command.grace
            raise
        finally:
            await self._end(grace)

    async def _action(self) -> str:
        try:
            await self._ctx.heartbeat()
        except Cancelled as cancelled:
            return cancelled.action
        return "interrupt"

    async def _end(self, grace: float) -> None:
        try:
            if grace:
                await self._wait(grace)
        finally:
            _kill_group(self._process)
            await self._wait(self._command.grace)
            await self._settle_errors()
            self._process._transport.close()  # type: ignore[attr-defined]

    async def _wait(self, grace: float) -> int | None:
        """The process's exit code, or None if it still runs after so many seconds."""
        clock = asyncio.get_running_loop()
        deadline = clock.time() + grace
        tasks = [asyncio.create_task(self._process.wait()), asyncio.create_task(self._discard())]
        try:
            # What the process has started may hold its pipes, and then its end is not announced.
            while self._process.returncode is None and (left := deadline - clock.time()) > 0:
                await asyncio.wait(tasks[:1], timeout=min(left, LOOK_SECONDS))
            return self._process.returncode
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _discard(self) -> None:
        """Read what nobody wants any more, so that the process does not wait for a reader."""
        while await self._stdout.read(CHUNK):
            pass

    async def _settle_errors(self) -> None:
        await asyncio.wait({self._errors}, timeout=ERRORS_SECONDS)
        self._errors.cancel()


def _kill_group(process: asyncio.subprocess.Process) -> None:
    """Kill the process and whatever it has started and left behind; it was made the head of a group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        elif process.returncode is None:
            process.kill()


def _how(code: int | None) -> str:
    if code is None:
        return "closed its stdout and did not end"
    if code >= 0:
        return f"exited with {code}"
    names = {each.value: each.name for each in signal.Signals}
    return f"was killed by {names.get(-code, f'signal {-code}')}"
