"""Channels and keys of the hints about runs."""

from __future__ import annotations

from typing import Final

CHANNEL: Final = "workflows"
DUE: Final = "due"
"""Key of the hint that a run has work due: the timer looks at once."""
RUNS_CHANNEL: Final = "workflow_runs"
KIND: Final = "workflow_run"
"""Kind of runs in the change feed."""


def run_key(ns: int | None, run_id: str) -> str:
    """Return the key of the hint that a run has changed."""
    return str(ns) + "/" + run_id
