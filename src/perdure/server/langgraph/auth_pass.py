"""One request under the operator's own auth: what its user may do, and what they may see."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, cast
from uuid import UUID

from msgspec import structs

from perdure.kernel.errors import Forbidden, NotFound
from perdure.langgraph.custom_auth import Filter, GraphAuth, User
from perdure.server.http.routes import Call
from perdure.server.langgraph.auth_filters import matches, stamped
from perdure.server.langgraph.protocol import USER
from perdure.server.native.rooms import assistants_of, schedules_of, threads_of
from perdure.threads.records import RunRequest

CONFIGURABLE = "configurable"


def user_of(call: Call) -> User | None:
    """Whom the operator's own auth let in; None where there is none."""
    return cast("User | None", call.request.scope.get(USER))


def asked_by(call: Call, request: RunRequest) -> RunRequest:
    """A run that knows for whom it is."""
    user = user_of(call)
    return request if user is None else structs.replace(request, config=known_to(user, request.config))


def known_to(user: User, config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with the user in it."""
    return {**config, CONFIGURABLE: {**(config.get(CONFIGURABLE) or {}), **user.configurable()}}


def key_of(call: Call) -> str | None:
    """The idempotency key of a request, which is nobody else's."""
    key, user = call.idempotency_key, user_of(call)
    return key if key is None or user is None else f"{user.identity}/{key}"


class Authorization:
    """A request, its user, and the handlers that are asked about it."""

    def __init__(self, call: Call, auth: GraphAuth) -> None:
        self.call = call
        self._auth = auth

    @property
    def user(self) -> User:
        user = user_of(self.call)
        if user is None:
            raise Forbidden("nobody has authenticated this request")
        return user

    async def may(self, resource: str, action: str, value: dict[str, Any]) -> Filter:
        """What the objects must hold; Forbidden if the user may not. The handler may change `value`."""
        return await self._auth.authorize(self.user, resource, action, value)

    async def may_make(self, resource: str, action: str, value: dict[str, Any]) -> Filter:
        """The same for a new object, whose metadata are in `value` with what its maker finds it by."""
        needed = await self.may(resource, action, value)
        value["metadata"] = stamped(value.get("metadata"), needed)
        return needed

    # --- objects that are there -------------------------------------------------------------------------

    async def thread(self, action: str, thread_id: str, **value: Any) -> None:
        """See to it that the user may do this to a thread, and may see it."""
        needed = await self.may("threads", action, {"thread_id": UUID(thread_id), **value})
        await self.sees_thread(thread_id, needed)

    async def sees_thread(self, thread_id: str, needed: Filter) -> None:
        if needed and not await self._sees(thread_id, needed):
            raise NotFound(f"Thread {thread_id} not found")

    async def _sees(self, thread_id: str, needed: Filter) -> bool:
        run_id = self.call.path.get("run_id")
        with contextlib.suppress(NotFound):
            return matches(needed, (await threads_of(self.call).get_thread(thread_id)).metadata)
        if run_id is None:
            return False
        # A thread of a run alone is gone when the run has ended, which may still be asked for.
        with contextlib.suppress(NotFound, TimeoutError):
            run = (await threads_of(self.call).join_run(run_id, 0)).run
            return run.thread_id == thread_id and matches(needed, run.metadata)
        return False

    async def assistant(self, action: str, assistant_id: str, **value: Any) -> dict[str, Any]:
        """See to it that the user may do this to an assistant, and may see it; gives the handler's value."""
        asked = {"assistant_id": UUID(assistant_id), **value}
        needed = await self.may("assistants", action, asked)
        if needed:
            found = await assistants_of(self.call).get(assistant_id)
            if not matches(needed, found.metadata):
                raise NotFound(f"Assistant {assistant_id} not found")
        return asked

    async def runs_assistant(self, name: str) -> None:
        """See to it that the user may run an assistant; a graph's own is there for everybody."""
        found = (await assistants_of(self.call).resolve([name])).get(name)
        if found is None or found.system:
            return
        needed = await self.may("assistants", "read", {"assistant_id": UUID(found.assistant_id)})
        if not matches(needed, found.metadata):
            raise NotFound(f"Assistant {name} not found")

    async def cron(self, action: str, cron_id: str, **value: Any) -> dict[str, Any]:
        """See to it that the user may do this to a cron, and may see it; gives the handler's value."""
        asked = {"cron_id": UUID(cron_id), **value}
        needed = await self.may("crons", action, asked)
        if needed and not matches(needed, (await schedules_of(self.call).get(cron_id)).metadata):
            raise NotFound(f"Cron {cron_id} not found")
        return asked
