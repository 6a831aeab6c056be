"""Requests to workers: sent, claimed, answered once, and removed after their deadline."""

from __future__ import annotations

import asyncio

import pytest
from tests.graph_requests.conftest import AGENT, OTHER, World, steps_in
from tests.kernel.support import until_true

from perdure.agents.context import AgentError
from perdure.graph_requests import operations, service
from perdure.graph_requests.model import DEADLINE_SECONDS, GRAPH_REQUEST, LIMITS, MAX_ANSWER, RequestRow
from perdure.graph_requests.records import GraphError, ReadState, RequestLease, UpdateState
from perdure.kernel.errors import (
    AgentUnavailable,
    BadRequest,
    Conflict,
    Fenced,
    InvalidInput,
    NotFound,
)
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.service.callers import ALL_SCOPES, Caller
from perdure.threads.records import RunRequest

TOTAL = statement("SELECT sum(total) FROM rollout_counts WHERE ns = :ns AND kind = :kind", row=int)


async def test_an_answer_and_its_change_are_one(world: World) -> None:
    thread = await world.thread()
    asked = world.ask(thread, UpdateState(values={"a": [1]}, as_node="one"))
    claimed = await world.claim_one()
    assert (claimed.agent, claimed.thread_id, claimed.checkpoint) == (AGENT, thread, None)
    assert claimed.call == UpdateState(values={"a": [1]}, as_node="one")
    assert 0 < claimed.seconds_left <= DEADLINE_SECONDS
    assert await world.worker.graph_requests.renew([claimed.held]) == [True]
    steps = steps_in(thread)
    for _ in range(2):
        # A repeated answer, after the first was lost, does nothing.
        await world.answer(claimed, '{"ok":true}', steps=steps)
    assert await asked == {"ok": True}
    assert await world.states(thread) == 1
    entries = await world.caller.access.query_audit(namespace=world.namespace, action="update_state")
    assert [(each.actor, each.object) for each in entries.items] == [("ann", thread)]


async def test_a_request_is_in_no_list_and_leaves_nothing(world: World) -> None:
    thread = await world.thread()
    asked = world.ask(thread)
    claimed = await world.claim_one()
    assert (await world.caller.threads.list_runs(thread_id=thread)).items == []
    assert (await world.caller.rollouts.search()).items == []
    assert (await world.caller.threads.get_thread(thread)).status == "idle"
    stats = await world.caller.diagnostics.stats()
    assert (stats["n_running"], stats["n_pending"]) == (0, 0)
    await world.answer(claimed)
    assert await asked == "done"
    await world.storage.background(operations.remove_expired, -(10**9))
    with pytest.raises(NotFound):
        await world.caller.diagnostics.why(claimed.held.request_id)
    with pytest.raises(Fenced, match="was removed"):
        await world.answer(claimed)


async def test_who_executes_a_request_twice_writes_once(world: World) -> None:
    thread = await world.thread()
    asked = world.ask(thread)
    first = await world.claim_one()
    await world.worker.graph_requests.release([first.held])
    second = await world.claim_one()
    assert second.held.request_id == first.held.request_id
    assert second.held.attempt_id != first.held.attempt_id
    with pytest.raises(Fenced):
        await world.answer(first, steps=steps_in(thread))
    assert await world.worker.graph_requests.renew([first.held, second.held]) == [False, True]
    await world.answer(second, steps=steps_in(thread))
    with pytest.raises(Fenced):
        await world.answer(first, steps=steps_in(thread))
    assert await asked == "done"
    assert await world.states(thread) == 1


async def test_a_worker_that_falls_silent_loses_its_request(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "LIMITS", LIMITS.replace("3.0", "0.05"))
    asked = world.ask(await world.thread())
    first = await world.claim_one()
    second = await world.claim_one()
    assert second.held.request_id == first.held.request_id
    with pytest.raises(Fenced):
        await world.answer(first)
    await world.answer(second)
    assert await asked == "done"


async def test_an_expired_request_is_never_executed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "DEADLINE_SECONDS", 0.2)
    thread = await world.thread()
    waiting, begun = world.ask(thread, agent=OTHER), world.ask(thread)
    claimed = await world.claim_one()
    for asked, name in ((waiting, OTHER), (begun, AGENT)):
        with pytest.raises(AgentUnavailable, match=f"'{name}' within 0.2 s, and nothing was changed"):
            await asked
    assert await world.claim(OTHER, wait=0.0) == []
    assert await world.worker.graph_requests.renew([claimed.held]) == [False]
    with pytest.raises(Fenced):
        await world.answer(claimed, steps=steps_in(thread))
    assert await world.states(thread) == 0


async def test_a_request_whose_caller_died_is_not_claimed_after_its_deadline(world: World) -> None:
    """Simulate a killed server, which cannot end its requests."""
    thread = await world.thread()
    row = RequestRow("rq-dead", AGENT, thread, None, 0, '{"type":"read_state"}')
    requests = world.caller.graph_requests
    await requests.write(operations.ask, row, 0, requests.kinds)
    assert await world.claim(wait=0.0) == []
    assert (await world.caller.diagnostics.why(row.id)).status == "cancelled"
    await world.storage.background(operations.remove_expired, 0)
    with pytest.raises(NotFound):
        await world.caller.diagnostics.why(row.id)


