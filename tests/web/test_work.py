"""The screens of workflows and approvals in a real browser: they open, and their actions change the data."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect
from tests.web.world import HOSTILE, TIMEOUT, World, opened, violations
from tests.workflows.support import workflow

from perdure.runtime.services import Services

pytestmark = pytest.mark.asyncio(loop_scope="module")
GATED = """
name: release
description: Asks, then builds and tests beside one another, then tells
phases:
  - {name: agree, type: approval, approval_gate_message: "Release {{title}}?"}
  - {name: build, type: command, command: "true", depends_on: [agree]}
  - {name: test, type: command, command: "true", depends_on: [agree]}
  - {name: tell, type: command, command: "true", depends_on: [build, test]}
"""


class Work(NamedTuple):
    """The services of the server, and the ids of what is in them."""

    services: Services
    run: str
    approval: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def work(world: World) -> AsyncIterator[Work]:
    services = world.visitor.app.services
    services.definitions.add(workflow(GATED))
    run = await services.workflows.run("release", context={"title": HOSTILE[1]})
    approval = (await services.approvals.list()).items[0]
    yield Work(services, run.workflow_run_id or "", approval.approval_id)


async def test_screens_of_work_open_in_both_themes_without_an_error(
    browser: Browser, world: World, work: Work
) -> None:
    screens = {
        "/approvals": "Approvals",
        f"/approvals/{work.approval}": "agree",
        "/workflow-runs": "Workflow runs",
        "/workflow-runs?status=paused&workflow=release": "Workflow runs",
        f"/workflow-runs/{work.run}": "release",
        "/workflows": "Workflows",
    }
    for scheme, rules in {"light": None, "dark": ["color-contrast"]}.items():
        async with opened(browser, world.visitor.url, color_scheme=scheme) as screen:
            for path, heading in screens.items():
                await screen.open(path)
                await screen.heading(heading)
                await expect(screen.page.locator("[data-row], .facts").first).to_be_visible(timeout=TIMEOUT)
                await screen.shot(re.sub(r"\W+", "-", path).strip("-") + f"-{scheme}")
                assert await violations(screen.page, rules) == [], (path, scheme)
                assert await screen.page.locator("img, main script, main style").count() == 0


async def test_a_run_is_paused_approved_resumed_and_cancelled(
    browser: Browser, world: World, work: Work
) -> None:
    async with opened(browser, world.visitor.url) as screen:
        await screen.open(f"/workflow-runs/{work.run}")
        await screen.press("Pause")
        await screen.sees("Paused")
        assert (await work.services.workflows.get(work.run)).held
        await screen.press("Resume")
        await screen.sees("It goes on")
        assert not (await work.services.workflows.get(work.run)).held
        await expect(screen.page.locator("[data-node=agree][data-state=waiting]")).to_be_visible(
            timeout=TIMEOUT
        )
        await screen.page.locator("[data-feed=live]").wait_for()
        await screen.open(f"/approvals/{work.approval}")
        await screen.page.get_by_label("Comment").fill(HOSTILE[0])
        await screen.press("Approve")
        await expect(screen.page.locator(".head [data-status]")).to_have_text("approved", timeout=TIMEOUT)
        assert (await work.services.approvals.get(work.approval)).status == "approved"
        await screen.open(f"/workflow-runs/{work.run}")
        await expect(screen.page.locator("[data-node=agree][data-state=succeeded]")).to_be_visible(
            timeout=TIMEOUT
        )
        await screen.press("Cancel")
        await screen.press("Cancel it")
        await expect(screen.page.locator(".head [data-status]")).to_have_text("cancelled", timeout=TIMEOUT)
        assert (await work.services.workflows.get(work.run)).status == "cancelled"
        await screen.press("Retry")
        await screen.sees("It runs again")
        assert (await work.services.workflows.get(work.run)).status != "cancelled"


async def test_a_workflow_is_switched_off(browser: Browser, world: World, work: Work) -> None:
    async with opened(browser, world.visitor.url) as screen:
        await screen.open("/workflows")
        await screen.page.get_by_label("Enable release").click(force=True)
        await screen.sees("release is disabled")
        assert not (await work.services.workflow_overrides.get("release")).enabled
