"""What the LangGraph protocol gives: records of the rooms in the shapes that `langgraph_sdk` reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.responses import Response

from perdure.assistants.records import Assistant
from perdure.kernel.errors import InvalidInput
from perdure.server.http.bodies import encode
from perdure.server.http.routes import Call
from perdure.server.langgraph.shapes import (
    AssistantShape,
    FailureShape,
    InterruptShape,
    RunShape,
    ThreadShape,
    TtlShape,
    VersionShape,
)
from perdure.threads.records import Failure, Interrupt, Lifetime, Run, Thread

TOTAL = "X-Pagination-Total"
NEXT = "X-Pagination-Next"
JSON = "application/json"
NO_CONTENT = 204
MAX_PAGE = 1000
PAGE = 10

Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
Offset = Annotated[int, Meta(ge=0, le=2**53)]
Metadata = dict[str, Any]
SortOrder = Literal["asc", "desc"]


class Body(msgspec.Struct, kw_only=True):
    """A body; fields that are not known here are left out, since clients of other releases may send them."""


def check_uuid(value: str, what: str) -> str:
    """An id in its usual form, or InvalidInput if it is no UUID."""
    try:
        return str(UUID(value))
    except ValueError:
        raise InvalidInput(f"{what} must be a UUID, not {value[:64]!r}") from None


def iso(seconds: float) -> str:
    """A time as ISO 8601, with its time zone."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def iso_or_none(seconds: float | None) -> str | None:
    return None if seconds is None else iso(seconds)


# --- records ----------------------------------------------------------------------------------------------


def assistant_of(assistant: Assistant) -> AssistantShape:
    return {
        **version_of(assistant),
        "created_at": iso(assistant.created_at),
        "updated_at": iso(assistant.updated_at),
    }


def version_of(assistant: Assistant) -> VersionShape:
    """What an assistant was in a version, which was made at a time and has not changed since.

    What is an agent elsewhere is a graph here.
    """
    return {
        "assistant_id": assistant.assistant_id,
        "graph_id": assistant.agent,
        "name": assistant.name,
        "description": assistant.description,
        "config": assistant.config,
        "context": assistant.context,
        "metadata": assistant.metadata,
        "version": assistant.version,
        "created_at": iso(assistant.updated_at),
    }


def thread_of(thread: Thread) -> ThreadShape:
    """A thread, with the values and interrupts of its last state."""
    return {
        "thread_id": thread.thread_id,
        "status": thread.status,
        "metadata": thread.metadata,
        "config": thread.config,
        "values": thread.values,
        "interrupts": interrupts_of(thread.interrupts),
        "error": failure_of(thread.error),
        "created_at": iso(thread.created_at),
        "updated_at": iso(thread.updated_at),
        "state_updated_at": iso(thread.state_updated_at),
    }


def ttl_of(lifetime: Lifetime | None) -> TtlShape | None:
    if lifetime is None:
        return None
    return {
        "strategy": lifetime.strategy,
        "ttl_minutes": lifetime.minutes,
        "expires_at": iso_or_none(lifetime.expires_at),
    }


def interrupts_of(interrupts: Iterable[Interrupt]) -> dict[str, list[InterruptShape]]:
    """Interrupts by the task that waits for each."""
    found: dict[str, list[InterruptShape]] = {}
    for each in interrupts:
        task_id = each.task_id if isinstance(each.task_id, str) else each.id
        found.setdefault(task_id, []).append({"id": each.id, "value": each.value})
    return found


def failure_of(failure: Failure | None) -> FailureShape | None:
    return None if failure is None else {"error": failure.error, "message": failure.message}


def run_of(run: Run) -> RunShape:
    """A run, with what it was asked for in `kwargs`."""
    return {
        "run_id": run.run_id,
        "thread_id": run.thread_id,
        "assistant_id": run.assistant_id,
        "status": run.status,
        "metadata": run.metadata,
        "kwargs": kwargs_of(run),
        "multitask_strategy": run.multitask_strategy,
        "created_at": iso(run.created_at),
        "updated_at": iso(run.updated_at),
    }


def kwargs_of(run: Run) -> dict[str, Any]:
    """What a run was asked for; the options of its graph stand beside the rest."""
    kwargs: dict[str, Any] = msgspec.to_builtins(run.kwargs)
    kwargs.pop("traceparent", None)
    options = kwargs.pop("options", None) or {}
    return {**kwargs, **options, "webhook": run.webhook, "on_disconnect": run.on_disconnect}


# --- answers ----------------------------------------------------------------------------------------------


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode(value), status, dict(headers or {}), JSON)


def nothing(headers: Mapping[str, str] | None = None) -> Response:
    return Response(status_code=NO_CONTENT, headers=dict(headers or {}))


def page(items: Sequence[Any], total: int, limit: int, offset: int) -> Response:
    """A list, with how long the whole is, and where it goes on if it does."""
    headers = {TOTAL: str(total)}
    if offset + limit < total:
        headers[NEXT] = str(offset + limit)
    return answer(items, headers=headers)


def selected(record: Mapping[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    """Only the fields that were asked for; all of them if none were."""
    return {name: record[name] for name in names or record if name in record}


def wants_nothing(call: Call) -> bool:
    """Whether the caller does not want to see what it has changed."""
    return "return=minimal" in call.request.headers.get("prefer", "").replace(" ", "").lower()
