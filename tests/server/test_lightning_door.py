"""The Agent-lightning protocol over HTTP: our extensions, refusals, answers of any length."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.server.lightning_cases import span
from tests.server.support import Visitor, serving

from perdure import InMemoryLightningStore, LightningStore, Span
from perdure.client.lightning_wire import PREFIX
from perdure.kernel.config import SecretKey
from perdure.kernel.errors import OutcomeUnknown, StorageFull, StorageUnavailable
from perdure.rollouts.records import MAX_SPANS
from perdure.server.lightning import listing
from perdure.server.lightning.routes import ROUTES

ENQUEUE = PREFIX + "/queues/rollouts/enqueue"
DEQUEUE = PREFIX + "/queues/rollouts/dequeue"


@pytest_asyncio.fixture
async def store() -> AsyncIterator[InMemoryLightningStore]:
    async with InMemoryLightningStore() as opened:
        yield opened


@pytest_asyncio.fixture
async def visitor(store: InMemoryLightningStore) -> AsyncIterator[Visitor]:
    async with serving(store, ROUTES) as found:
        yield found


def own_span(rollout: Any, number: int, **fields: Any) -> dict[str, Any]:
    ids = {"rollout_id": rollout["rollout_id"], "attempt_id": rollout["attempt"]["attempt_id"]}
    return span(f"{number:016x}", **ids, sequence_id=number, **fields)


async def started(visitor: Visitor, **options: Any) -> Any:
    answer = await visitor.post(PREFIX + "/rollouts", json={"input": 1}, **options)
    assert answer.status == 201
    return answer.body


# --- the queue ----------------------------------------------------------------------------------------------


async def test_queue_priority_and_time_of_a_rollout_are_taken(visitor: Visitor) -> None:
    items = [
        {"input": "late", "not_before": 4e9},
        {"input": "low", "priority": 1},
        {"input": "high", "priority": 2},
        {"input": "elsewhere", "queue": "other"},
    ]
    assert (await visitor.post(ENQUEUE, json={"rollouts": items})).status == 201
    first = await visitor.post(DEQUEUE, json={"limit": 5})
    assert [each["input"] for each in first.body] == ["high", "low"]
    other = await visitor.post(DEQUEUE, json={"queue": "other"})
    assert [each["input"] for each in other.body] == ["elsewhere"]


@pytest.mark.parametrize("count", [1, 3])
async def test_a_repeated_enqueue_with_a_key_gives_the_same_rollouts(visitor: Visitor, count: int) -> None:
    body = {"rollouts": [{"input": number} for number in range(count)]}
    options: dict[str, Any] = {"json": body, "headers": {"Idempotency-Key": "once"}}
    first, second = [await visitor.post(ENQUEUE, **options) for _ in range(2)]
    assert first.body == second.body
    assert len({each["rollout_id"] for each in first.body}) == count
    assert (await visitor.get(PREFIX + "/statistics")).body["total_rollouts"] == count


async def test_a_key_within_the_body_counts_for_its_rollout(visitor: Visitor) -> None:
    body = {"rollouts": [{"input": 1, "idempotency_key": "mine"}]}
    first, second = [(await visitor.post(ENQUEUE, json=body)).body for _ in range(2)]
    assert first == second


async def test_repeated_calls_with_a_key_give_the_first_answer(visitor: Visitor) -> None:
    options: dict[str, Any] = {"headers": {"Idempotency-Key": "start"}}
    rollout = await started(visitor, **options)
    assert await started(visitor, **options) == rollout
    await visitor.post(ENQUEUE, json={"rollouts": [{"input": 1}, {"input": 2}]})
    attempts = PREFIX + f"/rollouts/{rollout['rollout_id']}/attempts"
    for path in (attempts, DEQUEUE, PREFIX + "/resources"):
        options = {"headers": {"Idempotency-Key": path}, "json": {}}
        first, second = [await visitor.post(path, **options) for _ in range(2)]
        assert first.body == second.body != []


# --- spans --------------------------------------------------------------------------------------------------


async def test_many_spans_are_stored_with_one_request(visitor: Visitor) -> None:
    rollout = await started(visitor)
    spans = [own_span(rollout, number, mark={"n": number}) for number in (1, 2, 2, 3)]
    first = await visitor.post(PREFIX + "/spans/bulk", json=spans)
    assert (first.status, first.body) == (201, {"stored": [True, True, False, True]})
    second = await visitor.post(PREFIX + "/spans/bulk", json=spans)
    assert second.body == {"stored": [False] * 4}
    found = await visitor.get(PREFIX + "/spans", params={"rollout_id": rollout["rollout_id"]})
    assert [each["mark"] for each in found.body["items"]] == [{"n": 1}, {"n": 2}, {"n": 3}]


async def test_one_bad_span_of_many_is_named(visitor: Visitor) -> None:
    rollout = await started(visitor)
    spans = [own_span(rollout, 1), {**own_span(rollout, 2), "name": 7}]
    refused = await visitor.post(PREFIX + "/spans/bulk", json=spans)
    assert refused.status == 422
    assert refused.body["detail"][0]["loc"] == ["body", 1, "name"]
    assert (await visitor.get(PREFIX + "/statistics")).body["total_spans"] == 0


async def test_too_many_spans_are_too_large(visitor: Visitor) -> None:
    one = own_span({"rollout_id": "r", "attempt": {"attempt_id": "a"}}, 1)
    body = io.BytesIO(json.dumps([one] * (MAX_SPANS + 1)).encode())
    headers = {"Content-Type": "application/json"}
    refused = await visitor.post(PREFIX + "/spans/bulk", data=body, headers=headers)
    assert (refused.status, refused.body["code"]) == (413, "too_large")


async def test_numbers_for_many_spans_come_in_order(visitor: Visitor) -> None:
    one, other = await started(visitor), await started(visitor)
    pairs = [[each["rollout_id"], each["attempt"]["attempt_id"]] for each in (one, other, one, one)]
    answer = await visitor.post(PREFIX + "/spans/next/bulk", json={"pairs": pairs})
    assert (answer.status, answer.body) == (200, {"sequence_ids": [1, 1, 2, 3]})


async def test_unknown_keys_of_a_span_survive_at_every_depth(visitor: Visitor) -> None:
    rollout = await started(visitor)
    sent = own_span(
        rollout,
        1,
        kind="SERVER",
        scope={"name": "s", "version": None},
        status={"status_code": "OK", "description": None, "more": [1]},
        events=[{"name": "e", "attributes": {}, "timestamp": 1.0, "dropped": 3}],
    )
    answer = await visitor.post(PREFIX + "/spans", json=sent)
    assert (answer.status, answer.body) == (201, sent)
    found = await visitor.post(PREFIX + "/spans/search", json={"rollout_id": rollout["rollout_id"]})
    assert found.body["items"] == [sent]


async def test_a_plain_span_comes_back_as_it_was_sent(visitor: Visitor) -> None:
    rollout = await started(visitor)
    attributes = {"a": "\u00e9\n", "b": [1, 2.5], "c": None, "d": {"e": [True]}, "f": 1e-7, "g": 2**60}
    sent = [own_span(rollout, number, attributes=attributes) for number in (1, 2)]
    answer = await visitor.post(PREFIX + "/spans", json=sent[0])
    assert (answer.status, answer.body) == (201, sent[0])
    assert list(answer.body) == list(sent[0])
    answer = await visitor.post(PREFIX + "/spans/bulk", json=sent)
    assert answer.body == {"stored": [False, True]}
    found = await visitor.post(PREFIX + "/spans/search", json={"rollout_id": rollout["rollout_id"]})
    assert found.body["items"] == sent


class Plain(LightningStore):
    """A third-party store with only the contract."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    async def add_span(self, span: Span) -> Span | None:
        self.spans.append(span)
        return span

    async def add_many_spans(self, spans: Any) -> Any:
        self.spans += spans
        return spans


