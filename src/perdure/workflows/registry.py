"""The workflows that a process knows: from files, or from Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from perdure.kernel.errors import NotFound
from perdure.workflows.definition import Workflow
from perdure.workflows.snapshots import Snapshot, snapshot


class RegisteredWorkflow(NamedTuple):
    """A workflow, and where it comes from: a file, or None for Python."""

    workflow: Workflow
    file: str | None = None


class WorkflowRegistry:
    """The workflows of a process, by name. Those of files are replaced together; one bad file stops no other.

    A workflow in Python counts before a file of its name.
    """

    def __init__(self, workflows: Iterable[Workflow] = ()) -> None:
        self._python: dict[str, RegisteredWorkflow] = {}
        self._files: dict[str, RegisteredWorkflow] = {}
        self._refused: dict[str, str] = {}
        for workflow in workflows:
            self.add(workflow)

    def add(self, workflow: Workflow) -> None:
        """Take a workflow that was written in Python."""
        self._python[workflow.name] = RegisteredWorkflow(workflow)

    def load(
        self,
        found: Iterable[tuple[str, Workflow]],
        broken: Iterable[str] = (),
        refused: Mapping[str, str] | None = None,
    ) -> str | None:
        """Take the workflows of files, each with its file, in place of those that were read before.

        A file with a mistake leaves the workflow that it had before; `refused` gives the mistakes of some by
        name, which callers are told. Gives what has changed in one sentence, or None.
        """
        self._refused = dict(refused or {})
        before, wrong = self._files, set(broken)
        kept = {name: known for name, known in before.items() if known.file in wrong}
        self._files = {**kept, **{each.name: RegisteredWorkflow(each, file) for file, each in found}}
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
        """All workflows by name."""
        return {name: known.workflow for name, known in self._known.items()}

    @property
    def _known(self) -> dict[str, RegisteredWorkflow]:
        return {**self._files, **self._python}

    def list(self) -> Sequence[RegisteredWorkflow]:
        """All workflows in the order of their names."""
        return [known for _, known in sorted(self._known.items())]

    def get(self, name: str) -> RegisteredWorkflow:
        """A workflow; NotFound if there is none of that name."""
        found = self._known.get(name)
        if found is None:
            reason = self._refused.get(name)
            raise NotFound(f"Workflow {name} not found" + (f": {reason}" if reason else ""))
        return found

    def snapshot(self, name: str) -> Snapshot:
        """A workflow with all that it starts, as runs store it."""
        self.get(name)
        return snapshot(name, self.workflows)
