"""The native protocol on both engines: rollouts, attempts, spans, workers, resources; and bad input."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.server.native.support import API, own_span
from tests.server.otlp_support import ENGINES, opened
from tests.server.support import Visitor, serving

from perdure import InMemoryLightningStore, LightningStore
from perdure.service.endpoints import MAX_BATCH

PROMPT = {"main": {"resource_type": "prompt_template", "template": "Hello {name}", "engine": "f-string"}}


@pytest_asyncio.fixture(params=ENGINES)
async def visitor(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Visitor]:
    async with opened(request.param, request, tmp_path) as store, serving(store) as found:
        yield found


@pytest_asyncio.fixture
async def quick() -> AsyncIterator[Visitor]:
    """Start a server on a store in memory, for tests that do not depend on the engine."""
    async with InMemoryLightningStore() as store, serving(store) as found:
        yield found


async def enqueue(visitor: Visitor, **fields: Any) -> Any:
    answer = await visitor.post(API + "/rollouts", json={"input": {"task": 1}} | fields)
    assert answer.status == 201, answer.body
    return answer.body


async def claim(visitor: Visitor, **fields: Any) -> list[Any]:
    answer = await visitor.post(API + "/dequeue", json=fields)
    assert answer.status == 200, answer.body
    return list(answer.body["items"])


def refused(answer: Any, status: int, code: str) -> None:
    """Check that an answer is a problem document of this kind."""
    assert (answer.status, answer.body["code"], answer.body["status"]) == (status, code, status), answer.body
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.body["request_id"] == answer.headers["X-Request-ID"]


# --- the life of a rollout --------------------------------------------------------------------------------


async def test_an_empty_store_has_empty_lists(visitor: Visitor) -> None:
    for path in ("rollouts", "workers", "resources"):
        answer = await visitor.get(f"{API}/{path}")
        assert answer.status == 200
        assert answer.body == {"items": [], "limit": 100, "offset": 0, "total": 0, "next": None}
        assert answer.headers["x-pagination-total"] == "0"
    assert (await visitor.get(API + "/queues")).body == {"items": []}
    assert (await visitor.post(API + "/dequeue")).body == {"items": []}
    refused(await visitor.get(API + "/resources/latest"), 404, "not_found")
    assert (await visitor.get(API + "/statistics")).body["total_rollouts"] == 0


async def test_the_life_of_a_rollout(visitor: Visitor) -> None:
    made = await enqueue(visitor, mode="train", metadata={"a": 1}, priority=2)
    where = f"{API}/rollouts/{made['rollout_id']}"
    assert (await visitor.get(where)).body == made | {"status": "queuing"}
    refused(await visitor.get(where + "/attempts/latest"), 404, "not_found")

    (claimed,) = await claim(visitor, worker_id="w1")
    assert (claimed["rollout_id"], claimed["status"]) == (made["rollout_id"], "preparing")
    stored = await visitor.post(API + "/spans", json=[own_span(claimed, 1), own_span(claimed, 2)])
    assert (stored.status, stored.body) == (201, {"stored": [True, True]})
    assert (await visitor.get(where)).body["status"] == "running"
    spans = (await visitor.get(where + "/spans?name_contains=step&limit=1")).body
    assert ([span["name"] for span in spans["items"]], spans["total"]) == (["step 1"], 2)

    done = await visitor.ask("PATCH", where + "/attempts/latest", json={"status": "succeeded"})
    assert (done.status, done.body["status"]) == (200, "succeeded")
    ended = (await visitor.get(where)).body
    assert (ended["status"], ended["attempt"]["worker_id"]) == ("succeeded", "w1")
    attempts = (await visitor.get(where + "/attempts")).body
    assert [attempt["sequence_id"] for attempt in attempts["items"]] == [1]
    assert (await visitor.get(where + "/attempts/latest")).body == attempts["items"][0]
    assert (await visitor.get(API + "/workers/w1")).body["status"] == "idle"


async def test_a_rollout_can_be_changed(visitor: Visitor) -> None:
    made = await enqueue(visitor)
    where = f"{API}/rollouts/{made['rollout_id']}"
    config: Any = {
        "timeout_seconds": 5.0,
        "unresponsive_seconds": None,
        "max_attempts": 3,
        "retry_condition": [],
    }
    changes = {"mode": "val", "metadata": {"b": 2}, "config": config}
    changed = await visitor.ask("PATCH", where, json=changes)
    assert changed.status == 200
    assert {name: changed.body[name] for name in changes} == changes
    assert (await visitor.get(where)).body["config"] == config
    for bad in ({"status": None}, {"status": "done"}, {"config": {"max_attempts": 0}}, {"mood": "good"}):
        assert (await visitor.ask("PATCH", where, json=bad)).status == 422
    refused(await visitor.ask("PATCH", API + "/rollouts/none", json={"mode": "val"}), 404, "not_found")


async def test_cancel_and_retry_say_what_stands_in_the_way(visitor: Visitor) -> None:
    made = await enqueue(visitor)
    where = f"{API}/rollouts/{made['rollout_id']}"
    refused(await visitor.post(where + "/retry"), 409, "conflict")
    for _ in range(2):
        cancelled = await visitor.post(where + "/cancel")
        assert (cancelled.status, cancelled.body["status"]) == (200, "cancelled")
    retried = await visitor.post(where + "/retry")
    assert (retried.status, retried.body["status"]) == (200, "requeuing")
    await claim(visitor)
    running = await visitor.post(where + "/retry")
    refused(running, 409, "conflict")
    assert "is preparing" in running.body["detail"]
    await visitor.ask("PATCH", where + "/attempts/latest", json={"status": "succeeded"})
    refused(await visitor.post(where + "/cancel"), 409, "conflict")
    assert (await visitor.get(where)).body["status"] == "succeeded"
    for word in ("cancel", "retry"):
        refused(await visitor.post(f"{API}/rollouts/none/{word}"), 404, "not_found")


async def test_an_idempotency_key_makes_a_write_happen_once(visitor: Visitor) -> None:
    options: Any = {"headers": {"Idempotency-Key": "k1"}}
    first = await visitor.post(API + "/rollouts", json={"input": 1}, **options)
    again = await visitor.post(API + "/rollouts", json={"input": 1}, **options)
    assert first.body == again.body
    batch = {"rollouts": [{"input": 1}, {"input": 2}]}
    many = await visitor.post(API + "/rollouts/batch", json=batch, headers={"Idempotency-Key": "k2"})
    more = await visitor.post(API + "/rollouts/batch", json=batch, headers={"Idempotency-Key": "k2"})
    assert many.body == more.body
    assert len(many.body["items"]) == 2
    taken = await visitor.post(API + "/dequeue", json={"limit": 2}, headers={"Idempotency-Key": "k3"})
    retaken = await visitor.post(API + "/dequeue", json={"limit": 2}, headers={"Idempotency-Key": "k3"})
    assert taken.body == retaken.body
    start: Any = {"json": {"input": 1}, "headers": {"Idempotency-Key": "k4"}}
    started = await visitor.post(API + "/rollouts/start", **start)
    restarted = await visitor.post(API + "/rollouts/start", **start)
    assert started.body == restarted.body
    assert (await visitor.get(API + "/statistics")).body["total_rollouts"] == 4


async def test_a_list_is_filtered_sorted_and_paged(visitor: Visitor) -> None:
    made = [await enqueue(visitor) for _ in range(5)]
    names = [each["rollout_id"] for each in made]
    newest = (await visitor.get(API + "/rollouts?limit=2&offset=1")).body
    assert [each["rollout_id"] for each in newest["items"]] == names[::-1][1:3]
    assert (newest["limit"], newest["offset"], newest["total"]) == (2, 1, 5)
    await visitor.post(f"{API}/rollouts/{names[0]}/cancel")
    some = await visitor.get(API + "/rollouts?status=cancelled&status=failed")
    assert [each["rollout_id"] for each in some.body["items"]] == names[:1]
    assert some.headers["x-pagination-total"] == "1"
    either = f"{API}/rollouts?status=cancelled&rollout_id={names[3]}&logic=or&sort_order=asc"
    assert [each["rollout_id"] for each in (await visitor.get(either)).body["items"]] == [names[0], names[3]]
    counted = await visitor.get(API + "/rollouts?limit=0")
    assert (counted.body["items"], counted.body["total"]) == ([], 5)
    part = names[2][5:]
    found = (await visitor.get(f"{API}/rollouts?contains={part}&sort_by=rollout_id")).body
    assert names[2] in [each["rollout_id"] for each in found["items"]]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("limit=1001", 422),
        ("limit=many", 422),
        ("offset=-1", 422),
        ("offset=99999999999999999999", 422),
        ("status=done", 422),
        ("sort_order=up", 422),
        ("logic=xor", 422),
        ("sort_by=input", 422),
        ("sort_by=id;drop", 422),
        ("contains=%00", 422),
        ("contains=" + "x" * 2000, 422),
    ],
)
async def test_bad_queries_are_refused(quick: Visitor, query: str, status: int) -> None:
    answer = await quick.get(f"{API}/rollouts?{query}")
    refused(answer, status, answer.body["code"])
    assert answer.body["code"] == "invalid_input"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/rollouts", {}),
        ("/rollouts", []),
        ("/rollouts", {"input": 1, "mode": "fast"}),
        ("/rollouts", {"input": 1, "priority": 2**40}),
        ("/rollouts", {"input": 1, "queue": "a\0b"}),
        ("/rollouts", {"input": 1, "config": {"retry_condition": ["bored"]}}),
        ("/rollouts/batch", {"rollouts": [{"input": 1}, {}]}),
        ("/rollouts/batch", {"rollouts": [{"input": 1}] * (MAX_BATCH + 1)}),
        ("/rollouts/start", {"input": 1, "unknown": 1}),
        ("/dequeue", {"limit": 0}),
        ("/dequeue", {"limit": 1001}),
        ("/dequeue", {"worker_id": 5}),
        ("/spans", {"spans": []}),
        ("/spans", [{"rollout_id": "r"}]),
        ("/resources", {"main": {"resource_type": "magic"}}),
        ("/resources", [1]),
    ],
)
async def test_bad_bodies_are_refused_and_change_nothing(quick: Visitor, path: str, body: Any) -> None:
    answer = await quick.post(API + path, json=body)
    refused(answer, 422, answer.body["code"])
    counts = (await quick.get(API + "/statistics")).body
    assert all(value == 0 for name, value in counts.items() if name.startswith("total_"))


async def test_what_is_unknown_is_not_found(quick: Visitor) -> None:
    for path in ("rollouts/x", "rollouts/x/attempts", "rollouts/x/attempts/latest", "rollouts/x/spans"):
        refused(await quick.get(f"{API}/{path}"), 404, "not_found")
    for path in ("workers/x", "resources/x", "resources/x/versions", "resources/x/versions/1"):
        refused(await quick.get(f"{API}/{path}"), 404, "not_found")
    refused(await quick.post(API + "/rollouts/x/attempts"), 404, "not_found")
    refused(await quick.ask("PATCH", API + "/rollouts/x/attempts/y", json={}), 404, "not_found")
    stranger = own_span({"rollout_id": "x", "attempt": {"attempt_id": "y"}}, 1)
    refused(await quick.post(API + "/spans", json=[stranger]), 404, "not_found")
    refused(await quick.get(API + "/nothing"), 404, "unknown_route")
    refused(await quick.ask("DELETE", API + "/rollouts"), 405, "method_not_allowed")


# --- attempts, workers and resources ----------------------------------------------------------------------


async def test_an_attempt_by_hand_and_a_span_sent_twice(visitor: Visitor) -> None:
    made = await enqueue(visitor)
    where = f"{API}/rollouts/{made['rollout_id']}"
    begun = await visitor.post(where + "/attempts", json={"worker_id": "by hand"})
    assert (begun.status, begun.body["attempt"]["sequence_id"]) == (201, 1)
    spans = [own_span(begun.body, 1), own_span(begun.body, 1), own_span(begun.body, 2, name="other")]
    assert (await visitor.post(API + "/spans", json=spans)).body == {"stored": [True, False, True]}
    assert (await visitor.post(API + "/spans", json=spans)).body == {"stored": [False, False, False]}
    for query, count in (("attempt_id=latest", 2), ("name=other", 1), ("span_id=none", 0)):
        assert (await visitor.get(f"{where}/spans?{query}")).body["total"] == count
    attempt_id = begun.body["attempt"]["attempt_id"]
    heard = await visitor.ask(
        "PATCH", f"{where}/attempts/{attempt_id}", json={"last_heartbeat_time": 5.0, "metadata": {"x": 1}}
    )
    assert (heard.body["last_heartbeat_time"], heard.body["metadata"]) == (5.0, {"x": 1})


async def test_workers_and_their_heartbeats(visitor: Visitor) -> None:
    beat = await visitor.post(API + "/workers/a%2Fb/heartbeat", json={"heartbeat_stats": {"cpu": 0.5}})
    assert (beat.status, beat.body["worker_id"]) == (200, "a/b")
    await visitor.post(API + "/workers/other/heartbeat")
    assert (await visitor.get(API + "/workers/a%2Fb")).body["heartbeat_stats"] == {"cpu": 0.5}
    found = (await visitor.get(API + "/workers?status=unknown&contains=oth")).body
    assert [each["worker_id"] for each in found["items"]] == ["other"]


async def test_resources_and_their_versions(visitor: Visitor) -> None:
    made = await visitor.post(API + "/resources", json=PROMPT)
    assert (made.status, made.body["version"]) == (201, 1)
    name = made.body["resources_id"]
    changed = {"main": PROMPT["main"] | {"template": "Bye {name}"}}
    put = await visitor.ask("PUT", f"{API}/resources/{name}", json=changed)
    assert (put.status, put.body["version"]) == (200, 2)
    assert (await visitor.get(API + "/resources/latest")).body == put.body
    assert (await visitor.get(f"{API}/resources/{name}")).body == put.body
    versions = (await visitor.get(f"{API}/resources/{name}/versions")).body
    assert ([each["version"] for each in versions["items"]], versions["total"]) == ([2, 1], 2)
    paged = (await visitor.get(f"{API}/resources/{name}/versions?limit=1&offset=1")).body
    assert [each["resources"]["main"]["template"] for each in paged["items"]] == ["Hello {name}"]
    assert (await visitor.get(f"{API}/resources/{name}/versions/1")).body["resources"] == PROMPT
    for version in ("0", "3", "-1", "x", "9" * 30, "1.0"):
        refused(await visitor.get(f"{API}/resources/{name}/versions/{version}"), 404, "not_found")
    listed = (await visitor.get(f"{API}/resources?contains={name[3:9]}")).body
    assert listed["items"] == [put.body]


async def test_queues_tell_what_waits(visitor: Visitor) -> None:
    await enqueue(visitor)
    await enqueue(visitor, queue="slow")
    await enqueue(visitor, queue="slow", not_before=4e9)
    queues = {each["queue"]: each for each in (await visitor.get(API + "/queues")).body["items"]}
    assert (queues["default"]["ready"], queues["default"]["delayed"]) == (1, 0)
    assert (queues["slow"]["ready"], queues["slow"]["delayed"], queues["slow"]["waiting"]) == (1, 1, 0)
    assert 0 <= queues["default"]["oldest_age_seconds"] < 60
    assert len(await claim(visitor, queue="slow", limit=10)) == 1
    left = (await visitor.get(API + "/queues")).body["items"]
    slow = next(each for each in left if each["queue"] == "slow")
    assert (slow["ready"], slow["delayed"], slow["oldest_age_seconds"]) == (0, 1, None)


async def test_namespaces_do_not_see_each_other(visitor: Visitor) -> None:
    made = await enqueue(visitor)
    there: Any = {"headers": {"X-Perdure-Namespace": "elsewhere"}}
    refused(await visitor.get(f"{API}/rollouts/{made['rollout_id']}", **there), 404, "not_found")
    assert (await visitor.get(API + "/queues", **there)).body == {"items": []}
    assert (await visitor.get(API + "/rollouts", **there)).body["total"] == 0
    resources = (await visitor.post(API + "/resources", json=PROMPT)).body["resources_id"]
    refused(await visitor.get(f"{API}/resources/{resources}/versions/1", **there), 404, "not_found")


class Foreign(LightningStore):
    """A third-party store over one of ours."""

    def __init__(self, inside: LightningStore) -> None:
        self.inside = inside

    def __getattribute__(self, name: str) -> Any:
        if name in ("inside", "__class__") or name.startswith("__"):
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "inside"), name)


async def test_a_store_of_another_make_has_no_native_routes() -> None:
    async with InMemoryLightningStore() as inside, serving(Foreign(inside)) as visitor:
        made = await visitor.post("/v1/agl/queues/rollouts/enqueue", json={"rollouts": [{"input": 1}]})
        assert made.status == 201
        for path in ("/rollouts", "/queues", "/changes", "/namespaces", "/tokens", "/audit"):
            assert (await visitor.get(API + path)).status == 404
        assert (await visitor.get("/readyz")).body["status"] == "ok"
        assert (await visitor.get("/metrics")).status == 404
