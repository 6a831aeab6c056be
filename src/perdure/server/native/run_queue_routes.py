"""Native routes of workers, which execute runs and answer graph requests, with the handlers that wait."""

from __future__ import annotations

from typing import Any

from perdure.graph_requests.service import GraphRequests
from perdure.runs.queue import RunQueue
from perdure.server.http.routes import Call, Route
from perdure.server.native.derive import ByHand, arguments_for, derive_routes, encode_answer, get_endpoint


def get_run_queue(call: Call) -> RunQueue:
    """Return the run queue of the caller's namespace, acting as the caller."""
    return call.services.run_queue


async def claim(call: Call) -> Any:
    """Claim runs and count them."""
    endpoint = get_endpoint(RunQueue.claim)
    claimed = await get_run_queue(call).claim(**arguments_for(endpoint, call))
    call.app.metrics.count_claim(len(claimed))
    return encode_answer(endpoint, claimed)


async def controls(call: Call) -> Any:
    """Wait for runs that should stop."""
    endpoint = get_endpoint(RunQueue.controls)
    return encode_answer(endpoint, await get_run_queue(call).controls(**arguments_for(endpoint, call)))


async def do_items(call: Call) -> Any:
    """Read and change items, within the limits of the API."""
    return encode_answer(
        get_endpoint(RunQueue.do_items), await get_run_queue(call).items.batch(call.body.ops)
    )


RUN_QUEUE_ROUTES: tuple[Route, ...] = derive_routes(
    RunQueue,
    get_run_queue,
    {
        RunQueue.claim: ByHand(claim, ends_with_caller=True),
        RunQueue.controls: ByHand(controls, ends_with_caller=True),
        RunQueue.do_items: do_items,
    },
)

GRAPH_REQUEST_ROUTES: tuple[Route, ...] = derive_routes(
    GraphRequests,
    lambda call: call.services.graph_requests,
    {GraphRequests.claim: ByHand(ends_with_caller=True)},
)
