"""What is old and has ended, and is kept all the same, because something else still needs it."""

from __future__ import annotations

from tests.retention.support import AT_ONCE, World
from tests.retention.test_ages import only

from perdure.executions.model import ExecutionSeed
from perdure.executions.operations import ExecutionFinish
from perdure.kernel.clock import to_micros
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.retention.rollout_walks import ROLLOUTS
from perdure.retention.thread_walks import MESSAGING, THREADS
from perdure.retention.walking import Dropped
from perdure.workflows.operations.remove import has_ended
from perdure.workflows.removal_sql import TreeRun

YEARLY = "0 0 1 1 *"
HOUR = 3600.0
AGE_CONVERSATIONS = statement(
    "UPDATE messaging_sessions SET last_activity_at = last_activity_at - :age WHERE ns = :ns"
)


async def test_a_rollout_is_kept_until_the_schedule_that_started_it_has_read_its_end(world: World) -> None:
    schedules = world.services.schedules
    made = await schedules.create(YEARLY, target="rollout", payload={"input": {"n": 1}})
    await schedules.trigger(made.schedule_id)
    claimed = await world.services.store.dequeue_rollout(worker_id="w")
    assert claimed is not None
    await world.end_task(claimed)
    assert await world.gc(only(rollouts=AT_ONCE)) == {}
    # Whoever found it before is no exception.
    for walk in ROLLOUTS:
        dropped: Dropped = await world.storage.background(
            walk.drop, to_micros(AT_ONCE), [claimed.rollout_id], *walk.args, ns=1
        )
        assert dropped == Dropped(0, [])
    (firing,) = await schedules.firings(made.schedule_id)
    assert (firing.status, firing.started_id) == ("success", claimed.rollout_id)
    assert await world.gc(only(rollouts=AT_ONCE)) == {"rollouts": 1}


async def test_a_workflow_run_is_kept_until_the_schedule_that_started_it_has_read_its_end(
    world: World,
) -> None:
    schedules = world.services.schedules
    made = await schedules.create(YEARLY, target="workflow", payload={"workflow": "child"})
    await schedules.trigger(made.schedule_id)
    await world.finish_all()
    assert "workflow_runs" not in await world.gc(only(workflow_runs=AT_ONCE))
    (firing,) = await schedules.firings(made.schedule_id)
    assert firing.status == "success"
    assert (await world.gc(only(workflow_runs=AT_ONCE)))["workflow_runs"] == 1


async def test_a_workflow_run_is_kept_while_an_execution_of_it_is_open(world: World) -> None:
    """A program records executions itself: they may end after the run."""
    run_id = await world.workflow("child")
    await world.finish_all()
    executions = world.services.executions
    seed = ExecutionSeed(trigger_type="api", trigger_id="t", skill="child:after", workflow_run_id=run_id)
    execution_id = await executions.record_start(seed)
    assert "workflow_runs" not in await world.gc(only(workflow_runs=AT_ONCE))
    await executions.record_finish(execution_id, ExecutionFinish(success=True))
    assert (await world.gc(only(workflow_runs=AT_ONCE)))["workflow_runs"] == 1


async def test_a_thread_that_got_a_schedule_after_it_was_found_is_kept(world: World) -> None:
    for thread_id in ("daily", "idle"):
        await world.services.threads.create_thread(thread_id)
    (walk,) = THREADS
    age = to_micros(AT_ONCE)
    items, _ = await world.storage.read(walk.find, age, None, ns=1)
    assert {due.id for due in items} == {"daily", "idle"}
    await world.services.schedules.create("0 0 * * *", assistant_id="echo", thread_id="daily")
    dropped: Dropped = await world.storage.background(walk.drop, age, [due.id for due in items], ns=1)
    assert (dropped.deleted, [*dropped.left]) == (1, [])
    assert (await world.services.threads.get_thread("daily")).status == "idle"


async def age_conversations(tx: Tx) -> None:
    await tx.execute(AGE_CONVERSATIONS, age=to_micros(2 * HOUR))


async def test_a_conversation_that_got_a_message_after_it_was_found_is_kept(world: World) -> None:
    messaging = world.services.messaging
    made = [await messaging.get_or_create("slack", "general", name) for name in ("ann", "bob")]
    ann, bob = (each.session_id for each in made)
    await world.storage.run(age_conversations, ns=1)
    (walk,) = MESSAGING
    items, _ = await world.storage.read(walk.find, to_micros(HOUR), None, ns=1)
    assert {due.id for due in items} == {ann, bob}
    await messaging.add_message(ann, "user", "still here")
    left = [due.id for due in items]
    while left:
        dropped: Dropped = await world.storage.background(walk.drop, to_micros(HOUR), left, ns=1)
        left = [*dropped.left]
    assert [each.session_id for each in (await messaging.list()).items] == [ann]


def test_a_tree_of_workflow_runs_has_ended_with_its_last_run() -> None:
    """A run that was cancelled ends before those that it has started."""
    root = TreeRun("root", "w", "cancelled", 0, None, None, 10)
    child = TreeRun("child", "w", "cancelled", 1, None, None, 20)
    assert [has_ended([root, child], before) for before in (10, 15, 20, 21)] == [False, False, False, True]
    for more in ({"active": 1}, {"due_at": 5}, {"finished_at": None}, {"status": "running"}):
        assert not has_ended([root, child._replace(**more)], 21)
