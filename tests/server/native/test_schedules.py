"""Schedules over HTTP, by the native client and by hand."""

from __future__ import annotations

import pytest
from tests.kernel.support import until_true
from tests.server.native.support import AGENT, API, House

from perdure.kernel.errors import InvalidInput, NotFound

YEARLY = "0 0 1 1 *"


async def test_the_client_makes_changes_and_removes_schedules(house: House) -> None:
    schedules = house.client.schedules
    made = await schedules.create(
        YEARLY,
        assistant_id=AGENT,
        timezone="Asia/Tokyo",
        end_time=4102444800.0,
        metadata={"team": "blue"},
        payload={"input": 1, "webhook": "https://ada:secret@hooks.example/x"},
    )
    assert (made.timezone, made.end_time, made.fired) == ("Asia/Tokyo", 4102444800.0, 0)
    assert "secret" not in str(made.payload)
    assert await schedules.get(made.schedule_id) == made
    changed = await schedules.update(made.schedule_id, timezone=None, end_time=None, payload={"input": 2})
    assert (changed.timezone, changed.end_time, changed.payload["input"]) == (None, None, 2)
    assert not (await schedules.pause(made.schedule_id)).enabled
    assert (await schedules.resume(made.schedule_id)).next_at == changed.next_at
    found = await schedules.search(metadata={"team": "blue"}, enabled=True, sort_by="next_at")
    assert [each.schedule_id for each in found] == [made.schedule_id]
    assert (await schedules.search(enabled=False)).total == 0
    await schedules.delete(made.schedule_id)
    for ask in (schedules.get, schedules.delete, schedules.firings):
        with pytest.raises(NotFound):
            await ask(made.schedule_id)


async def test_what_fires_is_seen_through_the_client(house: House) -> None:
    app = house.visitor.app
    made = await house.client.schedules.create("* * * * * *", assistant_id=AGENT)

    async def fired() -> bool:
        await app.services.schedule_timer.fire_due()
        return bool(await house.client.schedules.firings(made.schedule_id))

    await until_true(fired)
    latest = (await house.client.schedules.firings(made.schedule_id))[-1]
    assert latest.started_id is not None
    assert (await house.client.get_run(latest.started_id)).status == "pending"


async def test_bad_requests_are_refused(house: House) -> None:
    schedules = house.client.schedules
    with pytest.raises(InvalidInput, match="Invalid cron expression"):
        await schedules.create("bad", assistant_id=AGENT)
    with pytest.raises(NotFound):
        await schedules.create(YEARLY, assistant_id="nobody")
    for body in ({}, {"expression": YEARLY}, {"expression": YEARLY, "assistant_id": AGENT, "x": 1}):
        assert (await house.visitor.post(f"{API}/schedules", json=body)).status == 422
    assert (await house.visitor.get(f"{API}/schedules?sort_by=payload")).status == 422
