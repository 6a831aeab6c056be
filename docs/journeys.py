"""Five calls through the packages: the list of their steps, and the drawing of architecture.md.

`tests/test_journeys.py` records each journey in one process and compares it with the steps here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from docs.plots import STYLE, build_svg, build_text

ROOT = Path(__file__).resolve().parent.parent
DRAWING = "images/architecture.svg"
LAYERS = "\n  .layer { fill: #8882 } text.number { fill: #fff; font-size: 11px }"
ROW, TOP, LEFT, COLUMN, BOX = 22, 58, 310, 86, 300


class Step(NamedTuple):
    """A function or method, and what it does on this journey."""

    module: str
    """Module below `perdure`."""
    name: str
    does: str

    @property
    def package(self) -> str:
        """The package of the first level."""
        return self.module.partition(".")[0]


class Journey(NamedTuple):
    """A call from outside, with its most important steps in their order."""

    key: str
    title: str
    about: str
    steps: Sequence[Step]


JOURNEYS = (
    Journey(
        "graph",
        "A streamed run of a LangGraph graph",
        "`POST /threads/{thread_id}/runs/stream`, with a worker in the process of the server.",
        (
            Step("server.langgraph.streams", "create_and_stream", "reads the body of the request"),
            Step("server.langgraph.run_requests", "build_run_request", "turns it into a `RunRequest`"),
            Step("threads.service", "Threads.followed_run", "subscribes to the events of the run"),
            Step(
                "threads.waiting_claims",
                "ClaimingService.create_and_claim",
                "takes along the claim of a worker that waits in this process",
            ),
            Step(
                "threads.operations.create",
                "create_runs",
                "inserts the run and its rollout",
            ),
            Step("streams.operations", "append", "stores the first event in the same transaction"),
            Step("streams.service", "Streams.offer", "hands durable events to their readers"),
            Step("runs.queue", "RunQueue.assigned", "gives the worker what it needs to execute the run"),
            Step("worker.execution", "AttemptExecution.run", "executes one attempt and reports its end"),
            Step("langgraph.agent", "GraphAgent.run", "streams the graph, with a saver for its checkpoints"),
            Step("worker.context", "RunContext.emit_json", "collects the events of the graph"),
            Step(
                "runs.operations.finish",
                "finish_runs",
                "stores events, states and the end",
            ),
            Step("rollouts.operations.work", "LockedRollouts.save", "ends the attempt and the rollout"),
            Step("threads.operations.settle", "settle_runs", "ends the run, its thread and its stream"),
        ),
    ),
    Journey(
        "queue",
        "An enqueue and a claim over HTTP",
        "`POST /v1/agl/queues/rollouts/enqueue`, then `POST /v1/agl/queues/rollouts/dequeue`.",
        (
            Step("server.http.application", "Application.__call__", "finds the route"),
            Step("server.http.gate", "RequestGate.admit", "authenticates the caller and checks the scope"),
            Step("server.lightning.rollouts", "enqueue_rollouts", "reads the request"),
            Step("rollouts.service", "Rollouts.enqueue_row", "checks it, and encodes the input"),
            Step("service.base", "Service.write_once", "looks for an idempotency key"),
            Step("kernel.merge", "Merger.call", "merges it with concurrent calls"),
            Step("service.base", "Service._transact", "collects the conditions of the operation"),
            Step("kernel.storage.sqlite", "SqliteStorage.run", "puts the operation into the writer's queue"),
            Step(
                "kernel.storage.sqlite_engine",
                "SqliteEngine.commit_group",
                "runs all queued operations in one transaction, and commits it",
            ),
            Step(
                "rollouts.operations.enqueue",
                "enqueue_rollouts",
                "inserts the rollouts",
            ),
            Step("server.lightning.rollouts", "dequeue_rollouts", "reads the second request"),
            Step("rollouts.service", "Rollouts.claim", "waits until there is something to claim"),
            Step(
                "rollouts.operations.claim",
                "claim",
                "takes the first rollouts, and begins attempts",
            ),
        ),
    ),
    Journey(
        "phase",
        "The end of a phase of a workflow",
        "A worker has executed the command of a phase, the last of its workflow run.",
        (
            Step("worker.built_in", "shell", "executes the command of the phase"),
            Step("worker.phase", "PhaseWork.report", "builds the report with the outputs"),
            Step("runs.queue", "RunQueue.finish", "sends the end of the attempt"),
            Step("runs.operations.finish", "finish_runs", "opens the transaction of the end"),
            Step(
                "rollouts.operations.work",
                "LockedRollouts.save",
                "ends the attempt, and calls its kind",
            ),
            Step("runtime.phases", "end_phases", "calls the domains in the order of their locks"),
            Step("executions.operations", "close_attempts", "closes the execution of the attempt"),
            Step("workflows.operations.advance", "advance_runs", "applies the end to the workflow run"),
            Step("workflows.operations.work", "RunWork.phase_ended", "decides what follows"),
            Step("workflows.operations.work", "RunWork.finish", "ends the workflow run"),
            Step("threads.operations.settle", "settle_runs", "ends the run of the phase and its thread"),
        ),
    ),
    Journey(
        "span",
        "An OTLP span, up to the list of traces",
        "`POST /v1/traces` with the setting `keep_traces`, then `GET /api/v1/traces`.",
        (
            Step(
                "server.otlp.routes",
                "export_traces",
                "decodes protobuf or JSON; `server/http/bodies.py` has decompressed it",
            ),
            Step("server.otlp.ingest", "ingest", "counts what is stored and what is refused"),
            Step("spans.otlp", "receive", "turns OTLP into spans without decoding their attributes twice"),
            Step("rollouts.span_service", "SpanService.store_otlp_spans", "stores a batch at once"),
            Step(
                "rollouts.operations.joining",
                "add_otlp_spans",
                "finds the attempt of each span",
            ),
            Step("rollouts.operations.spans", "Adding.store", "inserts the rows of spans"),
            Step("spans.sums", "compute_sums", "adds tokens, cost and errors to the rows of the trace"),
            Step("traces.service", "Traces.list", "reads the filter and the cursor"),
            Step("traces.operations", "list_traces", "reads one page of the small rows of traces"),
        ),
    ),
    Journey(
        "memory",
        "A memory event, up to its search",
        "`POST /api/v1/memory/events`, then `GET /api/v1/memory/search`.",
        (
            Step(
                "server.native.derive",
                "build_handler.<locals>.handle",
                "calls the method of the service",
            ),
            Step("memory.service", "Memory.ingest", "checks the event"),
            Step(
                "memory.operations.events",
                "ingest",
                "inserts the event and its words",
            ),
            Step("outbox.operations", "put", "stores an effect for the index"),
            Step("outbox.delivery", "Deliverer._keep_claiming", "claims the effect in the background"),
            Step("memory.service", "Memory.search", "splits the question into words"),
            Step(
                "memory.operations.search",
                "search_documents",
                "ranks events and segments",
            ),
        ),
    ),
)


def read_layers() -> list[list[str]]:
    """Return the packages in the order of imports, highest first; packages of one layer stand together."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = next(contract for contract in contracts["contracts"] if contract["type"] == "layers")
    return [layer.split(" | ") for layer in layers["layers"]]


