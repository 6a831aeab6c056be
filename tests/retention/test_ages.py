"""Each kind of data by itself: what goes because of its age, what goes with it, and what it is kept for."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from tests.retention.support import AT_ONCE, World, deleted_of

from perdure.kernel import changes
from perdure.kernel.clock import to_micros
from perdure.kernel.errors import InvalidInput, NotFound, SpansEvicted
from perdure.kernel.retention import DAY, Retention
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.memory.operations import toc
from perdure.retention import service, workflow_walks
from perdure.rollouts.operations import remove
from perdure.service.callers import Caller
from perdure.threads.records import Interrupt, Lifetime, NewCheckpoint
from perdure.threads.work import Ending

DAY_MS = 86_400_000
LONG_AGO = 1_705_276_800_000
"""The beginning of Monday, January 15, 2024."""


def only(**seconds: float) -> Retention:
    nothing = dict.fromkeys(("audit", "keys", "delivered", "dead", "jobs", "statistics", "temporary"))
    return Retention(**{**nothing, **seconds})  # type: ignore[arg-type]


async def _age_rollouts(tx: Tx, ids: list[str], days: float) -> None:
    older = statement(
        "UPDATE rollouts SET start_time = start_time - :age, end_time = end_time - :age WHERE id {among:ids}"
    )
    spans = statement("UPDATE spans SET born = born - :age WHERE rollout_id {among:ids}")
    for each in (older, spans):
        await tx.execute(each, ids=ids, age=to_micros(days * DAY))


async def _task(world: World, *traces: int, ends: bool = True) -> str:
    """A task that a worker has claimed, with a span in each of these traces; the second one failed."""
    await world.task()
    claimed = await world.services.store.dequeue_rollout(worker_id="w")
    assert claimed is not None
    for number, trace in enumerate(traces):
        await world.span(claimed.rollout_id, claimed.attempt.attempt_id, trace, error=number == 1)
    if ends:
        await world.end_task(claimed)
    return claimed.rollout_id


async def test_spans_go_and_what_they_are_of_stays(world: World) -> None:
    ended, going = await _task(world, 1, 1, 2), await _task(world, 1, ends=False)
    assert await world.gc(only(spans=AT_ONCE)) == {"spans": 3}
    with pytest.raises(SpansEvicted, match="because of their age"):
        await world.services.store.query_spans(ended)
    assert (await world.services.store.get_rollout_by_id(ended)).status == "succeeded"  # type: ignore[union-attr]
    assert await world.services.store.get_latest_attempt(going) is not None
    # The trace that the open rollout shares is smaller now, and is its; the other one is gone.
    (trace,) = (await world.services.traces.list()).items
    assert (trace.spans, trace.errors, trace.rollout_id) == (1, 0, going)
    assert await world.rows("trace_names", "spans") == {"trace_names": 2, "spans": 1}
    assert await world.gc(only(spans=AT_ONCE)) == {}


async def test_only_what_is_old_enough_goes(world: World) -> None:
    old, new = await _task(world, 1), await _task(world, 2)
    await world.storage.run(_age_rollouts, [old], 10.0)
    assert await world.gc(only(rollouts=11 * DAY)) == {}
    assert await world.gc(only(rollouts=9 * DAY)) == {"rollouts": 1}
    assert await world.services.store.get_rollout_by_id(old) is None
    assert await world.services.store.get_rollout_by_id(new) is not None
    assert await world.rows("rollouts", "attempts", "spans", "traces") == {
        "rollouts": 1,
        "attempts": 1,
        "spans": 1,
        "traces": 1,
    }


async def test_a_rollout_with_many_spans_goes_in_chunks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remove, "SPAN_ROWS", 2)
    monkeypatch.setattr(remove.delete_spans, "__defaults__", (2,))
    for _ in range(3):
        await _task(world, 1, 1, 2, 3, 1)
    assert await world.gc(only(rollouts=AT_ONCE)) == {"rollouts": 3}
    assert await world.rows() == {}


async def test_the_queue_counts_what_is_left(world: World) -> None:
    await _task(world)
    await world.task()
    assert await world.gc(only(rollouts=AT_ONCE)) == {"rollouts": 1}
    assert (await world.services.store.statistics())["total_rollouts"] == 1


async def test_an_idle_thread_goes_with_its_runs_and_their_traces(world: World) -> None:
    idle = (await world.services.threads.create_thread("idle", metadata={"team": "a"})).thread_id
    await world.services.threads.create_thread("busy")
    await world.run(idle)
    await world.run("busy")
    first, second = await world.work()
    for each in (first, second):
        await world.span(each.run.run_id, each.held.attempt_id, 1)
    await world.finish(first if first.run.thread_id == idle else second)
    assert await world.gc(only(threads=AT_ONCE)) == {"threads": 1}
    with pytest.raises(NotFound):
        await world.services.threads.get_thread(idle)
    # Its rows are removed a little later, and then what is left of its run.
    later = only(threads=AT_ONCE, removed=AT_ONCE)
    assert await world.gc(later) == {"removed": 2, "runs": 1}
    assert await world.rows("threads", "runs", "rollouts", "attempts", "spans", "checkpoints") == {
        "threads": 1,
        "runs": 1,
        "rollouts": 1,
        "attempts": 1,
        "spans": 1,
    }
    assert (await world.services.threads.get_thread("busy")).status == "busy"


async def test_the_trace_of_a_run_without_a_thread_has_an_age_of_its_own(world: World) -> None:
    await world.run(None, on_completion="delete")
    (claimed,) = await world.work()
    await world.span(claimed.run.run_id, claimed.held.attempt_id, 1)
    await world.finish(claimed)
    assert await world.gc(only(runs=AT_ONCE)) == {}, "whoever waits for the run still finds it"
    assert await world.gc(only(removed=AT_ONCE)) == {"removed": 2}
    assert await world.rows("rollouts", "spans") == {"rollouts": 1, "spans": 1}
    assert await world.gc(only(runs=AT_ONCE)) == {"runs": 1}
    assert await world.rows() == {}


async def test_a_thread_of_one_run_goes_unless_it_is_needed(world: World) -> None:
    threads = world.services.threads
    once, continued, lives = [await world.run() for _ in range(3)]
    kept = await world.run(on_completion="keep")
    places = {each.run.run_id: each.run.thread_id for each in await world.work()}
    await world.finish_all()
    again = await world.run(places[continued])
    await world.finish_all()
    await threads.update_thread(places[lives], lifetime=Lifetime(minutes=60))
    waits = await world.run()
    assert await world.gc(only(temporary=DAY)) == {}
    assert await world.gc(only(temporary=AT_ONCE)) == {"temporary": 1}
    with pytest.raises(NotFound):
        await threads.get_run(once)
    left = {kept, continued, again, lives, waits}
    for status in (None, "success"):
        listed = await threads.list_runs(status=status)
        assert {run.run_id for run in listed.items} == left - ({waits} if status else set())
        assert listed.total == len(listed.items)
    assert await world.gc(only(removed=AT_ONCE, runs=AT_ONCE)) == {"removed": 2, "runs": 1}
    assert (await threads.list_runs()).total == len(left)
    await world.verify()


async def test_a_temporary_run_that_failed_has_an_age_of_its_own(world: World) -> None:
    run_id = await world.run(on_completion="delete")
    (claimed,) = await world.work()
    await world.finish(claimed, success=False)
    assert (await world.services.threads.get_run(run_id)).status == "error"
    assert await world.gc(only(temporary=DAY, removed=AT_ONCE)) == {}
    assert await world.gc(only(temporary=AT_ONCE)) == {"temporary": 1}
    with pytest.raises(NotFound):
        await world.services.threads.get_run(run_id)
    assert await world.gc(only(removed=AT_ONCE)) == {"removed": 2}
    assert (await world.services.threads.list_runs()).total == 0
    await world.verify()
    assert await world.gc(only(runs=AT_ONCE)) == {"runs": 1}
    assert await world.rows() == {}
    await world.verify()


async def test_a_thread_that_a_schedule_continues_is_kept(world: World) -> None:
    await world.services.threads.create_thread("daily")
    made = await world.services.schedules.create("0 0 * * *", assistant_id="echo", thread_id="daily")
    assert await world.gc() == {}
    await world.services.schedules.delete(made.schedule_id)
    assert (await world.gc())["threads"] == 1


async def test_a_workflow_run_goes_whole_with_what_it_started(world: World) -> None:
    root = await world.workflow()
    (plan,) = await world.work()
    await world.span(plan.run.run_id, plan.held.attempt_id, 1)
    await world.finish(plan)
    (build,) = await world.work()
    await world.finish(build)
    await world.settle()
    # Its child waits for a person.
    retention = only(workflow_runs=AT_ONCE, removed=AT_ONCE)
    assert "workflow_runs" not in await world.gc(retention)
    assert len((await world.services.approvals.list()).items) == 1
    await world.finish_all()
    assert (await world.services.workflows.get(root)).status == "succeeded"
    counted = await world.services.executions.stats()
    assert (await world.gc(retention))["workflow_runs"] == 2
    await world.gc(retention)
    assert await world.rows() == {}
    assert await world.services.executions.stats() == counted, "the statistics stay"
    assert (await world.services.workflows.counts()) == []


async def test_a_workflow_run_goes_with_the_thread_of_a_graph_that_got_no_answer(world: World) -> None:
    run_id = await world.workflow("child")
    (build,) = await world.work()
    asked = NewCheckpoint(values={}, next=["ask"], interrupts=[Interrupt(id="i1", value="which?")])
    await world.services.run_queue.finish(Ending(held=build.held, result="success", checkpoint=asked))
    await world.settle()
    (gate,) = (await world.services.approvals.list(status="pending")).items
    await world.services.approvals.reject(gate.approval_id)
    await world.settle()
    assert (await world.services.workflows.get(run_id)).status == "failed"
    await world.gc(only(workflow_runs=AT_ONCE))
    await world.gc(only(removed=AT_ONCE, runs=AT_ONCE))
    assert await world.rows("workflow_runs", "threads", "runs", "checkpoints", "lines") == {}


async def test_a_workflow_run_goes_with_its_large_values(world: World) -> None:
    await world.services.workflows.run("child", trigger_id="t", context={"diff": "x" * 40_000})
    await world.finish_all()
    assert await world.rows("workflow_outputs") == {"workflow_outputs": 1}
    assert (await world.gc(only(workflow_runs=AT_ONCE)))["workflow_runs"] == 1
    assert await world.rows("workflow_outputs") == {}


async def test_a_workflow_run_goes_in_chunks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow_walks, "PHASES", 1)
    monkeypatch.setattr("perdure.workflows.operations.remove.PART_ROWS", 1)
    await world.workflow()
    await world.finish_all()
    assert (await world.gc())["workflow_runs"] == 2
    await world.gc()
    assert await world.rows() == {}


async def test_a_failed_tree_that_is_retried_is_open_again(world: World) -> None:
    root = await world.workflow("child")
    (build,) = await world.work()
    await world.finish(build, success=False)
    await world.services.workflows.retry(root)
    assert "workflow_runs" not in await world.gc()
    await world.finish_all()
    assert (await world.gc())["workflow_runs"] == 1


async def test_a_conversation_goes_unless_a_turn_is_open(world: World) -> None:
    quiet, busy = await world.chat("ann"), await world.chat("bob")
    for each in await world.work():
        if each.run.thread_id == (await world.services.messaging.get(busy)).agent_session_id:
            continue
        await world.finish(each)
    retention = only(messaging=AT_ONCE, removed=AT_ONCE)
    assert (await world.gc(retention))["messaging"] == 1
    with pytest.raises(NotFound):
        await world.services.messaging.get(quiet)
    assert len((await world.services.messaging.history(busy)).items) == 1
    await world.finish_all()
    assert (await world.gc(retention))["messaging"] == 1
    await world.gc(retention)
    assert await world.rows() == {}


async def test_memory_goes_by_days_and_what_is_above_with_its_last_day(world: World) -> None:
    monday, tuesday = LONG_AGO, LONG_AGO + DAY_MS
    first = await world.remember(monday + 1000, monday + 2000)
    second = await world.remember(tuesday + 1000)
    memory = world.services.memory
    week = await memory.get_node("toc:week:2024:W03")
    grips = {grip for bullet in week.bullets for grip in bullet.grip_ids}
    days_ago = (await world.storage.read(_wall)) / 1e6 - (tuesday + DAY_MS // 2) / 1e3
    assert await world.gc(only(memory=days_ago)) == {"memory": 2}
    hits = (await memory.search("deployment billing", limit=50)).items
    assert hits
    cited = {event.event_id for hit in hits for event in hit.events}
    assert cited == set(second)
    assert [event.event_id for event in (await memory.get_events()).items] == second
    with pytest.raises(NotFound):
        await memory.get_node("toc:day:2024-01-15")
    # The week keeps what it said; a grip of it whose events are gone is not found.
    assert (await memory.get_node("toc:week:2024:W03")).title == week.title
    left = await world.storage.read(toc.get_grips, sorted(grips), ns=1)
    assert 0 < len(left) < len(grips)
    for grip in sorted(grips - left.keys()):
        with pytest.raises(NotFound, match="deleted with its events"):
            await memory.expand_grip(grip)
    for grip in left:
        found = await memory.expand_grip(grip)
        assert [event.event_id for event in found.excerpt_events] == second
    assert not {*first} & {event.event_id for event in (await memory.get_events()).items}
    assert await world.gc(only(memory=AT_ONCE)) == {"memory": 1}
    assert await world.rows() == {}


async def _wall(tx: Tx) -> int:
    return tx.wall


async def test_sessions_go_with_what_was_kept_aside_for_them(world: World) -> None:
    log = world.services.sessions.log
    await world.log("old", long=True)
    await world.log("old", sub_agent="subagents/agent-1")
    await world.run(None)
    (claimed,) = await world.work()
    writing = claimed.run.session_id or claimed.run.thread_id
    await world.log(writing)
    assert await world.gc(only(sessions=AT_ONCE)) == {"sessions": 1}
    assert await log.find(1, "old") == []
    assert [info.name.session_id for info in await log.logs(1)] == [writing]
    assert await world.rows("session_blobs") == {}
    await world.log(writing, long=True)
    (line,) = (await world.services.sessions.lines(writing, after=0, limit=2)).items[1:]
    digest = line.split('"blob":"')[1][:64]
    assert await world.gc(only(sessions=AT_ONCE)) == {}
    assert await log.get_blob(1, digest) is not None, "a line names it"


async def test_a_sweep_leaves_one_entry_in_the_audit(world: World) -> None:
    for _ in range(3):
        await _task(world, 1)
    upkeep = world.upkeep(only(rollouts=AT_ONCE)).acting_as(Caller.trusted("anna"))
    await upkeep.gc(dry_run=True)
    assert deleted_of(await upkeep.gc()) == {"rollouts": 3}
    await upkeep.gc()
    entries = [each for each in (await world.services.access.query_audit()).items if each.action == "gc"]
    assert [(each.actor, each.object) for each in entries] == [("anna", "3 rollouts")]


async def test_a_call_may_name_ages_and_ends_in_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [await _task(world, 1) for _ in range(3)]
    await world.storage.run(_age_rollouts, ids[:2], 10.0)
    upkeep = world.services.upkeep
    assert deleted_of(await upkeep.gc(older_than={"rollouts": 5})) == {"rollouts": 2}
    wrong: dict[str, float]
    for wrong in ({"removed": 1.0}, {"spans": 0.0}, {"spans": -1.0}, {"nothing": 3.0}, {"spans": 1e9}):
        with pytest.raises(InvalidInput):
            await upkeep.gc(older_than=wrong)
    monkeypatch.setattr(service, "CALL_SECONDS", 0.0)
    report = await upkeep.gc(older_than={"rollouts": 1e-9})
    assert not report.complete
    assert deleted_of(report) == {}
    monkeypatch.setattr(service, "CALL_SECONDS", 10.0)
    report = await upkeep.gc(older_than={"rollouts": 1e-9})
    assert (report.complete, deleted_of(report)) == (True, {"rollouts": 1})


async def test_lists_are_told(world: World) -> None:
    following = changes.follow(world.storage.signals, None, 100)
    rollout_id = await _task(world, 1)
    await world.services.threads.create_thread("idle")
    await following.next(0)
    await world.gc()
    keys = await following.next(5.0) or []
    told = {(change.kind, change.id) for change in changes.changes_from(keys) if change.status == "deleted"}
    following.close()
    assert {("rollout", rollout_id), ("spans", rollout_id), ("thread", "idle")} <= told


async def test_whatever_chunk_is_the_last_the_database_is_sound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies leaves what the chunks before have done; the next one goes on."""
    monkeypatch.setattr(remove.delete_spans, "__defaults__", (2,))
    monkeypatch.setattr(workflow_walks, "PHASES", 1)
    monkeypatch.setattr("perdure.workflows.operations.remove.PART_ROWS", 3)
    monkeypatch.setattr("perdure.messaging.operations.remove.MESSAGE_ROWS", 1)
    monkeypatch.setattr("perdure.memory.operations.remove.EVENT_ROWS", 1)
    monkeypatch.setattr("perdure.memory.operations.remove.SEGMENTS", 1)
    await _task(world, 1, 2, 1)
    await world.services.threads.create_thread("idle")
    await world.run("idle")
    await world.workflow()
    await world.chat("ann")
    for each in await world.work():
        for trace in (1, 1, 3):
            await world.span(each.run.run_id, each.held.attempt_id, trace)
    await world.finish_all()
    await world.chat("ann")
    await world.finish_all()
    await world.remember(LONG_AGO + 1000, LONG_AGO + DAY_MS // 2, LONG_AGO + 9 * DAY_MS)
    await world.log("old", long=True)
    chunks = 0
    background = world.storage.background

    class Stopped(Exception):
        pass

    def one(operation: Any, *args: Any, ns: int | None = None) -> Any:
        async def run() -> Any:
            nonlocal chunks
            if chunks:
                raise Stopped
            answer = await background(operation, *args, ns=ns)
            chunks += bool(answer)
            return answer

        return run()

    monkeypatch.setattr(world.storage, "background", one)
    sweeps = 0
    while True:
        chunks = 0
        sweeps += 1
        with contextlib.suppress(Stopped):
            await world.upkeep().gc()
        await world.verify()
        if not await world.rows():
            break
        assert sweeps < 200, await world.rows()
    monkeypatch.undo()
    assert sweeps > 20
