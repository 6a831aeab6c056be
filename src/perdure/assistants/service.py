"""Service of the assistants of one namespace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from perdure.agents.records import AgentDescription, AgentSpec
from perdure.assistants import model, operations, sql
from perdure.assistants.model import (
    AssistantBody,
    AssistantChange,
    AssistantFilter,
    AssistantRow,
    AssistantVersionRow,
    NewAssistant,
    encode_version,
)
from perdure.assistants.records import Assistant, IfExists
from perdure.kernel.checks import (
    Id,
    Limit,
    Offset,
    SortOrder,
    check_choice,
    check_filter,
    check_id,
    check_ids,
    check_name,
    optional_text,
)
from perdure.kernel.cursors import LAST
from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.kernel.json_values import has
from perdure.kernel.pages import Keyset, PaginatedResult, Part
from perdure.kernel.storage.labels import encode_metadata
from perdure.service.base import Service
from perdure.service.endpoints import DELETE, GET, PATCH, POST, MetadataFilter, call

MAX_VERSIONS = 1000
"""Number of versions that a search by metadata reads."""
_VERSIONS = Keyset[Assistant, tuple[int]](
    "versions of an assistant", (LAST,), lambda assistant: (assistant.version,)
)

SortField = Literal["created_at", "updated_at", "assistant_id", "agent", "name"]


class Assistants(Service):
    """Assistants of one namespace: agents by name, each with a configuration and its versions."""

    @call(POST("/assistants"), scope="write", status=201, errors=(NotFound, Conflict))
    async def create(
        self,
        agent: Id,
        *,
        assistant_id: Id | None = None,
        name: str | None = None,
        description: str | None = None,
        config: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        if_exists: IfExists = "raise",
        idempotency_key: str | None = None,
    ) -> Assistant:
        """Create an assistant of an agent that a worker has registered.

        If the id exists, raise Conflict, or return the assistant with `if_exists="do_nothing"`.
        """
        if if_exists not in ("raise", "do_nothing"):
            raise InvalidInput(f"if_exists is {if_exists!r}; it must be 'raise' or 'do_nothing'")
        body = AssistantBody(
            agent=check_name(agent, "agent"),
            name=check_name(agent if name is None else name, "name"),
            description=model.check_description(description),
            config=model.encode_object(config or {}, "config"),
            context=model.encode_object(context or {}, "context"),
            metadata=encode_metadata(metadata or {}),
        )
        given = None if assistant_id is None else check_name(assistant_id, "assistant_id")
        request = NewAssistant(assistant_id=given, version=encode_version(body), if_exists=if_exists)
        rows = 1 + len(request.version.labels)
        row: AssistantRow = await self.write_once(idempotency_key, operations.create, request, rows=rows)
        return model.row_to_assistant(row)

    @call(PATCH("/assistants/{assistant_id}"), scope="write", errors=(NotFound, Conflict))
    async def update(
        self,
        assistant_id: Id,
        *,
        agent: Id | None = None,
        name: str | None = None,
        description: str | None = None,
        config: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Assistant:
        """Create the next version of an assistant. Given values replace the old ones; metadata is merged."""
        checked = check_id(assistant_id, "assistant_id")
        if metadata is not None:
            encode_metadata(metadata)
        change = AssistantChange(
            agent=None if agent is None else check_name(agent, "agent"),
            name=None if name is None else check_name(name, "name"),
            description=model.check_description(description),
            config=None if config is None else model.encode_object(config, "config"),
            context=None if context is None else model.encode_object(context, "context"),
            metadata=metadata,
        )
        updated = None
        # Metadata is merged outside of the transaction; after a concurrent change the loop repeats.
        while updated is None:
            body = model.decode_assistant_body(await self.read(operations.get, checked))
            version = encode_version(model.changed(body, change))
            updated = await self.write(operations.update, checked, body, version)
        return model.row_to_assistant(updated)

    @call(
        POST("/assistants/{assistant_id}/latest"), scope="write", errors=(NotFound, Conflict), repeatable=True
    )
    async def set_latest(
        self, assistant_id: Id, version: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    ) -> Assistant:
        """Make a version the current one. The other versions stay."""
        if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version < 2**31:
            raise InvalidInput(f"version is {version!r}; versions are counted from 1")
        checked = check_id(assistant_id, "assistant_id")
        latest = None
        while latest is None:
            row = await self.read(operations.get_version, checked, version)
            stored = model.stored_version(row.body)
            latest = await self.write(operations.set_latest, checked, version, stored)
        return model.row_to_assistant(latest)

    @call(DELETE("/assistants/{assistant_id}"), scope="write", errors=(NotFound, Conflict))
    async def delete(self, assistant_id: Id) -> None:
        """Delete an assistant. Conflict for the system assistant of an agent."""
        await self.write(operations.delete, check_id(assistant_id, "assistant_id"))

    async def register(self, agents: Sequence[AgentSpec]) -> None:
        """Create or update the system assistants of agents. If nothing has changed, this is one read."""
        if not agents:
            return
        outdated = await self.read(operations.outdated, list(agents))
        if outdated:
            await self.write(operations.register, model.registrations(agents))

    async def unregister(self, agents: Sequence[AgentSpec]) -> None:
        """Delete the system assistants of removed agents, unless they were changed."""
        if agents:
            await self.write(operations.unregister, [spec.name for spec in agents])

    async def description(self, agent: str) -> AgentDescription | None:
        """Get the schemas and drawings of an agent; null if no worker has registered it."""
        body = await self.read(operations.get_description, agent)
        return None if body is None else model.decode_description(body)

    async def kind(self, agent: str) -> str | None:
        """Get the kind of an agent, `function`, `graph` or `command`; null if no worker has registered it."""
        return await self.read(operations.get_kind, agent)

    # --- reading ----------------------------------------------------------------------------------------

    @call(GET("/assistants/{assistant_id}"), scope="read", errors=(NotFound,))
    async def get(self, assistant_id: Id) -> Assistant:
        """Get an assistant."""
        return model.row_to_assistant(await self.read(operations.get, check_id(assistant_id, "assistant_id")))

    async def resolve(self, names: Sequence[str]) -> dict[str, Assistant]:
        """Return assistants by id, or by the name of an agent; unknown names are left out."""
        found = await self.read(operations.resolve, check_ids(names, "assistant_id"))
        return {name: model.row_to_assistant(row) for name, row in found.items()}

    @call(GET("/assistants"), scope="read")
    async def search(
        self,
        *,
        agent: str | None = None,
        name: str | None = None,
        metadata: MetadataFilter = None,
        sort_by: SortField = "created_at",
        sort_order: SortOrder = "desc",
        limit: Limit = 100,
        offset: Offset = 0,
        cursor: str | None = None,
    ) -> PaginatedResult[Assistant]:
        """List assistants, newest first.

        Filter by agent, by a part of the name, and by metadata.
        """
        check_choice(sort_by, get_args(SortField), "sort_by")
        check_choice(sort_order, get_args(SortOrder), "sort_order")
        wanted = check_filter(metadata, "metadata")
        names = (optional_text(agent, "agent"), optional_text(name, "name"))
        order = sql.order(sort_by, sort_order)
        request = order.keyset("assistants").open_page(limit, offset, cursor)
        query = AssistantFilter(*names, wanted, limit, offset, order, request.place)
        rows, total = await self.read(operations.search, query)
        return request.build_page(rows, map(model.row_to_assistant, rows), total)

    async def count(
        self,
        *,
        agent: str | None = None,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> int:
        """Count the assistants that match a search."""
        wanted = check_filter(metadata, "metadata")
        names = (optional_text(agent, "agent"), optional_text(name, "name"))
        return await self.read(operations.count, *names, wanted)

    @call(GET("/assistants/{assistant_id}/versions"), scope="read", errors=(NotFound,))
    async def versions(
        self,
        assistant_id: Id,
        *,
        metadata: MetadataFilter = None,
        limit: Limit = 100,
        offset: Offset = 0,
        cursor: str | None = None,
    ) -> Part[Assistant]:
        """List the versions of an assistant, newest first."""
        request = _VERSIONS.open_part(limit, cursor, offset)
        wanted = check_filter(metadata, "metadata")
        checked = check_id(assistant_id, "assistant_id")
        page = (MAX_VERSIONS, 0) if wanted else (request.rows, offset)
        row, rows = await self.read(operations.versions, checked, *request.place, *page)
        items = [_restore_version(row, version) for version in rows]
        if wanted:
            items = [item for item in items if has(item.metadata, wanted)][offset:]
        shown, after = request.cut(items)
        return Part(items=[*shown], next=after)


def _restore_version(row: AssistantRow, version: AssistantVersionRow) -> Assistant:
    """Return an assistant in a version: its body, and the time when the version was created."""
    body = model.stored_version(version.body).body
    return model.row_to_assistant(model.restore_version(row, version, body))
