"""Cost of facts: CPU time to store a span with and without extracting tokens, costs and usage."""

import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from unittest.mock import patch

from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, TracesData

from bench.cpu import seconds_of
from bench.host import Host
from bench.http_otlp import BATCH, Exporter, exporter_to, key_values, make_span
from bench.http_servers import SERVE, START_SECONDS, new_url, running
from bench.measures import Figures, Measure, Row
from bench.sizes import Sizes
from bench.work import span_attributes
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.stores import open_store
from perdure.spans import otlp
from perdure.statistics.recorder import StatisticsRecorder
from perdure.testing.serving import ServerProcess

ROOT = Path(__file__).resolve().parent.parent
MOST = 1.05
ROUNDS = 7
ONE_IN = 4
"""One in this many spans is a model call in a usual trace; others are tools, steps and requests."""
PLAIN = {"http.request.method": "GET", "http.route": "/search", "server.address": "a.example", "retries": 0}
MODEL = {"gen_ai.request.model": "gpt-4o", "gen_ai.agent.name": "shopper", "user.id": "ann"}


def measures(sizes: Sizes) -> list[Measure]:
    """Build the rows on SQLite: a message stored directly, and over HTTP."""
    mixes = {"calls": (1, "all of them model calls"), "mixed": (ONE_IN, f"one in {ONE_IN} a model call")}
    ways: dict[str, tuple[str, Callable[..., Awaitable[list[Figures]]]]] = {
        "": ("CPU of a span with facts", _figures),
        "http_": ("CPU of the server for a span by OTLP over HTTP with facts", _http_figures),
    }
    return [
        Measure(
            (Row(f"facts/{way}{name}", f"{told}, {what}; raw: without", "µs", "lower", target_raw=MOST),),
            partial(run, one_in=one_in, batches=max(sizes.otlp_spans // BATCH // 2, 1)),
        )
        for way, (told, run) in ways.items()
        for name, (one_in, what) in mixes.items()
    ]


async def _figures(host: Host, one_in: int, batches: int) -> list[Figures]:
    taken: dict[str, list[float]] = {"ours": [], "raw": []}
    spans = _spans(one_in)
    async with open_store(str(host.new_file()), watchdog_interval=None) as store:
        side = _Side(store, spans)
        await side.cpu(2)
        for _ in range(ROUNDS if host.sizes.rounds > 1 else 1):
            taken["ours"].append(await side.cpu(batches))
            with without_facts():
                taken["raw"].append(await side.cpu(batches))
    return [{name: median(found) for name, found in taken.items()}]


async def _http_figures(host: Host, one_in: int, batches: int) -> list[Figures]:
    """Add the rounds up, because another process's CPU time has a resolution of 10 ms."""
    modules = {"ours": "perdure.cli", "raw": "bench.serve_without_facts"}
    taken = dict.fromkeys(modules, 0.0)
    rounds = ROUNDS if host.sizes.rounds > 1 else 1
    async with AsyncExitStack() as stack:
        sides = {}
        for name, module in modules.items():
            command = (sys.executable, "-m", module, *SERVE[3:], await new_url(host, "sqlite"))
            server = ServerProcess(command, folder=ROOT, start_seconds=START_SECONDS)
            await stack.enter_async_context(running(server))
            exporter = await stack.enter_async_context(exporter_to(server.url, _spans(one_in)))
            await exporter.send_all(await exporter.make_batches(2))
            sides[name] = partial(_http_seconds, server.pid, exporter, batches)
        for _ in range(rounds):
            for name, side in sides.items():
                taken[name] += await side()
    return [{name: seconds * 1e6 / (rounds * batches * BATCH) for name, seconds in taken.items()}]


async def _http_seconds(pid: int, exporter: Exporter, batches: int) -> float:
    """Return the CPU time of a server for this number of batches."""
    made = await exporter.make_batches(batches)
    began = seconds_of(pid)
    await exporter.send_all(made)
    return seconds_of(pid) - began


@contextmanager
def without_facts() -> Iterator[None]:
    """Extract from spans only what the list of traces shows."""
    with patch.object(otlp, "wanted_in", lambda attributes: frozenset()):
        yield


def _spans(one_in: int) -> ScopeSpans:
    spans = [make_span(number) for number in range(1, BATCH + 1)]
    for number, span in enumerate(spans):
        attributes = {**span_attributes(number), **MODEL} if number % one_in == 0 else PLAIN
        del span.attributes[:]
        span.attributes.extend(key_values(attributes))
    return ScopeSpans(spans=spans)


class _Side:
    """A store that receives the same spans for new rollouts repeatedly."""

    def __init__(self, store: DatabaseLightningStore, spans: ScopeSpans) -> None:
        self._store = store
        self._spans = spans
        self._recorder = StatisticsRecorder(store.storage)

    async def cpu(self, batches: int) -> float:
        """Return microseconds per span, of all threads; at the end the facts are in their hours."""
        messages = [await self._message() for _ in range(batches)]
        began = time.process_time()
        for message in messages:
            received = otlp.receive(otlp.parse(message))
            await self._store.rollouts.store_new_spans(received.spans, received.parts)
        await self._recorder.add_usage()
        return (time.process_time() - began) * 1e6 / (batches * BATCH)

    async def _message(self) -> bytes:
        started = await self._store.start_rollout({})
        trace_id = os.urandom(16)
        for span in self._spans.spans:
            span.trace_id, span.span_id = trace_id, os.urandom(8)
        owner = {
            "agentlightning.rollout_id": started.rollout_id,
            "agentlightning.attempt_id": started.attempt.attempt_id,
        }
        message = TracesData()
        group = message.resource_spans.add()
        group.resource.attributes.extend(key_values({"service.name": "agent", **owner}))
        group.scope_spans.append(self._spans)
        data: bytes = message.SerializeToString()
        return data
