"""What callers may do with threads and runs: the same here, on the database, and over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from perdure.rollouts.records import PaginatedResult
from perdure.streams.model import Burst
from perdure.threads.records import (
    CancelAction,
    Checkpoint,
    Lifetime,
    PruneStrategy,
    Run,
    RunEnd,
    RunRequest,
    Thread,
)


class Threads(Protocol):
    """Threads, their runs and their states, of one namespace."""

    # --- threads

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
        ...

    async def get_thread(self, thread_id: str) -> Thread: ...

    async def update_thread(
        self,
        thread_id: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        lifetime: Lifetime | None = None,
    ) -> Thread:
        """Merge into its metadata, replace its config; with a lifetime, let it live for so long from now."""
        ...

    async def get_lifetime(self, thread_id: str) -> Lifetime | None:
        """How long the thread lives; None is for ever."""
        ...

    async def delete_thread(self, thread_id: str) -> None:
        """Cancel its live runs and remove it with its runs, checkpoints and streams. Traces stay."""
        ...

    async def prune_threads(self, thread_ids: Sequence[str], strategy: PruneStrategy = "delete") -> int:
        """Remove threads, or with `keep_latest` all states of those that rest but the latest.

        Gives how many there were.
        """
        ...

    async def copy_thread(self, thread_id: str) -> Thread: ...

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
    ) -> PaginatedResult[Thread]: ...

    async def get_state(self, thread_id: str, checkpoint_id: str | None = None) -> Checkpoint | None:
        """A state of the thread, or its latest; None while there is none."""
        ...

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
        ...

    async def history(
        self,
        thread_id: str,
        *,
        limit: int = 10,
        before: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> list[Checkpoint]:
        """States, the newest first; those before a checkpoint."""
        ...

    # --- runs

    async def create_run(self, request: RunRequest, *, idempotency_key: str | None = None) -> Run: ...

    async def create_runs(self, requests: Sequence[RunRequest]) -> list[Run]:
        """All of them or none."""
        ...

    async def get_run(self, run_id: str, thread_id: str | None = None) -> Run: ...

    async def list_runs(
        self,
        *,
        thread_id: str | None = None,
        status: str | None = None,
        limit: int = 10,
        offset: int = 0,
    ) -> PaginatedResult[Run]:
        """Runs, the newest first."""
        ...

    async def cancel_run(self, run_id: str, *, action: CancelAction = "interrupt", wait: bool = False) -> Run:
        """End a run now; with `wait`, once whoever executes it has stopped. Conflict if it has ended."""
        ...

    async def cancel_runs(
        self,
        *,
        thread_id: str | None = None,
        run_ids: Sequence[str] | None = None,
        status: str | None = None,
        action: CancelAction = "interrupt",
    ) -> list[Run]:
        """End those of the runs that have not ended: some by id, or all, pending or running ones."""
        ...

    async def delete_run(self, run_id: str) -> None:
        """Cancel it if it is live, and remove it with its checkpoints and stream. Its trace stays."""
        ...

    async def join_run(self, run_id: str, timeout: float | None = None) -> RunEnd:
        """Wait for the end of a run. TimeoutError when the time is up."""
        ...

    def stream_run(self, run_id: str, after: str | None = "-1") -> AsyncIterator[Burst]:
        """The events of a run after an id, in bursts, until its end; None is from now on."""
        ...

    def stream_thread(self, thread_id: str, after: str | None = None) -> AsyncIterator[Burst]:
        """The events of all runs of a thread after an id, without end."""
        ...
