"""What the LangGraph protocol takes for runs, and what it asks the rooms for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from perdure.kernel.codec import decode_json
from perdure.kernel.errors import BadRequest, InvalidInput
from perdure.server.langgraph.wire import Body, check_uuid
from perdure.threads.records import (
    CancelAction,
    Command,
    Delay,
    IfNotExists,
    MultitaskStrategy,
    OnCompletion,
    OnDisconnect,
    RunRequest,
)
from perdure.threads.service import MAX_BATCH

StreamMode = Literal[
    "values", "messages", "messages-tuple", "tasks", "checkpoints", "updates", "events", "debug", "custom"
]
ThreadStreamMode = Literal["run_modes", "lifecycle", "state_update"]
Durability = Literal["sync", "async", "exit"]
Nodes = Literal["*"] | list[str]

THREAD_STREAM_MODES: Final = get_args(ThreadStreamMode)
DEFAULT_MODES: Final = ["values"]
STRATEGY: Final[MultitaskStrategy] = "enqueue"
RESUMABLE: Final = "stream_resumable"
CHECKPOINT_ID: Final = "checkpoint_id"
CONFIG_KINDS: Final = {"configurable": dict, "metadata": dict, "tags": list, "recursion_limit": int}

RESERVED: Final = frozenset({"run_id", "thread_id", "graph_id", "assistant_id", "langgraph_request_id"})
RESERVED_PREFIXES: Final = ("__", "langgraph_auth_")
"""Keys of `configurable` that only the server gives; from a client they are left out."""


class CommandBody(Body, kw_only=True):
    """How a thread goes on."""

    resume: Any = None
    update: Any = None
    goto: Any = None


class CheckpointBody(Body, kw_only=True):
    """The checkpoint to go on from."""

    checkpoint_id: str | None = None
    checkpoint_ns: str | None = None
    checkpoint_map: dict[str, str] | None = None


class RunBody(Body, kw_only=True):
    """A run that a client asks for."""

    assistant_id: Annotated[str, Meta(min_length=1)]
    input: Any = None
    command: CommandBody | None = None
    metadata: dict[str, Any] | None = None
    config: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    checkpoint: CheckpointBody | None = None
    checkpoint_id: str | None = None
    checkpoint_during: bool | None = None
    durability: Durability | None = None
    interrupt_before: Nodes | None = None
    interrupt_after: Nodes | None = None
    stream_mode: StreamMode | list[StreamMode] | None = None
    stream_subgraphs: bool | None = None
    stream_resumable: bool | None = None
    feedback_keys: list[str] | None = None
    webhook: str | None = None
    on_disconnect: OnDisconnect | None = None
    on_completion: OnCompletion | None = None
    multitask_strategy: MultitaskStrategy | None = None
    if_not_exists: IfNotExists | None = None
    after_seconds: Delay | None = None


class BatchBody(RunBody, kw_only=True):
    """One of many runs; it has a thread of its own unless it names one."""

    thread_id: str | None = None


Batch = Annotated[list[BatchBody], Meta(min_length=1, max_length=MAX_BATCH)]


class RunsQuery(msgspec.Struct, kw_only=True):
    """Which runs of a thread, the newest first, and which of their fields."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 10
    offset: Annotated[int, Meta(ge=0, le=2**53)] = 0
    status: str | None = None
    select: list[str] | None = None


class CancelQuery(msgspec.Struct, kw_only=True):
    """How to end a run, and whether to wait for that."""

    wait: bool = False
    action: CancelAction = "interrupt"


class CancelManyQuery(msgspec.Struct, kw_only=True):
    """How to end runs."""

    action: CancelAction = "interrupt"


class CancelMany(Body, kw_only=True):
    """Which runs to end: some of a thread, or all with a status."""

    thread_id: str | None = None
    run_ids: Annotated[list[str], Meta(max_length=MAX_BATCH)] | None = None
    status: Literal["pending", "running", "all"] | None = None


class JoinQuery(msgspec.Struct, kw_only=True):
    """Whether the run ends when its reader leaves."""

    cancel_on_disconnect: bool = False


class StreamQuery(msgspec.Struct, kw_only=True):
    """Which events, and whether the run ends when its reader leaves."""

    stream_mode: list[str] | None = None
    cancel_on_disconnect: bool = False


class ThreadStreamQuery(msgspec.Struct, kw_only=True):
    """Which events of a thread."""

    stream_mode: list[str] | None = None
    stream_modes: list[str] | None = None


# --- lists in a query -------------------------------------------------------------------------------------


