"""Workflows defined in Python: the same records and checks as for files."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.kernel.checks import explain
from perdure.kernel.errors import InvalidInput
from perdure.workflows.definition import Phase, Workflow
from perdure.workflows.loading import from_python


def phase(name: str, **fields: Any) -> Phase:
    """Build a phase from the same fields as in a file. A callable is named by its registered name."""
    try:
        return msgspec.convert({"name": name, **fields}, Phase)
    except msgspec.ValidationError as error:
        raise InvalidInput(explain(error, Phase, f"phase {name!r}")) from None


def workflow(name: str, *phases: Phase, **fields: Any) -> Workflow:
    """Build a workflow with its phases in order; the other fields are the same as in a file."""
    content = {"name": name, "phases": [msgspec.to_builtins(phase) for phase in phases], **fields}
    return from_python(content)
