"""What the LangGraph protocol is asked of assistants."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from perdure.assistants.records import IfExists
from perdure.server.langgraph.wire import Body, Limit, Metadata, Offset, SortOrder

MAX_DEPTH = 1000

AssistantField = Literal[
    "assistant_id",
    "graph_id",
    "name",
    "description",
    "config",
    "context",
    "metadata",
    "version",
    "created_at",
    "updated_at",
]
ASSISTANT_FIELDS: tuple[str, ...] = get_args(AssistantField)
AssistantSort = Literal["assistant_id", "graph_id", "name", "created_at", "updated_at"]


class AssistantCreate(Body, kw_only=True):
    """An assistant to be made of a graph."""

    graph_id: str
    assistant_id: str | None = None
    config: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    metadata: Metadata | None = None
    if_exists: IfExists | None = None
    name: str | None = None
    description: str | None = None


class AssistantPatch(Body, kw_only=True):
    """What the next version of an assistant has; a field that is left out keeps its value."""

    graph_id: str | None = None
    config: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    metadata: Metadata | None = None
    name: str | None = None
    description: str | None = None


class AssistantCount(Body, kw_only=True):
    """Which assistants."""

    metadata: Metadata | None = None
    graph_id: str | None = None
    name: str | None = None


class AssistantSearch(AssistantCount, kw_only=True):
    """Which assistants, which of their fields, in which order."""

    limit: Limit | None = None
    offset: Offset | None = None
    sort_by: AssistantSort | None = None
    sort_order: SortOrder | None = None
    select: list[AssistantField] | None = None


class VersionSearch(Body, kw_only=True):
    """Which versions of an assistant, the newest first."""

    metadata: Metadata | None = None
    limit: Limit | None = None
    offset: Offset | None = None


class VersionChange(Body, kw_only=True):
    """The version that counts from now on."""

    version: Annotated[int, Meta(ge=1, le=2**31 - 1)]


class DeleteQuery(msgspec.Struct, kw_only=True):
    """Whether the assistant's threads go with it."""

    delete_threads: bool = False


class GraphQuery(msgspec.Struct, kw_only=True):
    """How deep to look into graphs within the graph: not at all, to the ground, or so many levels."""

    xray: bool | Annotated[int, Meta(ge=0, le=MAX_DEPTH)] | None = None


class SubgraphQuery(msgspec.Struct, kw_only=True):
    """Whether graphs within graphs within the graph are shown too."""

    recurse: bool = False
