"""Concurrent pairs of workflow operations on PostgreSQL, one statement at a time, in many orders."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest
from tests.reliability.interleaving import Operation, Pair
from tests.reliability.test_interleavings import SWITCHES, explore_all
from tests.support.kinds import KINDS
from tests.threads.support import POLICY
from tests.workflows.support import AGENT, workflow

from perdure.agents.records import AgentSpec
from perdure.approvals import operations as approvals
from perdure.approvals.model import Answer, Resolution
from perdure.assistants.model import registrations
from perdure.assistants.operations import register
from perdure.executions.model import WORKFLOWS_QUEUE
from perdure.kernel.codec import encode_json
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.rollouts.operations import report
from perdure.rollouts.operations.claim import Claim
from perdure.runs.encoding import encode_finish
from perdure.runs.operations import finish
from perdure.runtime.stores import ThreadPhases
from perdure.threads.operations import assign
from perdure.threads.records import Interrupt, NewCheckpoint
from perdure.threads.work import Ending, Lease
from perdure.workflows.model import NodeKey
from perdure.workflows.operations import dispatch, due, lifecycle, overrides, retrying
from perdure.workflows.operations.dispatch import NewWorkflowRun
from perdure.workflows.operations.due import MapItem
from perdure.workflows.registry import WorkflowRegistry
from perdure.workflows.resuming import RunResumer
from perdure.workflows.values import Config, Stored

PHASES = ThreadPhases(KINDS, POLICY)
RESUMER = RunResumer(PHASES)
CONFIG = encode_json(Config(assistants={"default": AGENT}))
RUNS = statement("SELECT id FROM workflow_runs WHERE ns = :ns ORDER BY id", row=str)
OPEN = statement("SELECT id FROM workflow_approvals WHERE ns = :ns AND open = 1", row=str)
LATER = 200
"""Seconds after which every lease, wait and expiry of the setup has passed."""

DEFINITIONS = WorkflowRegistry()
for text in (
    "name: two\nphases:\n  - {name: a, prompt: a}\n  - {name: b, prompt: b, depends_on: [a]}\n",
    """
name: wide
phases:
  - {name: a, prompt: a, depends_on: []}
  - {name: b, prompt: b, depends_on: []}
  - {name: c, prompt: c, depends_on: [a, b]}
""",
    """
name: gated
phases:
  - {name: a, prompt: a, depends_on: []}
  - {name: ask, type: approval, depends_on: [], expires_after: 100, on_expiry: approve}
  - {name: c, prompt: c, depends_on: [a, ask]}
""",
    """
name: talks
phases:
  - name: a
    prompt: "{{reply}}"
    expires_after: 100
    generic_loop: {max_iterations: 3, until: "output == 'END'", interactive: true, gate_kind: reply}
""",
    """
name: waits
phases:
  - {name: rest, type: wait, seconds: 5, depends_on: []}
  - {name: ask, type: approval, depends_on: []}
  - {name: c, prompt: c, depends_on: [rest, ask]}
