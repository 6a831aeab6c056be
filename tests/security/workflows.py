"""Requests to every route that writes overrides and messages, and what the audit calls each."""

from __future__ import annotations

from tests.security.runs import API, Line, silent_worker
from tests.server.native.support import AGENT
from tests.workflows.approval_support import ApprovalWorld, Run

from perdure.messaging.service import Messaging
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.phases import ThreadPhases
from perdure.runtime.stores import KINDS
from perdure.testing.clock import ManualClock
from perdure.threads.service import Threads

ANSWERED = ("/messages/wait", "/messages/stream")
"""How paths end of what a turn has to answer first."""


async def workflow_lines(store: DatabaseLightningStore) -> list[Line]:
    """With whole paths."""
    await silent_worker(store).register()
    threads = Threads(store.storage, KINDS)
    messaging = Messaging(store.storage, ThreadPhases(KINDS, threads.policy), threads)
    session = await messaging.get_or_create("slack", "general", "bob", assistant_id=AGENT)
    sent = await messaging.send(session.session_id, "hello", settle_seconds=60)
    place = {"platform": "slack", "channel_id": "general", "user_id": "ann"}
    sessions = f"{API}/messaging/sessions"
    single, own = sessions + "/{session_id}", f"{sessions}/{session.session_id}"
    world = await ApprovalWorld(store.storage, ManualClock(), "default").begin()
    approve, reject = [await world.open(Run(f"audited-{number}")) for number in range(2)]
    reply = await world.open(Run("audited-2"), kind="reply")
    gate = API + "/approvals/{approval_id}"
    override = API + "/workflow-overrides/{name}"
    return [
        ("POST", sessions, "", place, "create_messaging_session"),
        (
            "POST",
            single + "/turns/{turn_id}/cancel",
            f"{own}/turns/{sent.turn_id}/cancel",
            None,
            "cancel_turn",
        ),
        ("POST", single + "/messages", own + "/messages", {"content": "x"}, "send_message"),
        ("POST", single + "/messages/wait", own + "/messages/wait", {"content": "x"}, "send_message"),
        ("POST", single + "/messages/stream", own + "/messages/stream", {"content": "x"}, "send_message"),
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
        (
            "POST",
            gate + "/links",
            f"{API}/approvals/{approve}/links",
            {"assignee": "ann"},
            "create_approval_link",
        ),
        ("POST", gate + "/approve", f"{API}/approvals/{approve}/approve", {}, "approve_approval"),
        ("POST", gate + "/reject", f"{API}/approvals/{reject}/reject", {}, "reject_approval"),
        ("POST", gate + "/reply", f"{API}/approvals/{reply}/reply", {"text": "yes"}, "reply_approval"),
        ("PUT", override, f"{API}/workflow-overrides/build", {"enabled": False}, "set_workflow_override"),
        ("DELETE", override, f"{API}/workflow-overrides/build", None, "clear_workflow_override"),
    ]
