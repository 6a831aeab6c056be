"""Filters and metadata have bounds on every way in; beyond one nothing is done, and the answer names it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from tests.server.support import Answer, Visitor, serving

from perdure.agents.records import AgentSpec
from perdure.items.records import ListNamespaces, NamespaceMatch
from perdure.kernel.checks import MAX_FILTER_CHOICES, MAX_FILTER_KEYS, MAX_FILTER_PARTS
from perdure.kernel.errors import InvalidInput, TooLarge
from perdure.kernel.storage import dialect
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.labels import MAX_BYTES, MAX_KEYS, encode_labels, labelled, set_labels
from perdure.kernel.storage.port import Tx
from perdure.runtime.services import Services
from perdure.runtime.stores import open_store
from perdure.service.base import NO_NAMESPACE
from perdure.threads.operations.search import ThreadFilter
from perdure.threads.records import RunRequest

AGENT = AgentSpec(name="agent")
UUID = "01a1e72e-2d5d-75c2-9be7-{:012d}"
PREPARED = "SELECT count(*) FROM pg_prepared_statements"


def keys(count: int) -> dict[str, Any]:
    return {f"key{number}": number for number in range(count)}


def ids(count: int) -> list[str]:
    return [UUID.format(number) for number in range(count)]


@pytest_asyncio.fixture
async def visitor(engine_url: str) -> AsyncIterator[Visitor]:
    async with open_store(engine_url) as store, serving(store) as found:
        await found.app.services.assistants.register([AGENT])
        yield found


@pytest.fixture
def services(visitor: Visitor) -> Services:
    return visitor.app.services


# --- filters ----------------------------------------------------------------------------------------------

FILTERS: dict[str, Callable[[Services, Any], Awaitable[Any]]] = {
    "threads": lambda s, wanted: s.threads.search_threads(metadata=wanted),
    "thread values": lambda s, wanted: s.threads.find_threads(ThreadFilter(having=wanted)),
    "count threads": lambda s, wanted: s.threads.count_threads(metadata=wanted),
    "count thread values": lambda s, wanted: s.threads.count_threads(having=wanted),
    "assistants": lambda s, wanted: s.assistants.search(metadata=wanted),
    "count assistants": lambda s, wanted: s.assistants.count(metadata=wanted),
    "schedules": lambda s, wanted: s.schedules.search(metadata=wanted),
    "items": lambda s, wanted: s.items.search(["a"], filter=wanted),
}
SEARCHES = (
    ("/threads/search", "metadata"),
    ("/threads/search", "values"),
    ("/threads/count", "metadata"),
    ("/threads/count", "values"),
    ("/assistants/search", "metadata"),
    ("/assistants/count", "metadata"),
    ("/runs/crons/search", "metadata"),
    ("/runs/crons/count", "metadata"),
    ("/store/items/search", "filter"),
    ("/api/v1/items/search", "filter"),
)
QUERIES = ("threads", "assistants", "schedules")


async def test_a_filter_has_so_many_keys_in_every_service(services: Services) -> None:
    for name, search in FILTERS.items():
        await search(services, keys(MAX_FILTER_KEYS))
        with pytest.raises(InvalidInput, match=f"21 keys; a filter takes at most {MAX_FILTER_KEYS}"):
            await search(services, keys(MAX_FILTER_KEYS + 1))
        nested = {"key": [{"key": [number]} for number in range(MAX_FILTER_PARTS // 2)]}
        with pytest.raises(InvalidInput, match=f"at most {MAX_FILTER_PARTS}"):
            await search(services, nested)
        assert name


async def test_a_filter_has_so_many_keys_in_every_protocol(visitor: Visitor) -> None:
    for path, field in SEARCHES:
        assert (await visitor.post(path, json={field: keys(MAX_FILTER_KEYS)})).status == 200, path
        refused(await visitor.post(path, json={field: keys(MAX_FILTER_KEYS + 1)}), MAX_FILTER_KEYS)
    for name in QUERIES:
        terms = [("metadata", f"{key}:x") for key in keys(MAX_FILTER_KEYS + 1)]
        assert (await visitor.get(f"/api/v1/{name}", params=terms[1:])).status == 200
        refused(await visitor.get(f"/api/v1/{name}", params=terms), MAX_FILTER_KEYS)


def refused(answer: Answer, bound: int) -> None:
    assert (answer.status, answer.body["code"]) == (422, "invalid_input"), answer
    assert f"at most {bound}" in answer.body["detail"], answer


async def test_a_filter_lists_so_many_ids_and_statuses(visitor: Visitor, services: Services) -> None:
    most = MAX_FILTER_CHOICES
    await services.threads.search_threads(ids=ids(most))
    await services.rollouts.search(rollout_id=ids(most), status=["failed"] * most)
    for call in (
        services.threads.search_threads(ids=ids(most + 1)),
        services.rollouts.search(rollout_id=ids(most + 1)),
        services.rollouts.search(status=["failed"] * (most + 1)),
        services.workers.search(status=["idle"] * (most + 1)),
        services.store.query_rollouts(status_in=["failed"] * (most + 1)),
    ):
        with pytest.raises(InvalidInput, match=f"at most {most}"):
            await call
    refused(await visitor.post("/threads/search", json={"ids": ids(most + 1)}), most)
    for path, name, value in (("threads", "thread_id", ids(most + 1)), ("rollouts", "rollout_id", ids(101))):
        refused(await visitor.get(f"/api/v1/{path}", params=[(name, each) for each in value]), most)
    statuses = {"status_in": ["failed"] * (most + 1)}
    lightning = await visitor.post("/v1/agl/rollouts/search", json=statuses)
    assert (lightning.status, f"at most {most}" in lightning.body["detail"]) == (400, True)


async def test_ids_of_agent_lightning_are_as_many_as_its_body_takes(visitor: Visitor) -> None:
    """Its contract names no number: a trainer asks for all rollouts of a batch at once."""
    queued = await visitor.post("/api/v1/rollouts", json={"input": 1})
    known = queued.body["rollout_id"]
    unknown = [f"ro-{number:012x}" for number in range(20_000)]
    found = await visitor.post("/v1/agl/rollouts/search", json={"rollout_id_in": [*unknown, known]})
    assert (found.status, [each["rollout_id"] for each in found.body["items"]]) == (200, [known])


async def test_a_list_of_namespaces_has_so_many_conditions(services: Services) -> None:
    matches = [NamespaceMatch(kind="prefix", path=["a"]) for _ in range(MAX_FILTER_KEYS + 1)]
    with pytest.raises(InvalidInput, match=f"at most {MAX_FILTER_KEYS}"):
        await services.items.run([ListNamespaces(matches=matches)])


# --- texts made at run time -------------------------------------------------------------------------------


def test_parameters_are_numbered_in_linear_time() -> None:
    """Twice a list of 40,000 names takes seconds if each of them is looked for in a list."""
    names = " AND ".join(f"id = :name{number}" for number in range(40_000))
    began = time.process_time()
    made = statement("SELECT 1 WHERE " + names + " AND " + names)
    assert time.process_time() - began < 5
    assert (len(made.names), made.postgres.rpartition(" ")[2]) == (40_000, "$40000")


async def shapes(tx: Tx, count: int) -> None:
    """Ask with so many statements that differ."""
    for number in range(count):
        clause = labelled("thread", keys(1))
        made = statement(f"SELECT id FROM labels WHERE ns = :ns AND {clause.sql} AND {number} = {number}")
        await tx.all(made, **clause.values)


async def test_texts_made_at_run_time_are_not_kept_for_ever(services: Services) -> None:
    storage = services.storage
    await storage.read(shapes, 200, ns=NO_NAMESPACE)
    if storage.engine == "postgres":
        assert await storage.read(prepared) <= 100
    for number in range(dialect.TEXTS + 10):
        statement(f"SELECT {number}")
    for cache in (dialect._translate, dialect._words):
        found = cache.cache_info()
        assert found.maxsize == dialect.TEXTS
        assert found.currsize <= dialect.TEXTS


async def prepared(tx: Tx) -> int:
    return await tx.one(statement(PREPARED, int)) or 0


# --- metadata ---------------------------------------------------------------------------------------------


def too_long() -> dict[str, Any]:
    return {"key": "x" * MAX_BYTES}


CREATIONS: dict[str, Callable[[Services, Any], Awaitable[Any]]] = {
    "thread": lambda s, metadata: s.threads.create_thread(metadata=metadata),
    "run": lambda s, metadata: s.threads.create_run(RunRequest(assistant_id="agent", metadata=metadata)),
    "assistant": lambda s, metadata: s.assistants.create("agent", metadata=metadata),
    "schedule": lambda s, metadata: s.schedules.create("0 0 1 1 *", assistant_id="agent", metadata=metadata),
    "rollout": lambda s, metadata: s.store.enqueue_rollout(1, metadata=metadata),
}


async def counts(tx: Tx) -> list[int]:
    tables = ("threads", "rollouts", "assistants", "assistant_versions", "schedules", "labels", "audit")
    return [await tx.one(statement("SELECT count(*) FROM " + name, int)) or 0 for name in tables]


async def test_metadata_has_so_many_keys_and_bytes(services: Services) -> None:
    for create in CREATIONS.values():
        await create(services, keys(MAX_KEYS))
        before = await services.storage.read(counts)
        with pytest.raises(InvalidInput, match=f"{MAX_KEYS + 1} keys; it takes at most {MAX_KEYS}"):
            await create(services, keys(MAX_KEYS + 1))
        with pytest.raises(TooLarge, match=f"at most {MAX_BYTES}"):
            await create(services, too_long())
        assert await services.storage.read(counts) == before


async def test_metadata_has_bounds_in_every_protocol(visitor: Visitor) -> None:
    run = {"assistant_id": "agent"}
    cron = {**run, "schedule": "0 0 1 1 *"}
    for path, body in (
        ("/threads", {}),
        ("/runs", run),
        ("/assistants", {"graph_id": "agent"}),
        ("/runs/crons", cron),
        ("/api/v1/threads", {}),
        ("/api/v1/runs", run),
        ("/api/v1/assistants", {"agent": "agent"}),
        ("/api/v1/schedules", {**run, "expression": "0 0 1 1 *"}),
        ("/api/v1/rollouts", {"input": 1}),
    ):
        many = await visitor.post(path, json={**body, "metadata": keys(MAX_KEYS + 1)})
        assert many.status == 422, (path, many)
        refused(many, MAX_KEYS)
        large = await visitor.post(path, json={**body, "metadata": too_long()})
        assert (large.status, large.body["code"]) == (413, "too_large"), (path, large)
    lightning = {"input": 1, "metadata": keys(MAX_KEYS + 1)}
    assert (await visitor.post("/v1/agl/rollouts", json=lightning)).status == 400


async def test_an_update_beyond_the_bound_changes_nothing(services: Services) -> None:
    thread = await services.threads.create_thread(metadata=keys(MAX_KEYS))
    assistant = await services.assistants.create("agent", metadata=keys(MAX_KEYS))
    schedule = await services.schedules.create("0 0 1 1 *", assistant_id="agent", metadata=keys(MAX_KEYS))
    before = await services.storage.read(counts)
    for more, error in (({"more": 1}, InvalidInput), ({"key0": "x" * (MAX_BYTES - 10)}, TooLarge)):
        for update in (
            services.threads.update_thread(thread.thread_id, metadata=more),
            services.assistants.update(assistant.assistant_id, metadata=more),
            services.schedules.update(schedule.schedule_id, metadata=more),
        ):
            with pytest.raises(error):
                await update
    assert await services.storage.read(counts) == before
    assert (await services.threads.get_thread(thread.thread_id)).metadata == thread.metadata
    assert (await services.assistants.get(assistant.assistant_id)).version == 1
    assert (await services.schedules.get(schedule.schedule_id)).metadata == schedule.metadata


# --- what an earlier release stored -----------------------------------------------------------------------

OLD = keys(2500)


async def enlarge(tx: Tx, kind: str, table: str, id: str, text: str) -> None:
    """Give an object more metadata than it may have now."""
    update = statement("UPDATE " + table + " SET metadata = :text WHERE ns = :ns AND id = :id")
    await tx.execute(update, id=id, text=text)
    await set_labels(tx, kind, {id: encode_labels(OLD)})


async def labels_of(tx: Tx, id: str) -> int:
    counted = statement("SELECT count(*) FROM labels WHERE ns = :ns AND id = :id", int)
    return await tx.one(counted, id=id) or 0


async def test_more_metadata_of_an_earlier_release_stays_and_does_not_grow(services: Services) -> None:
    threads, assistants, schedules = services.threads, services.assistants, services.schedules
    thread = (await threads.create_thread()).thread_id
    assistant = (await assistants.create("agent")).assistant_id
    schedule = (await schedules.create("0 0 1 1 *", assistant_id="agent")).schedule_id
    text = json.dumps(OLD, separators=(",", ":"))
    for kind, table, id in (
        ("thread", "threads", thread),
        ("assistant", "assistants", assistant),
        ("schedule", "schedules", schedule),
    ):
        await services.storage.run(enlarge, kind, table, id, text, ns=await threads.ns())
    updates: dict[str, tuple[Callable[..., Awaitable[Any]], Callable[[str], Awaitable[Any]]]] = {
        thread: (threads.update_thread, threads.get_thread),
        assistant: (assistants.update, assistants.get),
        schedule: (schedules.update, schedules.get),
    }
    for id, (update, get) in updates.items():
        assert (await get(id)).metadata == OLD
        assert (await update(id, metadata={"key0": 1})).metadata == {**OLD, "key0": 1}
        with pytest.raises(InvalidInput, match="2501 keys"):
            await update(id, metadata={"more": 1})
        assert await services.storage.read(labels_of, id, ns=await threads.ns()) == len(OLD)
    assert (await threads.search_threads(metadata={"key2499": 2499})).total == 1
    assert len((await threads.copy_thread(thread)).metadata) == len(OLD)
    await threads.create_run(RunRequest(assistant_id="agent", thread_id=thread))
