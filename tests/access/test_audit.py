"""The audit: one entry for each write of a named actor, in the write's own transaction, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.access.support import AccessHelper, age, open_engine

from perdure import AttemptedRollout, EnqueueRolloutRequest, LightningStoreThreaded, PromptTemplate, errors
from perdure.access.service import retain
from perdure.kernel.retention import Retention
from perdure.rollouts.store import DatabaseLightningStore
from perdure.service.callers import Caller
from perdure.testing.contract.support import make_span
from perdure.testing.faults import IOERR, Fault, FaultyStatements

Store = DatabaseLightningStore
Write = Callable[[Store, AttemptedRollout], Awaitable[Any]]

WRITES: dict[str, Write] = {
    "enqueue_rollout": lambda store, _: store.enqueue_rollout("task"),
    "start_rollout": lambda store, _: store.start_rollout("task"),
    "dequeue_rollout": lambda store, _: store.dequeue_rollout("w"),
    "start_attempt": lambda store, given: store.start_attempt(given.rollout_id),
    "update_attempt": lambda store, given: store.update_attempt(given.rollout_id, "latest", worker_id="w"),
    "update_rollout": lambda store, given: store.update_rollout(given.rollout_id, status="cancelled"),
    "add_spans": lambda store, given: store.add_span(make_span(given)),
    "next_sequence_id": lambda store, given: store.get_next_span_sequence_id(given.rollout_id, "any"),
    "add_resources": lambda store, _: store.add_resources({}),
    "update_resources": lambda store, _: store.update_resources("mine", {}),
    "release_rollout": lambda store, given: _release(store, given),
}


async def _release(store: Store, given: AttemptedRollout) -> None:
    await store.rollouts.release([(given.rollout_id, given.attempt.attempt_id)])


@pytest.fixture
def anna(store: Store) -> Store:
    return store.acting_as(Caller.trusted("anna", "team"))


@pytest.fixture
async def given(store: Store) -> AttemptedRollout:
    """A running and a waiting rollout in the team's namespace, created without an actor."""
    team = store.in_namespace("team")
    await team.enqueue_rollout("waits")
    return await team.start_rollout("runs")


async def test_every_write_leaves_its_entry(
    anna: Store, given: AttemptedRollout, access: AccessHelper
) -> None:
    for action, write in WRITES.items():
        before = len(await access.query_audit())
        await write(anna, given)
        entries = await access.query_audit()
        assert len(entries) == before + 1, action
        assert (entries[0].namespace, entries[0].actor, entries[0].action) == ("team", "anna", action)
        assert entries[0].count == 1


async def test_an_entry_names_its_object(anna: Store, given: AttemptedRollout, access: AccessHelper) -> None:
    attempt = f"{given.rollout_id}/{given.attempt.attempt_id}"
    for action in ("update_attempt", "add_spans", "update_rollout", "update_resources"):
        await WRITES[action](anna, given)
    entries = {entry.action: entry.object for entry in await access.query_audit()}
    assert entries == {
        "update_attempt": attempt,
        "add_spans": attempt,
        "update_rollout": given.rollout_id,
        "update_resources": "mine",
    }


async def test_reading_leaves_nothing(anna: Store, given: AttemptedRollout, access: AccessHelper) -> None:
    await anna.query_rollouts()
    await anna.get_rollout_by_id(given.rollout_id)
    await anna.query_spans(given.rollout_id)
    await anna.query_attempts(given.rollout_id)
    await anna.query_workers()
    await anna.get_latest_resources()
    await anna.wait_for_rollouts(rollout_ids=[given.rollout_id], timeout=0)
    await anna.statistics()
    assert await access.query_audit() == []


async def test_a_heartbeat_leaves_nothing(anna: Store, access: AccessHelper) -> None:
    await anna.update_worker("w")
    await anna.update_worker("w", {"load": 1})
    assert await access.query_audit() == []


async def test_without_an_actor_nothing_is_written(
    store: Store, given: AttemptedRollout, access: AccessHelper
) -> None:
    for write in WRITES.values():
        await write(store.in_namespace("team"), given)
    assert await access.query_audit() == []


