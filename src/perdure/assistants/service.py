"""The object that callers of this room hold: the assistants of one namespace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from perdure.access.model import decode_answers
from perdure.access.operations import ensure_namespace, once
from perdure.agents.records import AgentSpec
from perdure.assistants import model, operations
from perdure.assistants.model import Body, Change, NewAssistant, Search
from perdure.assistants.records import Assistant, IfExists
from perdure.kernel.checks import check_name, check_object, check_query_page
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import BadQuery, InvalidInput, NotFound
from perdure.kernel.pages import PaginatedResult
from perdure.kernel.storage.port import Operation, Row, Storage

T = TypeVar("T")

SORT_FIELDS = ("assistant_id", "agent", "name", "created_at", "updated_at")


class Assistants:
    """The assistants of one namespace. With an `actor` every write leaves an entry in the audit."""

    def __init__(self, storage: Storage, namespace: str = "default", actor: str | None = None) -> None:
        self.storage = storage
        self.namespace = namespace
        self.actor = actor
        self._number: int | None = None

    def acting_as(self, namespace: str, actor: str | None) -> Assistants:
        """The assistants of a namespace of the same database, changed in the name of `actor`."""
        return Assistants(self.storage, namespace, actor)

    async def _ns(self) -> int:
        if self._number is None:
            self._number = await self.storage.run(ensure_namespace, self.namespace)
        return self._number

    async def _write(self, operation: Operation[..., T], *args: Any) -> T:
        return await self.storage.run(operation, self.actor, *args, ns=await self._ns())

    async def _read(self, operation: Operation[..., T], *args: Any) -> T:
        return await self.storage.read(operation, *args, ns=await self._ns())

    # --- making and changing ----------------------------------------------------------------------------

    async def create(
        self,
        agent: str,
        *,
        assistant_id: str | None = None,
        name: str | None = None,
        description: str | None = None,
        config: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        if_exists: IfExists = "raise",
        idempotency_key: str | None = None,
    ) -> Assistant:
        """Make an assistant of an agent that a worker has registered.

        Where the id is taken, Conflict, or the assistant that is there with `do_nothing`.
        """
        if if_exists not in ("raise", "do_nothing"):
            raise InvalidInput(f"if_exists is {if_exists!r}; it must be 'raise' or 'do_nothing'")
        body = Body(
            agent=check_name(agent, "agent"),
            name=check_name(agent if name is None else name, "name"),
            description=model.check_description(description),
            config=model.encode_object(config or {}, "config"),
            context=model.encode_object(context or {}, "context"),
            metadata=model.encode_metadata(metadata or {}),
        )
        given = None if assistant_id is None else check_name(assistant_id, "assistant_id")
        request = NewAssistant(assistant_id=given, body=body, if_exists=if_exists)
        return _made(await self._create(request, idempotency_key))

    async def _create(self, request: NewAssistant, key: str | None) -> Any:
        if key is None:
            return (await self._write(operations.create, [request]))[0]
        call = (operations.create, self.actor)
        ns = await self._ns()
        answers = await self.storage.run(once, [key], "create_assistant", call, [request], ns=ns)
        return decode_answers(answers)[0]

    async def update(
        self,
        assistant_id: str,
        *,
        agent: str | None = None,
        name: str | None = None,
        description: str | None = None,
        config: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Assistant:
        """Make the next version: what is given replaces what was; metadata is merged."""
        if metadata is not None:
            model.encode_metadata(metadata)
        change = Change(
            agent=None if agent is None else check_name(agent, "agent"),
            name=None if name is None else check_name(name, "name"),
            description=model.check_description(description),
            config=None if config is None else model.encode_object(config, "config"),
            context=None if context is None else model.encode_object(context, "context"),
            metadata=metadata,
        )
        return model.assistant_of(await self._write(operations.update, assistant_id, change))

    async def set_latest(self, assistant_id: str, version: int) -> Assistant:
        """Go back (or forth) to a version; the others stay."""
        if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version < 2**31:
            raise InvalidInput(f"version is {version!r}; versions are counted from 1")
        return model.assistant_of(await self._write(operations.set_latest, assistant_id, version))

    async def delete(self, assistant_id: str) -> None:
        """Remove an assistant. One that an agent has of its own stays: Conflict."""
        await self._write(operations.delete, assistant_id)

    async def register(self, agents: Sequence[AgentSpec]) -> None:
        """See to it that each agent has its system assistant. Costs one read when all is as it should be."""
        if not agents:
            return
        outdated = await self._read(operations.outdated, list(agents))
        if outdated:
            await self._write(operations.register, list(agents))

    # --- reading ----------------------------------------------------------------------------------------

    async def get(self, assistant_id: str) -> Assistant:
        """An assistant by its id."""
        row = await self._read(operations.get, assistant_id)
        if row is None:
            raise NotFound(f"Assistant {assistant_id} not found")
        return model.assistant_of(row)

    async def resolve(self, names: Sequence[str]) -> dict[str, Assistant]:
        """The assistants by id, or by the name of an agent for its own; what is not known is left out."""
        return await self._read(operations.resolve, list(names))

    async def search(
        self,
        *,
        agent: str | None = None,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        sort_by: str = "created_at",
        sort_order: str = "desc",
        limit: int = 10,
        offset: int = 0,
    ) -> PaginatedResult[Assistant]:
        """Assistants of an agent, with a name that contains the given one, with at least this metadata."""
        check_query_page(limit, offset)
        if sort_by not in SORT_FIELDS:
            raise BadQuery(f"Invalid sort_by: {sort_by}, allowed fields are: {', '.join(SORT_FIELDS)}")
        wanted = check_object(metadata or {}, "metadata")
        query = Search(agent, name, wanted, sort_by, sort_order, limit, offset)
        rows, total = await self._read(operations.search, query)
        items = [model.assistant_of(row) for row in rows]
        return PaginatedResult(items=items, limit=limit, offset=offset, total=total)

    async def count(
        self,
        *,
        agent: str | None = None,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> int:
        """How many assistants a search would find."""
        wanted = check_object(metadata or {}, "metadata")
        return await self._read(operations.count, agent, name, wanted)

    async def versions(
        self,
        assistant_id: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
    ) -> list[Assistant]:
        """What an assistant was in its versions, the newest first; those with at least this metadata."""
        check_query_page(limit, offset)
        most = operations.MAX_VERSIONS if limit == -1 else min(limit, operations.MAX_VERSIONS)
        wanted = check_object(metadata or {}, "metadata")
        row, found = await self._read(operations.versions, assistant_id, wanted, most, offset)
        return [_version(row, each) for each in found]


def _made(answer: Any) -> Assistant:
    if isinstance(answer, Exception):
        raise answer
    return model.assistant_of(answer)


def _version(row: Row, found: Row) -> Assistant:
    """An assistant as it was in a version: its body, and the time at which the version was made."""
    version, time, text = found
    body = msgspec.convert(decode_json(text), Body)
    shown = (row[0], body.agent, body.name, body.description, version, row[5], time, row[7])
    return model.assistant_of((*shown, body.config, body.context, body.metadata))
