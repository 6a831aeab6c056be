"""Stories of the crash matrix. Together they run every operation of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tests.workflows.crash_world import CrashWorld, Step, Story
from tests.workflows.support import Done

from perdure.approvals.link_model import PATH, parse_link_token
from perdure.approvals.model import Approval
from perdure.executions.model import ExecutionSeed
from perdure.executions.operations import ExecutionFinish
from perdure.executions.rows import WholeExecution
from perdure.service.callers import Caller

# --- steps ------------------------------------------------------------------------------------------------


def run(name: str, trigger: str = "t", **context: Any) -> Step:
    async def step(world: CrashWorld) -> None:
        await world.workflows.run(name, trigger_id=trigger, context=context, idempotency_key=trigger)

    return step


async def work(world: CrashWorld) -> None:
    await world.work_on()


async def settle(world: CrashWorld) -> None:
    await world.settle()


async def hold(world: CrashWorld) -> None:
    """Let a worker claim what is ready and then send no more heartbeats."""
    assert await world.claim_phases() or world.outside.repeats


async def hand_back(world: CrashWorld) -> None:
    """Let a worker claim what is ready and hand it back."""
    await world.queue.hand_back([assignment.held for assignment in await world.claim_phases()])


async def lose(world: CrashWorld) -> None:
    await world.lose_leases()


def wait(seconds: float) -> Step:
    """Let time pass without any activity."""

    async def step(world: CrashWorld) -> None:
        await world.pass_time(seconds)

    return step


def wish(what: str, trigger: str = "t", **options: Any) -> Step:
    """Act on a run as a person: cancel, retry, pause or resume."""

    async def step(world: CrashWorld) -> None:
        await getattr(world.workflows, what)(await world.run_id(trigger), **options)

    return step


def scratch(trigger: str = "t", **values: Any) -> Step:
    async def step(world: CrashWorld) -> None:
        await world.workflows.update_scratch(await world.run_id(trigger), values=values)

    return step


async def _gate(world: CrashWorld, gate: str) -> Approval:
    approvals = (await world.approvals.list()).items
    newest = next(approval for approval in approvals if approval.gate == gate)
    assert newest.status == "pending" or world.outside.repeats, approvals
    return newest


def answer(how: str, gate: str, *texts: str) -> Step:
    """Answer the gate with this name as a person."""

    async def step(world: CrashWorld) -> None:
        approval = await _gate(world, gate)
        await getattr(world.approvals, how)(approval.approval_id, *texts, idempotency_key=gate + how)

    return step


def answer_by_link(gate: str) -> Step:
    """Create a link for an assignee and answer with it."""

    async def step(world: CrashWorld) -> None:
        approval = await _gate(world, gate)
        admin = Caller("boss", frozenset({"admin"}), world.namespace, (world.namespace,))
        link = await world.approvals.acting_as(admin).create_link(approval.approval_id, "ann")
        token = parse_link_token(link.path.removeprefix(PATH))
        assert token is not None
        await world.linked.answer(token, "approve", None)

    return step


def broken(value: bool) -> Step:
    """Make the handling of approvals fail for a while."""

    async def step(world: CrashWorld) -> None:
        world.outside.broken = value

    return step


def switch(name: str, enabled: bool | None) -> Step:
    async def step(world: CrashWorld) -> None:
        if enabled is None:
            await world.overrides.clear(name)
        else:
            await world.overrides.set_enabled(name, enabled=enabled)

    return step


# --- chats ------------------------------------------------------------------------------------------------


async def _session(world: CrashWorld) -> str:
    found = await world.messaging.get_or_create("slack", "general", "ann", assistant_id="echo")
    return found.session_id


async def enter(world: CrashWorld) -> None:
    await _session(world)


def send(text: str) -> Step:
    async def step(world: CrashWorld) -> None:
        await world.messaging.send(await _session(world), text, idempotency_key=text)

    return step


async def cancel_turn(world: CrashWorld) -> None:
    session = await _session(world)
    page = await world.messaging.history(session)
    await world.messaging.cancel_turn(session, page.items[-1].turn_id or "")


async def note(world: CrashWorld) -> None:
    """Record a message of another system, and the session to which the agent logs."""
    session = await _session(world)
    await world.messaging.add_message(session, "user", "said elsewhere", idempotency_key="elsewhere")
    await world.messaging.set_agent_session_id(session, "agent-session")


async def leave(world: CrashWorld) -> None:
    for session in (await world.messaging.list(active=True)).items:
        await world.messaging.deactivate(session.session_id)


# --- executions without phases ----------------------------------------------------------------------------

SEED: Final = ExecutionSeed(trigger_type="api", trigger_id="t", skill="own")


async def _own(world: CrashWorld, skill: str) -> Sequence[Any]:
    return (await world.executions.list(skill=skill)).items


async def record(world: CrashWorld) -> None:
    """Record executions as a caller that first looks for existing ones, as after a restart."""
    if not await _own(world, "own"):
        await world.executions.record_start(SEED)
    (row,) = await _own(world, "own")
    await world.executions.record_session_id(row.execution_id, "session")
    await world.executions.record_output_text(row.execution_id, "text")
    if row.finished_at is None:
        await world.executions.record_finish(row.execution_id, ExecutionFinish(success=True))


async def record_others(world: CrashWorld) -> None:
    if not await _own(world, "skipped"):
        await world.executions.record_skip(ExecutionSeed(trigger_type="api", trigger_id="t", skill="skipped"))
    if not await _own(world, "stale"):
        await world.executions.record_start(ExecutionSeed(trigger_type="api", trigger_id="t", skill="stale"))
    await world.executions.mark_stale_failed("stale", "t", "stale")
    await world.executions.mark_latest_failed("own", "t", "not good enough")


def past(number: int) -> WholeExecution:
    """Return an execution that ended in another harness."""
    started_at = number * 1_000_000
    given: dict[str, Any] = {
        "id": f"past-{number}",
        "trigger_type": "import",
        "trigger_id": "t",
        "skill": "past",
        "started_at": started_at,
        "finished_at": started_at + 1000,
        "success": 1,
        "output_text": f"output {number}",
    }
    fields: dict[str, Any] = dict.fromkeys(WholeExecution.__struct_fields__)
    return WholeExecution(**fields | given)


async def import_past(world: CrashWorld) -> None:
    """Import executions, from the start again if the import was interrupted."""
    await world.executions.add_past([past(1), past(2)])
    figures = (await world.executions.stats()).by_skill["past"]
    assert (figures.total, figures.succeeded) == (2, 2)


# --- stories ----------------------------------------------------------------------------------------------

CHILD = "name: child\nphases:\n  - {name: inner, prompt: i}\n"
ALL_PHASES = """
name: story
phases:
  - {name: plan, prompt: p}
  - name: write
    prompt: "{{previousOutput}}"
    depends_on: [plan]
    generic_loop: {max_iterations: 3, until: "output.contains('END')", until_bash: check}
  - {name: never, prompt: n, depends_on: [plan], skip_if: "plan.contains('p')"}
  - {name: each, type: map, items: [x, y, z], max_parallel: 2, prompt: "{{item}}", depends_on: [write]}
  - {name: sub, type: workflow, workflow: child, depends_on: [each]}
  - {name: odd, type: map, items: "{{thing}}", prompt: o, depends_on: [sub], on_failure: {action: continue}}
  - {name: rest, type: wait, seconds: 5, depends_on: [odd]}
  - {name: shaky, prompt: s, depends_on: [rest], retry: {max_attempts: 2, backoff_seconds: 5}}
  - {name: back, prompt: b, depends_on: [shaky], on_failure: {action: goto, phase: shaky}}
  - {name: last, prompt: "{{write}} {{each}} {{sub}}", depends_on: [back]}
