"""What a worker gets of claimed runs, and the inputs of phases, which are made when they are claimed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from perdure.executions.model import FATAL, NOT_RENDERED, PHASE, PhaseInput, PhaseInputs, PhaseOrder
from perdure.kernel.codec import decode_json
from perdure.threads.model import merged
from perdure.threads.operations.assign import ClaimedRun
from perdure.threads.operations.finish import Finish
from perdure.threads.records import Failure
from perdure.threads.rows import checkpoint_of, run_limits, run_of
from perdure.threads.work import Assignment, phase_facts


def assignment_of(claimed: ClaimedRun) -> Assignment:
    """What a worker gets of a claimed run; its input is decoded here, and nowhere before."""
    run, limits = run_of(claimed.run), run_limits(claimed.run)
    thread, assistant, attempt = claimed.thread, claimed.assistant, claimed.attempt
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
        timeout_seconds=limits.run_timeout,
        lease_seconds=limits.unresponsive_seconds,
        origin=claimed.origin,
        checkpoint=None if claimed.state is None else checkpoint_of(claimed.state),
        steps=claimed.steps,
        saved_at=claimed.saved_at,
        resources_id=claimed.run.resources_id,
        last_seq=claimed.last_seq,
        phase=phase_facts(run) if run.kind == PHASE else None,
    )


async def rendered(inputs: PhaseInputs, ns: int, phases: Sequence[Assignment]) -> Mapping[str, PhaseInput]:
    """The inputs of phases by their ids."""
    orders = [_order(each) for each in phases]
    found = await inputs.render(ns, orders) if orders else []
    return dict(zip((order.rollout_id for order in orders), found, strict=True))


def _order(assignment: Assignment) -> PhaseOrder:
    run = assignment.run
    return PhaseOrder(
        rollout_id=run.run_id,
        parent=run.parent,
        attempt=assignment.attempt,
        agent=run.agent,
        input=run.kwargs.input,
    )


def not_rendered(phases: Sequence[Assignment], inputs: Mapping[str, PhaseInput]) -> list[Finish]:
    """How the attempts of the phases end for which there is no input."""
    return [
        Finish(
            each.held,
            "error",
            Failure(error=NOT_RENDERED, message=given.error),
            permanent=True,
            stop_reason=FATAL,
        )
        for each in phases
        if (given := inputs.get(each.run.run_id)) is not None and given.error is not None
    ]


def with_input(assignment: Assignment, inputs: Mapping[str, PhaseInput]) -> Assignment:
    """The assignment with the input that was made for it."""
    run = assignment.run
    given = inputs.get(run.run_id)
    if given is None:
        return assignment
    kwargs = msgspec.structs.replace(run.kwargs, input=given.input)
    return msgspec.structs.replace(assignment, run=msgspec.structs.replace(run, kwargs=kwargs))