async def test_a_caller_who_leaves_ends_the_request(world: World) -> None:
    asked = world.ask(await world.thread())
    claimed = await world.claim_one()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)

    async def is_lost() -> bool:
        return await world.worker.graph_requests.renew([claimed.held]) == [False]

    await until_true(is_lost)


async def test_a_thread_that_changed_meanwhile_is_a_conflict(world: World) -> None:
    thread = await world.thread()
    asked = world.ask(thread)
    claimed = await world.claim_one()
    await world.caller.threads.update_state(thread, {"other": 1})
    await world.answer(claimed, steps=steps_in(thread))
    with pytest.raises(Conflict, match="has a newer state"):
        await asked
    assert await world.states(thread) == 1


async def test_a_busy_thread_is_not_changed(world: World) -> None:
    thread = await world.thread()
    asked = world.ask(thread)
    claimed = await world.claim_one()
    await world.caller.threads.create_run(RunRequest(assistant_id=AGENT, thread_id=thread))
    await world.answer(claimed, steps=steps_in(thread))
    with pytest.raises(Conflict, match="is busy with run"):
        await asked


async def test_errors_of_workers(world: World) -> None:
    thread = await world.thread()
    for code, kind in (
        ("invalid_input", InvalidInput),
        ("bad_request", BadRequest),
        ("not_found", NotFound),
        ("conflict", Conflict),
        ("agent_error", AgentError),
        # A worker cannot decide on access or on the database.
        ("unauthorized", AgentError),
        ("storage_full", AgentError),
        ("?", AgentError),
    ):
        asked = world.ask(thread)
        claimed = await world.claim_one()
        error = GraphError(code=code, message="it is so")
        await world.worker.graph_requests.answer(claimed.held, thread, error=error)
        with pytest.raises(kind, match="it is so"):
            await asked


async def test_an_error_says_what_no_database_holds(world: World) -> None:
    thread = await world.thread()
    asked = world.ask(thread)
    claimed = await world.claim_one()
    error = GraphError(code="agent_error", message="bytes a\0b, half a pair \ud800")
    await world.worker.graph_requests.answer(claimed.held, thread, error=error)
    with pytest.raises(AgentError, match="bytes a\ufffdb, half a pair"):
        await asked


async def test_bad_input(world: World) -> None:
    thread = await world.thread()
    with pytest.raises(NotFound, match="Agent nobody not found"):
        await world.ask(thread, agent="nobody")
    asked = world.ask(thread, ReadState())
    claimed = await world.claim_one()
    requests, held = world.worker.graph_requests, claimed.held
    error = GraphError(code="conflict", message="no")
    for refused in (
        requests.answer(held, thread),
        requests.answer(held, thread, "1", error),
        requests.answer(held, thread, "not JSON"),
        requests.answer(held, thread, '"' + "x" * MAX_ANSWER + '"'),
        requests.answer(held, "other", "1", steps=steps_in("other")),
        requests.answer(RequestLease("x" * 2000, held.attempt_id), thread, "1"),
        requests.claim("w", [""]),
    ):
        with pytest.raises(InvalidInput):
            await refused
    with pytest.raises(Fenced):
        await requests.answer(RequestLease("ro-none", held.attempt_id), thread, "1")
    await world.answer(claimed, "[1]")
    assert await asked == [1]


async def test_a_worker_gets_only_what_is_asked_of_its_agents_and_namespace(world: World) -> None:
    thread = await world.thread()
    asked = [world.ask(thread, agent=agent) for agent in (AGENT, AGENT, OTHER)]
    elsewhere = world.services.acting_as(Caller("w", ALL_SCOPES, "elsewhere", None)).graph_requests
    (painting,) = await world.claim(OTHER)
    assert painting.agent == OTHER
    assert await world.claim(OTHER, "unheard", wait=0.0) == []
    assert await elsewhere.claim("w", [AGENT, OTHER], 10, 0.0) == []
    thinking = await world.claim(limit=10)
    while len(thinking) < 2:
        thinking += await world.claim(limit=10)
    assert {each.agent for each in thinking} == {AGENT}
    with pytest.raises(Fenced):
        await elsewhere.answer(painting.held, thread, "1")
    for claimed in (painting, *thinking):
        await world.answer(claimed)
    assert await asyncio.gather(*asked) == ["done"] * 3


async def test_nothing_is_counted_after_requests_are_gone(world: World) -> None:
    thread = await world.thread()
    for _ in range(3):
        asked = world.ask(thread)
        await world.answer(await world.claim_one())
        await asked
    await world.storage.background(operations.remove_expired, -(10**9))
    counts = await world.caller.rollouts.read(_counts)
    assert counts == [0]


async def _counts(tx: Tx) -> list[int]:
    return await tx.all(TOTAL, kind=GRAPH_REQUEST)
