"""What is published when runs move, so that those who wait look at once."""

from __future__ import annotations

from typing import Final

CHANNEL: Final = "workflows"
DUE: Final = "due"
"""The key under which is published that something is to be done for a run: the timer looks at once."""
RUNS_CHANNEL: Final = "workflow_runs"
KIND: Final = "workflow_run"
"""The kind under which the change feed names runs."""


def run_key(ns: int | None, run_id: str) -> str:
    """What is published when a run has moved."""
    return str(ns) + "/" + run_id
