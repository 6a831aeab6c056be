"""Workflows: phases in a line and in parallel, lists of runs, and statistics of executions."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from statistics import median

import msgspec

from bench.cpu import Meter, own_seconds
from bench.environments import DBOS
from bench.host import Host
from bench.http_servers import Engine
from bench.measures import Figures, Measure, Row
from bench.peer import PeerProcess
from bench.sizes import Sizes, label
from bench.timing import Side, interleave, milliseconds
from perdure import Agents, Perdure, phase, workflow
from perdure.agents.context import Context
from perdure.executions import sql as execution_sql
from perdure.executions.operations import DAY, HOUR, count
from perdure.executions.rows import WholeExecution
from perdure.kernel.config import load_settings
from perdure.kernel.signals.port import until
from perdure.kernel.storage.port import Tx
from perdure.runtime.app import App
from perdure.runtime.components import EmbeddedWorker, build_components, running
from perdure.runtime.services import Services
from perdure.runtime.stores import open_configured
from perdure.workflows import sql
from perdure.workflows.hints import RUNS_CHANNEL, run_key
from perdure.workflows.operations.queries import find
from perdure.workflows.operations.saving import build_counts
from perdure.workflows.rows import NewRunRow
from perdure.workflows.service import Workflows

BATCH = 500
LISTS = 20
STATUSES = ("succeeded", "failed", "cancelled")
EXECUTIONS_A_RUN = 3
LARGE_RUNS = 200
LISTED: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("list", "newest 20", {}),
    ("list_failed", "newest 20 failed", {"status": ["failed"]}),
    ("list_running", "newest 20 running", {"status": ["running"]}),
    ("list_named", "newest 20 of one workflow", {"workflow_name": "w3"}),
    ("list_named_failed", "newest 20 failed of one workflow", {"workflow_name": "w3", "status": ["failed"]}),
)
PEER = f"DBOS {DBOS.version}"


def measures(sizes: Sizes) -> list[Measure]:
    line, wide = sizes.line_phases, sizes.parallel_phases
    chain = f"{line} phases in a line, SQLite"
    return [
        Measure(
            (
                Row(
                    "workflows/line",
                    f"{chain}; {line} workflows of {PEER} that enqueue one another",
                    "s",
                    "lower",
                    target=2.0,
                    target_peer=0.2,
                ),
                Row(
                    "workflows/line_vs_steps",
                    f"{chain}; {line} steps of one workflow of {PEER}",
                    "s",
                    "lower",
                ),
            ),
            partial(_line, count=line),
        ),
        Measure(
            (
                Row(
                    "workflows/wide",
                    f"{wide} parallel phases, two workers, SQLite",
                    "s",
                    "lower",
                    target=10.0,
                ),
            ),
            partial(_wide, count=wide),
        ),
        _lists(sizes, "sqlite"),
        _lists(sizes, "postgres"),
    ]


# --- phases -----------------------------------------------------------------------------------------------


async def _nothing(ctx: Context, given: object) -> str:
    return "done"


def _agents() -> Agents:
    agents = Agents()
    agents.register("nothing", _nothing)
    return agents


@asynccontextmanager
async def _opened(host: Host, workers: int = 1) -> AsyncIterator[Services]:
    """Open all services on a new file, with `workers` workers in this process."""
    settings = load_settings(
        {
            "database_url": f"sqlite:///{host.new_folder()}/own.db",
            "workflow_assistants": {"default": "nothing"},
            "jobs_per_worker": 50,
        }
    )
    store = open_configured(settings)
    app = App(store, settings)
    more = [EmbeddedWorker(app, _agents()) for _ in range(workers)]
    try:
        async with running([*build_components(app, files=False), *more]):
            yield app.services
    finally:
        await app.services.finish()
        await store.close()


async def _line(host: Host, count: int) -> list[Figures]:
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(_opened(host))
        meters = {"ours": Meter({"client": own_seconds})}
        sides: dict[str, Side] = {"ours": meters["ours"].around(partial(_phases, services, parallel=False))}
        if peer := await host.try_peer(stack, PeerProcess(DBOS, ("bench.peer_workflows",))):
            url = f"sqlite:///{host.new_folder()}/dbos.sqlite"
            for name in ("chain", "steps"):
                meters[name] = Meter({"peer": peer.seconds})
                sides[name] = meters[name].around(partial(_do, peer, name, url))
        # A link waits about a second for the next poll of the queue, so one round takes minutes.
        found = await interleave(count, host.sizes.rounds, sides, once=("chain",))
    return [
        {
            "ours": found["ours"],
            **meters["ours"].figures(),
            **({"peer": found[name], **meters[name].figures()} if name in found else {}),
        }
        for name in ("chain", "steps")
    ]


async def _do(peer: PeerProcess, work: str, url: str, size: int) -> float:
    return await peer.do(work, size, url)


async def _wide(host: Host, count: int) -> list[Figures]:
    async with _opened(host, workers=2) as services:
        taken = [await _phases(services, count, parallel=True) for _ in range(host.sizes.rounds)]
    return [{"ours": median(taken)}]


async def _phases(services: Services, size: int, parallel: bool) -> float:
    """Return the seconds from the dispatch of a run to its end."""
    before: dict[str, object] = {"depends_on": []} if parallel else {}
    phases = [phase(f"p{number}", prompt="x", **before) for number in range(size)]
    services.definitions.add(workflow("bench", *phases))
    workflows = services.workflows
    started = time.perf_counter()
    run_id = (await workflows.run("bench")).workflow_run_id or ""
    status = await until(
        services.storage.signals,
        RUNS_CHANNEL,
        [run_key(await workflows.ns(), run_id)],
        partial(_ended, workflows, run_id),
        timeout=120.0,
    )
    assert status == "succeeded"
    return time.perf_counter() - started


async def _ended(workflows: Workflows, run_id: str, changed: object) -> str | None:
    """Return the status of a run if it has ended."""
    status = (await workflows.read(find, run_id)).status
    return None if status == "running" else status


# --- lists and statistics ---------------------------------------------------------------------------------


def _lists(sizes: Sizes, engine: Engine) -> Measure:
    runs, place = sizes.workflow_runs, "SQLite" if engine == "sqlite" else "PostgreSQL"
    of = f"of {label(runs)} runs, {place}"
    lists = [
        Row(f"workflows/{engine}_{name}", f"{what} {of}", "ms", "lower", target=5.0)
        for name, what, _ in LISTED
    ]
    executions = label(runs * EXECUTIONS_A_RUN)
    stats = [
        Row(
            f"workflows/{engine}_{name}",
            f"{what} of {executions} executions, {place}",
            "ms",
            "lower",
            target=20.0,
        )
        for name, what in (
            ("stats", "statistics of 30 days"),
            ("stats_named", "statistics of 30 days of one workflow"),
            ("stats_by_workflow", "30 days by workflow"),
        )
    ]
    return Measure((*lists, *stats), partial(_listed, engine=engine, runs=runs))


async def _listed(host: Host, engine: Engine, runs: int) -> list[Figures]:
    """Measure lists; the newest 200 runs have 0.7 MB of state each."""
    url = f"sqlite:///{host.new_folder()}/own.db" if engine == "sqlite" else await host.new_database()
    async with Perdure(url) as perdure:
        await _fill(perdure, runs)
        workflows, executions = perdure.services.workflows, perdure.services.executions
        calls: list[Callable[[], Awaitable[object]]] = [
            partial(workflows.list_runs, limit=20, **filters)  # type: ignore[arg-type]
            for _, _, filters in LISTED
        ]
        calls.append(partial(executions.daily_stats, days=30))
        calls.append(partial(executions.daily_stats, days=30, workflow="w3"))
        calls.append(partial(executions.stats_by_workflow, days=30))
        return [{"ours": median([await milliseconds(call) for _ in range(LISTS)])} for call in calls]


async def _fill(perdure: Perdure, runs: int) -> None:
    services = perdure.services
    services.definitions.add(workflow("asks", phase("ask", type="approval")))
    workflows = services.workflows
    run_id = (await workflows.run("asks")).workflow_run_id or ""
    found = await workflows.read(find, run_id)
    fields = {name: getattr(found, name) for name in type(found).__struct_fields__ if name != "was_status"}
    ns = await workflows.ns("write")
    first = 0
    while first < runs:
        size = min(LARGE_RUNS if first == 0 else BATCH, runs - first)
        text = "x" * 700_000 if first == 0 else "y" * 2000
        row = NewRunRow(**fields, context=f'{{"text":"{text}"}}')
        await services.storage.run(_copy, row, first, size, ns=ns)
        await services.storage.run(_execute, first, size, runs, ns=ns)
        first += size


async def _copy(tx: Tx, row: NewRunRow, first: int, size: int) -> None:
    """Copy a run with separate times, three statuses and ten workflows."""
    copies = []
    for number in range(first, first + size):
        copy = msgspec.structs.replace(
            row,
            id=f"run-{number:08}",
            workflow_name=f"w{number % 10}",
            trigger_id=f"t{number}",
            status=STATUSES[number % len(STATUSES)],
            started_at=row.started_at - number * 1_000_000,
            active=None,
        )
        copies.append(copy)
    await tx.write(sql.ADD_RUNS.of(copies), build_counts(tx, copies, new=True))


async def _execute(tx: Tx, first: int, size: int, runs: int) -> None:
    """Insert the executions of runs, spread over 30 days, with the statistics of their ends."""
    apart = 30 * DAY // (runs * EXECUTIONS_A_RUN)
    rows = []
    for number in range(first * EXECUTIONS_A_RUN, (first + size) * EXECUTIONS_A_RUN):
        run, part = divmod(number, EXECUTIONS_A_RUN)
        started = tx.now - HOUR - number * apart
        rows.append(
            WholeExecution(
                id=f"execution-{number:08}",
                trigger_type="api",
                trigger_id=f"t{run}",
                skill=f"w{run % 10}:p{part}",
                repo=None,
                issue_number=None,
                started_at=started,
                finished_at=started + 1_000_000,
                success=int(number % 7 != 0),
                turns=3,
                duration_ms=1000,
                session_id=f"s{run}",
                cost_usd=0.01,
                input_tokens=100,
                cache_creation_input_tokens=0,
                cache_read_input_tokens=0,
                output_tokens=50,
                api_duration_ms=900,
                stop_reason="success",
                workflow_run_id=f"run-{run:08}",
                rollout_id=None,
                attempt_id=None,
                label=f"p{part}",
                error=None,
                output_text="done " * 20,
            )
        )
    await tx.write(execution_sql.ADD.of(rows))
    await count(tx, rows)