def items_of(given: Sequence[str] | None, what: str) -> list[str]:
    """A list in a query: item by item, with commas, or as JSON; clients differ."""
    found: list[str] = []
    for text in given or ():
        found += _from_json(text, what) if text.startswith("[") else text.split(",")
    return [item for item in found if item]


def _from_json(text: str, what: str) -> list[str]:
    found = decode_json(text)
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise InvalidInput(f"{what} must be a list of strings")
    return found


# --- a run ------------------------------------------------------------------------------------------------


def request_of(body: RunBody, thread_id: str | None) -> RunRequest:
    """What a client asks for, in the words of the threads room."""
    config = _config(body.config)
    _check(body, config, thread_id)
    return RunRequest(
        assistant_id=body.assistant_id,
        thread_id=thread_id,
        input=body.input,
        command=_command(body.command),
        config=config,
        context=body.context,
        metadata={**config.get("metadata", {}), **(body.metadata or {})},
        inherit_metadata=True,
        checkpoint_id=_checkpoint_id(body, config),
        multitask_strategy=body.multitask_strategy or STRATEGY,
        if_not_exists=body.if_not_exists or "reject",
        after_seconds=body.after_seconds,
        on_disconnect=body.on_disconnect or "continue",
        on_completion=body.on_completion or "delete",
        webhook=body.webhook,
        stream_mode=_modes(body.stream_mode),
        options=_options(body),
    )


def batch_request(body: BatchBody) -> RunRequest:
    thread_id = None if body.thread_id is None else check_uuid(body.thread_id, "thread_id")
    return request_of(body, thread_id)


def _check(body: RunBody, config: Mapping[str, Any], thread_id: str | None) -> None:
    if body.context and config.get("configurable"):
        raise BadRequest("give either context or config.configurable, not both; prefer context")
    if body.command is not None and thread_id is None:
        raise BadRequest("a command goes on from where a thread stopped: give the thread_id")


def _config(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The configuration, without what only the server may say."""
    config = {key: value for key, value in (given or {}).items() if value is not None}
    for key, kind in CONFIG_KINDS.items():
        if key in config and (not isinstance(config[key], kind) or isinstance(config[key], bool)):
            raise InvalidInput(f"config.{key} has not the form that it must have")
    if config.get("recursion_limit", 1) < 1:
        raise InvalidInput("config.recursion_limit must be at least 1")
    if "configurable" in config:
        config["configurable"] = {
            key: value for key, value in config["configurable"].items() if not is_reserved(key)
        }
    return config


def is_reserved(key: str) -> bool:
    return key in RESERVED or key.startswith(RESERVED_PREFIXES)


def _command(body: CommandBody | None) -> Command | None:
    if body is None:
        return None
    return Command(resume=_or_unset(body.resume), update=_or_unset(body.update), goto=_or_unset(body.goto))


def _or_unset(value: Any) -> Any | UnsetType:
    return UNSET if value is None else value


def _checkpoint_id(body: RunBody, config: Mapping[str, Any]) -> str | None:
    """The root's checkpoint: that of a subgraph stands in the options."""
    place = body.checkpoint
    if place is not None and place.checkpoint_ns:
        return (place.checkpoint_map or {}).get("")
    named = None if place is None else place.checkpoint_id
    found = named or body.checkpoint_id or config.get("configurable", {}).get(CHECKPOINT_ID)
    return None if found is None else str(found)


def _modes(given: StreamMode | Sequence[StreamMode] | None) -> list[str]:
    if not given:
        return list(DEFAULT_MODES)
    return [given] if isinstance(given, str) else list(dict.fromkeys(given))


def _options(body: RunBody) -> dict[str, Any]:
    """What only graphs understand, as far as it was asked for."""
    given = {
        "durability": body.durability or _durability(body.checkpoint_during),
        "interrupt_before": body.interrupt_before,
        "interrupt_after": body.interrupt_after,
        "stream_subgraphs": body.stream_subgraphs or None,
        RESUMABLE: body.stream_resumable or None,
        "feedback_keys": body.feedback_keys,
        "checkpoint": _inner_checkpoint(body.checkpoint),
    }
    return {key: value for key, value in given.items() if value is not None}


def _durability(checkpoint_during: bool | None) -> Durability | None:
    """What was said with the older option."""
    if checkpoint_during is None:
        return None
    return "async" if checkpoint_during else "exit"


def _inner_checkpoint(place: CheckpointBody | None) -> dict[str, Any] | None:
    if place is None or not (place.checkpoint_ns or place.checkpoint_map):
        return None
    return {key: value for key, value in msgspec.to_builtins(place).items() if value is not None}
