"""Workflows: phases in a line and in parallel, and the list of runs."""

import time
from functools import partial
from statistics import median
from typing import Any

import msgspec

from bench.host import Host
from bench.measures import Figures, Measure, Row
from bench.sizes import Sizes, label
from bench.timing import milliseconds
from perdure import Agents, Perdure, phase, workflow
from perdure.agents.context import Context
from perdure.kernel.signals.port import until
from perdure.kernel.storage.port import Tx
from perdure.workflows import sql
from perdure.workflows.hints import RUNS_CHANNEL, run_key
from perdure.workflows.operations.queries import find
from perdure.workflows.operations.saving import counted
from perdure.workflows.rows import NewRunRow
from perdure.workflows.service import Workflows

BATCH = 500
LISTS = 20
STATUSES = ("succeeded", "failed", "cancelled")


def measures(sizes: Sizes) -> list[Measure]:
    line, wide, runs = sizes.line_phases, sizes.parallel_phases, sizes.workflow_runs
    return [
        Measure(
            (Row("workflows/line", f"{line} phases in a line, SQLite", "s", "lower", target=2.0),),
            partial(_phases, count=line, parallel=False),
        ),
        Measure(
            (Row("workflows/wide", f"{wide} parallel phases, SQLite", "s", "lower", target=10.0),),
            partial(_phases, count=wide, parallel=True),
        ),
        Measure(
            (
                Row("workflows/list", f"newest 20 of {label(runs)} runs, SQLite", "ms", "lower", target=5.0),
                Row("workflows/list_failed", f"newest 20 failed of {label(runs)}", "ms", "lower", target=5.0),
                Row("workflows/list_named", f"newest 20 by name of {label(runs)}", "ms", "lower", target=5.0),
            ),
            partial(_lists, count=runs),
        ),
    ]


async def _nothing(ctx: Context, given: object) -> str:
    return "done"


async def _phases(host: Host, count: int, parallel: bool) -> list[Figures]:
    """From the dispatch of a run to its end, with a worker in the same process."""
    agents = Agents()
    agents.register("nothing", _nothing)
    before: dict[str, object] = {"depends_on": []} if parallel else {}
    phases = [phase(f"p{number}", prompt="x", **before) for number in range(count)]
    settings: dict[str, Any] = {"workflow_assistants": {"default": "nothing"}, "jobs_per_worker": 50}
    taken: list[float] = []
    async with Perdure(f"sqlite:///{host.new_folder()}/own.db", agents=agents, **settings) as perdure:
        perdure.services.definitions.add(workflow("bench", *phases))
        workflows = perdure.services.workflows
        for _ in range(host.sizes.rounds):
            started = time.perf_counter()
            run_id = (await workflows.run("bench")).workflow_run_id or ""
            status = await until(
                perdure.services.storage.signals,
                RUNS_CHANNEL,
                [run_key(await workflows.ns(), run_id)],
                partial(_ended, workflows, run_id),
                timeout=120.0,
            )
            assert status == "succeeded"
            taken.append(time.perf_counter() - started)
    return [{"ours": median(taken)}]


async def _ended(workflows: Workflows, run_id: str, changed: object) -> str | None:
    """The status of a run that has ended."""
    status = (await workflows.read(find, run_id)).status
    return None if status == "running" else status


async def _copy(tx: Tx, row: NewRunRow, first: int, count: int) -> None:
    """Copies of a run with times of their own, of three statuses and ten workflows."""
    copies = []
    for number in range(first, first + count):
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
    await tx.write(sql.ADD_RUNS.of(copies), counted(tx, copies, new=True))


async def _lists(host: Host, count: int) -> list[Figures]:
    """The newest 200 have 0.7 MB of context each."""
    async with Perdure(f"sqlite:///{host.new_folder()}/own.db") as perdure:
        services = perdure.services
        services.definitions.add(workflow("asks", phase("ask", type="approval")))
        workflows = services.workflows
        run_id = (await workflows.run("asks")).workflow_run_id or ""
        found = await workflows.read(find, run_id)
        fields = {
            name: getattr(found, name) for name in type(found).__struct_fields__ if name != "was_status"
        }
        ns = await workflows.ns("write")
        for first in range(0, count, BATCH):
            text = "x" * 700_000 if first == 0 else "y" * 2000
            row = NewRunRow(**fields, context=f'{{"text":"{text}"}}')
            size = min(200, count) if first == 0 else min(BATCH, count - first)
            await services.storage.run(_copy, row, first, size, ns=ns)
        wanted: list[dict[str, object]] = [{}, {"status": ["failed"]}, {"workflow_name": "w3"}]
        figures: list[Figures] = []
        for filters in wanted:
            call = partial(workflows.list_runs, limit=20, **filters)  # type: ignore[arg-type]
            figures.append({"ours": median([await milliseconds(call) for _ in range(LISTS)])})
    return figures
