"""Requests to every route of the LangGraph door that writes runs, and what the audit calls each."""

from __future__ import annotations

import uuid
from typing import Any

from tests.server.native.support import AGENT

from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.stores import KINDS
from perdure.threads.records import RunRequest
from perdure.threads.service import Threads

THREAD = str(uuid.uuid4())
OF_THREAD = "/threads/{thread_id}"
ON_IT = f"/threads/{THREAD}"
BODY = {"assistant_id": AGENT}
AWAITED = {f"{place}/runs/{form}" for place in ("", ON_IT) for form in ("wait", "stream")}
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
    ]
