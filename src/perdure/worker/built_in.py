"""Built-in agents of workers. They execute the commands, scripts, checks, calls and requests of phases.

Built-in agents have no assistants: the input comes from workflow files, never from a caller. Each agent logs
its executed input and the result to its session. The rules for URLs of webhooks apply to requests.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from perdure.agents.confinement import get_confinement
from perdure.agents.context import Agent, AgentError, Context
from perdure.agents.functions import in_thread
from perdure.agents.processes import Captured, run_captured
from perdure.agents.records import AgentSpec
from perdure.executions.model import BUILT_IN, CONDITION_MET, CONDITION_NOT_MET, EXIT, QUOTA, TOOL
from perdure.kernel.codec import encode_json
from perdure.kernel.config import secret_variables
from perdure.kernel.errors import InvalidInput
from perdure.kernel.version import VERSION
from perdure.outbox.webhooks.guarded import Guard, build_authorization, build_reason, pinned_session
from perdure.outbox.webhooks.urls import mask_target
from perdure.threads.work import MAX_OUTPUT
from perdure.worker.phase import PhaseResult, safe_output

# --- requests ---------------------------------------------------------------------------------------------


METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")
SECONDS: Final = 300.0
RETRIED: Final = frozenset({408, 425, 429})
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_CALL: Final = "request"


class HttpRules(msgspec.Struct, frozen=True):
    """Allowed targets of requests."""

    allow_private: bool = False
    allowed_hosts: Sequence[str] = ()


class HttpAgent:
    """Sends a request, and returns the body of the response. Redirects are not followed."""

    blocking = False

    def __init__(self, spec: AgentSpec, rules: HttpRules) -> None:
        self.spec = spec
        self._guard = Guard(allow_private=rules.allow_private, allowed_hosts=rules.allowed_hosts)

    async def run(self, ctx: Context, input: Any) -> PhaseResult:
        given: Mapping[str, Any] = input if isinstance(input, Mapping) else {}
        method, url = str(given.get("method") or "GET").upper(), given.get("url")
        if method not in METHODS or not isinstance(url, str):
            raise AgentError(f"the phase has no URL, or its method is none of {', '.join(METHODS)}")
        shown = {"method": method, "url": mask_target(url)}
        block = {"type": "tool_use", "id": _CALL, "name": "http", "input": shown}
        await ctx.message("assistant", [block])
        status, text = await self._send(method, url, given)
        good = 200 <= status < 300
        await ctx.tool_result(_CALL, f"{status}\n{text}", is_error=not good)
        if good:
            return PhaseResult(text)
        raise AgentError(
            f"{mask_target(url)} answered {status}",
            error="HttpError",
            retriable=status in RETRIED or status >= 500,
            stop_reason=QUOTA if status == 429 else TOOL,
            output=text,
        )

    async def _send(self, method: str, url: str, given: Mapping[str, Any]) -> tuple[int, str]:
        try:
            target = self._guard.check(url)
        except InvalidInput as error:
            raise AgentError(error.message.replace("webhook", "request", 1), error="InvalidInput") from error
        headers, body = _headers(given.get("headers")), _body(given.get("body"))
        seconds = given.get("timeout_seconds")
        seconds = seconds if isinstance(seconds, int | float) and 0 < seconds < SECONDS else SECONDS
        sent = {"User-Agent": "perdure/" + VERSION, **build_authorization(target), **headers}
        if body is not None and not isinstance(given["body"], str):
            sent.setdefault("Content-Type", "application/json")
        try:
            async with asyncio.timeout(seconds):
                addresses = await self._guard.addresses(target)
                async with (
                    pinned_session(addresses) as session,
                    session.request(
                        method, target.url, data=body, headers=sent, allow_redirects=False
                    ) as answer,
                ):
                    return answer.status, await _read(answer)
        except InvalidInput as error:
            raise AgentError(error.message, error="InvalidInput") from error
        except TimeoutError as error:
            raise AgentError(f"no answer from {target.host} within {seconds:g} s", retriable=True) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise AgentError(build_reason(target, error), error="HttpError", retriable=True) from error


async def _read(answer: aiohttp.ClientResponse) -> str:
    """Read the beginning of the body as text, up to the limit of an output."""
    body = bytearray()
    async for chunk in answer.content.iter_chunked(64 << 10):
        body += chunk
        if len(body) > MAX_OUTPUT:
            break
    try:
        return bytes(body).decode(answer.charset or "utf-8", "replace")
    except LookupError:
        return bytes(body).decode("utf-8", "replace")


def _headers(given: Any) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in (given if isinstance(given, Mapping) else {}).items():
        text = str(value)
        if not _HEADER.fullmatch(str(name)) or any(character in text for character in "\r\n\0"):
            raise AgentError(f"{str(name)[:64]!r} cannot be a header of a request", error="InvalidInput")
        headers[str(name)] = text
    return headers


def _body(given: Any) -> bytes | None:
    if given is None:
        return None
    return (given if isinstance(given, str) else encode_json(given, what="the body")).encode()


# --- commands, scripts, checks and calls ------------------------------------------------------------------


COMMAND: Final = BUILT_IN + "command"
SCRIPT: Final = BUILT_IN + "script"
CHECK: Final = BUILT_IN + "check"
CALLABLE: Final = BUILT_IN + "callable"
HTTP: Final = BUILT_IN + "http"

CAPTURED: Final = MAX_OUTPUT - 256
"""Bytes that are stored of a command's output; the rest of an output's limit is for the truncation mark."""
CHECK_SECONDS: Final = 30.0
"""Default timeout of a check."""
CHECK_OUTPUT: Final = 8 << 10
"""Size of the end of a check's output that is stored."""
ERROR_OUTPUT: Final = 2000
GRACE_SECONDS: Final = 1.0
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_TOOL_ID: Final = "command"

