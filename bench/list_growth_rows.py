"""Lists and single reads with 1,000 and with 1,000,000 rows: their time must not grow."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial

from bench import ours
from bench.host import Host
from bench.http_servers import ENGINES, SERVE, START_SECONDS, Engine, running
from bench.list_rows import COPIED, make_templates, multiply
from bench.measures import Figures, Measure, Row
from bench.sizes import Sizes, label
from bench.socket_client import SocketClient, socket_client
from bench.timing import growth
from perdure import Perdure
from perdure.testing.serving import ServerProcess

MOST = 1.5
READS: Mapping[str, str] = {
    "rollouts": "/api/v1/rollouts?limit=50",
    "rollouts_status": "/api/v1/rollouts?limit=50&status=failed",
    "rollouts_total": "/api/v1/rollouts?limit=50&total=true",
    "runs": "/api/v1/runs?limit=50",
    "runs_status": "/api/v1/runs?limit=50&status=error",
    "runs_kind": "/api/v1/runs?limit=50&kind=phase",
    "runs_thread": "/api/v1/threads/{thread}/runs?limit=50",
    "runs_total": "/api/v1/runs?limit=50&total=true",
    "threads": "/api/v1/threads?limit=50",
    "threads_status": "/api/v1/threads?limit=50&status=idle",
    "threads_busy": "/api/v1/threads?limit=50&status=busy",
    "threads_updated": "/api/v1/threads?limit=50&sort_by=updated_at",
    "threads_labelled": "/api/v1/threads?limit=50&metadata=%7B%22user%22%3A%22ann%22%7D",
    "threads_seldom": "/api/v1/threads?limit=50&metadata=%7B%22user%22%3A%22bob%22%7D",
    "state": "/api/v1/threads/{thread}/state",
    "run": "/api/v1/runs/{run}",
    "traces": "/api/v1/traces?limit=50",
    "traces_errors": "/api/v1/traces?limit=50&error=true",
    "traces_named": "/api/v1/traces?limit=50&name=step",
    "events": "/api/v1/threads/{thread}/history?limit=10",
    "audit": "/api/v1/audit?limit=50",
    "outbox": "/api/v1/outbox?limit=50",
    "statistics": "/api/v1/statistics",
    "queues": "/api/v1/queues",
}
"""The reads, by the name of the row."""
SPARED = ("spans", "span_counters")
"""Tables that are not filled, because no list here reads spans, and there would be too many."""
GROWN = {
    **{table: columns for table, columns in COPIED.items() if table not in SPARED},
    "checkpoints": ("thread_id", "run_id", "created_at"),
    "labels": ("id",),
    "streams": ("stream",),
    "stream_events": ("stream",),
}


def measures(sizes: Sizes) -> list[Measure]:
    few, many = label(sizes.rollouts[0]), label(sizes.grown_rollouts)
    return [
        Measure(
            tuple(
                Row(
                    f"lists/{engine}_{name}_growth",
                    f"GET {path.removeprefix('/api/v1/')}: {many} / {few} rollouts",
                    "times",
                    "lower",
                    target=MOST,
                )
                for name, path in READS.items()
            ),
            partial(_figures, engine=engine, few=sizes.rollouts[0], many=sizes.grown_rollouts),
        )
        for engine in ENGINES
    ]


async def _figures(host: Host, engine: Engine, few: int, many: int) -> list[Figures]:
    async with AsyncExitStack() as stack:
        small = await _served(host, engine, few, stack)
        large = await _served(host, engine, many, stack)
        return [
            {"ours": await growth(partial(small.get, path), partial(large.get, path), host.sizes.queries)}
            for path in READS.values()
        ]


class _Served:
    """A server on many rows."""

    def __init__(self, client: SocketClient, ids: Mapping[str, str]) -> None:
        self._client = client
        self._ids = ids

    async def get(self, path: str) -> None:
        await self._client.open()
        await self._client.get(path.format_map(self._ids))


async def _served(host: Host, engine: Engine, count: int, stack: AsyncExitStack) -> _Served:
    place = await ours.new_place(host, engine)
    url = f"sqlite:///{place}" if engine == "sqlite" else place
    async with Perdure(url, watchdog_interval=None) as perdure:
        ids = await make_templates(perdure, metadata={"user": "ann"})
    await multiply(engine, place, max(count // 2 - 1, 1), GROWN)
    server = await stack.enter_async_context(
        running(ServerProcess((*SERVE, url), start_seconds=START_SECONDS))
    )
    return _Served(await stack.enter_async_context(socket_client(server.url, 1)), ids)
