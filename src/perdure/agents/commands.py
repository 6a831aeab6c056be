"""Command agents: one process per attempt, which reads and writes JSON lines.

The process reads one `start` line and writes `event`, `save`, `step`, `load`, `interrupt`, `log`, `span`,
`result` and `error` lines, and `session`, `message`, `tool_result` and `usage` lines for its session. Lines
of Claude Code, Codex and pi are written to the session unchanged. Replies are `saved`, `step`, `answer` and
`session` lines; a `cancel` line asks the process to stop. `items` lines read and write items, `memory` lines
search memory, and `resources` lines read the run's resources; the reply has the same type. An isolated graph
also writes `record`, `settle`, `find` and `deltas` lines; the reply is a `found` line.

An isolated agent is a command whose program executes one attempt, so that a crash affects no other run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET

from perdure.agents.confinement import (
    BUBBLEWRAP,
    NO_SANDBOX,
    SANDBOXES,
    SandboxChoice,
    check_sandbox,
    find_user,
    get_confinement,
)
from perdure.agents.context import AgentError, Cancelled, Context, StepResult, enclosing_step, enter_branch
from perdure.agents.messages import (
    DECODER,
    Deltas,
    Error,
    Find,
    Load,
    Log,
    ProcessEvent,
    ProcessInterrupt,
    ProcessItems,
    ProcessMessage,
    ProcessRecord,
    ProcessResources,
    ProcessSession,
    ProcessSpan,
    ProcessStep,
    ProcessTranscript,
    ProcessUsage,
    Result,
    Save,
    Say,
    SearchMemory,
    ToolResult,
    foreign_line,
)
from perdure.agents.processes import (
    CHUNK,
    exit_code,
    how_it_ended,
    signal_group,
    start_process,
    wait_for_exit,
)
from perdure.agents.records import AgentSpec
from perdure.kernel.checks import check_choice
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import InvalidInput, NotSupported

MAX_LINE = 4 << 20
GRACE_SECONDS = 5.0
KEPT_LINES = 20
KEPT_WIDTH = 500
ERRORS_SECONDS = 1.0
USAGE = tuple(name for name in ProcessUsage.__struct_fields__ if name not in ProcessMessage.__struct_fields__)
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


@dataclass(frozen=True)
class Command:
    """A program as an agent. It gets the worker's environment without perdure's secrets, and `env`.

    After a cancel it has `grace` seconds to exit; then it is killed with its child processes.
    """

    argv: Sequence[str]
    cwd: str | os.PathLike[str] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    grace: float = GRACE_SECONDS
    max_line: int = MAX_LINE
    whole: bool = False
    """True to send the checkpoint in the start line, with its state in base64."""
    sandbox: SandboxChoice | None = None
    """`bubblewrap`, or `none` whatever the setting `command_sandbox` is. The sandbox is tested at the start.
    """
    network: bool = False
    """True to give the command a network in its sandbox."""
    uid: int | str | None = None
    """The user that executes the command; needs a worker that runs as root."""

    def __post_init__(self) -> None:
        if (
            isinstance(self.argv, str)
            or not self.argv
            or not all(isinstance(part, str) for part in self.argv)
        ):
            raise InvalidInput(
                f"a command must be a list of strings with the program first, not {self.argv!r}"
            )
        if not isinstance(self.env, Mapping) or not all(
            isinstance(text, str) for pair in self.env.items() for text in pair
        ):
            raise InvalidInput("the env of a command must be an object with strings")
        check_choice(self.sandbox or NO_SANDBOX, SANDBOXES, "the sandbox of a command")
        if self.sandbox == BUBBLEWRAP:
            check_sandbox()
        if self.uid is not None:
            find_user(str(self.uid))


# --- the agent --------------------------------------------------------------------------------------------


class CommandAgent:
    """Agent that runs a command."""

    blocking = False
    is_process = True

    def __init__(self, spec: AgentSpec, command: Command) -> None:
        self.spec = spec
        self.command = command

    async def run(self, ctx: Context, input: Any) -> Any:
        start = _start_line(ctx, input)
        if self.command.whole:
            if ctx.checkpoint is not None and ctx.checkpoint.graph:
                await ctx.load()
            start["checkpoint"] = msgspec.to_builtins(ctx.checkpoint)
            start["from_checkpoint"] = ctx.from_checkpoint
        else:
            # A program sees which steps were done, and may continue from there instead of repeating them.
            ctx.end_replay()
            start["values"] = await ctx.load()
        command = self.command
        process = await start_process(
            command.argv,
            cwd=command.cwd,
            env=command.env,
            limit=command.max_line,
            confinement=get_confinement(ctx).for_command(
                command.sandbox,
                network=command.network,
                user=None if command.uid is None else str(command.uid),
                project=command.cwd,
            ),
        )
        conversation = _Conversation(ctx, process, self.command)
        async with conversation.until_it_ends():
            return await conversation.exchange(start)


def _start_line(ctx: Context, input: Any) -> dict[str, Any]:
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
        "steps": ctx.steps,
        "idempotency_key": ctx.idempotency_key(),
        "session_id": ctx.session_id,
        "traceparent": ctx.traceparent,
        "trace_content": ctx.trace_content,
        "phase": msgspec.to_builtins(ctx.phase),
    }


class _Conversation:
    """Exchange of JSON lines between a run and its process, until the process ends."""

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
        self._transcribes = False
        """True once the process has written lines of another tool."""
        self._rejection = AgentError(f"{self._name} wrote a line that is not a message")
        """Reason why the last line that is not a message was rejected."""

    async def exchange(self, start: Mapping[str, Any]) -> Any:
        """Exchange lines until there is a result; return its values, or None if the process exits with 0."""
        self._send(start)
        async for line in self._read_lines():
            message = self._parse(line)
            if isinstance(message, Result):
                return message.values
            if message is not None:
                await self._handle(message)
        return await self._check_exit()

    # --- reading ----------------------------------------------------------------------------------------

    async def _read_lines(self) -> AsyncIterator[bytes]:
        try:
            while line := await self._stdout.readline():
                self._lines += 1
                yield line
        except ValueError as error:
            limit = self._command.max_line
            raise AgentError(f"{self._name} wrote a line of more than {limit} bytes") from error

    def _parse(self, line: bytes) -> ProcessMessage | None:
        """Parse a line. A line that does not look like a message is logged as other output."""
        if not line.lstrip().startswith(b"{"):
            self._log(line)
            return None
        message: ProcessMessage | None = None
        try:
            message = DECODER.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            self._rejection = AgentError(f"line {self._lines} of {self._name} is not a message: {error}")
        message = foreign_line(line, message, after_others=self._transcribes) or message
        if message is None:
            raise self._rejection
        return message

    async def _handle(self, message: ProcessMessage) -> None:
        enter_branch(message.branch)
        match message:
            case ProcessEvent():
                body = encode_json(message.data, what=f"event {message.event!r}")
                await self._ctx.emit_json(body, message.event, message.shown)
            case Save():
                checkpoint_id = await self._ctx.save(
                    message.values,
                    next=message.next,
                    interrupts=message.interrupts,
                    metadata=message.metadata,
                    state=message.state,
                    checkpoint_id=message.checkpoint_id,
                    parent_id=message.parent_id,
                    quiet=message.quiet,
                )
                self._send({"type": "saved", "checkpoint_id": checkpoint_id}, message.id)
            case ProcessStep():
                enclosing_step.set(message.within)
                action = StepResult(
                    message.result,
                    key=message.key,
                    start_time=message.start_time,
                    traced=message.traced,
                )
                kept = await self._ctx.step(message.name, action)
                self._send({"type": "step", "name": message.name, "result": kept}, message.id)
            case Load():
                self._ctx.end_replay()
            case ProcessInterrupt():
                answer = await self._ctx.interrupt(message.value)
                self._send({"type": "answer", "value": answer}, message.id)
            case Log():
                self._ctx.logger.log(LEVELS.get(message.level.lower(), logging.INFO), "%s", message.message)
            case Error():
                raise AgentError(
                    message.message,
                    error=message.error,
                    retriable=message.retriable,
                    stop_reason=message.stop_reason,
                    output=message.output,
                )
            case ProcessRecord():
                self._ctx.graph.put(message.steps)
            case ProcessSpan():
                self._ctx.record_span(message.span)
            case ProcessSession():
                session_id = await self._ctx.session(message.session_id, message.cwd)
                self._send({"type": "session", "session_id": session_id}, message.id)
            case Say():
                await self._ctx.message(message.role, message.content, message.model, message.usage)
            case ToolResult():
                await self._ctx.tool_result(message.tool_use_id, message.content, message.is_error)
            case ProcessUsage():
                figures = msgspec.structs.asdict(message)
                await self._ctx.usage(**{name: figures[name] for name in USAGE})
            case ProcessTranscript():
                self._transcribes = await self._ctx.transcript(message.line)
                if not self._transcribes:
                    raise self._rejection
            case ProcessResources():
                self._send({"type": "resources", **await self._get_resources()}, message.id)
            case ProcessItems():
                self._send({"type": "items", **await self._execute_items(message)}, message.id)
            case SearchMemory():
                self._send({"type": "memory", **await self._search_memory(message)}, message.id)
            case _:
                self._send({"type": "found", "found": await self._find_checkpoints(message)}, message.id)

    async def _execute_items(self, message: ProcessItems) -> dict[str, Any]:
        """Return the results of item operations, or the error."""
        if self._ctx.items is None:
            return {"refused": "items are not available here"}
        try:
            return {"results": await self._ctx.items.batch(message.ops)}
        except InvalidInput as error:
            return {"refused": error.message}

    async def _search_memory(self, message: SearchMemory) -> dict[str, Any]:
        """Return the result of a memory search, or the error."""
        if self._ctx.memory is None:
            return {"refused": "memory is not available here"}
        try:
            result = await self._ctx.memory.search(message.query, **message.filters)
        except InvalidInput as error:
            return {"refused": error.message}
        return {"found": msgspec.to_builtins(result)}

    async def _get_resources(self) -> dict[str, Any]:
        """Return the run's resources, or the error."""
        try:
            return {"resources": await self._ctx.resources()}
        except NotSupported as error:
            return {"refused": error.message}

    async def _find_checkpoints(self, message: ProcessMessage) -> Any:
        """Return stored checkpoints for the graph of the process."""
        match message:
            case Find():
                return msgspec.to_builtins(await self._ctx.graph.find(message.query))
            case Deltas():
                return msgspec.to_builtins(await self._ctx.graph.deltas(message.query))
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

    # --- writing -----------------------------------------------------------------------------------------

    def _send(self, message: Mapping[str, Any], id: Any = UNSET) -> None:
        if self._stdin.is_closing():
            return
        body = message if id is UNSET else {**message, "id": id}
        self._stdin.write(encode_json(body, what=f"the {message['type']} line").encode() + b"\n")
        # Waiting here could deadlock: the process may be waiting until its output is read.
        waiting = self._stdin.transport.get_write_buffer_size()
        if message["type"] != "start" and waiting > 2 * self._command.max_line:
            raise AgentError(f"{self._name} does not read its answers: {waiting} bytes are waiting")

    # --- the end ----------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return repr(self._command.argv[0])

    async def _check_exit(self) -> None:
        """Raise an error unless the process, which closed its stdout without a result, exits with 0."""
        code = await self._wait_for_exit(self._command.grace)
        if code == 0:
            return
        await self._settle_errors()
        output = "\n".join(self._last)
        last = f"; its last output:\n{output}" if output else ""
        stop_reason = None if code is None else f"error_exit_{exit_code(code)}"
        raise AgentError(f"{self._name} {how_it_ended(code)}{last}", stop_reason=stop_reason)

    @contextlib.asynccontextmanager
    async def until_it_ends(self) -> AsyncIterator[None]:
        """End the process and its child processes when the exchange ends, also after an error."""
        grace = 0.0
        try:
            yield
            self._stdin.close()
            grace = self._command.grace
        except asyncio.CancelledError:
            self._send({"type": "cancel", "action": await self._find_cancel_action()})
            grace = self._command.grace
            raise
        except Cancelled as cancelled:
            self._send({"type": "cancel", "action": cancelled.action})
            grace = self._command.grace
            raise
        finally:
            await self._end(grace)

    async def _find_cancel_action(self) -> str:
        try:
            await self._ctx.heartbeat()
        except Cancelled as cancelled:
            return cancelled.action
        return "interrupt"

    async def _end(self, grace: float) -> None:
        try:
            if grace:
                await self._wait_for_exit(grace)
        finally:
            signal_group(self._process)
            await self._wait_for_exit(self._command.grace)
            await self._settle_errors()
            self._process._transport.close()  # type: ignore[attr-defined]

    async def _wait_for_exit(self, grace: float) -> int | None:
        """Return the exit code of the process, or None if it still runs after `grace` seconds."""
        return await wait_for_exit(self._process, grace, self._discard())

    async def _discard(self) -> None:
        """Read and discard the output, so that the process does not block on writing."""
        while await self._stdout.read(CHUNK):
            pass

    async def _settle_errors(self) -> None:
        await asyncio.wait({self._errors}, timeout=ERRORS_SECONDS)
        self._errors.cancel()


CHILD = "perdure.worker.child"
"""The program that runs one attempt of an agent."""


def isolated(
    path: str,
    *,
    directory: str | os.PathLike[str] | None = None,
    sandbox: SandboxChoice | None = None,
    network: bool = False,
    uid: int | str | None = None,
) -> Command:
    """An agent that a separate process imports by its path (`module:name` or `./file.py:name`).

    ```python
    agents.register("careful", isolated("my_agents:careful"))
    ```

    Each attempt gets a process. If it blocks, runs out of memory or is killed, the run ends with an error,
    and the worker continues. `sandbox`, `network` and `uid` are those of a `Command`.
    """
    argv, limit = [sys.executable, "-m", CHILD, path], 4 * MAX_LINE
    return Command(argv, cwd=directory, max_line=limit, whole=True, sandbox=sandbox, network=network, uid=uid)
