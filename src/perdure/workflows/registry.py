"""Registry of the workflows of a process: from files, or from Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from perdure.kernel.errors import NotFound
from perdure.workflows.definition import Workflow
from perdure.workflows.snapshots import Snapshot, snapshot


class RegisteredWorkflow(NamedTuple):
    """A workflow and its file; None for a workflow defined in Python."""

    workflow: Workflow
    file: str | None = None


class WorkflowRegistry:
    """The workflows of a process, by name. Workflows of files are replaced together.

    A workflow in Python takes precedence over a file of the same name.
    """

    def __init__(self, workflows: Iterable[Workflow] = ()) -> None:
        self._python: dict[str, RegisteredWorkflow] = {}
        self._files: dict[str, RegisteredWorkflow] = {}
        self._refused: dict[str, str] = {}
        for workflow in workflows:
            self.add(workflow)

    def add(self, workflow: Workflow) -> None:
        """Add a workflow defined in Python."""
        self._python[workflow.name] = RegisteredWorkflow(workflow)

    def load(
        self,
        loaded: Iterable[tuple[str, Workflow]],
        broken: Iterable[str] = (),
        refused: Mapping[str, str] | None = None,
    ) -> str | None:
        """Replace the workflows of files. Return a sentence about what changed, or None.

        Each workflow comes with its file. A broken file keeps its previous workflow. `refused` has the
        mistakes that `get` reports, by name.
        """
        self._refused = dict(refused or {})
        before, wrong = self._files, set(broken)
        kept = {name: registered for name, registered in before.items() if registered.file in wrong}
        files = {workflow.name: RegisteredWorkflow(workflow, file) for file, workflow in loaded}
        self._files = {**kept, **files}
        new = [name for name in self._files if name not in before]
        gone = [name for name in before if name not in self._files]
        changed = [name for name in self._files if name in before and self._files[name] != before[name]]
        parts = [
            f"{what}: {', '.join(sorted(names))}"
            for what, names in (("new", new), ("changed", changed), ("gone", gone))
            if names
        ]
        return "workflows " + "; ".join(parts) if parts else None

    @property
    def workflows(self) -> dict[str, Workflow]:
        """Return all workflows by name."""
        return {name: registered.workflow for name, registered in self._known.items()}

    @property
    def _known(self) -> dict[str, RegisteredWorkflow]:
        return {**self._files, **self._python}

    def list(self) -> Sequence[RegisteredWorkflow]:
        """List all workflows in the order of their names."""
        return [registered for _, registered in sorted(self._known.items())]

    def get(self, name: str) -> RegisteredWorkflow:
        """Return a workflow. Raise NotFound if there is none of this name."""
        registered = self._known.get(name)
        if registered is None:
            reason = self._refused.get(name)
            raise NotFound(f"Workflow {name} not found" + (f": {reason}" if reason else ""))
        return registered

    def snapshot(self, name: str) -> Snapshot:
        """Return a workflow with all workflows that it starts, as runs store it."""
        self.get(name)
        return snapshot(name, self.workflows)
