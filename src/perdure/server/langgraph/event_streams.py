"""The protocol of `client.threads.stream`: commands to a thread, and subscriptions to its events."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from starlette.responses import Response

from perdure.kernel.codec import encode_json
from perdure.kernel.errors import BadRequest, Forbidden, InvalidInput, NotFound, PerdureError
from perdure.server.http.long_responses import crlf_frame
from perdure.server.http.routes import Call
from perdure.server.langgraph.event_translation import MODES, SPREAD, EventTranslator, Translated
from perdure.server.langgraph.protocol import RequestBody, answer
from perdure.server.langgraph.routing import Authorization, LangGraphResource, before, on_thread
from perdure.server.langgraph.run_requests import CommandBody, RunBody
from perdure.server.langgraph.runs import authorize_run, created
from perdure.server.langgraph.streams import STREAMED, RunStream
from perdure.server.langgraph.threads import THREAD
from perdure.streams.model import StreamEvent
from perdure.streams.operations import first_of_source
from perdure.streams.service import Follower
from perdure.threads.operations.queries import RunSearch
from perdure.threads.operations.settle import thread_stream
from perdure.threads.records import Interrupt
from perdure.threads.service import Threads

event_streams = LangGraphResource("threads")

CHANNELS: Final = frozenset(
    {"values", "updates", "messages", "tools", "lifecycle", "input", "checkpoints", "tasks", "custom"}
)
NAMED: Final = "custom:"
MAX_CHANNELS: Final = 100
MAX_NAMESPACES: Final = 1000
LATEST: Final = 2**62
BAD_REQUEST: Final = 400

Namespace = Annotated[list[str], Meta(max_length=100)]


# --- subscriptions ----------------------------------------------------------------------------------------


class Subscription(RequestBody, kw_only=True):
    """Subscription to events of a thread: channels, namespaces and start."""

    channels: Annotated[list[str], Meta(max_length=MAX_CHANNELS)] = msgspec.field(default_factory=list)
    namespaces: Annotated[list[Namespace], Meta(max_length=MAX_NAMESPACES)] | None = None
    depth: Annotated[int, Meta(ge=0)] | None = None
    since: Annotated[int, Meta(ge=0, le=2**62)] | None = None

    def check(self) -> None:
        """Refuse a subscription without channels, or to an unknown channel."""
        if not self.channels:
            raise BadRequest("channels must name at least one channel")
        unknown = [name for name in self.channels if name not in CHANNELS and not _is_named(name)]
        if unknown:
            channels = ", ".join(sorted(CHANNELS))
            raise BadRequest(
                f"there is no channel {unknown[0][:64]!r}; there are {channels} and custom:<name>"
            )

    def wants(self, event: Translated) -> bool:
        channel = event.channel
        named = channel.startswith(NAMED) and "custom" in self.channels
        return (channel in self.channels or named) and self._is_inside(event.namespace)

    def _is_inside(self, namespace: Sequence[str]) -> bool:
        if not self.namespaces:
            return True
        return any(
            _begins(namespace, prefix) and (self.depth is None or len(namespace) - len(prefix) <= self.depth)
            for prefix in self.namespaces
        )


def _is_named(channel: str) -> bool:
    return channel.startswith(NAMED) and len(channel) > len(NAMED)


def _begins(namespace: Sequence[str], prefix: Sequence[str]) -> bool:
    """Return whether a namespace is below a prefix. The prefix may omit task ids after colons."""
    if len(prefix) > len(namespace):
        return False
    pairs = zip(namespace, prefix, strict=False)
    return all(part == wanted or part.partition(":")[0] == wanted for part, wanted in pairs)


class ThreadEvents:
    """The events of a thread that a subscription wants, in the form of the protocol.

    Reading starts with the first event of the run at `since`, or of the last run, because a growing message
    can be translated only from its start.
    """

    def __init__(self, threads: Threads, subscription: Subscription) -> None:
        self._threads = threads
        self._subscription = subscription
        self._translator = EventTranslator()
        self._follower: Follower | None = None

    async def open(self, thread_id: str) -> None:
        stream, since = thread_stream(thread_id), self._subscription.since
        at = LATEST if since is None else since // SPREAD
        first = await self._threads.read(first_of_source, stream, at)
        place = 0 if first is None else first - 1
        self._follower = self._threads.streams.follow(await self._threads.ns(), stream, place, joined=True)

    async def next(self) -> list[dict[str, Any]] | None:
        """Return the next events, at least one. Return None after the last."""
        assert self._follower is not None
        while (burst := await self._follower.next()) is not None:
            messages = [message for event in burst for message in await self._translated(event)]
            if messages:
                return messages
        return None

    async def _translated(self, event: StreamEvent) -> list[dict[str, Any]]:
        graph = await self._find_agent(event.source) if self._translator.is_new(event) else None
        since = self._subscription.since or 0
        return [
            _message(event, seq, translated)
            for seq, translated in self._translator.translate(event, graph)
            if seq > since and self._subscription.wants(translated)
        ]

    async def _find_agent(self, run_id: str) -> str | None:
        with contextlib.suppress(NotFound):
            return (await self._threads.get_run(run_id)).agent
        return None

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()


def _message(event: StreamEvent, seq: int, translated: Translated) -> dict[str, Any]:
    params = {"namespace": list(translated.namespace), "timestamp": event.ms, "data": translated.data}
    return {
        "type": "event",
        "event_id": f"{event.id}.{seq % SPREAD}",
        "seq": seq,
        "method": translated.method,
        "params": params,
    }


class _Frames:
    """Source of thread events as server-sent events."""

    def __init__(self, events: ThreadEvents) -> None:
        self._events = events

    async def next(self) -> bytes | None:
        messages = await self._events.next()
        if messages is None:
            return None
        frames = [
            crlf_frame(message["method"], encode_json(message), str(message["seq"])) for message in messages
        ]
        return "".join(frames).encode()

    def close(self) -> None:
        self._events.close()


@event_streams.route(
    "POST",
    THREAD + "/stream/events",
    rule=on_thread("read"),
    scope="read",
    summary="Stream the events of a thread that a subscription names, if given only after `since`",
    body=Subscription,
    errors=(BadRequest, NotFound),
    **STREAMED,
)
async def stream_events(call: Call) -> Response:
    subscription: Subscription = call.body
    subscription.check()
    events = ThreadEvents(call.threads, subscription)
    await events.open(call.path["thread_id"])
    return RunStream(call, _Frames(events), call.app.streams, call.app.settings.max_streams)


# --- commands ---------------------------------------------------------------------------------------------


class ThreadCommand(RequestBody, kw_only=True):
    """A command to a thread. Missing fields are refused in the protocol's own form."""

    id: Any = None
    method: Any = None
    params: Any = None


