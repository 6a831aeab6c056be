"""What `doctor` finds over HTTP and in a program: each finding brought about, without a path or a secret."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from perdure.diagnostics.doctor import check_health, check_skew, check_space
from perdure.kernel.config import Settings
from perdure.runtime.services import Services
from perdure.runtime.stores import open_store


@pytest.fixture
async def services(engine_url: str) -> AsyncIterator[Services]:
    found = Services(open_store(engine_url, watchdog_interval=None), Settings())
    yield found
    await found.close()


async def _found(services: Services) -> dict[str, tuple[str, str]]:
    return {each.name: (each.state, each.found) for each in (await services.diagnostics.doctor()).items}


async def test_findings_follow_the_database(services: Services, engine_url: str) -> None:
    first = await _found(services)
    assert {name: state for name, (state, _) in first.items() if state != "ok"} == {}
    assert ("disk" in first) == (services.storage.engine == "sqlite")
    await services.store.enqueue_rollout({"a": 1})
    report = await services.diagnostics.doctor()
    assert not report.ok, "something waits, and nobody claims it"
    state, sentence = (await _found(services))["workers"]
    assert (state, "1 ready" in sentence) == ("failed", True)
    await services.workers.pause_queue("default")
    found = await _found(services)
    assert found["holds"] == ("note", "paused: default")
    assert found["workers"][0] == "ok", "what is paused waits for nobody"
    text = str(found)
    assert engine_url not in text
    assert "/" not in text.replace(" / ", "")


def test_checks_tell_a_note_from_a_failure() -> None:
    assert [check_space(free).state for free in (1 << 20, 100 << 20, 10 << 30)] == ["failed", "note", "ok"]
    assert [check_skew(100.0, micros, 100.2).state for micros in (100_100_000, 200_000_000)] == ["ok", "note"]
    health = {"status": "ok", "indexes_being_built": ["one"]}
    assert check_health(health, "").state == "note"
    assert check_health({"status": "degraded", "reason": "gone"}, "").state == "failed"
