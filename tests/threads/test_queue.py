"""Queue of runs: which runs are claimed, when and by which worker, how often, and what is recorded."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest
from tests.kernel.support import soon
from tests.threads.support import AGENT_NAMES, AUDIT, EFFECTS, World, told

from perdure.assistants.service import Assistants
from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.kernel.merge import Merger
from perdure.kernel.storage.dialect import statement
from perdure.runs.queue import RunQueue
from perdure.service.callers import Caller
from perdure.threads.model import GATHER_SECONDS
from perdure.threads.records import Failure, Run, RunRequest

RUN_IDS = statement("SELECT id FROM runs WHERE ns = :ns")


# --- merging ----------------------------------------------------------------------------------------------


async def test_creations_and_ends_of_runs_gather_and_what_an_agent_waits_for_does_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered: dict[bool, set[str]] = {True: set(), False: set()}
    call = Merger.call

    def watched(self: Merger, key: Any, *args: Any, gather: float = 0.0, **rest: Any) -> Any:
        operation = key if isinstance(key, str) else key[0].__name__
        gathered[gather == GATHER_SECONDS].add(operation)
        return call(self, key, *args, gather=gather, **rest)

    monkeypatch.setattr(Merger, "call", watched)
    await world.threads.create_thread("t")
    held = (await world.take(await world.run("t"))).held
    await world.save(held, 1)
    await world.finish(held)
    assert gathered[True] == {"create_threads", "create_runs", "_finish_batch"}
    assert {"claim_runs", "_save_batch"} <= gathered[False]


# --- claiming ---------------------------------------------------------------------------------------------


async def test_runs_are_claimed_in_their_order(world: World) -> None:
    runs = [await world.run() for _ in range(5)]
    first, second = await world.claim(2), await world.claim()
    assert [each.run.run_id for each in (*first, *second)] == [run.run_id for run in runs]
    assert {each.run.status for each in (*first, *second)} == {"running"}
    assert {each.attempt for each in (*first, *second)} == {1}


async def test_the_more_important_are_claimed_first(world: World) -> None:
    priorities = [0, 5, -3, 5]
    runs = [await world.run(priority=priority) for priority in priorities]
    order = [runs[place].run_id for place in (1, 3, 0, 2)]
    assert [each.run.run_id for each in await world.claim()] == order


async def test_a_claim_waits_for_a_run(world: World) -> None:
    waiting = asyncio.create_task(world.queue.claim("w1", AGENT_NAMES, 1, 20))
    await asyncio.sleep(0)
    run = await world.run()
    (found,) = await soon(waiting)
    assert found.run.run_id == run.run_id


async def test_many_workers_share_the_runs(world: World) -> None:
    runs = [await world.run() for _ in range(20)]
    services = map(RunQueue.beside, world.others(5))
    claims = await asyncio.gather(
        *(each.claim(f"w{n}", AGENT_NAMES, 6, 0) for n, each in enumerate(services))
    )
    claimed = [each.run.run_id for share in claims for each in share]
    claimed += [each.run.run_id for each in await world.claim(20)]
    assert sorted(claimed) == sorted(run.run_id for run in runs)


async def test_what_a_worker_gets(world: World) -> None:
    thread = await world.thread(
        config={"configurable": {"a": "thread", "b": "thread"}, "recursion_limit": 5}, values={"v": 1}
    )
    assistants = Assistants(world.storage, namespace=world.namespace)
    assistant = await assistants.create("echo", config={"configurable": {"a": "assistant", "c": "assistant"}})
    run = await world.run(
        thread,
        assistant_id=assistant.assistant_id,
        input={"x": 1},
        config={"configurable": {"b": "run"}},
        context={"who": "me"},
        metadata={"m": 1},
        stream_mode=["custom"],
        options={"o": 1},
    )
    found = await world.take(run)
    assert found.config == {
        "configurable": {"a": "thread", "b": "run", "c": "assistant"},
        "recursion_limit": 5,
    }
    assert found.context == {"who": "me"}
    assert (found.run.assistant_id, found.run.agent) == (assistant.assistant_id, "echo")
    assert (found.run.metadata, found.run.kwargs.input) == ({"m": 1}, {"x": 1})
    assert (found.run.kwargs.stream_mode, found.run.kwargs.options) == (["custom"], {"o": 1})
    assert found.checkpoint is not None
    assert found.checkpoint.values == {"v": 1}
    assert (found.origin, found.steps, found.last_seq) == (run.run_id, {}, 0)
    assert found.held.attempt_id == found.attempt_id


@pytest.mark.parametrize("turns", range(0, 24, 3))
async def test_a_claim_whose_caller_goes_away_is_given_back(world: World, turns: int) -> None:
    run = await world.run()
    call = asyncio.create_task(world.queue.claim("w1", AGENT_NAMES, 1, 0))
    for _ in range(turns):
        await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call])
    while tasks := [*world.queue._merger._tasks, *world.queue._releases]:
        await asyncio.wait(tasks)
    if call.cancelled():
        assert await world.status(run) == "pending"
        again = await world.take(run)
        assert not again.last_attempt
        await world.finish(again.held)
    else:
        assert [each.run.run_id for each in call.result()] == [run.run_id]


async def test_a_claim_that_cannot_be_read_again_is_given_back(world: World) -> None:
    run = await world.run()
    (first,) = await world.queue.claim("w", AGENT_NAMES, 1, 0.0, idempotency_key="key")
    assert first.run.run_id == run.run_id
    read = world.queue.read

    async def broken(operation: object, *args: object) -> object:
        if getattr(operation, "__name__", "") == "assignments":
            raise RuntimeError("lost")
        return await read(operation, *args)  # type: ignore[arg-type]

    world.queue.read = broken  # type: ignore[assignment,method-assign]
    with pytest.raises(RuntimeError, match="lost"):
        await world.queue.claim("w", AGENT_NAMES, 1, 0.0, idempotency_key="key")
    world.queue.read = read  # type: ignore[method-assign]
    await world.queue.close()
    await world.done(run)


# --- asking for runs --------------------------------------------------------------------------------------


async def test_a_key_makes_one_run(world: World) -> None:
    thread = await world.thread()
    request = RunRequest(assistant_id="echo", thread_id=thread)
    create = world.threads.create_run
    first = await create(request, idempotency_key="k")
    assert (await create(request, idempotency_key="k")).run_id == first.run_id
    await world.done(first)
    again = await create(request, idempotency_key="k")
    assert (again.run_id, again.status) == (first.run_id, "success")
    other = await create(request, idempotency_key="other")
    assert other.run_id != first.run_id
    assert len(await world.statuses(thread)) == 2


async def test_a_key_of_a_refused_run_is_free(world: World) -> None:
    thread = await world.thread()
    blocking = await world.run(thread)
    request = RunRequest(assistant_id="echo", thread_id=thread)
    with pytest.raises(Conflict):
        await world.threads.create_run(request, idempotency_key="k")
    await world.done(blocking)
    made = await world.threads.create_run(request, idempotency_key="k")
    assert made.status == "pending"


async def test_a_key_makes_one_thread(world: World) -> None:
    first = await world.threads.create_thread(metadata={"a": 1}, idempotency_key="k")
    again = await world.threads.create_thread(metadata={"a": 1}, idempotency_key="k")
    assert again == first


async def test_a_batch_is_made_whole_or_not_at_all(world: World) -> None:
    busy, free = await world.thread(), await world.thread()
    await world.run(busy)
    good = RunRequest(assistant_id="echo", thread_id=free)
    bad = {
        "busy": RunRequest(assistant_id="echo", thread_id=busy),
        "no assistant": RunRequest(assistant_id="nobody", thread_id=free),
        "no thread": RunRequest(assistant_id="echo", thread_id="nowhere"),
        "twice": good,
    }
    for wrong in bad.values():
        with pytest.raises((Conflict, NotFound)):
            await world.threads.create_runs([RunRequest(assistant_id="echo"), good, wrong])
    assert len(await world.rows(RUN_IDS)) == 1
    assert await world.rest(free) == "idle"
    assert await world.threads.create_runs([]) == []


async def test_a_thread_is_made_where_that_is_asked_for(world: World) -> None:
    run = await world.run("new", if_not_exists="create")
    assert (run.thread_id, run.temporary) == ("new", False)
    await world.done(run, values=1)
    assert await world.values("new") == 1


async def test_runs_are_listed_by_their_status(world: World) -> None:
    thread = await world.thread()
    ends = ["success", "error", "timeout"]
    for result in ends:
        await world.finish((await world.take(await world.run(thread))).held, result)  # type: ignore[arg-type]
    for action in ("interrupt", "rollback"):
        await world.threads.cancel_run((await world.run(thread)).run_id, action=action)
    await world.take(await world.run(thread))
    await world.run(thread, "enqueue")
    every = [*ends, "interrupted", "rollback", "running", "pending"]
    assert await world.statuses(thread) == every
    for status in every:
        for place in (thread, None):
            page = await world.threads.list_runs(thread_id=place, status=cast(Any, status))
            assert ([run.status for run in page.items], page.total) == ([status], 1)
    page = await world.threads.list_runs(thread_id=thread, limit=2, offset=1, total=True)
    assert ([run.status for run in page.items], page.total) == (["running", "rollback"], 7)
    assert (await world.threads.list_runs(thread_id=thread, limit=2)).total is None
    everywhere = await world.threads.list_runs(limit=2)
    assert ([run.status for run in everywhere], everywhere.total) == (["pending", "running"], 7)
    assert (await world.threads.list_runs(status="error", limit=1, offset=1)).total is None
    assert (await world.threads.list_runs(status="error", limit=1, total=True)).total == 1
    await world.threads.delete_run(page.items[1].run_id)
    assert (await world.threads.list_runs(limit=1)).total == 6
    assert (await world.threads.list_runs(status="rollback", total=True)).total == 0
    with pytest.raises(InvalidInput):
        await world.threads.list_runs(status="over")  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        await world.threads.list_runs(thread_id="nowhere")
    with pytest.raises(NotFound):
        await world.threads.get_run(page.items[0].run_id, "nowhere")


# --- figures, webhooks, the audit, namespaces -------------------------------------------------------------


async def test_statistics(world: World) -> None:
    nothing = await world.threads.queue_stats()
    assert (nothing.n_pending, nothing.n_running) == (0, 0)
    assert nothing.min_age_secs is nothing.med_age_secs is None
    for _ in range(2):
        await world.run()
        await world.advance(20)
    thread = await world.thread()
    await world.run(thread)
    await world.run(thread, "enqueue")
    taken = await world.claim(1)
    stats = await world.threads.queue_stats()
    assert (stats.n_pending, stats.n_running) == (3, 1)
    assert stats.min_age_secs == pytest.approx(20, abs=10)
    assert stats.med_age_secs == pytest.approx(0, abs=10)
    await world.advance(100)
    stats = await world.threads.queue_stats()
    assert (stats.n_pending, stats.n_running) == (4, 0)
    assert stats.min_age_secs == pytest.approx(140, abs=10)
    await world.threads.cancel_runs(status="all")
    assert (await world.threads.queue_stats()).n_pending == 0
    assert taken


@pytest.mark.parametrize("how", ["success", "error", "cancelled", "deleted"])
async def test_a_webhook_is_due_with_the_end(world: World, how: str) -> None:
    thread = await world.thread(values="before")
    run = await world.run(thread, webhook="https://u:secret@example.com/hook", metadata={"m": 1}, input=[1])
    assert run.webhook is not None
    assert "secret" not in run.webhook
    assert await world.rows(EFFECTS) == []
    if how == "deleted":
        await world.threads.delete_run(run.run_id)
    elif how == "cancelled":
        await world.threads.cancel_run(run.run_id)
    else:
        held = (await world.take(run)).held
        error = Failure(error="OSError", message="no") if how == "error" else None
        await world.finish(held, how, "after", error=error)  # type: ignore[arg-type]
    ((subject, target, body),) = await world.rows(EFFECTS)
    told = json.loads(body)
    payload = told["payload"]
    assert (subject, told["url"]) == (run.run_id, "https://u:secret@example.com/hook")
    assert "secret" not in target
    status = {"cancelled": "interrupted", "deleted": "rollback"}.get(how, how)
    assert (payload["run_id"], payload["thread_id"], payload["status"]) == (run.run_id, thread, status)
    assert (payload["metadata"], payload["kwargs"]["input"]) == ({"m": 1}, [1])
    assert payload["values"] == ("after" if how in ("success", "error") else "before")
    assert payload.get("error") == ({"error": "OSError", "message": "no"} if how == "error" else None)
    assert (payload["run_started_at"] is None) == (how in ("cancelled", "deleted"))
    assert payload["run_ended_at"] >= payload["created_at"]


async def test_a_stateless_run_leaves_its_webhook_behind(world: World) -> None:
    run = await world.run(webhook="https://example.com/hook")
    await world.done(run, values="mine")
    await world.advance(2000)
    await world.threads.purge()
    ((_, _, body),) = await world.rows(EFFECTS)
    assert json.loads(body)["payload"]["values"] == "mine"


async def test_a_retry_owes_no_webhook(world: World) -> None:
    run = await world.run(webhook="https://example.com/hook")
    await world.finish((await world.take(run)).held, "retriable")
    assert await world.rows(EFFECTS) == []


async def test_whoever_changes_something_is_on_record(world: World) -> None:
    me = Caller.trusted("me", world.namespace)
    mine, queue = world.threads.acting_as(me), world.queue.acting_as(me)
    thread = await mine.create_thread()
    run = await mine.create_run(RunRequest(assistant_id="echo", thread_id=thread.thread_id))
    (assignment,) = await queue.claim("w1", AGENT_NAMES, 1, 0)
    assert await queue.renew("w1", [assignment.held]) == ["go"]
    await queue.append(assignment.held, told("custom"))
    await queue.hand_back([assignment.held])
    await mine.cancel_run(run.run_id)
    await mine.update_thread(thread.thread_id, metadata={"a": 1})
    await mine.delete_run(run.run_id)
    await mine.delete_thread(thread.thread_id)
    held = f"{run.run_id}/{assignment.attempt_id}"
    assert [row for row in await world.rows(AUDIT) if row[0] == "me"] == [
        ("me", "create_thread", thread.thread_id),
        ("me", "create_run", run.run_id),
        ("me", "claim_run", held),
        ("me", "release_run", held),
        ("me", "cancel_run", run.run_id),
        ("me", "update_thread", thread.thread_id),
        ("me", "delete_run", run.run_id),
        ("me", "delete_thread", thread.thread_id),
    ]


async def test_what_is_refused_is_not_on_record(world: World) -> None:
    mine = world.threads.acting_as(Caller.trusted("me", world.namespace))
    for wrong in (
        mine.create_run(RunRequest(assistant_id="nobody")),
        mine.cancel_run("no-run"),
        mine.delete_run("no-run"),
        mine.delete_thread("nowhere"),
    ):
        with pytest.raises(NotFound):
            await wrong
    assert [row for row in await world.rows(AUDIT) if row[0] == "me"] == []


async def test_namespaces_do_not_see_each_other(world: World) -> None:
    other = world.threads.in_namespace(world.namespace + " too")
    queue = RunQueue.beside(other)
    await queue.register("w1", [])
    here = await world.run(await world.thread(thread_id="same"))
    with pytest.raises(NotFound):
        await other.create_run(RunRequest(assistant_id="echo"))
    await other.create_thread("same", values="theirs")
    assert (await other.list_runs()).items == []
    assert await queue.claim("w1", AGENT_NAMES, 10, 0) == []
    assert (await other.queue_stats()).n_pending == 0
    assert await other.cancel_runs(status="all") == []
    for call in (other.get_run, other.cancel_run, other.delete_run, other.join_run):
        with pytest.raises(NotFound):
            await call(here.run_id)
    await other.delete_thread("same")
    assert isinstance(await world.done(here), Run)


async def test_who_looks_late_gets_the_values_of_that_run(world: World) -> None:
    """Later runs may have continued the thread."""
    thread = await world.thread()
    runs = []
    for number in range(3):
        runs.append(await world.run(thread))
        held = await world.take(runs[-1])
        await world.finish(held.held, values={"n": number})
    ends = [await world.threads.join_run(run.run_id) for run in runs]
    assert [end.values for end in ends] == [{"n": 0}, {"n": 1}, {"n": 2}]
    copied = await world.threads.copy_thread(thread)
    assert copied.values == {"n": 2}
    assert (await world.threads.join_run(runs[0].run_id)).values == {"n": 0}
    failed = await world.run(thread)
    await world.finish((await world.take(failed)).held, "error")
    assert (await world.threads.join_run(failed.run_id)).values == {"n": 2}
