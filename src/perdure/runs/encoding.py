"""Check and encode what a worker sends."""

from __future__ import annotations

from perdure.kernel.checks import optional_text
from perdure.runs.operations.finish import RunFinish
from perdure.threads.encoding import check_events, check_lease, checked, encode_steps
from perdure.threads.work import MAX_OUTPUT, Ending


def encode_finish(ending: Ending) -> RunFinish:
    return RunFinish(
        held=check_lease(ending.held),
        result=ending.result,
        error=ending.error,
        retry_after=ending.retry_after,
        checkpoint=None if ending.checkpoint is None else checked(ending.checkpoint),
        events=check_events(ending.events),
        steps=None
        if ending.graph is None
        else encode_steps(ending.graph, ending.held.thread_id, ending.events),
        output=optional_text(ending.output_text, "output_text", max_length=MAX_OUTPUT),
        stop_reason=optional_text(ending.stop_reason, "stop_reason"),
        turns=ending.turns,
        api_duration_ms=ending.api_duration_ms,
    )