async def test_any_other_store_gets_records() -> None:
    store = Plain()
    sent = [span(f"{number:016x}") for number in (1, 2)]
    async with serving(store, ROUTES) as visitor:
        assert (await visitor.post(PREFIX + "/spans", json=sent[0])).body == sent[0]
        assert (await visitor.post(PREFIX + "/spans/bulk", json=sent)).body == {"stored": [True, True]}
    assert store.spans == [Span(**sent[0]), Span(**sent[0]), Span(**sent[1])]


class Watching(InMemoryLightningStore):
    """One of our stores with an overridden method."""

    async def add_many_spans(self, spans: Any) -> Any:
        assert all(type(each) is Span for each in spans)
        return await super().add_many_spans(spans)


async def test_a_method_of_somebodys_own_gets_records_too() -> None:
    async with Watching() as store, serving(store, ROUTES) as visitor:
        sent = [own_span(await started(visitor), number) for number in (1, 2)]
        assert (await visitor.post(PREFIX + "/spans/bulk", json=sent[:1])).body == {"stored": [True]}
        assert (await visitor.post(PREFIX + "/spans", json=sent[1])).status == 201


# --- waiting ------------------------------------------------------------------------------------------------


async def test_a_wait_is_answered_as_soon_as_all_have_ended(visitor: Visitor) -> None:
    rollout = await started(visitor)
    body = {"rollout_ids": [rollout["rollout_id"]], "timeout": 30}
    waiting = asyncio.ensure_future(visitor.post(PREFIX + "/waits/rollouts", json=body))
    await visitor.get(PREFIX + "/health")
    assert not waiting.done()
    path = PREFIX + f"/rollouts/{rollout['rollout_id']}/attempts/latest"
    await visitor.post(path, json={"status": "succeeded"})
    answer = await asyncio.wait_for(waiting, 5)
    assert [each["status"] for each in answer.body] == ["succeeded"]