Callables = Mapping[str, Callable[..., Any]]


def built_in_agents(callables: Callables, rules: HttpRules) -> dict[str, Agent]:
    """Build the built-in agents by name, with the callables and the rules for URLs of a worker."""
    agents: list[Agent] = [
        WorkspaceCommandAgent(),
        ScriptAgent(),
        CheckAgent(),
        CallableAgent(callables),
        HttpAgent(AgentSpec(name=HTTP, kind="command"), rules),
    ]
    return {agent.spec.name: agent for agent in agents}


# --- the input of a phase ---------------------------------------------------------------------------------


def _text(input: Any, name: str) -> str:
    value = input.get(name) if isinstance(input, Mapping) else None
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise AgentError(f"the phase has no {name} to execute", error="InvalidInput")
    return value


def _seconds(input: Mapping[str, Any], default: float | None) -> float | None:
    value = input.get("timeout_seconds")
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    return default


def _variables(ctx: Context, input: Mapping[str, Any]) -> dict[str, str]:
    """Build the additional variables of a command: outputs of phases, and facts about its phase."""
    given = input.get("env")
    env: dict[str, str] = {}
    for name, value in (given if isinstance(given, Mapping) else {}).items():
        valid = isinstance(name, str) and _VARIABLE.fullmatch(name) and isinstance(value, str)
        if not valid or "\0" in value or name in secret_variables():
            raise AgentError(f"{str(name)[:64]!r} cannot be a variable of a command", error="InvalidInput")
        env[name] = value
    phase = ctx.phase
    if phase is not None:
        env |= {"PERDURE_WORKFLOW_RUN_ID": phase.workflow_run_id or "", "PERDURE_PHASE": phase.label or ""}
        env |= {"PERDURE_WORKSPACE": phase.workspace or "", "PERDURE_ITERATION": str(phase.iteration)}
    return env


def _directory(ctx: Context) -> str:
    workspace = None if ctx.phase is None else ctx.phase.workspace
    if workspace is None:
        raise AgentError("this worker has no folder for workspaces: set PERDURE_STATE_DIR")
    return workspace


def shell(command: str) -> list[str]:
    """Return the shell command line: bash, or sh if there is no bash."""
    return [shutil.which("bash") or shutil.which("sh") or "sh", "-c", command]


# --- commands, scripts and checks -------------------------------------------------------------------------


class WorkspaceCommandAgent:
    """Executes a shell command in the workspace of the workflow run."""

    blocking = False
    is_process = True

    def __init__(self) -> None:
        self.spec = AgentSpec(name=COMMAND, kind="command", description="Executes the commands of phases.")

    async def run(self, ctx: Context, input: Any) -> PhaseResult:
        command = _text(input, "command")
        await _log_call(ctx, "bash", {"command": command})
        ended = await _execute(ctx, shell(command), input, None)
        return await _result(ctx, ended)


class ScriptAgent:
    """Executes a script in the workspace of the workflow run."""

    blocking = False
    is_process = True

    def __init__(self) -> None:
        self.spec = AgentSpec(name=SCRIPT, kind="command", description="Executes the scripts of phases.")

    async def run(self, ctx: Context, input: Any) -> PhaseResult:
        script, runtime = _text(input, "script"), str(input.get("runtime") or "sh")
        interpreter, suffix = find_interpreter(runtime)
        await _log_call(ctx, runtime, {"script": script})
        # The directory belongs only to the worker, and is deleted with the script.
        with tempfile.TemporaryDirectory(prefix="perdure-script-") as folder:
            file = Path(folder) / ("script" + suffix)
            file.write_text(script, encoding="utf-8", errors="replace")
            ended = await _execute(ctx, [*interpreter, str(file)], input, None, folder)
        return await _result(ctx, ended)


