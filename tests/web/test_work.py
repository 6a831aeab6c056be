"""Workflows, traces, schedules in a real browser: screens open, and their actions change the data."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from functools import partial
from typing import NamedTuple

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect
from tests.kernel.support import until_true
from tests.server.native.support import AGENT
from tests.web.world import HOSTILE, TIMEOUT, World, opened, violations
from tests.workflows.support import workflow

from perdure import TraceStatus
from perdure.outbox.operations import NewEffect, put
from perdure.runtime.services import Services
from perdure.testing.contract.support import make_span

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
SPANS = 2500


class Work(NamedTuple):
    """The services of the server, and the ids of what is in them."""

    services: Services
    run: str
    approval: str
    schedule: str
    trace: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def work(world: World) -> AsyncIterator[Work]:
    services = world.visitor.app.services
    services.definitions.add(workflow(GATED))
    run = await services.workflows.run("release", context={"title": HOSTILE[1]})
    approval = (await services.approvals.list()).items[0]
    schedule = await services.schedules.create("0 9 * * *", assistant_id=AGENT, name="nightly")
    await services.outbox.write(put, [NewEffect("webhook", "run-1", "{}")])
    started = await world.store.start_rollout({"question": "Long?"})
    spans = [
        make_span(
            started,
            number + 1,
            trace_id="ab" * 16,
            span_id=f"{number + 1:016x}",
            parent_id=f"{number // 10 * 10 + 1:016x}" if number % 10 else None,
            name=HOSTILE[1] if number == 1 else f"step {number}",
            status=TraceStatus(status_code="ERROR" if number == 2 else "OK"),
            start_time=1_700_000_000.0 + number,
            end_time=1_700_000_005.0 + number,
        )
        for number in range(SPANS)
    ]
    for place in range(0, SPANS, 500):
        await world.store.add_many_spans(spans[place : place + 500])
    await until_true(partial(_has_trace, world, spans[0].trace_id))
    yield Work(
        services, run.workflow_run_id or "", approval.approval_id, schedule.schedule_id, spans[0].trace_id
    )


async def _has_trace(world: World, trace_id: str) -> bool:
    return (await world.visitor.get(f"/api/v1/traces/{trace_id}")).status == 200


async def test_screens_of_work_open_in_both_themes_without_an_error(
    browser: Browser, world: World, work: Work
) -> None:
    screens = {
        "/approvals?status=any": "Approvals",
        f"/approvals/{work.approval}": "agree",
        "/workflow-runs": "Workflow runs",
        "/workflow-runs?status=paused&workflow=release": "Workflow runs",
        f"/workflow-runs/{work.run}": "release",
        "/workflows": "Workflows",
        "/traces": "Traces",
        f"/traces/{work.trace}": "step 0",
        "/schedules": "Schedules",
        f"/schedules/{work.schedule}": "nightly",
        "/outbox": "Outbox",
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


async def test_a_long_trace_has_few_rows_in_the_page_and_shows_a_span_on_demand(
    browser: Browser, world: World, work: Work
) -> None:
    async with opened(browser, world.visitor.url) as screen:
        await screen.open(f"/traces/{work.trace}")
        await screen.sees(f"Spans ({SPANS:,})")
        rows = screen.page.locator("[data-span]")
        await screen.page.locator(".waterfall").evaluate("frame => frame.scrollTo(0, frame.scrollHeight)")
        await expect(rows.filter(has_text=f"step {SPANS - 1}")).to_contain_text("5.0 s", timeout=TIMEOUT)
        assert await rows.count() < 200
        await screen.press("errors")
        await expect(rows).to_have_count(1, timeout=TIMEOUT)
        await screen.press("step 2")
        await screen.sees('"ERROR"')
        await screen.press("errors")
        await screen.page.get_by_label("Search the spans").fill("onerror")
        await expect(rows).to_have_count(1, timeout=TIMEOUT)
        await screen.sees(HOSTILE[1])


async def test_a_schedule_is_switched_off(browser: Browser, world: World, work: Work) -> None:
    async with opened(browser, world.visitor.url) as screen:
        await screen.open(f"/schedules/{work.schedule}")
        await screen.press("Disable")
        await expect(screen.page.locator(".head [data-status]")).to_have_text("disabled", timeout=TIMEOUT)
        assert not (await work.services.schedules.get(work.schedule)).enabled
