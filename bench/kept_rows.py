"""Cost of kept traces: CPU time of a server for 500 traces of one span, and for 500 spans of one trace."""

import secrets
from functools import partial
from statistics import median

import aiohttp
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, TracesData

from bench.cpu import seconds_of
from bench.host import Host
from bench.http_otlp import Exporter, key_values, make_span
from bench.http_servers import ENGINES, Engine
from bench.measures import Figures, Measure, Row
from bench.run_servers import agent_server
from bench.sizes import Sizes

MOST = 10.0
SPANS = 500


def measures(sizes: Sizes) -> list[Measure]:
    """Build the rows of the server's CPU; PostgreSQL's is not counted."""
    return [
        Measure(
            (
                Row(
                    f"kept/{engine}",
                    f"CPU of {SPANS} kept traces of one span on {engine}; raw: {SPANS} spans of one trace",
                    "ms",
                    "lower",
                    target_raw=MOST,
                ),
            ),
            partial(_figures, engine=engine, batches=sizes.kept_batches),
        )
        for engine in ENGINES
    ]


def kept_batch(traces: int) -> bytes:
    """Build 500 spans of new traces; each trace's first span is the root."""
    spans = [make_span(number) for number in range(1, SPANS + 1)]
    ids = [secrets.token_bytes(16) for _ in range(traces)]
    roots: dict[bytes, bytes] = {}
    for number, span in enumerate(spans):
        span.trace_id = ids[number % traces]
        span.parent_span_id = roots.get(span.trace_id, b"")
        roots.setdefault(span.trace_id, span.span_id)
    resource = Resource(attributes=list(key_values({"service.name": "agent"})))
    group = ResourceSpans(resource=resource, scope_spans=[ScopeSpans(spans=spans)])
    return bytes(TracesData(resource_spans=[group]).SerializeToString())


async def _figures(host: Host, engine: Engine, batches: int) -> list[Figures]:
    taken: dict[str, list[float]] = {"ours": [], "raw": []}
    async with (
        agent_server(host, engine, {"PERDURE_KEEP_TRACES": "1"}) as server,
        aiohttp.ClientSession() as session,
    ):
        exporter = Exporter(server.url, session)
        for number in range(host.sizes.rounds + 1):
            for side, traces in (("ours", SPANS), ("raw", 1)):
                sent = [kept_batch(traces) for _ in range(batches)]
                began = seconds_of(server.pid)
                for batch in sent:
                    await exporter.send(batch)
                spent = (seconds_of(server.pid) - began) * 1000 / batches
                if number:
                    # The first round warms the server up.
                    taken[side].append(spent)
    return [{side: median(figures) for side, figures in taken.items()}]
