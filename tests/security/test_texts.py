"""Texts that no database holds are refused by every method of every service, the same on both engines."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
import pytest_asyncio
from tests.server.support import Visitor, serving

from perdure.kernel.config import Settings
from perdure.kernel.errors import InvalidInput, NotFound
from perdure.runtime.services import Services
from perdure.runtime.stores import open_store
from perdure.server.table import ROUTES
from perdure.service.base import Service
from perdure.service.endpoints import Endpoint, endpoints

HOSTILE = {"NUL": "a\0b", "a lone surrogate": "a\ud800b"}
FREE = {
    ("GraphRequests", "answer", "message"),
    ("Rollouts", "enqueue", "metadata"),
    ("RunQueue", "save", "metadata"),
    ("RunQueue", "save", "next"),
    ("RunQueue", "find_graphs", "thread_id"),
    ("RunQueue", "find_deltas", "thread_id"),
    ("Rollouts", "start", "metadata"),
    ("Rollouts", "search", "sort_by"),
    ("Rollouts", "attempts", "sort_by"),
    ("Rollouts", "spans", "sort_by"),
    ("Workers", "search", "sort_by"),
    ("Resources", "search", "sort_by"),
}
"""What is stored as JSON or made storable, and names that are never sent to the database."""
PLAIN: Mapping[Any, Any] = {str: "plain", int: 1, float: 1.0, bool: True, dict: {}, list: [], Mapping: {}}


@pytest_asyncio.fixture
async def services(engine_url: str) -> AsyncIterator[Services]:
    found = Services(open_store(engine_url), Settings())
    yield found
    await found.close()


def all_services(services: Services) -> Iterator[Service]:
    """Every service of the wiring, so that a new one is asked too."""
    yield from (each for each in vars(services).values() if isinstance(each, Service))
    yield from (services.rollouts, services.workers, services.resources)


def takes_text(hint: Any) -> bool:
    """Whether a type takes any text, and not only some."""
    return hint is str or any(takes_text(part) for part in get_args(hint) if not isinstance(part, str))


def plain(hint: Any) -> Any:
    """A value of a type that a method takes."""
    if _is_list(hint):
        return []
    for kind in (hint, getattr(hint, "__origin__", None), *get_args(hint)):
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            hints = get_type_hints(kind, include_extras=True)
            required = [each.name for each in msgspec.structs.fields(kind) if each.required]
            return kind(**{name: plain(hints[name]) for name in required})
        if kind in PLAIN:
            return PLAIN[kind]
    return get_args(hint)[0] if get_args(hint) else []


def struct_in(hint: Any) -> type[msgspec.Struct] | None:
    """The record that a type is, or is a list of."""
    kinds = (hint, *(part for part in get_args(hint) if not isinstance(part, str)))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)), None)


def hostile_records(hint: Any, text: str) -> Iterator[tuple[str, Any]]:
    """Records of a type, one of their fields hostile at a time."""
    kind = struct_in(hint)
    if kind is None:
        return
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        if takes_text(hints[field.name]):
            for value in given_hostile(hints[field.name], text):
                # Some records refuse it themselves, when they are made.
                with suppress(InvalidInput):
                    record = msgspec.structs.replace(plain(kind), **{field.name: value})
                    yield field.name, [record] if _is_list(hint) else record


def _is_list(hint: Any) -> bool:
    return any(getattr(part, "__origin__", None) in (list, Sequence) for part in (hint, *get_args(hint)))


def given_hostile(hint: Any, text: str) -> Iterator[Any]:
    """A hostile text as a value of a type: itself, in a list, as a key."""
    parts = {hint, *get_args(hint), *(part for each in get_args(hint) for part in get_args(each))}
    kinds = {getattr(part, "__origin__", part) for part in parts if not isinstance(part, str)}
    if kinds & {list, Sequence}:
        yield [text]
    elif kinds & {dict, Mapping}:
        yield {text: 1}
    elif str in kinds:
        yield text


def hostile_calls(endpoint: Endpoint, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Arguments of a method, one of them hostile at a time."""
    hints = get_type_hints(endpoint.function, include_extras=True)
    parameters = list(inspect.signature(endpoint.function).parameters.values())[1:]
    required = {each.name: plain(hints[each.name]) for each in parameters if each.default is each.empty}
    for each in parameters:
        for field, record in hostile_records(hints[each.name], text):
            yield field, {**required, each.name: record}
        if takes_text(hints[each.name]):
            for value in given_hostile(hints[each.name], text):
                yield each.name, {**required, each.name: value}


