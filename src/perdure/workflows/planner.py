"""Consequences of the end of a phase for the other phases of a run. Everything here is pure.

A `WorkflowPlan` is a parsed workflow. `RunNodes` has the nodes of a run that a transaction works on: it moves
them by the transition table, counts their dependencies, and returns which nodes are ready or skipped. `needs`
names the nodes to load, so that the end of one phase never reads all phases of a large run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from perdure.workflows import expressions, templates
from perdure.workflows.definition import Phase, Workflow
from perdure.workflows.expressions import Expression
from perdure.workflows.graph import compute_dependencies, holds
from perdure.workflows.model import (
    CANCELLED,
    FAILED,
    NODE,
    NODE_ENDED,
    PENDING,
    READY,
    RUNNING,
    SKIPPED,
    SUCCEEDED,
    WAITING,
    NodeKey,
)
from perdure.workflows.rows import WorkflowNodeRow, WorkflowRunRow
from perdure.workflows.templates import Template


class PlannedPhase:
    """A phase with its parsed conditions and templates, and its place in the graph."""

    def __init__(
        self, phase: Phase, position: int, depends_on: tuple[str, ...], dependents: tuple[str, ...]
    ) -> None:
        self.phase = phase
        self.name = phase.name
        self.position = position
        self.depends_on = depends_on
        self.dependents = dependents

    @cached_property
    def skip_conditions(self) -> tuple[Expression, ...]:
        """Return the conditions for skipping the phase; one true condition is enough."""
        return tuple(expressions.parse(text) for text in self.phase.conditions)

    @cached_property
    def until(self) -> Expression | None:
        """Return the condition that ends the loop of the phase."""
        loop = self.phase.generic_loop
        return None if loop is None or loop.until is None else expressions.parse(loop.until)

    @cached_property
    def _templates(self) -> dict[str, Template]:
        return {}

    def template(self, text: str) -> Template:
        """Return a template of the phase, parsed once."""
        template = self._templates.get(text)
        if template is None:
            template = self._templates[text] = templates.parse(text)
        return template

    @property
    def fails_run(self) -> bool:
        """Return whether the run fails when the phase fails."""
        return self.phase.on_failure is None or self.phase.on_failure.action == "fail"

    def runs_after(self, succeeded: int, failed: int) -> bool:
        """Return whether the phase runs, from the counts of its ended dependencies."""
        return holds(self.phase.trigger_rule, len(self.depends_on), succeeded, failed)


class WorkflowPlan:
    """A workflow with its phases in order."""

    def __init__(self, workflow: Workflow) -> None:
        self.workflow = workflow
        before = compute_dependencies([(phase.name, phase.depends_on) for phase in workflow.phases])
        after: dict[str, list[str]] = {name: [] for name in before}
        for name, wanted in before.items():
            for other in dict.fromkeys(wanted):
                after[other].append(name)
        self.phases: Mapping[str, PlannedPhase] = {
            phase.name: PlannedPhase(
                phase, number, tuple(dict.fromkeys(before[phase.name])), tuple(after[phase.name])
            )
            for number, phase in enumerate(workflow.phases)
        }

    def __getitem__(self, name: str) -> PlannedPhase:
        return self.phases[name]

    @property
    def first_phase(self) -> str:
        return next(iter(self.phases))

    @cached_property
    def by_output(self) -> Mapping[str, str]:
        """Return the phase of each output name: the name of the phase, or its `output_var`."""
        aliases = {p.phase.output_var: name for name, p in self.phases.items() if p.phase.output_var}
        return {**aliases, **{name: name for name in self.phases}}

    @cached_property
    def final_message(self) -> Template | None:
        text = self.workflow.final_message
        return None if text is None else templates.parse(text)

    @cached_property
    def success_marker(self) -> str | None:
        """Return the `set_phase` of the last phase that has a `set_phase`."""
        rules = (planned.phase.on_success for planned in reversed(list(self.phases.values())))
        return next((rule.set_phase for rule in rules if rule is not None and rule.set_phase), None)

    def after(self, name: str) -> set[str]:
        """Return every phase that depends on a phase, directly or through other phases."""
        names: set[str] = set()
        pending = list(self[name].dependents)
        while pending:
            other = pending.pop()
            if other not in names:
                names.add(other)
                pending += self[other].dependents
        return names

    def before(self, name: str) -> set[str]:
        """Return every phase that a phase depends on, directly or through other phases."""
        names: set[str] = set()
        pending = list(self[name].depends_on)
        while pending:
            other = pending.pop()
            if other not in names:
                names.add(other)
                pending += self[other].depends_on
        return names

    def new_nodes(self, run_id: str) -> list[WorkflowNodeRow]:
        """Return the nodes of a new run."""
        return [
            new_node(run_id, planned.name, planned.position, waiting_on=len(planned.depends_on))
            for planned in self.phases.values()
        ]


def new_node(run_id: str, name: str, position: int, *, item: int = 0, waiting_on: int = 0) -> WorkflowNodeRow:
    """Return a node that waits for this number of other nodes."""
    return WorkflowNodeRow(
        run_id=run_id,
        node=name,
        item=item,
        position=position,
        status=NODE.start["planned"],
        waiting_on=waiting_on,
        succeeded_before=0,
        failed_before=0,
        iteration=0,
        cycle=0,
        role=None,
        label=None,
        rollout_id=None,
        execution_id=None,
        approval_id=None,
        child_run_id=None,
        due_at=None,
        started_at=None,
        ended_at=None,
        error=None,
        state=None,
    )


class Settled(NamedTuple):
    """Nodes that became ready, and nodes that were skipped, after other nodes ended."""

    ready: list[WorkflowNodeRow]
    skipped: list[WorkflowNodeRow]


_COUNTED = {READY: "ready_nodes", RUNNING: "running_nodes", WAITING: "waiting_nodes"}


class RunNodes:
    """The nodes of a run that a transaction works on, and their counts in the run's row."""

    def __init__(
        self, plan: WorkflowPlan, run: WorkflowRunRow, nodes: Iterable[WorkflowNodeRow] = ()
    ) -> None:
        self.plan = plan
        self.run = run
        self.nodes: dict[NodeKey, WorkflowNodeRow] = {}
        self._ended: list[WorkflowNodeRow] = []
        self.add(nodes)

    def add(self, nodes: Iterable[WorkflowNodeRow]) -> None:
        """Add nodes that were read or created; nodes that are already here stay unchanged."""
        for node in nodes:
            self.nodes.setdefault(node.key, node)

    def begin(self) -> list[WorkflowNodeRow]:
        """Start a run with new nodes. Return the nodes without dependencies."""
        first = [node for node in self.nodes.values() if not node.waiting_on and not node.item]
        for node in first:
            self.move(node, "dependencies ended")
        return first

    def move(self, node: WorkflowNodeRow, event: str) -> bool:
        """Apply an event to a node and count it. If the event is invalid, change nothing and return False."""
        if not NODE.moves(node.status, event):
            return False
        was, node.status = node.status, NODE.step(node.status, event)
        node.dirty = True
        self._count(node, was, -1)
        self._count(node, node.status, 1)
        if not node.item:
            self.run.open_nodes += (was in NODE_ENDED) - (node.status in NODE_ENDED)
        return True

    def _count(self, node: WorkflowNodeRow, status: str, more: int) -> None:
        """Count nodes by status. A map phase that waits for its items counts by its items."""
        name = _COUNTED.get(status)
        is_map = not node.item and self.plan[node.node].phase.type == "map"
        if name is not None and not (is_map and status == WAITING):
            setattr(self.run, name, getattr(self.run, name) + more)

    def end(self, node: WorkflowNodeRow, event: str, *, fails_run: bool = False) -> bool:
        """End a node: succeeded, failed or skipped. `settle` then updates its dependents."""
        if not self.move(node, event):
            return False
        node.rollout_id = node.due_at = None
        if not node.item:
            self.run.failed_nodes += fails_run
            self._ended.append(node)
        return True

    def needs(self) -> set[str]:
        """Return the nodes that `settle` needs and that are not loaded: dependents of ended nodes."""
        wanted = {name for node in self._ended for name in self.plan[node.node].dependents}
        return {name for name in wanted if NodeKey(name) not in self.nodes}

    @property
    def is_settled(self) -> bool:
        """Return whether the dependents of all ended nodes are up to date."""
        return not self._ended

    def settle(self) -> Settled:
        """Update the dependents of ended nodes. Skipped nodes have ended too: settle again."""
        ended, self._ended = self._ended, []
        settled = Settled([], [])
        for node in ended:
            for name in self.plan[node.node].dependents:
                self._arrive(self.nodes[NodeKey(name)], node, settled)
        return settled

    def _arrive(self, node: WorkflowNodeRow, before: WorkflowNodeRow, settled: Settled) -> None:
        node.waiting_on -= 1
        node.succeeded_before += self.counts_as_success(before)
        node.failed_before += before.status == FAILED and not self.counts_as_success(before)
        node.dirty = True
        if node.waiting_on > 0 or node.status != PENDING:
            return
        if self.plan[node.node].runs_after(node.succeeded_before, node.failed_before):
            self.move(node, "dependencies ended")
            settled.ready.append(node)
        else:
            self.end(node, "skipped")
            settled.skipped.append(node)

    def counts_as_success(self, node: WorkflowNodeRow) -> bool:
        """Return whether an ended node counts as a success for its dependents, as an allowed failure does."""
        if node.status == SUCCEEDED:
            return True
        on_failure = self.plan[node.node].phase.on_failure
        return node.status == FAILED and on_failure is not None and on_failure.action == "continue"

    # --- going back ---------------------------------------------------------------------------------------

    def reset(self, names: Iterable[str]) -> list[WorkflowNodeRow]:
        """Restart phases. Return the phases without open dependencies.

        All nodes of the run must be loaded. The dependencies of each phase are counted again.
        """
        again = {name for name in names if NodeKey(name) in self.nodes}
        self._ended = [node for node in self._ended if node.node not in again]
        for name in again:
            node = self.nodes[NodeKey(name)]
            if node.status == FAILED and self.plan[name].fails_run:
                self.run.failed_nodes -= 1
            self.move(node, "reset")
            node.dirty = True
            node.due_at = node.rollout_id = node.ended_at = node.error = None
        for name in again:
            self._recount(self.nodes[NodeKey(name)])
        return [node for node in self._in_order(again) if not node.waiting_on]

    def drop_items(self, names: Collection[str]) -> None:
        """Drop the items of map phases that start again. All these items have ended."""
        for key in [key for key in self.nodes if key.item and key.node in names]:
            del self.nodes[key]

    def _recount(self, node: WorkflowNodeRow) -> None:
        before = [self.nodes[NodeKey(name)] for name in self.plan[node.node].depends_on]
        ended = [other for other in before if other.status in NODE_ENDED]
        node.waiting_on = len(before) - len(ended)
        node.succeeded_before = sum(map(self.counts_as_success, ended))
        node.failed_before = sum(
            other.status == FAILED and not self.counts_as_success(other) for other in ended
        )

    def _in_order(self, names: Iterable[str]) -> Iterator[WorkflowNodeRow]:
        nodes = [self.nodes[NodeKey(name)] for name in names]
        return iter(sorted(nodes, key=lambda node: node.position))

    def unfinished(self) -> set[str]:
        """Return the phases that a retry of the run starts again: all that are not done.

        A phase skipped on its own condition is done, and so is a failed phase that may fail.
        """
        return {node.node for node in self.nodes.values() if not node.item and not self._is_done(node)}

    def _is_done(self, node: WorkflowNodeRow) -> bool:
        if node.status == FAILED:
            return not self.plan[node.node].fails_run
        return node.status == SUCCEEDED or (node.status == SKIPPED and bool(node.started_at))

    def cancel(self) -> list[WorkflowNodeRow]:
        """Cancel every loaded node that has not ended. Return the changed nodes."""
        cancelled = [node for node in self.nodes.values() if node.status not in NODE_ENDED]
        for node in cancelled:
            self.move(node, CANCELLED)
            node.rollout_id = node.due_at = node.approval_id = None
        return cancelled