class CommandRefused(Exception):
    """Raised for a command that cannot be executed, with the protocol's code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class StartParams(RunBody, kw_only=True):
    """The parameters of `run.start`."""

    assistant_id: str = ""


class RespondParams(RequestBody, kw_only=True):
    """The parameters of `input.respond`: one answer, or several."""

    interrupt_id: str | None = None
    response: Any = None
    responses: Annotated[list[dict[str, Any]], Meta(max_length=1000)] | None = None
    update: Any = None
    goto: Any = None
    config: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None

    def answers(self) -> dict[str, Any]:
        if self.responses is None:
            return {str(self.interrupt_id): self.response}
        return {str(entry.get("interrupt_id")): entry.get("response") for entry in self.responses}


def _run_body(given: RunBody) -> RunBody:
    """Complete the body of a run with translatable events. The thread may not exist yet."""
    given.stream_mode = list(MODES)
    given.stream_subgraphs = given.stream_resumable = True
    given.if_not_exists = "create"
    return given


async def _start_run(call: Call, params: Any) -> dict[str, Any]:
    body = _converted(params, StartParams)
    if not body.assistant_id:
        raise CommandRefused("invalid_argument", "run.start needs an assistant_id")
    return {"run_id": await _create(call, _run_body(body))}


async def _respond(call: Call, params: Any) -> dict[str, Any]:
    """Answer questions of a thread; its next run continues with the answers."""
    given = _converted(params, RespondParams)
    answers, thread_id = given.answers(), call.path["thread_id"]
    asked = await _questions(call.threads, thread_id)
    unknown = [id for id in answers if id not in {question.id for question in asked}]
    if unknown or not answers:
        raise CommandRefused(
            "no_such_interrupt", f"no question {', '.join(unknown)[:200]} waits for an answer"
        )
    # Agents that are not graphs do not know the ids of questions.
    alone = len(asked) == len(answers) == 1
    resume = next(iter(answers.values())) if alone else answers
    body = RunBody(
        assistant_id=str(await _last_assistant(call.threads, thread_id)),
        command=CommandBody(resume=resume, update=given.update, goto=given.goto),
        config=given.config,
        metadata=given.metadata,
    )
    await _create(call, _run_body(body))
    return {}


async def _questions(threads: Threads, thread_id: str) -> Sequence[Interrupt]:
    with contextlib.suppress(NotFound):
        return (await threads.get_thread(thread_id)).interrupts
    return ()


async def _last_assistant(threads: Threads, thread_id: str) -> str | None:
    """Return the assistant of the thread's last run, because this run asked the questions."""
    with contextlib.suppress(NotFound):
        runs = await threads.find_runs(RunSearch(thread_id, None, 1, 0, undone=False))
        return runs.items[0].assistant_id if runs.items else None
    return None


