"""Request body of a run in the LangGraph protocol, and its conversion into a run request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from perdure.kernel.errors import BadRequest, InvalidInput
from perdure.server.langgraph.protocol import CheckpointBody, RequestBody, check_uuid_or_none
from perdure.service.endpoints import MAX_BATCH
from perdure.threads.records import (
    Delay,
    IfNotExists,
    MultitaskStrategy,
    OnCompletion,
    OnDisconnect,
    RunCommand,
    RunRequest,
)

StreamMode = Literal[
    "values", "messages", "messages-tuple", "tasks", "checkpoints", "updates", "events", "debug", "custom"
]
Durability = Literal["sync", "async", "exit"]
Nodes = Literal["*"] | list[str]

DEFAULT_MODES: Final = ["values"]
STRATEGY: Final[MultitaskStrategy] = "enqueue"
RESUMABLE: Final = "stream_resumable"
CHECKPOINT_ID: Final = "checkpoint_id"
CONFIG_KINDS: Final = {"configurable": dict, "metadata": dict, "tags": list, "recursion_limit": int}
CONFIG_NAMES: Final = {dict: "an object", list: "a list", int: "an integer"}

RESERVED: Final = frozenset({"run_id", "thread_id", "graph_id", "assistant_id", "langgraph_request_id"})
RESERVED_PREFIXES: Final = ("__", "langgraph_auth_")
"""Keys of `configurable` that only the server sets; keys from a client are dropped."""


class CommandBody(RequestBody, kw_only=True):
    """How a thread continues."""

    resume: Any = None
    update: Any = None
    goto: Any = None


class RunBody(RequestBody, kw_only=True):
    """A new run."""

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
    """One of several new runs; a run without a thread gets a temporary thread."""

    thread_id: str | None = None


Batch = Annotated[list[BatchBody], Meta(min_length=1, max_length=MAX_BATCH)]


# --- a run ------------------------------------------------------------------------------------------------


def build_run_request(body: RunBody, thread_id: str | None) -> RunRequest:
    """Convert a body to a run request."""
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
    return build_run_request(body, check_uuid_or_none(body.thread_id, "thread_id"))


def _check(body: RunBody, config: Mapping[str, Any], thread_id: str | None) -> None:
    if body.context and config.get("configurable"):
        raise BadRequest("give either context or config.configurable, not both; prefer context")
    if body.command is not None and thread_id is None:
        raise BadRequest("a command continues a thread: give the thread_id")


def _config(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the configuration without keys that only the server sets."""
    config = {key: value for key, value in (given or {}).items() if value is not None}
    for key, kind in CONFIG_KINDS.items():
        if key in config and (not isinstance(config[key], kind) or isinstance(config[key], bool)):
            raise InvalidInput(f"config.{key} must be {CONFIG_NAMES[kind]}")
    if config.get("recursion_limit", 1) < 1:
        raise InvalidInput("config.recursion_limit must be at least 1")
    if "configurable" in config:
        config["configurable"] = {
            key: value for key, value in config["configurable"].items() if not is_reserved(key)
        }
    return config


def is_reserved(key: str) -> bool:
    return key in RESERVED or key.startswith(RESERVED_PREFIXES)


def _command(body: CommandBody | None) -> RunCommand | None:
    if body is None:
        return None
    return RunCommand(resume=_or_unset(body.resume), update=_or_unset(body.update), goto=_or_unset(body.goto))


def _or_unset(value: Any) -> Any | UnsetType:
    return UNSET if value is None else value


def _checkpoint_id(body: RunBody, config: Mapping[str, Any]) -> str | None:
    """Return the checkpoint of the root graph; the options hold the checkpoint of a subgraph."""
    checkpoint = body.checkpoint
    if checkpoint is not None and checkpoint.checkpoint_ns:
        return (checkpoint.checkpoint_map or {}).get("")
    named = None if checkpoint is None else checkpoint.checkpoint_id
    checkpoint_id = named or body.checkpoint_id or config.get("configurable", {}).get(CHECKPOINT_ID)
    return None if checkpoint_id is None else str(checkpoint_id)


def _modes(given: StreamMode | Sequence[StreamMode] | None) -> list[str]:
    if not given:
        return list(DEFAULT_MODES)
    return [given] if isinstance(given, str) else list(dict.fromkeys(given))


def _options(body: RunBody) -> dict[str, Any]:
    """Return the given options that only graphs use."""
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
    """Convert the older option to a durability."""
    if checkpoint_during is None:
        return None
    return "async" if checkpoint_during else "exit"


def _inner_checkpoint(checkpoint: CheckpointBody | None) -> dict[str, Any] | None:
    if checkpoint is None or not (checkpoint.checkpoint_ns or checkpoint.checkpoint_map):
        return None
    return {key: value for key, value in msgspec.to_builtins(checkpoint).items() if value is not None}