# --- answers of any length ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "offset", "expected"),
    [(-1, 0, 23), (-1, 20, 3), (-1, 50, 0), (12, 0, 12), (12, 15, 8), (5, 0, 5)],
)
async def test_a_long_answer_is_sent_page_by_page(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch, limit: int, offset: int, expected: int
) -> None:
    monkeypatch.setattr(listing, "PAGE", 5)
    await visitor.post(ENQUEUE, json={"rollouts": [{"input": number} for number in range(23)]})
    answer = await visitor.post(PREFIX + "/rollouts/search", json={"limit": limit, "offset": offset})
    assert answer.status == 200
    assert [each["input"] for each in answer.body["items"]] == list(range(23))[offset : offset + expected]
    assert (answer.body["limit"], answer.body["offset"], answer.body["total"]) == (limit, offset, 23)


async def test_no_query_asks_for_more_than_a_page(
    visitor: Visitor, store: InMemoryLightningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = await started(visitor)
    spans = [own_span(rollout, number) for number in range(1, 1202)]
    await visitor.post(PREFIX + "/spans/bulk", json=spans)
    asked: list[int] = []
    plain = type(store).query_spans

    async def watched(self: Any, *args: Any, **options: Any) -> Any:
        asked.append(options["limit"])
        return await plain(self, *args, **options)

    monkeypatch.setattr(type(store), "query_spans", watched)
    found = await visitor.get(PREFIX + "/spans", params={"rollout_id": rollout["rollout_id"]})
    assert [each["sequence_id"] for each in found.body["items"]] == list(range(1, 1202))
    assert asked == [1000, 1000]


async def test_what_slides_into_the_next_page_is_sent_once(
    visitor: Visitor, store: InMemoryLightningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "PAGE", 2)
    for name in ("b", "c", "d", "e"):
        await store.update_worker(name)
    plain = type(store).query_workers

    async def disturbed(self: Any, **options: Any) -> Any:
        page = await plain(self, **options)
        await store.update_worker("a")
        return page

    monkeypatch.setattr(type(store), "query_workers", disturbed)
    found = await visitor.post(PREFIX + "/workers/search", json={})
    assert [each["worker_id"] for each in found.body["items"]] == ["b", "c", "d", "e"]


# --- refusals -----------------------------------------------------------------------------------------------


async def test_an_error_says_what_is_wrong_and_which_request_it_was(visitor: Visitor) -> None:
    path = PREFIX + "/rollouts/ro-unknown"
    refused = await visitor.post(path, json={"status": "failed"}, headers={"X-Request-ID": "mine"})
    assert refused.status == 400
    assert refused.body["error_type"] == "NotFound"
    assert refused.body["code"] == "not_found"
    assert refused.body["request_id"] == "mine"
    assert "does not exist" in refused.body["detail"]


async def test_a_long_input_is_not_shown_again(visitor: Visitor) -> None:
    refused = await visitor.post(ENQUEUE, json={"rollouts": "x" * 10_000})
    assert refused.status == 422
    assert refused.body["detail"][0]["input"] is None


class Failing(LightningStore):
    """A store whose writes all fail with the same error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getattribute__(self, name: str) -> Any:
        if name.startswith(("start_", "enqueue_", "dequeue_", "add_", "update_")):
            return self._fail
        return super().__getattribute__(name)

    async def _fail(self, *args: Any, **options: Any) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status"), [(StorageFull(), 507), (StorageUnavailable(), 503), (RuntimeError("secret"), 500)]
)
async def test_failures_of_storage_stay_failures(error: Exception, status: int) -> None:
    async with serving(Failing(error), ROUTES) as visitor:
        refused = await visitor.post(ENQUEUE, json={"rollouts": [{"input": 1}]})
    assert refused.status == status
    assert "secret" not in json.dumps(refused.body)


@pytest.mark.parametrize(
    ("path", "body", "repeatable"),
    [
        ("/rollouts", {"input": 1}, False),
        ("/queues/rollouts/enqueue", {"rollouts": [{"input": 1}]}, False),
        ("/queues/rollouts/enqueue", {"rollouts": [{"input": 1}, {"input": 2}]}, False),
        ("/queues/rollouts/dequeue", {}, False),
        ("/rollouts/r/attempts", {}, False),
        ("/resources", {}, False),
        ("/resources/r", {}, False),
        ("/rollouts/r", {}, False),
        ("/rollouts/r/attempts/a", {}, True),
        ("/spans", span("a" * 16), True),
        ("/workers/w", {}, True),
    ],
)
async def test_a_write_whose_outcome_is_unknown_is_repeated_only_if_that_is_safe(
    path: str, body: Any, repeatable: bool
) -> None:
    async with serving(Failing(OutcomeUnknown()), ROUTES) as visitor:
        bare = await visitor.post(PREFIX + path, json=body)
        keyed = await visitor.post(PREFIX + path, json=body, headers={"Idempotency-Key": "k"})
    assert (bare.status, bare.body["code"]) == (503 if repeatable else 409, "outcome_unknown")
    assert keyed.status == 503


# --- scopes -------------------------------------------------------------------------------------------------


async def test_health_is_public_and_nothing_else(store: InMemoryLightningStore) -> None:
    async with serving(store, ROUTES, api_key=SecretKey("a-key-of-some-length")) as visitor:
        for route in ROUTES:
            path = route.path.replace("{", "").replace("}", "")
            answer = await visitor.ask(route.method, path)
            assert answer.status == (200 if route.path == PREFIX + "/health" else 401), route.path


SCOPES = {
    "read": ("/statistics", "/capabilities", "/rollouts/search", "/spans/search", "/waits/rollouts"),
    "write": ("/queues/rollouts/enqueue", "/resources/{resources_id}", "/rollouts/{rollout_id}"),
    "worker": (
        "/queues/rollouts/dequeue",
        "/rollouts/{rollout_id}/attempts/{attempt_id}",
        "/spans",
        "/spans/bulk",
        "/spans/next",
        "/workers/{worker_id}",
    ),
}


def test_reading_writing_and_working_are_three_scopes() -> None:
    assert {route.scope for route in ROUTES if route.method == "GET"} == {"read", None}
    for scope, paths in SCOPES.items():
        for path in paths:
            found = {route.method: route.scope for route in ROUTES if route.path == PREFIX + path}
            assert found.get("POST", found.get("GET")) == scope, path
