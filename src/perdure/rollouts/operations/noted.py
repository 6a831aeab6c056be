"""Who did it: writes of a known actor, each with its entry in the audit in the same transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from perdure.access.operations import add_entry
from perdure.kernel.storage.port import Operation, Result, Tx

Objects = Callable[[Sequence[Any], Any], list[str]]
"""The ids of what an operation changed, by its arguments and its answer; one for each change."""


class Note(NamedTuple):
    """What an operation is called in the audit, and what it is about."""

    action: str
    objects: Objects


async def noted(tx: Tx, actor: str, operation: Operation[..., Result], *args: Any) -> Result:
    """Run an operation and write down who did what. What changed nothing is not written down."""
    answer = await operation(tx, *args)
    if operation in NOT_AUDITED:
        return answer
    note = NOTES[operation]
    objects = note.objects(args, answer)
    if objects:
        await add_entry(tx, actor, note.action, objects)
    return answer


def first_of_each(args: Sequence[Any], answer: Any) -> list[str]:
    """The ids of rows; what could not be done is answered with an error."""
    return [row[0] for row in answer if not isinstance(row, Exception)]


NOTES: dict[Operation[..., Any], Note] = {}
"""The operations of threads."""

NOT_AUDITED: set[Operation[..., Any]] = set()
"""What workers write many times a second: renewals and batches of events. Claims and ends are audited."""