""",
    "name: graph\nphases:\n  - {name: a, prompt: a}\n",
    "name: mapped\nphases:\n  - {name: a, type: map, items: [x, y], prompt: '{{item}}'}\n",
    "name: parent\nphases:\n  - {name: sub, type: workflow, workflow: two}\n",
):
    DEFINITIONS.add(workflow(text))


class State(NamedTuple):
    """Result of a setup: runs, claimed phases in the order of their labels, and the open approval."""

    runs: list[str]
    leases: list[Lease]
    approval: str | None

    @property
    def run(self) -> str:
        return self.runs[0]


# --- operations -------------------------------------------------------------------------------------------


def start(name: str, trigger: str = "t", cap: int = 4) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        request = NewWorkflowRun(
            snapshot=DEFINITIONS.snapshot(name),
            trigger_id=trigger,
            trigger_type="api",
            triggered_by=None,
            repo=None,
            issue_number=None,
            context=Stored("{}", ()),
            config=CONFIG,
            max_parallel=None,
            cap=cap,
        )
        return [tuple(each) for each in await dispatch.dispatch(tx, [request], PHASES)]  # type: ignore[arg-type]

    return run


def claim(limit: int = 10, worker: str = "x") -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        shares = await assign.claim_runs(tx, [Claim(worker, limit)], [AGENT], [WORKFLOWS_QUEUE], KINDS)
        return [[tuple(each) for each in share] for share in shares]

    return run


def end(which: int = 0, result: str = "success", **fields: Any) -> Operation:
    async def run(tx: Tx, given: State, lined: bool) -> Any:
        ending = Ending(held=given.leases[which], result=result, **{"output_text": "done", **fields})  # type: ignore[arg-type]
        return [type(each).__name__ for each in await finish.finish_runs(tx, [encode_finish(ending)], KINDS)]

    return run


def wish(operation: Any, *rest: Any) -> Operation:
    """Cancel, pause, resume or retry."""

    async def run(tx: Tx, given: State, lined: bool) -> Any:
        return await operation(tx, given.run, *rest, PHASES)

    return run


cancel, retry = wish(lifecycle.cancel, None), wish(retrying.retry)
pause, resume = wish(lifecycle.pause), wish(lifecycle.resume)


def answer(how: Answer, response: str | None = None) -> Operation:
    async def run(tx: Tx, given: State, lined: bool) -> Any:
        return await approvals.resolve(tx, [Resolution(given.approval or "", how, response)], RESUMER)

    return run


async def expire(tx: Tx, given: State, lined: bool) -> Any:
    return await approvals.settle_due(tx, given.approval or "", RESUMER)


def admit(cap: int = 1) -> Operation:
    async def run(tx: Tx, given: State, lined: bool) -> Any:
        return await dispatch.admit(tx, cap, PHASES)

    return run


def node(operation: Any, name: str, *rest: Any) -> Operation:
    """Return an operation of the timer on a node."""

    async def run(tx: Tx, given: State, lined: bool) -> Any:
        return await operation(tx, given.run, NodeKey(name), *rest, PHASES)

    return run


def of_run(operation: Any, which: int = 0) -> Operation:
    """Return an operation of the timer on a run."""

    async def run(tx: Tx, given: State, lined: bool) -> Any:
        found = await operation(tx, given.runs[which], PHASES)
        return tuple(found) if isinstance(found, tuple) else found

    return run


async def switch_off(tx: Tx, given: Any, lined: bool) -> None:
    await overrides.set_enabled(tx, "two", False)


async def sweep(tx: Tx, given: Any, lined: bool) -> None:
    await report.sweep(tx, KINDS, True, True)


end_wait = node(due.end_wait, "rest")
expand = node(due.expand, "a", [MapItem("x"), MapItem("y")])
start_child = node(due.start_child, "sub", Stored("{}", ()))
enter_answer = node(due.enter_answer, "a", '"blue"')
stop_strays, tell_parent = of_run(due.stop_strays), of_run(due.tell_parent, 1)
drop_queued = of_run(due.expire, 1)


# --- states -----------------------------------------------------------------------------------------------


async def take(tx: Tx, given: State, lined: bool) -> None:
    """Claim what is ready as a worker."""
    (share,) = await assign.claim_runs(tx, [Claim("w", 10)], [AGENT], [WORKFLOWS_QUEUE], KINDS)
    for each in share:
        assert each.record is not None
        run, attempt = each.record.run, each.record.attempt
        given.leases.append(Lease(run.id, run.thread_id, attempt.attempt_id))


def state(*steps: Operation) -> Operation:
    """Run steps one after another, and return the resulting state."""

    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        await register(tx, registrations([AgentSpec(name=AGENT)]))
        made = State([], [], None)
        for step in steps:
            await step(tx, made, True)
            # Write deferred rows, as at the end of a transaction.
            await tx.flush()  # type: ignore[attr-defined]
            made = State(await tx.all(RUNS), made.leases, await tx.one(OPEN))
        return made

    return run


QUESTION = NewCheckpoint(values={}, next=["ask"], interrupts=[Interrupt(id="i1", value="Which?")])
TWO, WIDE, GATED = (state(start(name), take) for name in ("two", "wide", "gated"))
CANCELLED = state(start("two"), take, cancel)
TALKS = state(start("talks"), take, end())
WAITS = state(start("waits"))
ASKED = state(start("graph"), take, end(checkpoint=QUESTION), answer("reply", "blue"))
MAPPED, PARENT = state(start("mapped")), state(start("parent"))
CHILD_ENDED = state(start("parent"), start_child, take, end(), take, end(1))
FULL = state(start("two", cap=1), start("two", "second", cap=1))
FREE = state(start("two", cap=1), start("two", "second", cap=1), cancel)

PAIRS: dict[str, Pair] = {
    "end, cancel": Pair(TWO, end(), cancel),
    "end, pause": Pair(TWO, end(), pause),
    "end, resume": Pair(state(start("two"), take, pause), end(), resume),
    "end, retry": Pair(CANCELLED, end(), retry),
    "end, approve": Pair(GATED, end(), answer("approve")),
    "end, reject": Pair(GATED, end(), answer("reject")),
    "end, expiry of a gate": Pair(GATED, end(), expire, later=LATER),
    "end, end of a sibling": Pair(WIDE, end(0), end(1)),
    "failure, end of a sibling": Pair(WIDE, end(0, "error"), end(1)),
    "failure, approve": Pair(GATED, end(0, "error"), answer("approve")),
    "end, lost worker": Pair(TWO, end(), sweep, later=LATER),
    "end, stop of strays": Pair(CANCELLED, end(), stop_strays),
    "end of the last, dispatch": Pair(state(start("graph"), take), end(), start("graph")),
    "claim, cancel": Pair(state(start("two")), claim(), cancel),
    "claim, stop of strays": Pair(
        state(start("two"), cancel), claim(), stop_strays, also=[(claim(0), stop_strays)]
    ),
    "lost worker, cancel": Pair(TWO, sweep, cancel, later=LATER),
    "lost worker, approve": Pair(GATED, sweep, answer("approve"), later=LATER),
    "approve, reject": Pair(GATED, answer("approve"), answer("reject")),
    "approve, expiry": Pair(GATED, answer("approve"), expire, later=LATER),
    "reject, expiry": Pair(GATED, answer("reject"), expire, later=LATER),
    "approve, cancel": Pair(GATED, answer("approve"), cancel),
    "expiry, cancel": Pair(GATED, expire, cancel, later=LATER),
    "expiry, expiry": Pair(GATED, expire, expire, later=LATER),
    "reply, reject": Pair(TALKS, answer("reply", "more"), answer("reject")),
    "reply, reply": Pair(TALKS, answer("reply", "more"), answer("reply", "less")),
    "reply, expiry": Pair(TALKS, answer("reply", "more"), expire, later=LATER),
    "reply, cancel": Pair(TALKS, answer("reply", "more"), cancel),
    "timer, approve": Pair(WAITS, end_wait, answer("approve"), later=LATER),
    "timer, timer": Pair(WAITS, end_wait, end_wait, later=LATER),
    "timer, cancel": Pair(WAITS, end_wait, cancel, later=LATER),
    "answer to a graph, the same": Pair(ASKED, enter_answer, enter_answer),
    "answer to a graph, cancel": Pair(ASKED, enter_answer, cancel),
    "items, items": Pair(MAPPED, expand, expand),
    "items, cancel": Pair(MAPPED, expand, cancel),
    "ends of two items": Pair(state(start("mapped"), expand, take), end(0), end(1)),
    "child, child": Pair(PARENT, start_child, start_child),
    "child, cancel": Pair(PARENT, start_child, cancel),
    "end of a child, cancel": Pair(CHILD_ENDED, tell_parent, cancel),
    "end of a child, the same": Pair(CHILD_ENDED, tell_parent, tell_parent),
    "cancel, admission": Pair(FULL, cancel, admit()),
    "pause, admission": Pair(FULL, pause, admit()),
    "admission, admission": Pair(FREE, admit(), admit()),
    "admission, dispatch": Pair(FREE, admit(), start("two", "third", cap=1)),
    "admission, end of the queued": Pair(FREE, admit(), drop_queued, later=3700),
    "admission, retry": Pair(FREE, admit(), retry),
    "dispatch, dispatch": Pair(state(), start("two"), start("two")),
    "dispatch, dispatch at the cap": Pair(state(), start("two", cap=1), start("two", "other", cap=1)),
    "dispatch, retry": Pair(CANCELLED, start("two"), retry),
    "dispatch, cancel": Pair(TWO, start("two"), cancel),
    "dispatch, switch": Pair(state(), start("two"), switch_off),
    "retry, retry": Pair(CANCELLED, retry, retry),
    "retry, stop of strays": Pair(CANCELLED, retry, stop_strays),
    "pause, resume": Pair(TWO, pause, resume),
    "pause, cancel": Pair(TWO, pause, cancel),
}
SAMPLE = 4
"""Number of random pairs per run; `./dev chaos` runs all."""


@pytest.mark.timeout(300)
async def test_some_orders(postgres_url: str) -> None:
    names = random.sample(list(PAIRS), SAMPLE)
    print(await explore_all(postgres_url, {name: PAIRS[name] for name in names}, SWITCHES))
