"""Workflow runs go on while the servers and workers that execute them are killed.

The phases write down what they do outside of the database. At the end every run has succeeded, each part of
it was completed once and not executed after that, and what a phase returned has reached the phases after it.
"""

import asyncio
import os
import random
import sys
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path

from tests.chaos.scenario import Run
from tests.support.python_process import PythonProcess

from perdure.client.native import PerdureClient
from perdure.kernel.errors import Conflict, NotFound, PerdureError
from perdure.testing.servers import PostgresServer, free_port
from perdure.workflows.records import WorkflowRunSummary

LEASE = 1.5
WIDTH = 24
"""How many runs are live at once."""
BETWEEN = 6.0
"""Longest pause between two kills, in seconds: most runs lose fewer workers than a run is given."""
END_SECONDS = 240.0
PATIENCE = 60.0
ITEMS = ("one", "two", "three")
LABELS = (
    "plan",
    "left",
    "right",
    "write_iter_1",
    "write_iter_2",
    "write_iter_2_check",
    "write_iter_1_check",
    "review",
    "review_fix_1",
    "review_recheck_1",
    *(f"each_item_{number}" for number in range(1, len(ITEMS) + 1)),
    "gate",
    "last",
)
WORKFLOW = """
name: chaos
max_parallel: 3
phases:
  - {name: plan, prompt: "plan {{number}}", depends_on: []}
  - {name: left, prompt: "left of ${plan.output}", depends_on: [plan]}
  - {name: right, prompt: "right of ${plan.output}", depends_on: [plan]}
  - name: write
    depends_on: [left, right]
    prompt: "write ${left.output} ${right.output}"
    generic_loop: {max_iterations: 3, until_bash: "test -e written"}
  - name: review
    depends_on: [write]
    prompt: "review"
    loop:
      max_cycles: 2
      on_request_changes: {fix_prompt: "fix", re_review_prompt: "recheck"}
  - name: each
    type: map
    depends_on: [review]
    items: ["one", "two", "three"]
    max_parallel: 2
    prompt: "each {{item}}"
  - {name: gate, type: approval, depends_on: [each], assignees: []}
  - {name: pause, type: wait, seconds: 0.05, depends_on: [gate]}
  - name: last
    depends_on: [pause]
    prompt: "last ${plan.output} ${left.output} ${right.output}"
    on_success: {set_phase: complete}
"""
AGENTS = """
import asyncio, os, random, time
from pathlib import Path

from perdure import Agents

agents = Agents()


def tell(ctx, what):
    phase = ctx.phase
    line = f"{time.time_ns()} {phase.workflow_run_id} {phase.label} {what}\\n".encode()
    file = os.open(os.environ["CHAOS_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)


@agents.agent("work")
async def work(ctx, input):
    tell(ctx, "begin")
    await asyncio.sleep(random.uniform(0, 0.15))
    label = ctx.phase.label
    if label == "write_iter_2":
        Path(ctx.phase.workspace, "written").touch()
    tell(ctx, "end")
    if label == "review":
        return "VERDICT: REQUEST_CHANGES"
    if label == "review_recheck_1":
        return "VERDICT: APPROVED"
    return "<" + (ctx.phase.prompt or "") + ">"
"""


def workflows_on_postgres(run: Run) -> None:
    """Two servers with workers on PostgreSQL, killed by turns."""
    with PostgresServer(fsync=False) as postgres:
        asyncio.run(_Workflows(run, postgres.create_database("workflows"), servers=2).perform())


def workflows_on_sqlite(run: Run) -> None:
    """A server with a worker on a SQLite file, and a remote worker, both killed."""
    database = f"sqlite:///{Path(run.folder) / 'runs.db'}"
    asyncio.run(_Workflows(run, database, servers=1).perform())


