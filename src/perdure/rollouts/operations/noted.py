"""Who did it: writes of a known actor, each with its entry in the audit in the same transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from perdure.access.operations import add_entry
from perdure.kernel.storage.port import Operation, Result, Tx
from perdure.rollouts.operations import claim, enqueue, report, resources, spans, workers

Objects = Callable[[Sequence[Any], Any], list[str]]
"""The ids of what an operation changed, by its arguments and its answer; one for each change."""


class Note(NamedTuple):
    """What an operation is called in the audit, and what it is about."""

    action: str
    objects: Objects


async def noted(tx: Tx, actor: str, operation: Operation[..., Result], *args: Any) -> Result:
    """Run an operation and write down who did what. What changed nothing is not written down."""
    answer = await operation(tx, *args)
    note = NOTES[operation]
    objects = note.objects(args, answer)
    if objects:
        await add_entry(tx, actor, note.action, objects)
    return answer


def first_of_each(args: Sequence[Any], answer: Any) -> list[str]:
    """The ids of rows; what could not be done is answered with an error."""
    return [row[0] for row in answer if not isinstance(row, Exception)]


def _only(args: Sequence[Any], answer: Any) -> list[str]:
    return [answer[0]]


def _given(args: Sequence[Any], answer: Any) -> list[str]:
    return list(args[0])


def _released(args: Sequence[Any], answer: Any) -> list[str]:
    return [_attempt(*pair) for pair in args[0]]


def _started(args: Sequence[Any], answer: Any) -> list[str]:
    pairs = [pair for pair in answer if not isinstance(pair, Exception)]
    return [_attempt(rollout[0], attempt[2]) for rollout, attempt in pairs]


def _claimed(args: Sequence[Any], answer: Any) -> list[str]:
    return [_attempt(rollout[0], attempt[2]) for share in answer for rollout, attempt in share]


def _reported(args: Sequence[Any], answer: Any) -> list[str]:
    return [_attempt(row[0], row[2]) for row in answer if not isinstance(row, Exception)]


def _stored(args: Sequence[Any], answer: Any) -> list[str]:
    """The attempt of each span that was not known."""
    return [
        _attempt(span.rollout_id, span.attempt_id)
        for call, numbers in zip(args[0], answer, strict=True)
        if not isinstance(numbers, Exception)
        for span, number in zip(call, numbers, strict=True)
        if number is not None
    ]


def _attempt(rollout_id: str, attempt_id: str) -> str:
    return rollout_id + "/" + attempt_id


NOTES: dict[Operation[..., Any], Note] = {
    enqueue.enqueue: Note("enqueue_rollout", first_of_each),
    enqueue.start: Note("start_rollout", _started),
    enqueue.start_missing: Note("start_rollout", _started),
    claim.claim: Note("dequeue_rollout", _claimed),
    claim.release: Note("release_rollout", _released),
    claim.start_attempts: Note("start_attempt", _started),
    report.report_attempts: Note("update_attempt", _reported),
    report.change_rollouts: Note("update_rollout", first_of_each),
    spans.add_spans: Note("add_spans", _stored),
    spans.add_new_spans: Note("add_spans", _stored),
    spans.next_sequence_ids: Note("next_sequence_id", _given),
    resources.add_resources: Note("add_resources", first_of_each),
    resources.update_resources: Note("update_resources", _only),
    workers.beat: Note("update_worker", first_of_each),
}
"""Every operation that a caller's write comes down to. What an attempt is concerned by names it as
`rollout_id/attempt_id`."""
