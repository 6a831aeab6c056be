"""Two concurrent operations on threads, on PostgreSQL, one statement at a time, in many orders."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from tests.reliability.interleaving import Operation, Pair
from tests.reliability.test_interleavings import SWITCHES, explore_all
from tests.support.kinds import KINDS
from tests.threads.support import AGENT_NAMES

from perdure.agents.records import AgentSpec
from perdure.assistants.model import registrations
from perdure.assistants.operations import register
from perdure.kernel.errors import PerdureError
from perdure.kernel.ids import uuid
from perdure.kernel.storage.port import Tx
from perdure.rollouts.operations import report
from perdure.rollouts.operations.claim import Claim
from perdure.runs.encoding import encode_finish
from perdure.runs.operations import finish
from perdure.streams.model import NewEvent
from perdure.threads.encoding import checked, followed, merged_metadata, new_run
from perdure.threads.model import AGENTS_QUEUE
from perdure.threads.operations import assign, cancel, create, execute, remove, states
from perdure.threads.policy import Policy
from perdure.threads.records import NewCheckpoint, RunRequest
from perdure.threads.rows import Created
from perdure.threads.work import Ending, Lease

GRACE = 5_000_000
POLICY = Policy(timeout=100.0, lease=10.0, grace=5.0)
LATER = 20
"""Seconds after which every lease and grace period of the setup is over."""


def answering(operation: Operation) -> Operation:
    """Wrap an operation so that its refusal is its answer."""

    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        try:
            return await operation(tx, given, lined)
        except PerdureError as error:
            return repr(error)

    return run


# --- operations on the thread `t`, whose runs and claims are in `given` ------------------------------------


def _ids(answers: Sequence[Any]) -> list[Any]:
    """Return the ids of the created runs, which can be compared."""
    return [tuple(each) if isinstance(each, Created) else each for each in answers]


def ask(strategy: str = "enqueue", thread_id: str | None = "t", **options: Any) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        fields = {"thread_id": thread_id, "multitask_strategy": strategy} | options
        request = new_run(RunRequest(assistant_id="echo", **fields), POLICY)
        return _ids(await create.create_runs(tx, [request], KINDS))

    return run


def ask_and_take(thread_id: str = "u", worker_id: str = "y", limit: int = 1) -> Operation:
    """Create a run with readers while a worker waits, which claims the first run of the queue."""

    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        fields = {"thread_id": thread_id, "multitask_strategy": "enqueue", "if_not_exists": "create"}
        request = new_run(RunRequest(assistant_id="echo", **fields), POLICY)  # type: ignore[arg-type]
        read = followed(request, uuid(tx.now, tx.ids))
        wish = assign.WaitingClaimRequest(Claim(worker_id, limit), AGENT_NAMES, None, begins=True)
        made, shares, _ = await assign.claim_at_once(tx, [wish], KINDS, create.create_runs, [read], KINDS)
        return _ids(made), [_ids(share) for share in shares]

    return run


def take(worker_id: str = "x", limit: int = 1) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        return [
            _ids(share)
            for share in await assign.claim_runs(
                tx, [Claim(worker_id, limit)], AGENT_NAMES, [AGENTS_QUEUE], KINDS
            )
        ]

    return run


def take_nothing(worker_id: str = "x") -> Operation:
    return take(worker_id, 0)


def end(result: str = "success", which: int = 0, **fields: Any) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        ending = Ending(held=given[which], result=result, **fields)  # type: ignore[arg-type]
        return [type(each).__name__ for each in await finish.finish_runs(tx, [encode_finish(ending)], KINDS)]

    return run


def give_back(which: int = 0) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        return await finish.hand_back(tx, [given[which]], KINDS)

    return run


def stop(action: Any = "interrupt", which: int = 0) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        return await cancel.cancel_runs(tx, [given[which].run_id], action, GRACE, KINDS)

    return run


def keep(values: Any = 1) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        saved = execute.SaveCheckpoint(
            given[0], checked(NewCheckpoint(values=values)), [NewEvent("values", "1")]
        )
        return [type(each).__name__ for each in await execute.save_checkpoints(tx, [saved])]

    return run


async def tell(tx: Tx, given: Any, lined: bool) -> Any:
    told = execute.AppendEvents(given[0], [NewEvent("custom", "1")])
    return [type(each).__name__ for each in await execute.append_events(tx, [told])]


async def renew(tx: Tx, given: Any, lined: bool) -> Any:
    return await execute.renew(tx, "w", [each for each in given if each.attempt_id])


def drop_run(which: int = 0) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        return await remove.delete_run(tx, given[which].run_id, GRACE, KINDS)

    return answering(run)


async def _drop_thread(tx: Tx, given: Any, lined: bool) -> Any:
    return await remove.delete_thread(tx, "t", GRACE, KINDS)


async def _set_state(tx: Tx, given: Any, lined: bool) -> Any:
    (answer,) = await states.update_states(tx, [("t", checked(NewCheckpoint(values="set")))])
    return answer if isinstance(answer, str) else repr(answer)


async def _copy(tx: Tx, given: Any, lined: bool) -> Any:
    await states.copy_threads(tx, ["t"])


async def purge(tx: Tx, given: Any, lined: bool) -> None:
    await remove.purge(tx, -1_000_000_000)


async def sweep(tx: Tx, given: Any, lined: bool) -> None:
    await report.sweep(tx, KINDS, True, True)


async def make(tx: Tx, given: Any, lined: bool) -> Any:
    new = states.NewThread("t", '{"a":1}', "{}", None, False, labels={"a": "1"})
    return _ids(await states.create_threads(tx, [new]))


async def _edit(tx: Tx, given: Any, lined: bool) -> Any:
    merged = merged_metadata(await states.get_metadata(tx, "t"), {"b": 2})
    return await states.update_thread(tx, "t", merged, None)


drop_thread, set_state, copy, edit = map(answering, (_drop_thread, _set_state, _copy, _edit))


# --- states -----------------------------------------------------------------------------------------------


async def nothing(tx: Tx, given: Any, lined: bool) -> Any:
    await register(tx, registrations([AgentSpec(name="echo")]))
    return []


async def rests(tx: Tx, given: Any, lined: bool) -> Any:
    await nothing(tx, given, lined)
    await make(tx, given, lined)
    return []


def runs(*, claimed: bool, waiting: int = 0, delay: float | None = None) -> Operation:
    """Thread with a live run, and others behind it."""

    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        await rests(tx, given, lined)
        made = []
        for _ in range(waiting + 1):
            (row,) = await ask(after_seconds=delay)(tx, given, lined)
            (made_id,) = row
            made.append(Lease(made_id, "t", ""))
        if claimed:
            (((run_id, attempt_id, _),),) = await take("w")(tx, given, lined)
            made[0] = Lease(run_id, "t", attempt_id)
        return made

    return run


def after(setup: Operation, *operations: Operation) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        made = await setup(tx, given, lined)
        for operation in operations:
            await operation(tx, made, True)
        return made

    return run


PENDING, RUNNING = runs(claimed=False), runs(claimed=True)
NEXT = runs(claimed=True, waiting=1)
STOPPING = after(NEXT, keep(), stop("rollback"))

PAIRS: dict[str, Pair] = {
    "reject, reject": Pair(rests, ask("reject"), ask("reject")),
    "make it, make it": Pair(
        nothing, ask("reject", if_not_exists="create"), ask("reject", if_not_exists="create")
    ),
    "make the thread, make it by a run": Pair(nothing, make, ask(if_not_exists="create")),
    "make the thread, make the thread": Pair(nothing, make, make),
    "enqueue, end": Pair(RUNNING, ask(), end()),
    "enqueue, unknown thread": Pair(nothing, ask(), ask(if_not_exists="create")),
    "interrupt, end": Pair(RUNNING, ask("interrupt"), end(checkpoint=NewCheckpoint(values=2))),
    "rollback, save": Pair(RUNNING, ask("rollback"), keep()),
    "rollback, retry": Pair(RUNNING, ask("rollback"), end("retriable")),
    "interrupt, claim": Pair(PENDING, ask("interrupt"), take(), also=[(ask("interrupt"), take_nothing())]),
    "rollback, rollback": Pair(RUNNING, ask("rollback"), ask("rollback")),
    "cancel, end": Pair(NEXT, stop(), end()),
    "cancel, events": Pair(RUNNING, stop(), tell),
    "cancel, renew": Pair(RUNNING, stop(), renew),
    "cancel, give back": Pair(NEXT, stop("rollback"), give_back()),
    "cancel, claim": Pair(PENDING, stop(), take(), also=[(stop(), take_nothing())]),
    "cancel the next, end": Pair(NEXT, stop(which=1), end()),
    "stop, enqueue": Pair(STOPPING, end("stopped"), ask()),
    "stop, sweep": Pair(STOPPING, end("stopped"), sweep, later=LATER),
    "end, end": Pair(NEXT, end(), end("error")),
    "end, sweep": Pair(NEXT, end(), sweep, later=LATER),
    "renew, sweep": Pair(NEXT, renew, sweep, later=LATER),
    "save, sweep": Pair(NEXT, keep(), sweep, later=LATER),
    "cancel, sweep": Pair(NEXT, stop(), sweep, later=LATER),
    "delete the run, end": Pair(NEXT, drop_run(), end(checkpoint=NewCheckpoint(values=2))),
    "delete the run, delete the thread": Pair(NEXT, drop_run(), drop_thread),
    "delete the run, delete the run": Pair(NEXT, drop_run(), drop_run()),
    "delete the thread, enqueue": Pair(RUNNING, drop_thread, ask()),
    "delete the thread, make it by a run": Pair(RUNNING, drop_thread, ask(if_not_exists="create")),
    "delete the thread, save": Pair(RUNNING, drop_thread, keep()),
    "delete the thread, change it": Pair(rests, drop_thread, edit),
    "purge, make it by a run": Pair(after(PENDING, drop_thread), purge, ask(if_not_exists="create")),
    "purge, make it": Pair(after(RUNNING, drop_thread), purge, make),
    "purge, stop": Pair(after(RUNNING, drop_thread), purge, end("stopped")),
    "set the state, enqueue": Pair(rests, set_state, ask("reject")),
    "copy, rollback": Pair(after(RUNNING, keep()), copy, stop("rollback")),
    "create and claim, claim": Pair(PENDING, ask_and_take(), take(), also=[(ask_and_take(), take_nothing())]),
    "create and claim, create and claim": Pair(rests, ask_and_take(), ask_and_take("v", "x")),
    "create and claim, end": Pair(NEXT, ask_and_take(limit=2), end(), also=[(ask_and_take(), end())]),
    "create and claim behind, end": Pair(RUNNING, ask_and_take("t"), end()),
    "create and claim, cancel": Pair(PENDING, ask_and_take(limit=2), stop(), also=[(ask_and_take(), stop())]),
    "create and claim, sweep": Pair(NEXT, ask_and_take(), sweep, later=LATER),
    "claim what is due, enqueue": Pair(
        runs(claimed=False, delay=5.0), take(), ask(), later=LATER, also=[(take_nothing(), ask())]
    ),
}
SAMPLE = 8
"""Each test run takes some of the pairs at random; `./dev chaos` takes all."""


@pytest.mark.timeout(300)
async def test_some_orders(postgres_url: str) -> None:
    names = random.sample(list(PAIRS), SAMPLE)
    print(await explore_all(postgres_url, {name: PAIRS[name] for name in names}, SWITCHES))
