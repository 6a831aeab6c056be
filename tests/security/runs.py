"""Requests to every route that writes threads, runs and effects, and what the audit calls each."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins
from tests.server.native.support import AGENT, Worker, request
from tests.support.kinds import KINDS

from perdure.graph_requests.model import RequestRow
from perdure.graph_requests.operations import ask
from perdure.graph_requests.service import GraphRequests
from perdure.kernel.clock import to_micros
from perdure.outbox.model import DeliveryOutcome, Retries
from perdure.outbox.operations import NewEffect, claim_due, put, settle
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runs.queue import RunQueue
from perdure.threads.service import Threads
from perdure.threads.work import Assignment

API = "/api/v1"
WORK = "/work"
NOT_AUDITED = "nothing"
"""The action of what leaves no entry in the audit."""
AWAITED = {API + "/runs/wait", API + "/runs/stream"}
"""What ends only when a worker has done its part."""

Line = tuple[str, str, str, Any, str]
"""Method, path of the route, path of the request if another, body, action."""


def _said(held: Any) -> dict[str, Any]:
    """A line of a session."""
    return {"held": held, "session_id": "s", "project": "-app", "lines": ['{"n":1}'], "first": 1}


def silent_worker(store: DatabaseLightningStore) -> Worker:
    """One whose own work leaves no entry."""
    return Worker(RunQueue.beside(Threads(store.storage, KINDS)))


async def work_on(store: DatabaseLightningStore) -> None:
    """Do whatever there is to do."""
    worker = silent_worker(store)
    while True:
        await worker.do()


async def lines(store: DatabaseLightningStore) -> list[Line]:
    worker = silent_worker(store)
    await worker.register()
    threads = Threads(store.storage, KINDS)
    for name in ("kept", "gone", "copied", "pruned"):
        await threads.create_thread(name)
    effect = NewEffect("webhook", "run", "{}")
    ns = await threads.ns()
    effect_id, dead_id = await store.storage.run(put, [effect, effect], ns=ns)
    await store.storage.run(claim_due, "webhook", 2, 60.0, Retries())
    await store.storage.run(settle, [DeliveryOutcome(dead_id, 1, "refused")], Retries(), ns=ns)
    return [
        *await _work_lines(threads, worker),
        *await _request_lines(threads),
        *await _run_lines(threads),
        *_thread_lines(),
        *_assistant_lines(),
        ("POST", "/sessions/{session_id}/lines", "/sessions/s/lines", {"lines": [{"n": 1}]}, NOT_AUDITED),
        ("POST", "/outbox/{effect_id}/retry", f"/outbox/{effect_id}/retry", None, "retry_effect"),
        ("POST", "/outbox/retry", "", {}, "retry_effect"),
    ]


async def _work_lines(threads: Threads, worker: Worker) -> list[Line]:
    claimed: list[Assignment] = []
    for _ in range(3):
        await threads.create_run(request())
        claimed.append(await worker.claim())
    work, given_back, ended = ({"held": to_builtins(each.held)} for each in claimed)
    # The last of all makes something to be claimed.
    await threads.create_run(request())
    return [
        ("POST", f"{WORK}/claim", "", {"worker_id": "w", "agents": [AGENT]}, "claim_run"),
        ("POST", f"{WORK}/register", "", {"worker_id": "w", "agents": [{"name": "n"}]}, "register_agent"),
        ("POST", f"{WORK}/renew", "", {"worker_id": "w", "held": [work["held"]]}, NOT_AUDITED),
        ("POST", f"{WORK}/sessions", "", {"logs": [_said(work["held"])]}, NOT_AUDITED),
        ("POST", f"{WORK}/usage", "", {"reports": [work | {"session_id": "s"}]}, NOT_AUDITED),
        (
            "POST",
            f"{WORK}/events",
            "",
            {"appends": [work | {"events": [{"event": "custom", "body": "1"}]}]},
            NOT_AUDITED,
        ),
        ("POST", f"{WORK}/checkpoints", "", work | {"checkpoint": {"values": 1}}, "save_checkpoint"),
        (
            "POST",
            f"{WORK}/graphs",
            "",
            work | {"steps": {"states": [{"checkpoint_id": "c"}]}},
            NOT_AUDITED,
        ),
        ("POST", f"{WORK}/steps", "", work | {"origin": "o", "name": "s", "body": "1"}, "keep_step"),
        ("POST", f"{WORK}/finish", "", {"endings": [ended | {"result": "success"}]}, "finish_run"),
        ("POST", f"{WORK}/release", "", {"held": [given_back["held"]]}, "release_run"),
        ("POST", f"{WORK}/deregister", "", {"worker_id": "w"}, NOT_AUDITED),
    ]


async def _request_lines(threads: Threads) -> list[Line]:
    requests = GraphRequests.of_same(threads)
    for number in range(3):
        row = RequestRow(f"rq-{number}", AGENT, "kept", None, 0, '{"type":"read_state"}')
        await threads.write(ask, row, to_micros(60), KINDS)
    answered, released = [to_builtins(each.held) for each in await requests.claim("w", [AGENT], 2)]
    return [
        ("POST", f"{WORK}/describe", "", {"agents": [{"agent": AGENT}]}, "describe_agent"),
        # What a request changes is on record as its caller's.
        ("POST", f"{WORK}/requests/claim", "", {"worker_id": "w", "agents": [AGENT]}, NOT_AUDITED),
        ("POST", f"{WORK}/requests/renew", "", {"held": [answered]}, NOT_AUDITED),
        (
            "POST",
            f"{WORK}/requests/answer",
            "",
            {"held": answered, "thread_id": "kept", "answer": "1"},
            NOT_AUDITED,
        ),
        ("POST", f"{WORK}/requests/release", "", {"held": [released]}, "release_rollout"),
    ]


async def _run_lines(threads: Threads) -> list[Line]:
    one, other, removed = [(await threads.create_run(request(on_completion="keep"))).run_id for _ in range(3)]
    body = {"assistant_id": AGENT}
    return [
        ("POST", "/runs/{run_id}/cancel", f"/runs/{one}/cancel", None, "cancel_run"),
        ("POST", "/runs/cancel", "", {"run_ids": [other]}, "cancel_run"),
        ("POST", "/runs/{run_id}/retry", f"/runs/{other}/retry", {}, "create_run"),
        ("POST", "/runs/retry", "", {"run_ids": [other]}, "create_run"),
        ("DELETE", "/runs/{run_id}", f"/runs/{removed}", None, "delete_run"),
        ("POST", "/runs/wait", "", body, "create_run"),
        ("POST", "/runs/stream", "", body, "create_run"),
        ("POST", "/runs", "", body, "create_run"),
        ("POST", "/runs/batch", "", {"runs": [body]}, "create_run"),
    ]


def _thread_lines() -> list[Line]:
    return [
        ("POST", "/threads", "", {"thread_id": "new"}, "create_thread"),
        ("PATCH", "/threads/{thread_id}", "/threads/kept", {"metadata": {"a": 1}}, "update_thread"),
        ("DELETE", "/threads/{thread_id}", "/threads/gone", None, "delete_thread"),
        ("POST", "/threads/prune", "", {"thread_ids": ["pruned"]}, "prune_thread"),
        ("POST", "/threads/{thread_id}/copy", "/threads/copied/copy", None, "copy_thread"),
        ("POST", "/threads/{thread_id}/state", "/threads/kept/state", {"values": 1}, "update_state"),
    ]


def _assistant_lines() -> list[Line]:
    one = "/assistants/{assistant_id}"
    return [
        ("POST", "/assistants", "", {"agent": AGENT, "assistant_id": "mine"}, "create_assistant"),
        ("PATCH", one, "/assistants/mine", {"name": "ours"}, "update_assistant"),
        ("POST", one + "/latest", "/assistants/mine/latest", {"version": 1}, "set_latest_assistant"),
        ("DELETE", one, "/assistants/mine", None, "delete_assistant"),
    ]
