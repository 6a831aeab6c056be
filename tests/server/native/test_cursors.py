"""Every list of the native API has a cursor, and its pages are the whole list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, get_origin

import msgspec
from tests.server.native.support import AGENT, API, House, own_span

from perdure import EnqueueRolloutRequest
from perdure.rollouts.resource_service import Resources
from perdure.rollouts.service import Rollouts
from perdure.rollouts.workers import Workers
from perdure.server.http.routes import Route
from perdure.server.native.routes import ROUTES

CURSORS = {"cursor", "after", "before"}
WHOLE = {
    "/api/v1/executions/stats/daily": "one row a day, at most 90",
    "/api/v1/executions/stats/hourly": "one row an hour, at most 168",
    "/api/v1/figures": "those of the ids that are asked for",
    "/api/v1/queues": "one row a queue and status",
    "/api/v1/doctor": "one row a check",
    "/api/v1/views": "at most 400, as many as may be saved",
    "/api/v1/rollouts/{rollout_id}/path": "the statuses of at most 100 attempts",
    "/api/v1/rollouts/{rollout_id}/comparison": "of the first 500 spans of two attempts, by offset",
    "/api/v1/traces/{trace_id}/steps": "what is counted of a page of spans, by offset",
    "/api/v1/traces/{trace_id}/messages": "what a page of spans says, by offset",
    "/api/v1/stats/queues": "as many points as are asked for",
    "/api/v1/stats/usage": "as many buckets as are asked for",
    "/api/v1/schedules/{schedule_id}/upcoming": "as many times as are asked for",
    "/api/v1/workflows": "the files that the server has loaded",
    "/api/v1/workflow-names": "one row a workflow",
    "/api/v1/workflow-counts": "one row a workflow",
    "/api/v1/find": "the best matches",
    "/api/v1/memory/search": "the best matches",
    "/api/v1/memory/toc-search": "the best matches",
    "/api/v1/sessions/search": "as many as one search reads; it says whether it was complete",
    "/api/v1/db/stats": "one row a table",
    "/api/v1/db/verify": "one row a rule",
}
"""Lists that are returned whole, or only their best entries, and why."""
FOREIGN = "W10"


def _is_list(route: Route) -> bool:
    kind = get_origin(route.answer) or route.answer
    return (
        isinstance(kind, type)
        and issubclass(kind, msgspec.Struct)
        and bool({"items", "jobs"} & {field.name for field in msgspec.structs.fields(kind)})
    )


def _fields(route: Route) -> set[str]:
    given = route.query or route.body
    return {field.name for field in msgspec.structs.fields(given)} if given is not None else set()


def _lists() -> list[Route]:
    searches = {"/api/v1/items/search"}
    return [
        route for route in ROUTES if _is_list(route) and (route.method == "GET" or route.path in searches)
    ]


def test_every_list_has_a_cursor() -> None:
    lists = _lists()
    without = {route.path for route in lists if not CURSORS & _fields(route)}
    assert without == set(WHOLE)
    assert len(lists) - len(without) > 30


async def test_a_broken_and_a_foreign_cursor_are_refused(quick: House) -> None:
    """Refuse them with and without the list's owner."""
    effects = await quick.client.outbox.list(limit=1)
    assert effects.next is None
    foreign = (await quick.client.assistants.search(limit=1)).next
    assert foreign is not None
    asked = 0
    for route in _lists():
        if "cursor" not in _fields(route):
            continue
        path = "/".join("1" if step.startswith("{") else step for step in route.path.split("/"))
        for cursor in ("x", FOREIGN, "\u00e9", "a" * 5000, foreign):
            if cursor == foreign and route.path == "/api/v1/assistants":
                continue
            terms = {"cursor": cursor, **({"q": "x"} if route.path == "/api/v1/workflow-logs" else {})}
            if route.method == "GET":
                answer = await quick.visitor.get(path, params=terms)
            else:
                answer = await quick.visitor.post(path, json=terms)
            assert answer.status == 422, (route.path, cursor, answer.status)
            asked += 1
    assert asked > 100


async def test_a_cursor_and_an_offset_are_not_given_together(quick: House) -> None:
    cursor = (await quick.client.assistants.search(limit=1)).next
    terms = {"cursor": cursor, "offset": 1}
    answer = await quick.visitor.get(API + "/assistants", params=terms)
    assert answer.status == 422
    assert "not at both" in answer.body["detail"]


List = Callable[..., Awaitable[Any]]


