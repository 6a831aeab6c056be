"""Definitions as runs use them: a workflow with all that it starts, stored once under its digest."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from perdure.kernel.errors import InvalidInput, NotADatabase, NotFound
from perdure.workflows.definition import Workflow
from perdure.workflows.planner import WorkflowPlan

MAX_PLANS: Final = 256
MAX_SNAPSHOT: Final = 8 << 20
"""How large a workflow may be, with its prompts and with the workflows that it starts."""

_decoder = msgspec.json.Decoder(dict[str, Workflow])


class Snapshot(NamedTuple):
    """A workflow, and those that it starts, as JSON."""

    name: str
    digest: str
    body: str


def snapshot(name: str, known: Mapping[str, Workflow]) -> Snapshot:
    """The snapshot of a workflow out of those that are known."""
    found = _reachable(name, known)
    data = msgspec.json.encode({each: found[each] for each in sorted(found)})
    if len(data) > MAX_SNAPSHOT:
        raise InvalidInput(f"workflow {name!r} is larger than {MAX_SNAPSHOT} bytes with all that it starts")
    return Snapshot(name, hashlib.sha256(data).hexdigest(), data.decode())


def _reachable(name: str, known: Mapping[str, Workflow]) -> dict[str, Workflow]:
    if name not in known:
        raise NotFound(f"Workflow {name} not found")
    found: dict[str, Workflow] = {}
    pending = [name]
    while pending:
        each = pending.pop()
        if each not in found:
            found[each] = known[each]
            pending += _started(known[each], known)
    return found


def _started(workflow: Workflow, known: Mapping[str, Workflow]) -> Iterator[str]:
    for phase in workflow.phases:
        if phase.workflow is None:
            continue
        if phase.workflow not in known:
            raise InvalidInput(
                f"workflow {workflow.name!r}: phase {phase.name!r} starts {phase.workflow!r}, "
                "which is not loaded"
            )
        yield phase.workflow


class PlanCache:
    """The plans of the definitions that were used last, so that each is read once."""

    def __init__(self, size: int = MAX_PLANS) -> None:
        self._size = size
        self._plans: OrderedDict[str, dict[str, WorkflowPlan]] = OrderedDict()

    def get(self, digest: str) -> dict[str, WorkflowPlan] | None:
        """The plans of a definition, if they were used lately."""
        found = self._plans.get(digest)
        if found is not None:
            self._plans.move_to_end(digest)
        return found

    def put(self, digest: str, body: str) -> dict[str, WorkflowPlan]:
        """Read a definition."""
        try:
            workflows = _decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise NotADatabase(f"a stored workflow is damaged: {error}") from error
        plans = self._plans[digest] = {name: WorkflowPlan(each) for name, each in workflows.items()}
        if len(self._plans) > self._size:
            self._plans.popitem(last=False)
        return plans


PLANS: Final = PlanCache()
"""A definition is known by its content, so that all databases of a process share its plan."""
