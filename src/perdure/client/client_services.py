"""Assistants and the outbox over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.assistants.records import Assistant, IfExists
from perdure.client.api import Api
from perdure.client.lightning_exchange import new_key
from perdure.client.native_wire import MAX_PAGE
from perdure.client.session import path_segment
from perdure.kernel.pages import PaginatedResult


class RemoteAssistants:
    """The assistants of a namespace behind a server."""

    def __init__(self, api: Api) -> None:
        self._api = api

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
        body = {
            "agent": agent,
            "assistant_id": assistant_id,
            "name": name,
            "description": description,
            "config": config,
            "context": context,
            "metadata": metadata,
            "if_exists": if_exists,
        }
        key = idempotency_key or new_key()
        return await self._api.send(Assistant, "POST", "/assistants", body, key=key)

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
        body = {
            "agent": agent,
            "name": name,
            "description": description,
            "config": config,
            "context": context,
            "metadata": metadata,
        }
        return await self._api.send(Assistant, "PATCH", _path(assistant_id), body, effect="once")

    async def set_latest(self, assistant_id: str, version: int) -> Assistant:
        """Go back (or forth) to a version; the others stay."""
        path = _path(assistant_id, "/latest")
        return await self._api.send(Assistant, "POST", path, {"version": version})

    async def delete(self, assistant_id: str) -> None:
        """Remove an assistant. One that an agent has of its own stays: Conflict."""
        await self._api.delete(_path(assistant_id))

    async def get(self, assistant_id: str) -> Assistant:
        """An assistant by its id."""
        return await self._api.get(Assistant, _path(assistant_id))

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
        return await self._api.page(
            Assistant,
            "/assistants",
            limit,
            offset,
            agent=agent,
            name=name,
            metadata=metadata or None,
            sort_by=sort_by,
            sort_order=sort_order,
        )

    async def versions(self, assistant_id: str, *, limit: int = 10, offset: int = 0) -> list[Assistant]:
        """What an assistant was in its versions, the newest first."""
        path = _path(assistant_id, "/versions")
        return await self._api.items(Assistant, path, limit=min(limit, MAX_PAGE), offset=offset)


def _path(assistant_id: str, rest: str = "") -> str:
    return "/assistants/" + path_segment(assistant_id, "assistant_id") + rest
