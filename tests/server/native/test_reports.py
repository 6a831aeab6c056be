"""Completions in bulk over HTTP."""

from __future__ import annotations

from tests.server.native.support import House

from perdure.kernel.errors import NotFound
from perdure.rollouts.records import AttemptUpdate, EnqueueRolloutRequest
from perdure.rollouts.service import Rollouts


async def test_reports_travel_together_and_are_answered_one_by_one(house: House) -> None:
    rollouts = Rollouts.over(house.client.transport)
    await rollouts.enqueue_many([EnqueueRolloutRequest(input=number) for number in range(2)])
    claimed = await rollouts.claim(limit=2)
    ids = [each.rollout_id for each in claimed]
    said = [AttemptUpdate(rollout_id=each, attempt_id="latest", status="succeeded") for each in (*ids, "ro-")]
    *done, refused = await rollouts.update_attempts(said)
    assert done == [await rollouts.get_latest_attempt(each) for each in ids]
    assert [each.status for each in done] == ["succeeded"] * 2  # type: ignore[union-attr]
    assert isinstance(refused, NotFound)
    assert "ro-" in str(refused)
