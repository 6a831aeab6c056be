"""Saved views: shared or a caller's own, replaced by name, bounded, and apart from other namespaces."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure.access.views import MAX_VIEWS
from perdure.kernel.config import Settings
from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.runtime.services import Services
from perdure.runtime.stores import open_store
from perdure.service.callers import Caller


@pytest.fixture
async def services(engine_url: str) -> AsyncIterator[Services]:
    services = Services(open_store(engine_url, watchdog_interval=None), Settings())
    yield services
    await services.close()


async def _names(services: Services) -> list[tuple[str, str]]:
    return [(view.name, view.query) for view in await services.access.list_views()]


async def test_views_are_shared_or_a_callers_own(services: Services) -> None:
    anna, bert = (services.acting_as(Caller.trusted(name)) for name in ("anna", "bert"))
    saved = await anna.access.save_view("failed", "rollouts", "status=failed")
    assert (saved.screen, saved.shared) == ("rollouts", True)
    await anna.access.save_view("mine", "runs", shared=False)
    await anna.access.save_view("failed", "rollouts", "status=failed,cancelled")
    assert await _names(anna) == [("failed", "status=failed,cancelled"), ("mine", "")]
    assert await _names(bert) == [("failed", "status=failed,cancelled")]
    assert await _names(services.acting_as(Caller.trusted("anna", "other"))) == []
    with pytest.raises(NotFound):
        await bert.access.delete_view(name="mine", screen="runs", shared=False)
    await bert.access.delete_view(name="failed", screen="rollouts")
    assert await _names(anna) == [("mine", "")]


async def test_views_are_bounded(services: Services) -> None:
    anna = services.acting_as(Caller.trusted("anna"))
    for number in range(MAX_VIEWS):
        await anna.access.save_view(f"view {number}", "runs")
    with pytest.raises(Conflict):
        await anna.access.save_view("one more", "runs")
    await anna.access.save_view("view 0", "runs", "status=error")
    assert len(await anna.access.list_views()) == MAX_VIEWS
    bad: list[dict[str, Any]] = [
        {"name": "", "screen": "runs"},
        {"name": "a", "screen": "x" * 101},
        {"name": "a", "screen": "runs", "query": "q" * 2001},
        {"name": "a\0", "screen": "runs"},
    ]
    for options in bad:
        with pytest.raises(InvalidInput):
            await anna.access.save_view(**options)
