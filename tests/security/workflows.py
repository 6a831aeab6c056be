"""Requests to every route that writes approvals and overrides, and what the audit calls each."""

from __future__ import annotations

from tests.security.runs import API, Line

from perdure.rollouts.store import DatabaseLightningStore


async def workflow_lines(store: DatabaseLightningStore) -> list[Line]:
    """With whole paths."""
    override = API + "/workflow-overrides/{name}"
    return [
        ("PUT", override, f"{API}/workflow-overrides/build", {"enabled": False}, "set_workflow_override"),
        ("DELETE", override, f"{API}/workflow-overrides/build", None, "clear_workflow_override"),
    ]