async def call(service: Service, endpoint: Endpoint, arguments: dict[str, Any]) -> Any:
    answer = endpoint.function(service, **arguments)
    if inspect.isasyncgen(answer):
        return await anext(answer)
    return await answer


METADATA = {"config", "context", "payload", "value", "values", "heartbeat_stats", "resources", "input"}
"""What is stored as JSON, where a NUL is written as an escape and a lone surrogate is replaced."""


@pytest.mark.parametrize("kind", HOSTILE)
async def test_every_method_refuses_what_no_database_holds(services: Services, kind: str) -> None:
    wrong: list[str] = []
    asked = 0
    for service in all_services(services):
        for name, endpoint in endpoints(type(service)).items():
            for parameter, arguments in hostile_calls(endpoint, HOSTILE[kind]):
                if parameter in METADATA or (type(service).__name__, name, parameter) in FREE:
                    continue
                asked += 1
                label = f"{type(service).__name__}.{name}({parameter})"
                try:
                    answer = await call(service, endpoint, arguments)
                except (InvalidInput, NotFound) as error:
                    if "cannot be stored" in str(error):
                        wrong.append(f"{label}: refused by the database alone")
                except Exception as error:  # noqa: BLE001 - it is shown
                    wrong.append(f"{label}: {type(error).__name__}: {error}")
                else:
                    wrong.append(f"{label}: {answer!r:.80}")
    assert not wrong, "\n".join(wrong)
    assert asked > 60


# --- over HTTP --------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def visitor(engine_url: str) -> AsyncIterator[Visitor]:
    async with open_store(engine_url) as store, serving(store) as found:
        yield found


async def test_no_path_holds_a_nul(visitor: Visitor) -> None:
    for route in ROUTES:
        if "{" in route.path and route.scope is not None:
            path = "/".join("%00" if "{" in step else step for step in route.path.split("/"))
            answer = await visitor.ask(route.method, path, json={})
            # Agent-lightning's clients know bad input by 400.
            assert answer.status == (400 if route.protocol.name == "lightning" else 422), (path, answer)


async def test_no_query_and_no_body_holds_a_nul(visitor: Visitor) -> None:
    searches = (
        ("GET", "/api/v1/assistants?name=%00", None),
        ("GET", "/api/v1/assistants?agent=%00", None),
        ("GET", "/api/v1/threads?metadata=a%00:x", None),
        ("GET", "/api/v1/threads?thread_id=%00", None),
        ("GET", "/api/v1/rollouts?contains=%00", None),
        ("GET", "/api/v1/items?namespace=a&key=%00", None),
        ("POST", "/assistants/search", {"name": "\0"}),
        ("POST", "/assistants/search", {"graph_id": "\0"}),
        ("POST", "/assistants/search", {"metadata": {"a\0": 1}}),
        ("POST", "/assistants/count", {"metadata": {"a\0": 1}}),
        ("POST", "/threads/search", {"metadata": {"a\0": 1}}),
        ("POST", "/threads/count", {"metadata": {"a\0": 1}}),
        ("POST", "/runs/crons/search", {"metadata": {"a\0": 1}}),
        ("POST", "/store/items/search", {"namespace_prefix": ["\0"]}),
        ("POST", "/store/items/search", {"filter": {"a\0": 1}}),
        ("POST", "/store/namespaces", {"prefix": ["\0"]}),
    )
    for method, path, body in searches:
        answer = await visitor.ask(method, path, json=body)
        assert answer.status == 422, (path, body, answer)
