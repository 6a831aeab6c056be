"""Definitions that runs use: a workflow with all workflows that it starts, stored once by its digest."""

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
"""Maximum size of a workflow with its prompts and the workflows that it starts."""

_decoder = msgspec.json.Decoder(dict[str, Workflow])


class Snapshot(NamedTuple):
    """A workflow and the workflows that it starts, as JSON."""

    name: str
    digest: str
    body: str


def snapshot(name: str, workflows: Mapping[str, Workflow]) -> Snapshot:
    """Build the snapshot of a workflow out of the known workflows."""
    data = msgspec.json.encode(dict(sorted(_reachable(name, workflows).items())))
    if len(data) > MAX_SNAPSHOT:
        raise InvalidInput(
            f"workflow {name!r} is larger than {MAX_SNAPSHOT} bytes, including started workflows"
        )
    return Snapshot(name, hashlib.sha256(data).hexdigest(), data.decode())


def _reachable(name: str, workflows: Mapping[str, Workflow]) -> dict[str, Workflow]:
    if name not in workflows:
        raise NotFound(f"Workflow {name} not found")
    reachable: dict[str, Workflow] = {}
    pending = [name]
    while pending:
        current = pending.pop()
        if current not in reachable:
            reachable[current] = workflows[current]
            pending += _started(workflows[current], workflows)
    return reachable


def _started(workflow: Workflow, workflows: Mapping[str, Workflow]) -> Iterator[str]:
    for phase in workflow.phases:
        if phase.workflow is None:
            continue
        if phase.workflow not in workflows:
            raise InvalidInput(
                f"workflow {workflow.name!r}: phase {phase.name!r} starts {phase.workflow!r}, "
                "which is not loaded"
            )
        yield phase.workflow


class PlanCache:
    """The plans of recently used definitions, so that each is parsed once."""

    def __init__(self, size: int = MAX_PLANS) -> None:
        self._size = size
        self._plans: OrderedDict[str, dict[str, WorkflowPlan]] = OrderedDict()

    def get(self, digest: str) -> dict[str, WorkflowPlan] | None:
        """Return the plans of a definition, if they are cached."""
        plans = self._plans.get(digest)
        if plans is not None:
            self._plans.move_to_end(digest)
        return plans

    def put(self, digest: str, body: str) -> dict[str, WorkflowPlan]:
        """Parse a definition and cache its plans."""
        try:
            workflows = _decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise NotADatabase(f"a stored workflow is damaged: {error}") from error
        plans = self._plans[digest] = {name: WorkflowPlan(workflow) for name, workflow in workflows.items()}
        if len(self._plans) > self._size:
            self._plans.popitem(last=False)
        return plans


PLANS: Final = PlanCache()
"""Cache of plans. All databases of a process share it, because a digest identifies the content."""
