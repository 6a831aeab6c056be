"""Requests to every route that writes overrides and messages, and what the audit calls each."""

from __future__ import annotations

from tests.security.runs import API, Line

from perdure.messaging.service import Messaging
from perdure.rollouts.store import DatabaseLightningStore


async def workflow_lines(store: DatabaseLightningStore) -> list[Line]:
    """With whole paths."""
    session = await Messaging(store.storage).get_or_create("slack", "general", "bob")
    place = {"platform": "slack", "channel_id": "general", "user_id": "ann"}
    sessions = f"{API}/messaging/sessions"
    single, own = sessions + "/{session_id}", f"{sessions}/{session.session_id}"
    override = API + "/workflow-overrides/{name}"
    return [
        ("POST", sessions, "", place, "create_messaging_session"),
        (
            "POST",
            single + "/transcript",
            own + "/transcript",
            {"role": "user", "content": "x"},
            "add_message",
        ),
        (
            "PUT",
            single + "/agent-session",
            own + "/agent-session",
            {"agent_session_id": "a"},
            "update_messaging_session",
        ),
        ("POST", single + "/end", own + "/end", None, "end_messaging_session"),
        ("PUT", override, f"{API}/workflow-overrides/build", {"enabled": False}, "set_workflow_override"),
        ("DELETE", override, f"{API}/workflow-overrides/build", None, "clear_workflow_override"),
    ]
