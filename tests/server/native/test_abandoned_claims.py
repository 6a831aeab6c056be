"""A claim whose caller disconnects before its answer is released at once, and not charged."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from tests.kernel.support import PATIENCE, soon, until, until_true
from tests.server.native.support import AGENT, API, House

from perdure.runs.queue import WORK
from perdure.service.base import Service
from perdure.threads.records import RunRequest

Claiming = Callable[[], Awaitable[Any]]


class HeldCommits:
    """Holds the answer of every claim between its commit and its caller, until the test releases it."""

    def __init__(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        self.committed = threading.Event()
        self._let_go = threading.Event()
        storage = house.visitor.app.services.storage
        run = storage.run

        async def held(operation: Any, /, *args: Any, **options: Any) -> Any:
            answer = await run(operation, *args, **options)
            if "claim" in "".join(each.__name__ for each in (operation, *args) if callable(each)):
                self.committed.set()
                assert await asyncio.to_thread(self._let_go.wait, PATIENCE)
            return answer

        monkeypatch.setattr(storage, "run", held)
        self._undo = partial(monkeypatch.setattr, storage, "run", run)

    async def abandon(self, claiming: asyncio.Task[Any], noticed: Callable[[], bool]) -> None:
        """Cancel the caller after the commit, then release the answer."""
        await until(self.committed.is_set)
        claiming.cancel()
        await asyncio.wait([claiming])
        await until(noticed)
        self._undo()
        self._let_go.set()


def _left(house: House, path: str) -> Callable[[], bool]:
    """Build a check whether the server has noticed that the client of a request has disconnected."""
    labels = {"method": "POST", "route": path, "status": "499"}
    count = house.visitor.app.metrics.registry.get_sample_value
    return lambda: bool(count("perdure_http_requests_total", labels))


async def _enqueue(house: House) -> str:
    queued = await house.visitor.app.services.store.enqueue_rollout({"task": 1})
    return queued.rollout_id


async def _is_untouched(house: House, rollout_id: str) -> bool:
    store = house.visitor.app.services.store
    rollout = await store.get_rollout_by_id(rollout_id)
    attempts = await store.query_attempts(rollout_id)
    return rollout is not None and rollout.status == "queuing" and not list(attempts)


async def _check_run_is_free(house: House, run_id: str) -> None:
    """Check that the run is claimable at once, and the abandoned attempt does not count."""
    again = await house.worker.claim()
    assert again.run.run_id == run_id
    assert not again.last_attempt


async def _new_run(house: House) -> str:
    return (await house.client.create_run(RunRequest(assistant_id="echo", max_attempts=2))).run_id


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (API + "/dequeue", {"worker_id": "gone", "limit": 1}),
        ("/v1/agl/queues/rollouts/dequeue", {"worker_id": "gone", "limit": 1}),
    ],
)
async def test_a_rollout_whose_claimer_hung_up_is_released(
    house: House, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    rollout_id = await _enqueue(house)
    held = HeldCommits(house, monkeypatch)
    claiming = asyncio.ensure_future(house.visitor.post(path, json=body))
    await held.abandon(claiming, _left(house, path))
    await until_true(lambda: _is_untouched(house, rollout_id))


async def test_a_run_whose_claimer_hung_up_is_released(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = await _new_run(house)
    held = HeldCommits(house, monkeypatch)
    path = API + WORK + "/claim"
    body = {"worker_id": "gone", "agents": [AGENT], "limit": 1, "wait": 20}
    claiming = asyncio.ensure_future(house.visitor.post(path, json=body))
    await held.abandon(claiming, _left(house, path))
    await _check_run_is_free(house, run_id)


async def test_a_rollout_whose_claimer_was_cancelled_is_released(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout_id = await _enqueue(house)
    held = HeldCommits(house, monkeypatch)
    claiming = asyncio.ensure_future(house.visitor.app.services.rollouts.claim("gone"))
    await held.abandon(claiming, lambda: True)
    await until_true(lambda: _is_untouched(house, rollout_id))


async def test_a_run_whose_claimer_was_cancelled_is_released(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await _new_run(house)
    held = HeldCommits(house, monkeypatch)
    claiming = asyncio.ensure_future(house.worker.queue.claim("gone", [AGENT], 1, 20))
    await held.abandon(claiming, lambda: True)
    await _check_run_is_free(house, run_id)


async def _cancelled_with_the_answer(
    service: Service, claim: Claiming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim, and be cancelled when the answer has arrived but is not yet seen."""
    merged = service._merger.call

    def gone(*args: Any, **options: Any) -> asyncio.Future[Any]:
        answer = merged(*args, **options)
        answer.add_done_callback(lambda _: claiming.cancel())
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(service._merger, "call", gone)
        claiming = asyncio.ensure_future(claim())
        await asyncio.wait([claiming], timeout=PATIENCE)
    assert claiming.cancelled()


async def test_a_rollout_whose_claimer_was_cancelled_with_the_answer_is_released(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout_id = await _enqueue(house)
    rollouts = house.visitor.app.services.rollouts
    await _cancelled_with_the_answer(rollouts, lambda: rollouts.claim("gone"), monkeypatch)
    await until_true(lambda: _is_untouched(house, rollout_id))


async def test_a_run_whose_claimer_was_cancelled_with_the_answer_is_released(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await _new_run(house)
    queue = house.worker.queue
    await _cancelled_with_the_answer(queue, lambda: queue.claim("gone", [AGENT], 1, 20), monkeypatch)
    await soon(_check_run_is_free(house, run_id))
