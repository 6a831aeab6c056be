"""Phases to execute: the orders for workers, built from the nodes of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from perdure.executions.model import ExecutionSeed, NewPhase, TriggerType
from perdure.workflows.definition import COMMANDS, Phase
from perdure.workflows.model import Pointer, build_skill
from perdure.workflows.rows import WorkflowNodeRow, WorkflowRunRow
from perdure.workflows.steps import Execute, get_seconds, own_sandbox
from perdure.workflows.values import Config

COMMAND: Final = "perdure.command"
SCRIPT: Final = "perdure.script"
CALLABLE: Final = "perdure.callable"
HTTP: Final = "perdure.http"
CHECK: Final = "perdure.check"
FREE_LAPSES: Final = 10
"""Number of lost workers that do not count as attempts of a phase. A run is given up before that."""


def built_in(phase: Phase, role: str) -> str | None:
    """Return the built-in agent that executes a phase; None if an assistant executes it."""
    if role == "check":
        return CHECK
    if role in ("fix", "recheck"):
        return None
    if phase.type in COMMANDS or (phase.type == "map" and phase.command is not None):
        return COMMAND
    if phase.type == "script" or (phase.type == "map" and phase.script is not None):
        return SCRIPT
    if phase.type == "callable" or (phase.type == "map" and phase.callable is not None):
        return CALLABLE
    return HTTP if phase.type == "http" or (phase.type == "map" and phase.http is not None) else None


def build_seed(run: WorkflowRunRow, label: str) -> ExecutionSeed:
    """Build the fields that the executions of a phase take from its run."""
    return ExecutionSeed(
        trigger_type=cast(TriggerType, run.trigger_type),
        trigger_id=run.trigger_id,
        skill=build_skill(run.workflow_name, label),
        label=label,
        repo=run.repo,
        issue_number=run.issue_number,
        workflow_run_id=run.id,
    )


def new_phase(
    run: WorkflowRunRow,
    phase: Phase,
    node: WorkflowNodeRow,
    step: Execute,
    assistant: str | None,
    config: Config,
    context: Mapping[str, Any],
) -> NewPhase | str:
    """Build the phase that a step executes, or return the reason why it cannot be executed."""
    agent = built_in(phase, step.role)
    name = None if agent is not None else assistant or config.assistant_of(phase.name)
    if agent is None and not name:
        return (
            f"it has no assistant: give it an 'assistant', or set workflow_assistants.{phase.name} "
            "or workflow_assistants.default"
        )
    label = str(step.label)
    pointer = Pointer(
        workflow_run_id=run.id,
        node=node.node,
        item=node.item,
        label=label,
        role=step.role,
        iteration=node.iteration,
        cycle=node.cycle,
        sandbox=own_sandbox(phase, config),
        network=bool(phase.network),
    )
    retry = phase.retry if step.role != "check" else None
    return NewPhase(
        input=pointer.text,
        execution=build_seed(run, label),
        agent=agent,
        assistant=name,
        parent=run.id,
        timeout_seconds=get_seconds(phase, step.role, context),
        max_attempts=1 if retry is None else retry.max_attempts,
        retry_seconds=None if retry is None else retry.backoff_seconds,
        free_lapses=FREE_LAPSES,
    )
