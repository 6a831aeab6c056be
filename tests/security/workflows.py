"""Requests to every route that writes overrides and messages, and what the audit calls each."""

from __future__ import annotations

from tests.approvals.support import ApprovalWorld, Run
from tests.security.runs import API, Line, silent_worker
from tests.server.native.support import AGENT
from tests.support.kinds import KINDS, PHASES

from perdure import phase, workflow
from perdure.messaging.service import Messaging
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.stores import ThreadPhases
from perdure.testing.clock import ManualClock
from perdure.threads.service import Threads
from perdure.workflows.registry import WorkflowRegistry
from perdure.workflows.service import Workflows

WORKFLOW = workflow("asks", phase("ask", type="approval"))


async def run_lines(store: DatabaseLightningStore) -> list[Line]:
    """Requests that write workflow runs."""
    workflows = Workflows(store.storage, WorkflowRegistry([WORKFLOW]), PHASES)
    first, second, third = [(await workflows.run("asks")).workflow_run_id for _ in range(3)]
    await workflows.cancel(second or "")
    one = API + "/workflow-runs/{workflow_run_id}"
    runs = f"{API}/workflow-runs"
    values = {"values": {"n": 1}}
    return [
        ("POST", API + "/workflows/{name}/runs", f"{API}/workflows/asks/runs", {}, "dispatch_workflow"),
        ("POST", one + "/cancel", f"{runs}/{first}/cancel", {}, "cancel_workflow_run"),
        ("POST", one + "/retry", f"{runs}/{second}/retry", None, "retry_workflow_run"),
        ("POST", one + "/pause", f"{runs}/{third}/pause", None, "pause_workflow_run"),
        ("POST", one + "/resume", f"{runs}/{third}/resume", None, "resume_workflow_run"),
        ("PATCH", one + "/scratch", f"{runs}/{third}/scratch", values, "update_scratch"),
    ]


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
        *await run_lines(store),
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