class _Workflows:
    def __init__(self, run: Run, database: str, *, servers: int) -> None:
        self._run = run
        self._database = database
        self._random = random.Random(run.seed)
        self._ports = [free_port() for _ in range(servers)]
        self._processes: dict[str, PythonProcess] = {}
        self._names = [f"server {number}" for number in range(servers)]
        if servers == 1:
            self._names.append("worker")
        self._effects = run.folder / "effects"
        self._ids: dict[int, str] = {}

    # --- processes ----------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        command = [sys.executable, "-m", "perdure.cli"]
        agents = f"{self._run.folder / 'chaos_agents.py'}:agents"
        kind, _, number = name.partition(" ")
        if kind == "server":
            port = self._ports[int(number)]
            command += ["serve", "--database", self._database, "--port", str(port), "--agents", agents]
        else:
            command += ["worker", "--url", self._url(0), "--agents", agents]
        environment = {
            **os.environ,
            "CHAOS_EFFECTS": str(self._effects),
            "PERDURE_STATE_DIR": str(self._run.folder),
            "PERDURE_MAX_WORKFLOWS": str(WIDTH),
            "N_JOBS_PER_WORKER": "8",
            "BG_JOB_HEARTBEAT": str(LEASE),
        }
        with (self._run.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = PythonProcess(
                command, cwd=self._run.folder, env=environment, stdout=log, stderr=log
            )

    def _url(self, number: int) -> str:
        return f"http://127.0.0.1:{self._ports[number]}"

    async def _kill(self, name: str) -> None:
        process = self._processes[name]
        if process.poll() is not None:
            log = (self._run.folder / f"{name}.log").read_text()[-1000:]
            raise AssertionError(f"{name} ended by itself with {process.returncode}: {log}")
        process.kill()
        await asyncio.to_thread(process.wait)
        self._run.facts[f"{name.partition(' ')[0]}s killed"] += 1
        await asyncio.sleep(self._random.choice((0.0, self._random.uniform(0, LEASE))))
        self._start(name)

    # --- the run ------------------------------------------------------------------------------------------

    async def perform(self) -> None:
        folder = self._run.folder
        (folder / "chaos_agents.py").write_text(AGENTS)
        (folder / "workflows").mkdir()
        (folder / "workflows" / "chaos.yaml").write_text(WORKFLOW)
        (folder / "perdure.toml").write_text('[perdure.workflow_assistants]\ndefault = "work"\n')
        for name in self._names:
            self._start(name)
        ending: asyncio.Future[object] = asyncio.ensure_future(self._follow_all())
        try:
            async with asyncio.timeout(END_SECONDS + self._run.size):
                while not ending.done():
                    await asyncio.wait([ending], timeout=self._random.uniform(0.5, BETWEEN))
                    if not ending.done():
                        await self._kill(self._random.choice(self._names))
                await ending
                await self._check()
        except TimeoutError:
            self._run.found("at the end", [f"only {self._run.done} of {self._run.size} runs ended in time"])
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
            for process in self._processes.values():
                process.kill()
                process.wait()

    async def _follow_all(self) -> None:
        width = asyncio.Semaphore(WIDTH)

        async def follow(number: int) -> None:
            async with width:
                await self._follow(number)

        await asyncio.gather(*(follow(number) for number in range(self._run.size)))

    def _client(self, number: int) -> PerdureClient:
        return PerdureClient(self._url(number % len(self._ports)), patience=PATIENCE)

    async def _follow(self, number: int) -> None:
        """Start a run, approve it, and retry it if it lost too many workers, until it has succeeded."""
        async with self._client(number) as client:
            workflows, approvals = client.workflows, client.approvals
            name = f"chaos/{number}"
            run_id: str | None = None
            while run_id is None:
                with suppress(PerdureError):
                    answer = await workflows.run(
                        "chaos", trigger_id=name, context={"number": number}, idempotency_key=name
                    )
                    run_id = answer.workflow_run_id
            self._ids[number] = run_id
            while True:
                await asyncio.sleep(0.1)
                with suppress(PerdureError):
                    run = await workflows.get(run_id)
                    if run.status == "succeeded":
                        break
                    if run.status == "failed":
                        await self._retry(client, run)
                    elif run.status == "paused":
                        for each in (await approvals.list(workflow_run_id=run_id, status="pending")).items:
                            with suppress(Conflict, NotFound):
                                await approvals.approve(each.approval_id)
        self._run.advance(f"{sum(self._run.facts.values())} kills")

    async def _retry(self, client: PerdureClient, run: WorkflowRunSummary) -> None:
        if "workers were lost" not in (run.error or ""):
            self._run.found(f"run {run.workflow_run_id}", [f"failed: {run.error}"])
        with suppress(Conflict):
            await client.workflows.retry(run.workflow_run_id)
            self._run.facts["given up and retried"] += 1

    # --- the check ----------------------------------------------------------------------------------------

    async def _check(self) -> None:
        """Compare the executions and outputs of every run with what its phases did outside."""
        effects: dict[str, Counter[str]] = defaultdict(Counter)
        for line in self._effects.read_text().splitlines():
            _, run_id, label, what = line.split(" ")
            effects[run_id][label + " " + what] += 1
        async with self._client(0) as client:
            for number, run_id in self._ids.items():
                self._run.found(f"run {number}", await self._check_run(client, number, run_id, effects))

    async def _check_run(
        self, client: PerdureClient, number: int, run_id: str, effects: dict[str, Counter[str]]
    ) -> list[str]:
        found: list[str] = []
        rows = (await client.executions.of_workflow_run(run_id, limit=1000)).items
        by_label: dict[str, list[bool | None]] = defaultdict(list)
        for row in rows:
            by_label[row.label or ""].append(row.success)
        for label in LABELS:
            ends = by_label.get(label, [])
            if label == "gate":
                continue
            if ends.count(True) != 1 or ends[-1] is not True:
                found.append(f"{label} has the executions {ends}")
            done = effects[run_id]
            if not label.endswith("_check") and not done[label + " end"]:
                found.append(f"{label} was completed, and never executed")
            if done[label + " begin"] > len(ends):
                found.append(f"{label} began {done[label + ' begin']} times in {len(ends)} executions")
        if any(row.finished_at is None for row in rows):
            found.append("an execution of a run that has ended is open")
        run = await client.workflows.get(run_id)
        plan = f"<plan {number}>"
        wanted = f"<last {plan} <left of {plan}> <right of {plan}>>"
        last = next((row for row in reversed(rows) if row.label == "last"), None)
        output = None if last is None else (await client.executions.get(last.execution_id)).output_text
        if output != wanted:
            found.append(f"the output of the last phase is {output}, not {wanted}")
        if run.current_phase != "complete":
            found.append(f"the current phase is {run.current_phase}")
        self._run.facts["executions"] += len(rows)
        self._run.facts["restarts counted"] += run.restart_count
        return found
