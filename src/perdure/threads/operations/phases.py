"""Creation and end of phases: runs that workflows and chats create.

A phase has a row in `runs`, so that workers execute it like any other run, and a seed for its executions.
A phase gets its own thread, unless it continues a thread. Lists of threads hide the threads of phases.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.agents.records import DEFAULT_TIMEOUT
from perdure.assistants.model import AssistantRow
from perdure.assistants.operations import resolve
from perdure.executions.model import PHASE, WORKFLOWS_QUEUE, NewPhase
from perdure.executions.operations import build_seed_write
from perdure.kernel import ids
from perdure.kernel.errors import NotFound
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import ENDED, Kinds
from perdure.rollouts.operations.enqueue import NewRollout, enqueue
from perdure.rollouts.operations.lines import lock_lines
from perdure.rollouts.operations.report import save_all
from perdure.rollouts.operations.work import LockedRollouts
from perdure.rollouts.operations.workers import WorkerChanges
from perdure.threads import sql
from perdure.threads.model import INTERRUPT, OF_PHASES
from perdure.threads.operations.cancel import end_now
from perdure.threads.operations.settle import load_threads
from perdure.threads.policy import Policy, limits_of_phase
from perdure.threads.rows import QueueRolloutRow, RunRow, ThreadRow, new_thread_row


async def create_phases(
    tx: Tx, requests: Sequence[NewPhase], kinds: Kinds, policy: Policy
) -> list[str | NotFound]:
    """Create phases in their own threads; return their rollout IDs.

    No existing row is locked, so handlers of a kind may call it.
    """
    return await _create(tx, requests, {}, {}, kinds, policy)


async def enter_phases(
    tx: Tx, requests: Sequence[NewPhase], kinds: Kinds, policy: Policy
) -> list[str | NotFound]:
    """Create phases in the threads that they name, each behind the runs of its thread.

    Lines are locked first. A missing thread is created if the phase keeps it.
    """
    names = sorted({request.thread_id for request in requests if request.thread_id is not None})
    holders = await lock_lines(tx, names)
    threads = await load_threads(tx, names, lock=True)
    usable = {
        name: thread
        for name, thread in threads.items()
        if thread.gone_at is None and thread.temporary == OF_PHASES
    }
    answers = await _create(tx, requests, usable, holders, kinds, policy)
    unused = [name for name in names if name not in usable and name not in threads]
    if unused:
        # Remove lines that locking created for missing threads; held lines stay.
        await tx.execute(sql.DROP_LINES, names=unused)
    return answers


async def _create(
    tx: Tx,
    requests: Sequence[NewPhase],
    threads: dict[str, ThreadRow],
    holders: dict[str, str | None],
    kinds: Kinds,
    policy: Policy,
) -> list[str | NotFound]:
    asked = sorted({request.assistant for request in requests if request.assistant is not None})
    assistants = await resolve(tx, asked) if asked else {}
    answers: list[str | NotFound] = []
    accepted: list[tuple[NewPhase, ThreadRow, NewRollout, AssistantRow | None]] = []
    new: dict[str, ThreadRow] = {}
    busy: dict[str, ThreadRow] = {}
    for request in requests:
        assistant = assistants.get(request.assistant or "")
        agent = request.agent if assistant is None else assistant.agent
        thread = _thread_for(tx, request, {**threads, **new})
        if agent is None or thread is None:
            name = f"Assistant {request.assistant}" if agent is None else f"Thread {request.thread_id}"
            answers.append(NotFound(f"{name} not found"))
            continue
        (busy if thread.id in threads else new)[thread.id] = thread
        thread.status, thread.updated_at = "busy", tx.now
        rollout = _rollout(tx, request, thread, agent, policy)
        accepted.append((request, thread, rollout, assistant))
        answers.append(str(rollout.rollout_id))
    if accepted:
        rollouts = [rollout for _, _, rollout, _ in accepted]
        lines = {thread.id for request, thread, _, _ in accepted if request.thread_id is None}
        queued = await enqueue(tx, rollouts, kinds, locked=holders, new_lines=lines)
        runs = [
            _run(tx, number, QueueRolloutRow(*view), *phase)
            for number, (view, phase) in enumerate(zip(queued, accepted, strict=True))
        ]
        await tx.defer(
            build_seed_write(
                [(run.id, request.execution) for run, (request, *_) in zip(runs, accepted, strict=True)]
            ),
            sql.ADD_RUNS.of(runs),
            sql.ADD_THREADS.of(list(new.values())),
            sql.MOVE_THREADS.of(list(busy.values())),
        )
    return answers


def _thread_for(tx: Tx, request: NewPhase, threads: dict[str, ThreadRow]) -> ThreadRow | None:
    if request.thread_id in threads:
        return threads[request.thread_id]
    if request.thread_id is not None and not request.keeps_thread:
        return None
    thread_id = request.thread_id or ids.uuid(tx.now, tx.ids)
    return new_thread_row(thread_id, tx.now, status="", temporary=OF_PHASES, config="{}", metadata="{}")


def _rollout(tx: Tx, request: NewPhase, thread: ThreadRow, agent: str, policy: Policy) -> NewRollout:
    command = "" if request.resume is None else ',"command":{"resume":' + request.resume + "}"
    modes = "" if request.stream_mode is None else ',"stream_mode":' + request.stream_mode
    return NewRollout(
        input='{"input":' + request.input + modes + command + "}",
        config=limits_of_phase(
            request.timeout_seconds or policy.timeout or DEFAULT_TIMEOUT,
            policy.lease,
            request.max_attempts,
            request.retry_seconds,
            request.free_lapses,
        ),
        metadata=request.metadata,
        kind=PHASE,
        queue=WORKFLOWS_QUEUE,
        agent=agent,
        priority=request.priority,
        not_before=tx.wall + request.delay if request.delay else None,
        line=thread.id,
        parent=request.parent,
        rollout_id=request.rollout_id or ids.uuid(tx.now, tx.ids),
    )


def _run(
    tx: Tx,
    number: int,
    rollout: QueueRolloutRow,
    request: NewPhase,
    thread: ThreadRow,
    new: NewRollout,
    assistant: AssistantRow | None,
) -> RunRow:
    agent = str(new.agent)
    return RunRow(
        id=rollout.id,
        thread_id=thread.id,
        assistant_id=agent if assistant is None else assistant.id,
        agent=agent,
        kind=PHASE,
        parent=request.parent,
        rollout_status=rollout.status,
        outcome=None,
        metadata=rollout.metadata,
        input=rollout.input,
        strategy="enqueue",
        created_at=tx.now + request.delay + number,
        updated_at=tx.now,
        end_time=None,
        attempts=0,
        error=None,
        temporary=thread.temporary,
        on_disconnect="continue",
        on_completion="keep" if request.keeps_thread else "delete",
        webhook=None,
        gone_at=None,
        config=rollout.config,
        resources_id=rollout.resources_id,
        session_id=None,
    )


class LockedPhases:
    """Locked phases, with their lines and attempts."""

    def __init__(self, work: LockedRollouts) -> None:
        self.work = work

    @property
    def live(self) -> list[str]:
        return [rollout.id for rollout in self.work.rollouts.values() if rollout.status not in ENDED]


async def load_phases(tx: Tx, rollout_ids: Sequence[str], kinds: Kinds) -> LockedPhases:
    """Lock phases. Call this before locking anything later in the order of locks."""
    work = LockedRollouts(tx, kinds)
    await work.load(rollout_ids, [PHASE], lined=True)
    return LockedPhases(work)


async def cancel_phases(tx: Tx, loaded: LockedPhases, policy: Policy) -> list[str]:
    """End the locked phases that have not ended; return their IDs.

    A worker has the policy's grace to stop. Threads of ended phases that wait for an answer are deleted.
    """
    work, ended = loaded.work, loaded.live
    for rollout_id in ended:
        await end_now(work, work.rollout(rollout_id), INTERRUPT, policy.grace_micros)
    await save_all(work, WorkerChanges(tx), True)
    rollouts = work.rollouts.values()
    lines = [rollout.line for rollout in rollouts if rollout.line is not None and rollout.id not in ended]
    waiting = [
        thread
        for thread in (await load_threads(tx, lines, lock=True)).values()
        if thread.temporary == OF_PHASES and thread.gone_at is None and thread.status == "interrupted"
    ]
    for thread in waiting:
        thread.gone_at = thread.updated_at = tx.now
    await tx.write(sql.MOVE_THREADS.of(waiting))
    for thread in waiting:
        await tx.execute(sql.HIDE_RUNS, thread_id=thread.id)
    return ended
