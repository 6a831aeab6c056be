"""Requests to every route of the LangGraph protocol that writes runs, and what the audit calls each."""

from __future__ import annotations

import uuid
from typing import Any

from tests.server.native.support import AGENT
from tests.support.kinds import KINDS

from perdure.rollouts.store import DatabaseLightningStore
from perdure.threads.records import RunRequest
from perdure.threads.service import Threads

THREAD = str(uuid.uuid4())
OF_THREAD = "/threads/{thread_id}"
ON_IT = f"/threads/{THREAD}"
BODY = {"assistant_id": AGENT}
AWAITED = {"/mcp", *(f"{place}/runs/{form}" for place in ("", ON_IT) for form in ("wait", "stream"))}
"""What ends only when a worker has done its part."""

Line = tuple[str, str, str, Any, str]


async def graph_run_lines(store: DatabaseLightningStore) -> list[Line]:
    threads = Threads(store.storage, KINDS)
    await threads.create_thread(THREAD)
    asking = RunRequest(
        assistant_id=AGENT, thread_id=THREAD, multitask_strategy="enqueue", after_seconds=3600
    )
    one, other, removed = [(await threads.create_run(asking)).run_id for _ in range(3)]
    run, many = OF_THREAD + "/runs/{run_id}", {"thread_id": THREAD, "run_ids": [other]}
    return [
        ("POST", run + "/cancel", f"{ON_IT}/runs/{one}/cancel?wait=1", None, "cancel_run"),
        ("POST", "/runs/cancel", "", many, "cancel_run"),
        ("DELETE", run, f"{ON_IT}/runs/{removed}", None, "delete_run"),
        ("POST", OF_THREAD + "/runs/wait", ON_IT + "/runs/wait", BODY, "create_run"),
        ("POST", OF_THREAD + "/runs/stream", ON_IT + "/runs/stream", BODY, "create_run"),
        ("POST", OF_THREAD + "/runs", ON_IT + "/runs", BODY, "create_run"),
        ("POST", "/runs/wait", "", BODY, "create_run"),
        ("POST", "/runs/stream", "", BODY, "create_run"),
        ("POST", "/runs", "", BODY, "create_run"),
        ("POST", "/runs/batch", "", [BODY], "create_run"),
        *_message_lines(),
    ]


def _message_lines() -> list[Line]:
    """Routes that take a message of a protocol: each of these messages creates a run."""
    command = {"id": 1, "method": "run.start", "params": BODY}
    tool = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": AGENT, "arguments": {}}}
    sent = {"message": {"role": "user", "parts": [{"kind": "text", "text": "hello"}], "messageId": "m"}}
    task = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "message/send",
        "params": {**sent, "configuration": {"blocking": False}},
    }
    return [
        ("POST", OF_THREAD + "/commands", ON_IT + "/commands", command, "create_run"),
        ("POST", "/mcp", "", tool, "create_run"),
        ("POST", "/a2a/{assistant_id}", f"/a2a/{AGENT}", task, "create_run"),
    ]
