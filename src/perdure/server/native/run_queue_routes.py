"""The native routes of workers, which execute runs and answer requests, with the handlers that wait."""

from __future__ import annotations

from typing import Any

from perdure.graph_requests.service import GraphRequests
from perdure.server.http.routes import Call, Route
from perdure.server.native.derive import ByHand, answer_of, arguments_for, endpoint_of, routes_of
from perdure.threads.queue import RunQueue


def run_queue_of(call: Call) -> RunQueue:
    """The queue of runs of the caller's namespace, acting as the caller."""
    return call.services.run_queue


async def claim(call: Call) -> Any:
    """Claim runs, and count them."""
    endpoint = endpoint_of(RunQueue.claim)
    claimed = await run_queue_of(call).claim(**arguments_for(endpoint, call))
    call.app.metrics.count_claim(len(claimed))
    return answer_of(endpoint, claimed)


async def controls(call: Call) -> Any:
    """Wait for runs that are to stop."""
    endpoint = endpoint_of(RunQueue.controls)
    return answer_of(endpoint, await run_queue_of(call).controls(**arguments_for(endpoint, call)))


async def do_items(call: Call) -> Any:
    """Read and change items, within the bounds of the API."""
    return answer_of(endpoint_of(RunQueue.do_items), await run_queue_of(call).items.batch(call.body.ops))


RUN_QUEUE_ROUTES: tuple[Route, ...] = routes_of(
    RunQueue,
    run_queue_of,
    {
        RunQueue.claim: ByHand(claim, ends_with_caller=True),
        RunQueue.controls: ByHand(controls, ends_with_caller=True),
        RunQueue.do_items: do_items,
    },
)

GRAPH_REQUEST_ROUTES: tuple[Route, ...] = routes_of(
    GraphRequests,
    lambda call: call.services.graph_requests,
    {GraphRequests.claim: ByHand(ends_with_caller=True)},
)
