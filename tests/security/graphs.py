"""Requests to every route of the LangGraph door that writes assistants and threads, and their actions."""

from __future__ import annotations

from typing import Any

from tests.security.runs import Line, silent_worker
from tests.server.native.support import AGENT
from tests.support.kinds import KINDS

from perdure.assistants.service import Assistants
from perdure.rollouts.store import DatabaseLightningStore
from perdure.threads.service import Threads
from perdure.worker.registry import Agents


def agents() -> Agents:
    """What a server needs to change the states of threads: the agent that they are of."""

    async def echo(ctx: Any, input: Any) -> Any:
        return input

    found = Agents()
    found.register(AGENT, echo)
    return found


async def graph_lines(store: DatabaseLightningStore) -> list[Line]:
    """With whole paths."""
    worker = silent_worker(store)
    await worker.register()
    threads = Threads(store.storage, KINDS)
    kept, gone, copied, pruned = [
        (await threads.create_thread(metadata={"graph_id": AGENT})).thread_id for _ in range(4)
    ]
    mine = (await Assistants(store.storage).create(AGENT)).assistant_id
    thread, assistant = "/threads/{thread_id}", "/assistants/{assistant_id}"
    return [
        ("POST", "/assistants", "", {"graph_id": AGENT}, "create_assistant"),
        ("PATCH", assistant, f"/assistants/{mine}", {"name": "ours"}, "update_assistant"),
        (
            "POST",
            assistant + "/latest",
            f"/assistants/{mine}/latest",
            {"version": 1},
            "set_latest_assistant",
        ),
        ("DELETE", assistant, f"/assistants/{mine}", None, "delete_assistant"),
        ("POST", "/threads", "", {}, "create_thread"),
        ("PATCH", thread, f"/threads/{kept}", {"metadata": {"a": 1}}, "update_thread"),
        ("DELETE", thread, f"/threads/{gone}", None, "delete_thread"),
        ("POST", thread + "/copy", f"/threads/{copied}/copy", None, "copy_thread"),
        ("POST", "/threads/prune", "", {"thread_ids": [pruned]}, "prune_thread"),
        ("POST", thread + "/state", f"/threads/{kept}/state", {"values": {"a": 1}}, "update_state"),
        (
            "POST",
            f"/api/v1{thread}/graph-state",
            f"/api/v1/threads/{kept}/graph-state",
            {"values": {"a": 2}},
            "update_state",
        ),
    ]
