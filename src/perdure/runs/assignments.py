"""What a worker gets of claimed runs, and the inputs of phases, which are made when they are claimed."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from perdure.assistants.model import row_to_assistant
from perdure.executions.model import FATAL, NOT_RENDERED, PHASE, PhaseInput, PhaseInputs, PhaseOrder
from perdure.kernel.codec import decode_json
from perdure.runs.operations.finish import RunFinish
from perdure.threads.model import merged
from perdure.threads.operations.assign import ClaimedRun
from perdure.threads.records import Failure
from perdure.threads.rows import row_to_checkpoint, row_to_run, run_limits
from perdure.threads.work import Assignment, phase_facts


def build_assignment(claimed: ClaimedRun) -> Assignment:
    """What a worker gets of a claimed run; its input is decoded here, and nowhere before."""
    run, limits = row_to_run(claimed.run), run_limits(claimed.run)
    thread, attempt = claimed.thread, claimed.attempt
    assistant = None if claimed.assistant is None else row_to_assistant(claimed.assistant)
    return Assignment(
        run=run,
        attempt_id=attempt.attempt_id,
        attempt=attempt.number,
        last_attempt=attempt.number - claimed.uncharged >= limits.max_attempts,
        config=merged(
            assistant.config if assistant else {},
            decode_json(thread.config) if thread else {},
            run.kwargs.config,
        ),
        context={**(assistant.context if assistant else {}), **(run.kwargs.context or {})},
        timeout_seconds=limits.run_timeout or None,
        server_timeout_seconds=limits.server_timeout,
        lease_seconds=limits.unresponsive_seconds,
        origin=claimed.origin,
        checkpoint=None if claimed.state is None else row_to_checkpoint(claimed.state),
        steps=claimed.steps,
        saved_at=claimed.saved_at,
        resources_id=claimed.run.resources_id,
        last_seq=claimed.last_seq,
        begun=claimed.begun,
        phase=phase_facts(run) if run.kind == PHASE else None,
    )


async def with_inputs(
    inputs: PhaseInputs, ns: int, claimed: list[Assignment]
) -> tuple[list[Assignment], list[RunFinish]]:
    """The same with the inputs of phases, and how those end for which there is none."""
    phases = [each for each in claimed if each.run.kind == PHASE]
    if not phases:
        return claimed, []
    rendered = await inputs.render(ns, [_order(each) for each in phases])
    given = dict(zip((each.run.run_id for each in phases), rendered, strict=True))
    failed = [_not_rendered(each, given[each.run.run_id]) for each in phases]
    ends = [each for each in failed if each is not None]
    refused = {each.held.run_id for each in ends}
    return [_with_input(each, given) for each in claimed if each.run.run_id not in refused], ends


def _order(assignment: Assignment) -> PhaseOrder:
    run = assignment.run
    return PhaseOrder(
        rollout_id=run.run_id,
        parent=run.parent,
        attempt=assignment.attempt,
        agent=run.agent,
        input=run.kwargs.input,
    )


def _not_rendered(assignment: Assignment, given: PhaseInput) -> RunFinish | None:
    if given.error is None:
        return None
    failure = Failure(error=NOT_RENDERED, message=given.error)
    return RunFinish(assignment.held, "error", failure, permanent=True, stop_reason=FATAL)


def _with_input(assignment: Assignment, given: Mapping[str, PhaseInput]) -> Assignment:
    """The assignment with the input that was made for it."""
    run = assignment.run
    if run.run_id not in given:
        return assignment
    kwargs = msgspec.structs.replace(run.kwargs, input=given[run.run_id].input)
    return msgspec.structs.replace(assignment, run=msgspec.structs.replace(run, kwargs=kwargs))
