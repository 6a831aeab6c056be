"""The index that each statement of traces uses, with 50,000 traces on both engines."""

from __future__ import annotations

from tests.support.plans import Subject, plans_of

from perdure import open_store
from perdure.kernel.storage.port import Storage, Tx
from perdure.rollouts.operations import queries
from perdure.spans import sql as span_sql
from perdure.spans import tables as span_tables
from perdure.spans.rows import TraceCursor
from perdure.traces import operations, sql
from perdure.traces.operations import TraceFilter
from perdure.traces.service import Traces

TRACES = 50_000
CHUNK = 5_000
EXPECTED = {
    "LIST_TRACES": {"traces_start"},
    "LIST_SERVICE_TRACES": {"traces_service"},
    "LIST_FAILED_TRACES": {"traces_errors"},
    "LIST_NAMED_TRACES": {"trace_names_start"},
    "LIST_NAMES": {"trace_names_start"},
    "NAMES_OF_TRACES": {"trace_names_pkey"},
    "STARTS_OF_NAMES": {"trace_names_pkey"},
    "LIST_SESSION_TRACES": {"traces_session"},
    "GET_TRACE": {"traces_pkey"},
    "GET_TRACES": {"traces_pkey"},
    "BEGINNING_TRACES": {"traces_pkey"},
    "GET_FIGURES": {"rollout_figures_pkey"},
}
LARGE = frozenset({"traces", "trace_names", "rollout_figures"})
SUBJECT = Subject((sql, span_sql), LARGE, EXPECTED)


async def _fill(tx: Tx, ns: int, start: int) -> None:
    traces, names, figures = [], [], []
    for number in range(start, start + CHUNK):
        id = f"{number * 2654435761 % 2**32:08x}{number:024x}"
        sums = (number * 10**6, number * 10**6 + 5, 3, int(number % 50 == 0), 10, 5, 1, -1, None)
        session = f"session-{number % 40}" if number % 2 else None
        labels = (f"ro-{number}", f"service-{number % 20}", f"name-{number % 30}")
        traces.append((ns, id, *sums, *labels, 0, 0, session))
        names += [(ns, id, f"name-{number % 30}", number * 10**6), (ns, id, "chat", number * 10**6)]
        figures.append((ns, f"ro-{number}", 10, 5, -1, None, 0, 0))
    await tx.insert_many(span_tables.TRACES, traces)
    await tx.insert_many(span_tables.TRACE_NAMES, names)
    await tx.insert_many(span_tables.ROLLOUT_FIGURES, figures)


async def fill(storage: Storage) -> None:
    ns = await Traces(storage).ns("write")
    for start in range(0, TRACES, CHUNK):
        await storage.run(_fill, ns, start)


async def use(storage: Storage) -> None:
    traces = Traces(storage)
    page = await traces.list(limit=10)
    assert [len((await traces.list(limit=10, cursor=page.next)).items), len(page.items)] == [10, 10]
    for wanted in (
        {"service": "service-7"},
        {"session_id": "session-7"},
        {"error": True},
        {"name": "chat"},
        {"name_contains": "HA"},
        {"name_contains": "name"},
        {"name": "name-20", "error": True},
    ):
        assert (await traces.list(limit=10, **wanted)).items, wanted
    found = await traces.get(page.items[0].trace_id[:20])
    assert found == await traces.get(page.items[0].trace_id)
    assert len(await traces.read(queries.get_figures, ["ro-7", "ro-8"])) == 2
    some = TraceFilter(
        name=None,
        part=None,
        service=None,
        session_id=None,
        failed=False,
        since=10**9,
        place=TraceCursor(2 * 10**9, ""),
    )
    assert len((await traces.read(operations.list_traces, some, 10))[0]) == 10


async def test_plans(new_engine_url: str) -> None:
    url = new_engine_url if "://" in new_engine_url else f"sqlite:///{new_engine_url}"
    store = open_store(url, watchdog_interval=None)
    await plans_of(store.storage, new_engine_url, SUBJECT, fill, use)
    await store.close()
