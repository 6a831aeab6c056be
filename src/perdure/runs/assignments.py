"""Assignments of claimed runs, and the inputs of phases, which are rendered at the claim."""

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
    """Build the assignment of a claimed run. The run's input is decoded only here."""
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
    """Add the rendered inputs of phases. Return the assignments, and endings of phases without an input."""
    phases = [assignment for assignment in claimed if assignment.run.kind == PHASE]
    if not phases:
        return claimed, []
    orders = [
        PhaseOrder(
            rollout_id=phase.run.run_id,
            parent=phase.run.parent,
            attempt=phase.attempt,
            agent=phase.run.agent,
            input=phase.run.kwargs.input,
        )
        for phase in phases
    ]
    rendered = await inputs.render(ns, orders)
    input_by_run = dict(zip((phase.run.run_id for phase in phases), rendered, strict=True))
    failed = [_refuse_phase(phase, input_by_run[phase.run.run_id]) for phase in phases]
    ends = [ending for ending in failed if ending is not None]
    refused = {ending.held.run_id for ending in ends}
    accepted = [assignment for assignment in claimed if assignment.run.run_id not in refused]
    return [_add_input(assignment, input_by_run) for assignment in accepted], ends


def _refuse_phase(assignment: Assignment, rendered: PhaseInput) -> RunFinish | None:
    if rendered.error is None:
        return None
    failure = Failure(error=NOT_RENDERED, message=rendered.error)
    return RunFinish(assignment.held, "error", failure, permanent=True, stop_reason=FATAL)


def _add_input(assignment: Assignment, inputs: Mapping[str, PhaseInput]) -> Assignment:
    run = assignment.run
    if run.run_id not in inputs:
        return assignment
    kwargs = msgspec.structs.replace(run.kwargs, input=inputs[run.run_id].input)
    return msgspec.structs.replace(assignment, run=msgspec.structs.replace(run, kwargs=kwargs))
