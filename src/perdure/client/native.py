"""Threads and runs over HTTP: the same contract as on the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from perdure.access.service import Access
from perdure.assistants.service import Assistants
from perdure.client import native_wire as wire
from perdure.client import run_wire
from perdure.client.api import Api, new_id
from perdure.client.lightning_exchange import new_key
from perdure.client.session import RETRY_DELAYS, Effect, HttpSession, path_segment
from perdure.client.streaming import Streaming
from perdure.client.transport import HttpTransport
from perdure.items.service import Items
from perdure.kernel.pages import PaginatedResult
from perdure.outbox.service import Outbox
from perdure.schedules.service import Schedules
from perdure.threads.records import (
    CancelAction,
    Checkpoint,
    Lifetime,
    PruneStrategy,
    Run,
    RunRequest,
    Thread,
)

_STATE: Any = Checkpoint | None
_LIFETIME: Any = Lifetime | None


class PerdureClient(Streaming):
    """Threads, runs and assistants behind a server.

    What the server refuses is raised as the error that it names. A request whose answer was lost is sent
    again where that does nothing twice; streams and waits outlast a server that is away for up to `patience`
    seconds.
    `token` and `namespace` may also stand in the address: `http://namespace:token@host:4747`.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        namespace: str | None = None,
        *,
        patience: float = 60.0,
        retry_delays: Sequence[float] = RETRY_DELAYS,
        request_timeout: float = 30.0,
    ) -> None:
        session = HttpSession(
            url, token=token, namespace=namespace, retry_delays=retry_delays, request_timeout=request_timeout
        )
        super().__init__(Api(session), patience)
        self.transport = HttpTransport(session)
        self.assistants = Assistants.over(self.transport)
        self.items = Items.over(self.transport)
        self.schedules = Schedules.over(self.transport)
        self.outbox = Outbox.over(self.transport)
        self.access = Access.over(self.transport)

    @property
    def url(self) -> str:
        return self._session.base_url

    async def close(self) -> None:
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    # --- threads ------------------------------------------------------------------------------------------

    async def create_thread(
        self,
        thread_id: str | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        values: Any = None,
        if_exists: str = "raise",
        lifetime: Lifetime | None = None,
    ) -> Thread:
        """A new thread; where the id is taken, Conflict, or the one that is there with `do_nothing`."""
        if thread_id is None:
            # An id from here makes a repeated request the same request.
            thread_id, if_exists = new_id(), "do_nothing"
        body = {
            "thread_id": thread_id,
            "metadata": metadata,
            "config": config,
            "values": values,
            "if_exists": if_exists,
            "lifetime": lifetime,
        }
        effect: Effect = "repeatable" if if_exists == "do_nothing" else "once"
        return await self._api.send(Thread, "POST", "/threads", body, effect=effect)

    async def get_thread(self, thread_id: str) -> Thread:
        return await self._api.get(Thread, _thread(thread_id))

    async def update_thread(
        self,
        thread_id: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        lifetime: Lifetime | None = None,
    ) -> Thread:
        """Merge into its metadata, replace its config; with a lifetime, let it live for so long from now."""
        body = {"metadata": metadata, "config": config, "lifetime": lifetime}
        return await self._api.send(Thread, "PATCH", _thread(thread_id), body)

    async def delete_thread(self, thread_id: str) -> None:
        """Cancel its live runs and remove it with its runs, checkpoints and streams. Traces stay."""
        await self._api.delete(_thread(thread_id))

    async def get_lifetime(self, thread_id: str) -> Lifetime | None:
        """How long the thread lives; None is for ever."""
        found: Lifetime | None = await self._api.get(_LIFETIME, _thread(thread_id, "/lifetime"))
        return found

    async def prune_threads(self, thread_ids: Sequence[str], strategy: PruneStrategy = "delete") -> int:
        """Remove threads, or with `keep_latest` all states of those that rest but the latest.

        Gives how many there were.
        """
        body = {"thread_ids": list(thread_ids), "strategy": strategy}
        return (await self._api.send(run_wire.Pruned, "POST", "/threads/prune", body, effect="once")).count

    async def copy_thread(self, thread_id: str) -> Thread:
        return await self._api.send(Thread, "POST", _thread(thread_id, "/copy"), effect="once")

    async def search_threads(
        self,
        *,
        status: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        ids: Sequence[str] | None = None,
        values: bool = True,
        sort_by: str = "created_at",
        sort_order: str = "desc",
        limit: int = 10,
        offset: int = 0,
    ) -> PaginatedResult[Thread]:
        if ids is not None and not ids:
            return PaginatedResult(items=[], limit=limit, offset=offset, total=0)
        return await self._api.page(
            Thread,
            "/threads",
            limit,
            offset,
            status=status,
            metadata=metadata or None,
            thread_id=ids,
            values=values,
            sort_by=sort_by,
            sort_order=sort_order,
        )

    async def get_state(self, thread_id: str, checkpoint_id: str | None = None) -> Checkpoint | None:
        """A state of the thread, or its latest; None while there is none."""
        path = _thread(thread_id, "/state")
        state: Checkpoint | None = await self._api.get(_STATE, path, checkpoint_id=checkpoint_id)
        return state

    async def update_state(
        self,
        thread_id: str,
        values: Any,
        *,
        checkpoint_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        next: Sequence[str] = (),
    ) -> Checkpoint:
        """Keep another state after the given one. Conflict while the thread is busy."""
        body = {"values": values, "checkpoint_id": checkpoint_id, "metadata": metadata, "next": list(next)}
        return await self._api.send(Checkpoint, "POST", _thread(thread_id, "/state"), body, effect="once")

    async def history(
        self,
        thread_id: str,
        *,
        limit: int = 10,
        before: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> list[Checkpoint]:
        """States, the newest first; those before a checkpoint."""
        path = _thread(thread_id, "/history")
        terms = {"limit": limit, "before": before, "metadata": metadata or None}
        return await self._api.items(Checkpoint, path, **terms)

    # --- runs ---------------------------------------------------------------------------------------------

    async def create_run(self, request: RunRequest, *, idempotency_key: str | None = None) -> Run:
        return await self._api.send(Run, "POST", "/runs", request, key=idempotency_key or new_key())

    async def create_runs(self, requests: Sequence[RunRequest]) -> list[Run]:
        """All of them or none."""
        made: wire.Items[Run] = await self._api.send(
            wire.Items[Run], "POST", "/runs/batch", {"runs": list(requests)}, effect="once"
        )
        return made.items

    async def get_run(self, run_id: str, thread_id: str | None = None) -> Run:
        return await self._api.get(Run, _run(run_id), thread_id=thread_id)

    async def list_runs(
        self,
        *,
        thread_id: str | None = None,
        status: str | None = None,
        limit: int = 10,
        offset: int = 0,
    ) -> PaginatedResult[Run]:
        """Runs, the newest first."""
        return await self._api.page(Run, "/runs", limit, offset, thread_id=thread_id, status=status)

    async def cancel_run(self, run_id: str, *, action: CancelAction = "interrupt", wait: bool = False) -> Run:
        """End a run now; with `wait`, once whoever executes it has stopped. Conflict if it has ended."""
        return await self._api.send(
            Run,
            "POST",
            _run(run_id, "/cancel"),
            query={"action": action, "wait": wait},
            effect="once",
            timeout=0 if wait else None,
            long_poll=wait,
        )

    async def cancel_runs(
        self,
        *,
        thread_id: str | None = None,
        run_ids: Sequence[str] | None = None,
        status: str | None = None,
        action: CancelAction = "interrupt",
    ) -> list[Run]:
        """End those of the runs that have not ended: some by id, or all, pending or running ones."""
        body = {
            "thread_id": thread_id,
            "run_ids": None if run_ids is None else list(run_ids),
            "status": status,
            "action": action,
        }
        ended: wire.Items[Run] = await self._api.send(
            wire.Items[Run], "POST", "/runs/cancel", body, effect="once"
        )
        return ended.items

    async def delete_run(self, run_id: str) -> None:
        """Cancel it if it is live, and remove it with its checkpoints and stream. Its trace stays."""
        await self._api.delete(_run(run_id))

    # --- what is held up where ----------------------------------------------------------------------------

    async def why(self, id: str) -> run_wire.Why:
        """Why a rollout, run or thread stands where it stands."""
        return await self._api.get(run_wire.Why, "/why/" + path_segment(id, "id"))

    async def stats(self) -> dict[str, Any]:
        """How many runs wait and run, and for how long."""
        return await self._api.get(dict[str, Any], "/stats")


def _thread(thread_id: str, rest: str = "") -> str:
    return "/threads/" + path_segment(thread_id, "thread_id") + rest


def _run(run_id: str, rest: str = "") -> str:
    return "/runs/" + path_segment(run_id, "run_id") + rest
