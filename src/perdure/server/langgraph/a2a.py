"""The Agent2Agent protocol at `/a2a/{assistant_id}`: messages to an assistant become runs on its threads.

A context is a thread, and a task is a run: its id is `<thread_id>:<run_id>`.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Annotated, Any, Final
from uuid import NAMESPACE_URL, uuid4, uuid5

import msgspec
from msgspec import UNSET, Meta
from starlette.responses import Response

from perdure.assistants.records import Assistant
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import BadRequest, Conflict, NotFound, PerdureError
from perdure.kernel.version import VERSION
from perdure.server.http.long_responses import BEGINNING, crlf_frame
from perdure.server.http.routes import Call
from perdure.server.langgraph.json_rpc import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Record,
    RpcError,
    RpcMessage,
    RpcResult,
    answered,
    build_error,
    build_result,
    converted,
    extract_text,
    last_answer,
)
from perdure.server.langgraph.protocol import RequestBody, answer, check_uuid, is_uuid, iso
from perdure.server.langgraph.routing import Authorization, LangGraphResource, before, on_assistant
from perdure.server.langgraph.run_requests import CommandBody, RunBody
from perdure.server.langgraph.runs import authorize_run, created, show_values
from perdure.server.langgraph.streams import RunStream
from perdure.streams.service import Follower
from perdure.threads.records import Run, RunEnd
from perdure.threads.service import Threads

a2a = LangGraphResource("a2a")

TASK_NOT_FOUND: Final = -32001
NOT_CANCELABLE: Final = -32002
ACCEPTED: Final = 202
PROTOCOL_VERSION: Final = "0.3.0"
MODES: Final = ["application/json", "text/plain"]
STAMPED: Final = "run_metadata"
STATES: Final = {
    "pending": "submitted",
    "running": "working",
    "success": "completed",
    "error": "failed",
    "timeout": "failed",
    "interrupted": "canceled",
    "rollback": "canceled",
}
"""States of tasks, by the status of the run."""


class A2AMessage(RequestBody, kw_only=True):
    """A message to an agent; its parts are texts and data."""

    parts: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=1000)]
    messageId: str | None = None  # noqa: N815 - the protocol's name
    contextId: str | None = None  # noqa: N815
    taskId: str | None = None  # noqa: N815
    metadata: dict[str, Any] | None = None


class SendConfiguration(RequestBody, kw_only=True):
    """Whether to wait for the end of the task, and how much history to return."""

    blocking: bool = True
    historyLength: Annotated[int, Meta(ge=0)] | None = None  # noqa: N815


class SendParams(RequestBody, kw_only=True):
    """The parameters of `message/send` and `message/stream`."""

    message: A2AMessage
    configuration: SendConfiguration = msgspec.field(default_factory=SendConfiguration)
    metadata: dict[str, Any] | None = None


class TaskParams(RequestBody, kw_only=True):
    """The parameters of `tasks/get` and `tasks/cancel`."""

    id: str
    historyLength: Annotated[int, Meta(ge=0)] | None = None  # noqa: N815


# --- authorization ----------------------------------------------------------------------------------------


@before
async def _authorize(request: Authorization) -> None:
    call, message = request.call, request.call.body
    if message.method in ("message/send", "message/stream"):
        body = RunBody(assistant_id=call.path["assistant_id"], if_not_exists="create")
        await authorize_run(request, body, _get_context(message.parameters))
        call.request.scope[STAMPED] = body.metadata
        return
    thread_id = str(message.parameters.get("id")).partition(":")[0]
    if message.method in ("tasks/get", "tasks/cancel") and is_uuid(thread_id):
        action = "read" if message.method == "tasks/get" else "update"
        await request.authorize_thread(action, check_uuid(thread_id, "id"))
        return
    await request.authorize_assistant("read", call.path["assistant_id"])


def _get_context(params: Record) -> str | None:
    """Return the thread that a message names, if any."""
    message = params.get("message")
    given = message if isinstance(message, dict) else {}
    named = given.get("contextId") or str(given.get("taskId") or "").partition(":")[0] or None
    return check_uuid(named, "contextId") if isinstance(named, str) else None


# --- messages ---------------------------------------------------------------------------------------------


@a2a.route(
    "POST",
    "/a2a/{assistant_id}",
    rule=_authorize,
    scope="write",
    takes_name=True,
    summary="The Agent2Agent protocol: message/send, message/stream, tasks/get and tasks/cancel",
    body=RpcMessage,
    answer=Record,
    errors=(BadRequest, NotFound),
)
async def serve_a2a(call: Call) -> Response:
    message: RpcMessage = call.body
    if message.id is UNSET:
        return Response(status_code=ACCEPTED)
    try:
        if message.method in ("message/send", "message/stream"):
            return await _send(call, message, streams=message.method == "message/stream")
    except RpcError as error:
        return answer(build_error(message, error.code, str(error)))
    except PerdureError as error:
        if error.http_status >= 500:
            raise
        return answer(build_error(message, INVALID_PARAMS, error.message))
    return answer(await answered(message, partial(_task_command, call, message)))


async def _send(call: Call, message: RpcMessage, *, streams: bool) -> Response:
    params: SendParams = converted(message.parameters, SendParams)
    thread_id = _get_context(message.parameters) or str(uuid4())
    resumes = params.message.taskId is not None and await _waits(call.threads, thread_id)
    body = RunBody(
        assistant_id=call.path["assistant_id"],
        input=None if resumes else _input(params.message),
        command=CommandBody(resume=_content(params.message)) if resumes else None,
        metadata=call.request.scope.get(STAMPED) or params.metadata,
        if_not_exists="create",
        stream_mode=["values", "messages-tuple"],
    )
    run = await created(call, body, thread_id)
    if streams:
        source = _TaskFrames(call.threads, await call.threads.follow_run(run.run_id, BEGINNING), message, run)
        return RunStream(call, source, call.app.streams, call.app.settings.max_streams)
    if not params.configuration.blocking:
        return answer(build_result(message, _task(run, None, params.configuration.historyLength)))
    history = params.configuration.historyLength
    return RpcResult(call, answered(message, partial(_ended_task, call.threads, run.run_id, history)))


async def _waits(threads: Threads, thread_id: str) -> bool:
    try:
        return bool((await threads.get_thread(thread_id)).interrupts)
    except NotFound:
        return False


def _content(message: A2AMessage) -> Any:
    """Convert a message to an answer: its text, or its data if it has no text."""
    texts, data = _parts(message)
    return "\n".join(texts) if texts else data


def _parts(message: A2AMessage) -> tuple[list[str], Record]:
    texts = [str(part["text"]) for part in message.parts if isinstance(part.get("text"), str)]
    data: Record = {}
    for part in message.parts:
        if isinstance(part.get("data"), dict):
            data |= part["data"]
    return texts, data


def _input(message: A2AMessage) -> Record:
    """Convert a message to input: its text as a user message, its data as further fields."""
    texts, data = _parts(message)
    if not texts:
        return data
    user_message = {"role": "user", "content": "\n".join(texts), "id": message.messageId or str(uuid4())}
    return {**data, "messages": [user_message]}


# --- tasks ------------------------------------------------------------------------------------------------


async def _task_command(call: Call, message: RpcMessage) -> Record:
    if message.method not in ("tasks/get", "tasks/cancel"):
        raise RpcError(METHOD_NOT_FOUND, f"there is no method {str(message.method)[:64]!r}")
    params: TaskParams = converted(message.parameters, TaskParams)
    run = await _find(call.threads, params.id)
    if message.method == "tasks/cancel":
        try:
            await call.threads.cancel_run(run.run_id)
        except Conflict:
            raise RpcError(NOT_CANCELABLE, f"the task {params.id} has ended") from None
    elif run.status in ("pending", "running"):
        return _task(run, None, params.historyLength)
    return await _ended_task(call.threads, run.run_id, params.historyLength)


async def _find(threads: Threads, task_id: str) -> Run:
    thread_id, _, run_id = task_id.partition(":")
    if is_uuid(thread_id) and is_uuid(run_id):
        try:
            return await threads.get_run(check_uuid(run_id, "id"), check_uuid(thread_id, "id"))
        except NotFound:
            pass
    raise RpcError(TASK_NOT_FOUND, f"there is no task {task_id[:100]!r}")


async def _ended_task(threads: Threads, run_id: str, history: int | None) -> Record:
    end = await threads.join_run(run_id)
    return _task(end.run, end, history)


def _ids(run: Run) -> Record:
    return {"taskId": f"{run.thread_id}:{run.run_id}", "contextId": run.thread_id}


def _task(run: Run, end: RunEnd | None, history: int | None) -> Record:
    values = None if end is None else show_values(end)
    artifacts = [] if end is None else _artifacts(run, values)
    messages = values.get("messages") if isinstance(values, dict) else None
    built = [_build_message(run, message) for message in messages or () if isinstance(message, dict)]
    shown = built if history is None else built[len(built) - min(history, len(built)) :]
    return {
        "kind": "task",
        "id": _ids(run)["taskId"],
        "contextId": run.thread_id,
        "status": _status(run, values),
        **({"artifacts": artifacts} if artifacts else {}),
        **({"history": shown} if shown else {}),
    }


def _status(run: Run, values: Any) -> Record:
    given = values if isinstance(values, dict) else {}
    status: Record = {"state": STATES[run.status], "timestamp": iso(run.updated_at)}
    if "__interrupt__" in given:
        asked = [{"kind": "data", "data": {"interrupts": given["__interrupt__"]}}]
        return {**status, "state": "input-required", "message": _agent_message(run, asked)}
    if "__error__" in given:
        text = f"{given['__error__']['error']}: {given['__error__']['message']}"
        return {**status, "message": _agent_message(run, [{"kind": "text", "text": text}])}
    return status


def _agent_message(run: Run, parts: list[Record], message_id: str | None = None) -> Record:
    derived_id = str(uuid5(NAMESPACE_URL, f"{run.run_id}/{encode_json(parts)}"))
    return {
        "kind": "message",
        "role": "agent",
        "parts": parts,
        "messageId": message_id or derived_id,
        **_ids(run),
    }


def _build_message(run: Run, message: Record) -> Record:
    """Convert a message of a thread's state."""
    parts: list[Record] = [{"kind": "text", "text": extract_text(message.get("content"))}]
    if message.get("type") == "tool":
        result = {"toolCallId": message.get("tool_call_id"), "content": message.get("content")}
        parts = [{"kind": "data", "data": {"tool_results": [result]}}]
    shown = _agent_message(run, parts, str(message.get("id")))
    return {**shown, "role": "user" if message.get("type") == "human" else "agent"}