async def test_a_claim_that_found_nothing_leaves_nothing(anna: Store, access: AccessHelper) -> None:
    assert await anna.dequeue_rollout("w") is None
    assert await anna.dequeue_rollout(idempotency_key="k") is None
    assert await access.query_audit() == []


async def test_a_span_that_was_known_leaves_nothing(
    anna: Store, given: AttemptedRollout, access: AccessHelper
) -> None:
    span = make_span(given)
    await anna.add_span(span)
    await anna.add_span(span)
    assert len(await access.query_audit()) == 1


async def test_what_fails_leaves_nothing(anna: Store, access: AccessHelper) -> None:
    stranger = make_span((await anna.in_namespace("other").start_rollout("task")).attempt)
    calls = [
        anna.start_attempt("ro-unknown"),
        anna.start_attempt("ro-unknown", idempotency_key="k"),
        anna.update_attempt("ro-unknown", "latest", status="failed"),
        anna.update_rollout("ro-unknown", status="cancelled"),
        anna.add_span(stranger),
    ]
    for call in calls:
        with pytest.raises(errors.NotFound):
            await call
    assert await access.query_audit(namespace="team") == []


async def test_the_actor_goes_along_to_another_namespace(anna: Store, access: AccessHelper) -> None:
    await anna.in_namespace("other").enqueue_rollout("task")
    assert [(entry.namespace, entry.actor) for entry in await access.query_audit()] == [("other", "anna")]


async def test_the_threaded_store_hands_the_actor_on(store: Store, access: AccessHelper) -> None:
    threaded = LightningStoreThreaded(store)
    try:
        await threaded.acting_as(Caller.trusted("anna", "team")).enqueue_rollout("task")
        assert [(entry.namespace, entry.actor) for entry in await access.query_audit()] == [("team", "anna")]
    finally:
        await threaded.close()


# --- batches ----------------------------------------------------------------------------------------------


async def test_a_merged_batch_is_one_entry(anna: Store, access: AccessHelper) -> None:
    await anna.statistics()
    queued = await asyncio.gather(*(anna.enqueue_rollout(number) for number in range(100)))
    entries = await access.query_audit()
    assert len(entries) < 10
    assert sum(entry.count for entry in entries) == 100
    named = {name for entry in entries for name in entry.object.split(",")}
    assert named <= {rollout.rollout_id for rollout in queued}
    assert all(entry.object.count(",") == min(entry.count, 20) - 1 for entry in entries)


async def test_a_list_is_one_entry(anna: Store, access: AccessHelper) -> None:
    await anna.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(30)])
    claimed = await anna.dequeue_many_rollouts(limit=30)
    await anna.add_many_spans([make_span(claimed[0], number) for number in range(1, 8)])
    entries = await access.query_audit()
    assert [(entry.action, entry.count) for entry in entries] == [
        ("add_spans", 7),
        ("dequeue_rollout", 30),
        ("enqueue_rollout", 30),
    ]
    assert entries[0].object == f"{claimed[0].rollout_id}/{claimed[0].attempt.attempt_id}"


async def test_actors_do_not_share_a_batch(store: Store, access: AccessHelper) -> None:
    stores = [store.acting_as(Caller.trusted(actor, "team")) for actor in ("anna", "bert")]
    await asyncio.gather(*(stores[number % 2].enqueue_rollout(number) for number in range(40)))
    for actor in ("anna", "bert"):
        assert sum(entry.count for entry in await access.query_audit(actor=actor)) == 20


async def test_many_processes_write_entries_at_the_same_time(database_url: str) -> None:
    async with open_engine(database_url) as here, open_engine(database_url) as there:
        stores = [store.acting_as(Caller.trusted("anna", "team")) for store in (here, there)]
        await stores[0].statistics()
        await asyncio.gather(*(stores[n % 2].update_resources(f"rs-{n}", {}) for n in range(200)))
        entries = await AccessHelper(here.storage).query_audit(limit=1000)
        assert sum(entry.count for entry in entries) == len(entries) == 200
        assert len({entry.id for entry in entries}) == 200


# --- reading ----------------------------------------------------------------------------------------------