def draw() -> str:
    """Draw a row for each layer, and a column of numbered steps for each journey."""
    layers = read_layers()
    rows = {package: number for number, layer in enumerate(layers) for package in layer}
    height = TOP + len(layers) * ROW + 12
    parts = []
    for number, layer in enumerate(layers):
        y = TOP + number * ROW
        parts.append(f'<rect class="layer" x="4" y="{y}" width="{BOX}" height="{ROW - 4}" rx="3"/>')
        parts.append(build_text(12, y + 13, ", ".join(layer), ""))
        parts.append(
            f'<line class="line" x1="{LEFT}" y1="{y + 9}" x2="{LEFT + len(JOURNEYS) * COLUMN}" y2="{y + 9}"/>'
        )
    for column, journey in enumerate(JOURNEYS):
        parts.extend(_draw_journey(journey, LEFT + column * COLUMN + COLUMN / 2, rows))
    return build_svg(LEFT + len(JOURNEYS) * COLUMN + 10, height, parts, STYLE + LAYERS)


def _draw_journey(journey: Journey, x: float, rows: dict[str, int]) -> Iterator[str]:
    """Draw one column: a line through the steps, and the numbers of the steps on each row."""
    yield build_text(x, TOP - 32, journey.key, "", "middle")
    numbers: dict[str, list[int]] = {}
    places = []
    for number, step in enumerate(journey.steps, 1):
        numbers.setdefault(step.package, []).append(number)
        places.append(f"{x:g},{TOP + rows[step.package] * ROW + 9}")
    yield f'<polyline class="ours" points="{" ".join(places)}"/>'
    for package, steps in numbers.items():
        y = TOP + rows[package] * ROW + 9
        label = ", ".join(map(str, steps))
        width = 12 + 6.2 * len(label)
        yield f'<rect class="met" x="{x - width / 2:g}" y="{y - 8}" width="{width:g}" height="16" rx="8"/>'
        yield build_text(x, y + 4, label, "number", "middle")


def list_steps(journey: Journey) -> str:
    """Return the steps of a journey as numbered lines."""
    lines = [f"## {journey.title}\n", f"{journey.about}\n"]
    for number, step in enumerate(journey.steps, 1):
        path = "src/perdure/" + step.module.replace(".", "/") + ".py"
        name = step.name.replace(".<locals>.", " → ")
        lines.append(f"{number}. `{name}` in `{path}` {step.does}.")
    return "\n".join(lines) + "\n"


def blocks() -> dict[str, str]:
    """Return the generated parts of architecture.md."""
    return {"journeys": "\n".join(map(list_steps, JOURNEYS))}