def _artifacts(run: Run, values: Any) -> list[Record]:
    """Build the artifacts of a task: the text of the last message, or all values."""
    if isinstance(values, dict) and ({"__error__", "__interrupt__"} & set(values)):
        return []
    text = last_answer(values)
    part = {"kind": "data", "data": values} if text is None else {"kind": "text", "text": text}
    return [{"artifactId": run.run_id, "name": "Assistant Response", "parts": [part]}]


# --- streams ----------------------------------------------------------------------------------------------


class _TaskFrames:
    """The progress of a task as server-sent events: the task, its growing messages, its result."""

    def __init__(self, threads: Threads, follower: Follower, message: RpcMessage, run: Run) -> None:
        self._threads = threads
        self._follower = follower
        self._message = message
        self._run = run
        self._texts: dict[str, str] = {}
        self._ready: deque[Record] = deque([_task(run, None, None)])
        self._ended = False

    async def next(self) -> bytes | None:
        while not self._ready:
            if self._ended:
                return None
            await self._read()
        frames = [
            crlf_frame("message", encode_json(build_result(self._message, update))) for update in self._ready
        ]
        self._ready.clear()
        return "".join(frames).encode()

    async def _read(self) -> None:
        burst = await self._follower.next()
        if burst is None:
            self._ended = True
            await self._finish()
            return
        for event in burst:
            if event.event.partition("|")[0] == "messages":
                self._grow(decode_json(event.body))

    def _grow(self, data: Any) -> None:
        piece = data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
        if piece.get("type") not in ("ai", "AIMessageChunk"):
            return
        message_id = str(piece.get("id"))
        text = self._texts.get(message_id, "") + extract_text(piece.get("content"))
        if text and text != self._texts.get(message_id):
            self._texts[message_id] = text
            growing = _agent_message(self._run, [{"kind": "text", "text": text}], message_id)
            self._ready.append(self._update({"state": "working", "message": growing}))

    async def _finish(self) -> None:
        task = await _ended_task(self._threads, self._run.run_id, 0)
        for artifact in task.get("artifacts") or ():
            update = {"kind": "artifact-update", "artifact": artifact, "append": False, "lastChunk": True}
            self._ready.append({**_ids(self._run), **update})
        self._ready.append({**self._update(task["status"]), "final": True})

    def _update(self, status: Record) -> Record:
        return {**_ids(self._run), "kind": "status-update", "status": status, "final": False}

    def close(self) -> None:
        self._follower.close()