async def test_pages_go_from_the_newest_to_the_oldest(store: Store, access: AccessHelper) -> None:
    for number in range(7):
        await store.acting_as(Caller.trusted("anna", f"team-{number % 2}")).enqueue_rollout(number)
    everything = await access.query_audit()
    assert [entry.id for entry in everything] == sorted((entry.id for entry in everything), reverse=True)
    assert everything[0].time == pytest.approx(everything[0].id / 1e6)
    pages, before = [], None
    while page := await access.query_audit(limit=3, before=before):
        pages.append(page)
        before = page[-1].id
    assert [len(page) for page in pages] == [3, 3, 1]
    assert [entry for page in pages for entry in page] == everything


async def test_filters(store: Store, access: AccessHelper) -> None:
    await store.acting_as(Caller.trusted("anna", "a")).enqueue_rollout("task")
    await store.acting_as(Caller.trusted("bert", "a")).add_resources(
        {"p": PromptTemplate(template="x", engine="poml")}
    )
    await store.acting_as(Caller.trusted("anna", "b")).add_resources({})
    await access.create_token("ci", actor="anna")

    async def found(**filters: Any) -> list[tuple[str | None, str, str]]:
        entries = await access.query_audit(**filters)
        return [(entry.namespace, entry.actor, entry.action) for entry in entries]

    assert await found(namespace="a") == [("a", "bert", "add_resources"), ("a", "anna", "enqueue_rollout")]
    assert await found(actor="anna") == [
        (None, "anna", "create_token"),
        ("b", "anna", "add_resources"),
        ("a", "anna", "enqueue_rollout"),
    ]
    assert await found(namespace="a", action="add_resources") == [("a", "bert", "add_resources")]
    assert await found(namespace="unknown") == []
    assert await found(actor="' OR 1=1 --") == []
    assert await found(limit=0) == []


@pytest.mark.parametrize(
    "asked",
    [
        {"limit": -1},
        {"limit": 1001},
        {"limit": "x"},
        {"limit": True},
        {"before": -1},
        {"before": "x"},
        {"before": True},
        {"before": 2**63},
        {"namespace": "\0"},
        {"actor": 1},
    ],
)
async def test_questions_that_make_no_sense(access: AccessHelper, asked: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidInput):
        await access.query_audit(**asked)


# --- tokens -----------------------------------------------------------------------------------------------


async def test_tokens_are_on_record_too(access: AccessHelper) -> None:
    token, _ = await access.create_token("ci", actor="anna")
    await access.revoke_token(token.token_id, actor="bert")
    entries = await access.query_audit()
    assert [(entry.namespace, entry.actor, entry.action, entry.object) for entry in entries] == [
        (None, "bert", "revoke_token", token.token_id),
        (None, "anna", "create_token", token.token_id),
    ]


# --- the same transaction ---------------------------------------------------------------------------------


async def test_an_entry_and_its_write_stand_or_fall_together(tmp_path: Any) -> None:
    """Without its entry a write does not happen, and without the write there is no entry."""
    with FaultyStatements(only=lambda sql: "INSERT INTO audit" in sql) as statements:
        async with open_engine(str(tmp_path / "perdure.db")) as store:
            anna, access = store.acting_as(Caller.trusted("anna", "team")), AccessHelper(store.storage)
            await anna.enqueue_rollout("first")
            statements.fault = Fault(1, IOERR)
            with pytest.raises(errors.StorageError):
                await anna.enqueue_rollout("second")
            assert [rollout.input for rollout in await anna.query_rollouts()] == ["first"]
            assert len(await access.query_audit()) == 1
            await anna.enqueue_rollout("third")
            assert len(await access.query_audit()) == 2


# --- for how long -----------------------------------------------------------------------------------------


async def test_old_entries_go(store: Store, access: AccessHelper) -> None:
    anna = store.acting_as(Caller.trusted("anna", "team"))
    for number in range(1100):
        await anna.enqueue_rollout(number)
    await age(store.storage, 89 * 86_400)
    await retain(store.storage, Retention())
    assert len(await access.query_audit(limit=1000)) == 1000
    await age(store.storage, 2 * 86_400)
    await anna.enqueue_rollout("new")
    await retain(store.storage, Retention())
    assert len(await access.query_audit()) == 1