async def _walk(ask: List, limit: int) -> list[Any]:
    found: list[Any] = []
    cursor = None
    while True:
        page = await ask(limit=limit, cursor=cursor)
        assert len(page) <= limit
        found += page
        cursor = page.next
        if cursor is None:
            return found


async def test_the_pages_of_each_list_are_the_whole_list(house: House) -> None:
    client = house.client
    rollouts = Rollouts.over(client.transport)
    resources, workers = Resources.over(client.transport), Workers.over(client.transport)
    thread = await client.create_thread()
    for number in range(5):
        await client.create_thread(metadata={"n": number})
        await client.assistants.create(AGENT, name=f"a{number % 2}")
        prompt = {"resource_type": "prompt_template", "template": str(number), "engine": "jinja"}
        await resources.update("prompts", {"p": prompt})
        await client.schedules.create("0 0 1 1 *", assistant_id=AGENT, metadata={"n": number})
        await client.sessions.append(f"s-{number}", [{"type": "user"}])
        await client.items.put(["users", str(number)], "k", {"n": number})
        await workers.heartbeat(f"w{number}")
        await house.run(thread_id=thread.thread_id, multitask_strategy="enqueue")
        await rollouts.enqueue(EnqueueRolloutRequest(input=number))
    schedule = (await client.schedules.search(limit=1))[0]
    for _ in range(5):
        await client.schedules.trigger(schedule.schedule_id)
    assistant = await client.assistants.create(AGENT, name="versions")
    for number in range(4):
        await client.assistants.update(assistant.assistant_id, name=f"v{number}")
    rollout = await rollouts.enqueue(EnqueueRolloutRequest(input=9))
    attempts = [await rollouts.start_attempt(rollout.rollout_id) for _ in range(5)]
    claimed = {"rollout_id": rollout.rollout_id, "attempt": {"attempt_id": attempts[0].attempt.attempt_id}}
    spans = [
        own_span(claimed, 1, span_id=f"{n:016x}", start_time=None if n % 2 else 1.0, end_time=None)
        for n in range(1, 6)
    ]
    answer = await house.visitor.post(API + "/spans", json=spans)
    assert answer.status == 201

    def of(method: List, *ids: str, **terms: Any) -> List:
        return lambda **page: method(*ids, **terms, **page)

    lists: dict[str, tuple[List, int]] = {
        "threads": (of(client.search_threads), 6),
        "threads by status": (of(client.search_threads, sort_by="status", sort_order="asc"), 6),
        "runs": (of(client.list_runs), 10),
        "runs of a thread": (of(client.list_thread_runs, thread.thread_id), 5),
        "assistants": (of(client.assistants.search), 7),
        "assistants by name": (of(client.assistants.search, sort_by="name", sort_order="asc"), 7),
        "versions": (of(client.assistants.versions, assistant.assistant_id), 5),
        "resources": (of(resources.search), 1),
        "versions of resources": (of(resources.versions, "prompts"), 5),
        "schedules": (of(client.schedules.search), 5),
        "schedules by a missing name": (of(client.schedules.search, sort_by="name"), 5),
        "firings": (of(client.schedules.firings, schedule.schedule_id), 5),
        "sessions": (of(client.sessions.list), 5),
        "items": (of(client.items.search), 5),
        "filtered items": (of(client.items.search, filter={"n": {"$gte": 2}}), 3),
        "namespaces of items": (of(client.items.list_namespaces), 5),
        "namespaces, cut": (of(client.items.list_namespaces, max_depth=1), 1),
        "workers": (of(workers.search, contains="w"), 6),
        "rollouts": (of(rollouts.search), 6),
        "rollouts by status": (of(rollouts.search, sort_by="status"), 6),
        "rollouts of one status": (of(rollouts.search, status=["queuing"]), 5),
        "rollouts by end": (of(rollouts.search, sort_by="end_time", sort_order="asc"), 6),
        "attempts": (of(rollouts.attempts, rollout.rollout_id), 5),
        "attempts by worker": (of(rollouts.attempts, rollout.rollout_id, sort_by="worker_id"), 5),
        "spans": (of(rollouts.spans, rollout.rollout_id), 5),
        "spans by start": (of(rollouts.spans, rollout.rollout_id, sort_by="start_time"), 5),
        "spans by parent, backwards": (
            of(rollouts.spans, rollout.rollout_id, sort_by="parent_id", sort_order="desc"),
            5,
        ),
        "spans of a trace": (of(client.traces.spans, f"{1:032x}"), 5),
    }
    for what, (ask, count) in lists.items():
        whole = list(await ask(limit=1000))
        assert len(whole) == count, what
        assert await _walk(ask, 2) == whole, what