# --- the card ---------------------------------------------------------------------------------------------


class CardQuery(msgspec.Struct, kw_only=True):
    """The assistant of the returned card."""

    assistant_id: str = ""


async def _authorize_card(request: Authorization, handler: Any) -> Any:
    name = request.call.query.assistant_id
    assistant = (await request.call.assistants.resolve([name])).get(name) if name else None
    if assistant is None:
        await request.authorize("assistants", "search", {"metadata": {}})
    else:
        await request.authorize_assistant("read", assistant.assistant_id)
    return await handler(request.call)


@a2a.route(
    "GET",
    "/a2a/{assistant_id}/.well-known/agent-card.json",
    rule=on_assistant("read"),
    scope="read",
    takes_name=True,
    summary="The card of an assistant for the Agent2Agent protocol",
    answer=Record,
    errors=(NotFound,),
)
async def get_card(call: Call) -> Response:
    return answer(_card(call, await call.assistants.get(call.path["assistant_id"])))


@a2a.route(
    "GET",
    "/.well-known/agent-card.json",
    rule=_authorize_card,
    scope="read",
    summary="The card of the assistant that the query names",
    query=CardQuery,
    answer=Record,
    errors=(BadRequest, NotFound),
)
async def get_named_card(call: Call) -> Response:
    name = call.query.assistant_id
    if not name:
        raise BadRequest("name an assistant: ?assistant_id=…")
    assistant = (await call.assistants.resolve([name])).get(name)
    if assistant is None:
        raise NotFound(f"Assistant {name[:100]} not found")
    return answer(_card(call, assistant))


def _card(call: Call, assistant: Assistant) -> Record:
    base = str(call.request.base_url).rstrip("/") + call.app.http.mount_prefix
    about = assistant.description or f"The assistant {assistant.name}"
    skill = {
        "id": f"{assistant.assistant_id}-main",
        "name": assistant.name,
        "description": about,
        "tags": ["assistant", assistant.agent],
        "inputModes": MODES,
        "outputModes": MODES,
    }
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "name": assistant.name,
        "description": about,
        "url": f"{base}/a2a/{assistant.assistant_id}",
        "preferredTransport": "JSONRPC",
        "capabilities": {"streaming": True, "pushNotifications": False, "stateTransitionHistory": False},
        "defaultInputModes": MODES,
        "defaultOutputModes": MODES,
        "skills": [skill],
        "version": VERSION,
    }
