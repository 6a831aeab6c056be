"""Native routes and the client from the methods of services: both ends of every method exist."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.server.native.support import API, House

from perdure.client.native import PerdureClient
from perdure.client.run_queue import RemoteRunQueue
from perdure.kernel.errors import NotSupported
from perdure.runs.queue import RunQueue
from perdure.server.native.derive import build_handler
from perdure.server.native.routes import ROUTES
from perdure.service.base import Service
from perdure.service.endpoints import PREFIX, Endpoint, endpoints
from perdure.threads.service import Threads

CLIENTS = (PerdureClient("http://127.0.0.1:9"), RemoteRunQueue("http://127.0.0.1:9"))


def services(kind: type[Service] = Service) -> Iterator[type[Service]]:
    """Yield the services with endpoints, without those derived for a client."""
    for each in kind.__subclasses__():
        if "__getattr__" not in vars(each):
            if endpoints(each):
                yield each
            yield from services(each)


METHODS = [
    pytest.param(endpoint, id=endpoint.function.__qualname__)
    for service in services()
    for endpoint in endpoints(service).values()
]


def test_the_services_are_found() -> None:
    assert {Threads, RunQueue} <= set(services())


@pytest.mark.parametrize("endpoint", METHODS)
def test_every_method_has_a_route(endpoint: Endpoint) -> None:
    method, path = endpoint.address.method, PREFIX + endpoint.address.path
    (route,) = [route for route in ROUTES if (route.method, route.path) == (method, path)]
    assert (route.scope, route.status) == (endpoint.scope, endpoint.status)
    assert route.summary == endpoint.summary != ""


@pytest.mark.parametrize("endpoint", [each for each in METHODS if each.values[0].by_hand])  # type: ignore[union-attr]
def test_what_is_written_by_hand_has_both_ends(endpoint: Endpoint) -> None:
    """The creation of routes checks the handler; that of a client checks the sender."""
    senders = [sender for client in CLIENTS for sender in client.transport.senders]
    assert endpoint.function in senders
    with pytest.raises(ValueError, match="needs a handler of its own"):
        build_handler(endpoint, lambda call: None)


def test_senders_are_for_methods_that_exist() -> None:
    known = {each.function for service in services() for each in endpoints(service).values()}
    for client in CLIENTS:
        assert set(client.transport.senders) <= known


def test_a_method_is_written_once() -> None:
    """A client has the methods of its service, and defines none of them again."""
    for client, service in ((PerdureClient, Threads), (RemoteRunQueue, RunQueue)):
        for name, endpoint in endpoints(service).items():
            assert getattr(client, name).__wrapped__ is endpoint.function


async def test_what_needs_the_database_is_refused_over_http() -> None:
    client = PerdureClient("http://127.0.0.1:9")
    with pytest.raises(NotSupported, match="needs the database"):
        await client.count_threads()
    with pytest.raises(NotSupported, match="needs the database"):
        client.start_timers()
    await client.close()


async def test_a_list_in_a_query_has_one_item_or_many(quick: House) -> None:
    """This holds for a list type and any sequence type."""
    for terms in ("status=running", "status=running&status=paused", ""):
        answer = await quick.visitor.get(f"{API}/workflow-runs?{terms}")
        assert (answer.status, answer.body["items"]) == (200, []), terms
    thread = await quick.client.create_thread()
    for ids, count in (([thread.thread_id], 1), ([thread.thread_id, "x"], 1), (["x"], 0)):
        terms = "&".join(f"thread_id={each}" for each in ids)
        assert (await quick.visitor.get(f"{API}/threads?{terms}")).body["total"] == count
    assert (await quick.visitor.get(f"{API}/workflow-runs?status=nonsense")).status == 422