class CheckAgent:
    """Executes the condition of a loop. The condition is met if the command exits with 0."""

    blocking = False
    is_process = True

    def __init__(self) -> None:
        self.spec = AgentSpec(name=CHECK, kind="command", description="Checks the conditions of loops.")

    async def run(self, ctx: Context, input: Any) -> PhaseResult:
        command = _text(input, "command")
        await _log_call(ctx, "bash", {"command": command})
        ended = await _execute(ctx, shell(command), input, CHECK_SECONDS)
        written = _join_outputs(ended)
        await ctx.tool_result(_TOOL_ID, written, is_error=bool(ended.code))
        reason = CONDITION_NOT_MET if ended.code else CONDITION_MET
        return PhaseResult(f"$ {command}\n{written[-CHECK_OUTPUT:]}", reason)


_RUNTIMES: Final[Mapping[str, tuple[str, Sequence[Sequence[str]]]]] = {
    "python": (".py", ((sys.executable,),)),
    "js": (".mjs", (("node",), ("bun", "run"), ("deno", "run", "--quiet"))),
    "ts": (".ts", (("bun", "run"), ("deno", "run", "--quiet"), ("tsx",), ("ts-node",))),
    "sh": (".sh", (("bash",), ("sh",))),
}
"""File suffix and interpreters of each runtime; the first installed interpreter is used."""


def find_interpreter(runtime: str) -> tuple[list[str], str]:
    """Return the interpreter of a runtime on this machine, and the suffix of a script's file."""
    if runtime not in _RUNTIMES:
        raise AgentError(f"there is no runtime {runtime[:64]!r}; there are {', '.join(_RUNTIMES)}")
    suffix, candidates = _RUNTIMES[runtime]
    for program, *options in candidates:
        path = shutil.which(program)
        if path is not None:
            return [path, *options], suffix
    names = " or ".join(program for program, *_ in candidates)
    raise AgentError(f"a {runtime} script needs {names}, which this worker does not have")


async def _execute(
    ctx: Context, argv: Sequence[str], input: Mapping[str, Any], default: float | None, *shown: str
) -> Captured:
    """Execute a program in the workspace, confined as worker and phase require; it may read `shown`."""
    return await run_captured(
        argv,
        cwd=_directory(ctx),
        env=_variables(ctx, input),
        limit=CAPTURED,
        timeout=_seconds(input, default),
        confinement=get_confinement(ctx).showing(*shown),
    )


async def _log_call(ctx: Context, tool: str, input: Mapping[str, Any]) -> None:
    """Write the input of an execution to the session, as a tool call."""
    call = {"type": "tool_use", "id": _TOOL_ID, "name": tool, "input": dict(input)}
    await ctx.message("assistant", [call])


async def _result(ctx: Context, ended: Captured) -> PhaseResult:
    """Return the output of a command that exited with 0; otherwise raise AgentError."""
    await ctx.tool_result(_TOOL_ID, _join_outputs(ended), is_error=bool(ended.code))
    if not ended.code:
        return PhaseResult(ended.stdout)
    last = (ended.stderr.strip() or ended.stdout.strip())[-ERROR_OUTPUT:]
    raise AgentError(
        f"the command {ended.how}" + (f": {last}" if last else ""),
        error="CommandFailed",
        stop_reason=f"{EXIT}{ended.code}",
        output=ended.stdout,
    )


def _join_outputs(ended: Captured) -> str:
    return ended.stdout + (f"\n{ended.stderr}" if ended.stderr and ended.stdout else ended.stderr)


# --- Python callables -------------------------------------------------------------------------------------


class CallableAgent:
    """Calls a Python function that the worker's code registered by name. No name is ever imported."""

    blocking = False

    def __init__(self, callables: Callables) -> None:
        self.spec = AgentSpec(name=CALLABLE, kind="function", description="Calls Python functions.")
        self._callables = callables

    async def run(self, ctx: Context, input: Any) -> PhaseResult:
        name = _text(input, "callable")
        function = self._callables.get(name)
        if function is None:
            names = ", ".join(sorted(self._callables)) or "none"
            raise AgentError(f"this worker has no callable {name[:64]!r}; it has {names}")
        given = input.get("input")
        await _log_call(ctx, name, {"input": given})
        result = await _call(function, ctx, given)
        output = safe_output(result)
        await ctx.tool_result(_TOOL_ID, output)
        return PhaseResult(output)


async def _call(function: Callable[..., Any], ctx: Context, given: Any) -> Any:
    """Call a function with the input, or with the context and the input; a sync one in its own thread."""
    parameters = len(inspect.signature(function).parameters)
    arguments = {0: (), 1: (given,)}.get(parameters, (ctx, given))
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    result = await in_thread(GRACE_SECONDS, function, *arguments)
    return await result if inspect.isawaitable(result) else result
