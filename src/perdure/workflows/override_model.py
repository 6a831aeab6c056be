"""Overrides: workflows switched on or off independently of their files."""

from __future__ import annotations

from typing import NamedTuple

from perdure.kernel.clock import to_iso
from perdure.kernel.record import Record


class WorkflowOverride(Record, kw_only=True):
    """Whether a workflow may be dispatched. Without an override it may."""

    name: str
    enabled: bool
    updated_at: str
    updated_by: str | None = None


class WorkflowOverrideRow(NamedTuple):
    """A row of `workflow_overrides`."""

    name: str
    enabled: int
    updated_at: int
    updated_by: str | None


def row_to_override(row: WorkflowOverrideRow) -> WorkflowOverride:
    """Convert a row to the record of an override."""
    return WorkflowOverride(
        name=row.name,
        enabled=bool(row.enabled),
        updated_at=to_iso(row.updated_at),
        updated_by=row.updated_by,
    )