async def _create(call: Call, body: RunBody) -> str:
    return (await created(call, body)).run_id


Command = Callable[[Call, Any], Awaitable[dict[str, Any]]]
COMMANDS: Final[dict[str, Command]] = {"run.start": _start_run, "input.respond": _respond}
CODES: Final = {
    "not_found": "no_such_run",
    "forbidden": "permission_denied",
    "not_supported": "not_supported",
}


@before
async def _authorize_command(request: Authorization) -> None:
    """Authorize a command like the run that it creates."""
    command: ThreadCommand = request.call.body
    thread_id = request.call.path["thread_id"]
    try:
        body = await _parse_body(request.call, command, thread_id)
    except CommandRefused as refused:
        raise InvalidInput(str(refused)) from None
    if body is None:
        await request.authorize_thread("update", thread_id)
        return
    await authorize_run(request, body, thread_id)
    command.params = {**command.params, "metadata": body.metadata}


async def _parse_body(call: Call, command: ThreadCommand, thread_id: str) -> RunBody | None:
    """Build the part of a command's run that authorization needs."""
    if command.method == "run.start":
        return _run_body(_converted(command.params, StartParams))
    if command.method != "input.respond":
        return None
    given: RespondParams = _converted(command.params, RespondParams)
    assistant = await _last_assistant(call.threads, thread_id)
    return None if assistant is None else RunBody(assistant_id=assistant, metadata=given.metadata)


@event_streams.route(
    "POST",
    THREAD + "/commands",
    rule=_authorize_command,
    scope="write",
    summary="Send a command to a thread: run.start or input.respond",
    body=ThreadCommand,
    answer=dict[str, Any],
    errors=(BadRequest, NotFound),
)
async def send_command(call: Call) -> Response:
    command: ThreadCommand = call.body
    if not isinstance(command.id, int) or not isinstance(command.method, str):
        refused = _refusal(None, "invalid_argument", "a command needs an id, which is a number, and a method")
        return answer(refused, BAD_REQUEST)
    try:
        result = await _done(call, command)
    except CommandRefused as refusal:
        return answer(_refusal(command.id, refusal.code, str(refusal)))
    except PerdureError as error:
        if isinstance(error, Forbidden) or error.http_status >= 500:
            raise
        code = CODES.get(error.code, "invalid_argument")
        return answer(_refusal(command.id, code, error.message))
    return answer({"type": "success", "id": command.id, "result": result, "meta": {"applied_through_seq": 0}})


async def _done(call: Call, command: ThreadCommand) -> dict[str, Any]:
    execute = COMMANDS.get(command.method)
    if execute is None:
        raise CommandRefused("unknown_command", f"there is no command {command.method[:64]!r}")
    return await execute(call, command.params)


def _refusal(id: int | None, code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "id": id, "error": code, "message": message}


def _converted(params: Any, kind: type[Any]) -> Any:
    try:
        return msgspec.convert(params if params is not None else {}, kind)
    except msgspec.ValidationError as error:
        raise CommandRefused("invalid_argument", f"params: {error}") from None
