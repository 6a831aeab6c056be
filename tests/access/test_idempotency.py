"""Idempotency keys: a repeated call returns the first answer, and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import pytest
from tests.access.support import AccessHelper, age, open_engine, rows_of

from perdure import LightningStoreThreaded, PromptTemplate, RolloutConfig, errors
from perdure.access.service import retain
from perdure.kernel.retention import Retention
from perdure.kernel.storage.port import Tx
from perdure.rollouts.store import DatabaseLightningStore
from perdure.service.base import Service
from perdure.service.callers import Caller
from perdure.service.idempotency import keyed_as
from perdure.testing.contract.support import soon

Store = DatabaseLightningStore
Call = Callable[[Store, str], Awaitable[Any]]

CALLS: dict[str, Call] = {
    "start_rollout": lambda store, key: store.start_rollout({"x": 1}, worker_id="w", idempotency_key=key),
    "dequeue_rollout": lambda store, key: store.dequeue_rollout("w", idempotency_key=key),
    "dequeue_many_rollouts": lambda store, key: store.dequeue_many_rollouts(limit=2, idempotency_key=key),
    "start_attempt": lambda store, key: _start_attempt(store, key),
    "add_resources": lambda store, key: store.add_resources(
        {"p": PromptTemplate(template="naïve {x}", engine="f-string")}, idempotency_key=key
    ),
}


async def _start_attempt(store: Store, key: str) -> Any:
    (first, *_) = await store.query_rollouts(sort_by="start_time")
    return await store.start_attempt(first.rollout_id, "w", idempotency_key=key)


@pytest.fixture(params=sorted(CALLS))
def call(request: pytest.FixtureRequest) -> Call:
    return CALLS[request.param]


async def queue(store: Store) -> None:
    config = RolloutConfig(timeout_seconds=100, max_attempts=2, retry_condition=["timeout"])
    for number in range(5):
        await store.enqueue_rollout({"n": number, "text": "\0 😀"}, config=config, metadata={"m": None})


async def effects(store: Store) -> list[Any]:
    """Return all rows that the calls change."""
    bundles = await store.query_resources()
    return [await rows_of(store.storage, table) for table in ("rollouts", "attempts")] + [list(bundles)]


async def test_a_repeated_call_gives_the_first_answer_and_changes_nothing(store: Store, call: Call) -> None:
    await queue(store)
    first = await call(store, "k")
    assert first
    after = await effects(store)
    assert [await call(store, "k") for _ in range(3)] == [first] * 3
    assert await effects(store) == after


async def test_another_key_is_another_call(store: Store, call: Call) -> None:
    await queue(store)
    assert await call(store, "a") != await call(store, "b")


async def test_an_empty_key_is_none(store: Store, call: Call) -> None:
    await queue(store)
    assert await call(store, "") != await call(store, "")
    assert await rows_of(store.storage, "idempotency") == []


@pytest.mark.parametrize("key", ["\0", "k" * 1025, 1, b"k"])
async def test_a_key_that_cannot_be_kept_is_refused(store: Store, call: Call, key: Any) -> None:
    await queue(store)
    before = await effects(store)
    with pytest.raises(errors.InvalidInput, match="idempotency_key"):
        await call(store, key)
    assert await effects(store) == before


async def test_namespaces_are_apart(store: Store, call: Call) -> None:
    other = store.in_namespace("other")
    await queue(store)
    await queue(other)
    assert await call(store, "k") != await call(other, "k")


async def test_twenty_callers_at_once_are_one_call(store: Store, call: Call) -> None:
    await queue(store)
    answers = await asyncio.gather(*(call(store, "k") for _ in range(20)))
    assert answers == [answers[0]] * 20
    after = await effects(store)
    assert await call(store, "k") == answers[0]
    assert await effects(store) == after
    (kept,) = await rows_of(store.storage, "idempotency")
    assert kept[1] == "k"


async def test_callers_in_two_processes_are_one_call(database_url: str, call: Call) -> None:
    async with open_engine(database_url) as here, open_engine(database_url) as there:
        await queue(here)
        answers = await asyncio.gather(*(call((here, there)[number % 2], "k") for number in range(20)))
        assert answers == [answers[0]] * 20
        assert len(await rows_of(here.storage, "idempotency")) == 1


async def test_the_key_of_another_method_is_a_conflict(store: Store) -> None:
    await queue(store)
    await store.start_rollout("x", idempotency_key="k")
    before = await effects(store)
    for name in ("dequeue_rollout", "dequeue_many_rollouts", "start_attempt", "add_resources"):
        with pytest.raises(errors.Conflict, match="start_rollout"):
            await CALLS[name](store, "k")
    assert await effects(store) == before


async def test_a_conflict_is_the_affair_of_its_caller(store: Store) -> None:
    """Calls with keys are merged; each has a separate answer."""
    await store.add_resources({}, idempotency_key="taken")
    calls = [store.start_rollout(key, idempotency_key=key) for key in ("a", "taken", "b", "a")]
    a, refused, b, again = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(refused, errors.Conflict)
    assert not isinstance(a, BaseException)
    assert not isinstance(b, BaseException)
    assert again == a != b
    assert (a.input, b.input) == ("a", "b")
    assert (await store.query_rollouts()).total == 2


async def test_many_claims_with_keys_share_the_queue(store: Store) -> None:
    for number in range(30):
        await store.enqueue_rollout(number)
    keys = [f"k{number % 25}" for number in range(50)]
    claims = [store.dequeue_many_rollouts(limit=1, idempotency_key=key) for key in keys]
    answers = await asyncio.gather(*claims)
    assert answers[:25] == answers[25:]
    assert len({one.rollout_id for claimed in answers for one in claimed}) == 25
    assert (await store.query_rollouts(status_in=["queuing"])).total == 5


async def test_the_key_of_an_enqueue_is_its_own(store: Store) -> None:
    """It is a property of the rollout, and is kept as long as the rollout."""
    queued = await store.enqueue_rollout("x", idempotency_key="k")
    started = await store.start_rollout("x", idempotency_key="k")
    assert queued.rollout_id != started.rollout_id


async def test_what_failed_may_be_tried_again(store: Store) -> None:
    with pytest.raises(errors.NotFound):
        await store.start_attempt("ro-unknown", idempotency_key="k")
    assert await rows_of(store.storage, "idempotency") == []
    rollout = await store.enqueue_rollout("x")
    started = await store.start_attempt(rollout.rollout_id, idempotency_key="k")
    assert started.rollout_id == rollout.rollout_id


async def test_a_claim_that_found_nothing_looks_again(store: Store) -> None:
    assert await store.dequeue_rollout("w", idempotency_key="k") is None
    assert await store.dequeue_many_rollouts(limit=0, idempotency_key="k") == []
    assert await rows_of(store.storage, "idempotency") == []
    queued = await store.enqueue_rollout("x")
    claimed = await store.dequeue_rollout("w", idempotency_key="k")
    assert claimed is not None
    assert claimed.rollout_id == queued.rollout_id


async def test_an_answer_stays_although_the_attempt_has_ended(store: Store) -> None:
    await queue(store)
    claimed = await store.dequeue_rollout("w", idempotency_key="k")
    assert claimed is not None
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
    assert await store.dequeue_rollout("w", idempotency_key="k") == claimed
    assert (await store.query_rollouts(status_in=["succeeded"])).total == 1


async def test_a_claim_with_a_key_is_not_given_back(store: Store) -> None:
    """Its caller may retry with the key."""
    await queue(store)
    waiting = asyncio.ensure_future(store.dequeue_rollout("w", idempotency_key="k"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not store.rollouts._releases
    claimed = await soon(store.dequeue_rollout("w", idempotency_key="k"))
    assert claimed is not None
    assert (await store.query_rollouts(status_in=["preparing"])).total == 1


async def test_an_overdue_attempt_is_swept_first(store: Store) -> None:
    rollout = await store.start_rollout("x", config=RolloutConfig(timeout_seconds=0.0))
    await store.enqueue_rollout("y")
    claimed = await store.dequeue_rollout(idempotency_key="k")
    assert claimed is not None
    assert await store.dequeue_rollout(idempotency_key="k") == claimed
    ended = await store.get_rollout_by_id(rollout.rollout_id)
    assert ended is not None
    assert ended.status == "failed"


async def test_an_actor_is_noted_once(store: Store, access: AccessHelper, call: Call) -> None:
    anna = store.acting_as(Caller.trusted("anna", "team"))
    await queue(store.in_namespace("team"))
    answers = [await call(anna, "k") for _ in range(3)]
    assert answers == [answers[0]] * 3
    assert [entry.actor for entry in await access.query_audit()] == ["anna"]


async def test_the_threaded_store_hands_the_key_on(store: Store, call: Call) -> None:
    await queue(store)
    threaded: Any = LightningStoreThreaded(store)
    try:
        assert await call(threaded, "k") == await call(store, "k")
    finally:
        await threaded.close()


async def test_a_key_is_kept_for_a_day(store: Store) -> None:
    first = await store.add_resources({}, idempotency_key="k")
    await age(store.storage, 23 * 3600)
    await retain(store.storage, Retention())
    assert await store.add_resources({}, idempotency_key="k") == first
    await age(store.storage, 2 * 3600)
    await retain(store.storage, Retention())
    assert await rows_of(store.storage, "idempotency") == []
    assert await store.add_resources({}, idempotency_key="k") != first


class Answer(NamedTuple):
    id: str
    time: int | None


@keyed_as("greet", answer=list[Answer])
async def greet(tx: Tx, names: Sequence[str]) -> list[list[Answer]]:
    return [[Answer(name, tx.now), Answer(name, None)] for name in names]


async def test_a_stored_answer_has_the_type_of_the_first(store: Store) -> None:
    service = Service(store.storage)
    first = await service.write_once("k", greet, "anna")
    again = await service.write_once("k", greet, "bert")
    assert again == first
    assert [(type(answer), answer.id) for answer in again] == [(Answer, "anna")] * 2