"""
PEOPLE = """
name: people
phases:
  - {name: plan, prompt: p, approval_gate: post_plan}
  - {name: ask, prompt: a, depends_on: [plan]}
  - name: talk
    prompt: "{{reply}}"
    depends_on: [ask]
    generic_loop: {max_iterations: 3, until: "output.contains('END')", interactive: true, gate_kind: reply}
  - {name: sign, type: approval, assignees: [ann], depends_on: [talk]}
  - {name: late, type: approval, depends_on: [sign], expires_after: 150, on_expiry: approve, remind_every: 30}
  - {name: last, prompt: "{{talk}}", depends_on: [late]}
"""
TWO = "name: two\nphases:\n  - {name: a, prompt: a}\n  - {name: b, prompt: b, depends_on: [a]}\n"
PARENT = """
name: parent
phases:
  - {name: sub, type: workflow, workflow: child}
  - {name: beside, prompt: b, depends_on: []}
  - {name: after, prompt: a, depends_on: [sub, beside]}
"""

STORIES: Final[dict[str, Story]] = {
    "wishes": Story(
        [TWO],
        [
            *(run("two"), scratch(n=1), hand_back, wish("pause"), work, wish("resume"), hold),
            *(wish("cancel"), settle, wish("retry"), work, lose, work),
        ],
    ),
    "queue": Story(
        [TWO],
        [
            *(run("two"), run("two", "second"), wait(3700.0), settle, run("two", "third")),
            *(wish("cancel"), settle, wish("retry"), work),
        ],
        cap=1,
    ),
    "lost worker": Story([TWO], [run("two"), hold, lose, work]),
    "anew": Story(
        [TWO],
        [
            *(run("two"), work, wish("retry", from_phase="a", definition="current"), work),
        ],
        {"a": ("one", "two"), "b": (Done(success=False), "there")},
    ),
    "parents": Story(
        [CHILD, PARENT],
        [run("parent"), settle, hold, wish("cancel"), work, wish("retry"), work, lose, work],
    ),
    "switch": Story(
        [TWO], [switch("two", False), run("two", "off"), switch("two", None), run("two", "on"), work]
    ),
    "chat": Story(
        [],
        [
            *(enter, send("hello"), send("again"), work, note, send("what?"), work, send("blue"), work),
            *(send("never mind"), cancel_turn, work, leave, send("anew"), work),
        ],
        {"turn": ("hi", Done(asks="Which?"), "painted", "fresh")},
    ),
    "every phase": Story(
        [CHILD, ALL_PHASES],
        [run("story", thing={"no": "list"}), work, wait(6.0), work, wait(6.0), work, work],
        {
            "plan": "a plan",
            "write_iter_1": "one",
            "write_iter_1_check": Done(stop_reason="condition_not_met"),
            "write_iter_2": "two END",
            "shaky": (Done(success=False, permanent=False), "steady"),
            "back": (Done(success=False), "there"),
        },
    ),
    "people": Story(
        [PEOPLE],
        [
            *(run("people"), work, answer("reject", "post_plan"), wish("retry"), work),
            *(answer("approve", "post_plan"), work, answer("reply", "ask", "blue"), work),
            *(answer("reply", "talk_iter_1", "more"), work, answer_by_link("sign"), work),
            *(wait(31.0), settle, broken(True), wait(31.0), settle, broken(False), wait(61.0), settle),
            *(wait(61.0), settle, work),
        ],
        {"ask": (Done(asks="Which colour?"), "painted"), "talk_iter_1": "How big?", "talk_iter_2": "END"},
    ),
    "ledger": Story([], [record, record_others, import_past]),
}
