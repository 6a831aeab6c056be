"""What other files leave: queues are paused, traces exported, sub-agents read; a hidden page pauses."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Route, expect
from tests.kernel.support import soon
from tests.web.knowledge import LINES, spoken
from tests.web.world import HOSTILE, TIMEOUT, World, opened
from tests.workflows.support import workflow

pytestmark = pytest.mark.asyncio(loop_scope="package")
STARTED = """
name: started
phases:
  - {name: agree, type: approval, approval_gate_message: "Start {{title}}?"}
"""
HIDDEN_MS = 11_000
"""Longer than a page that nobody sees goes on listening."""


async def test_a_queue_is_paused_and_resumed_and_says_why_it_waits(browser: Browser, world: World) -> None:
    async def paused() -> list[str]:
        queues = (await world.visitor.get("/api/v1/queues")).body["items"]
        return [queue["queue"] for queue in queues if queue["paused_since"] is not None]

    async with opened(browser, world.visitor.url) as screen:
        await screen.open("/")
        await screen.page.get_by_label("Pause default", exact=True).click()
        await screen.press("Pause it")
        await screen.sees("Paused: default")
        assert await paused() == ["default"]
        row = screen.page.locator("[data-queue=default]")
        await expect(row.locator("[data-status=paused]")).to_be_visible(timeout=TIMEOUT)
        await screen.sees("the queue is paused since")
        await screen.page.get_by_label("Resume default", exact=True).click()
        await screen.sees("Resumed: default")
        assert await paused() == []
        await expect(row.locator("[data-status=paused]")).to_have_count(0, timeout=TIMEOUT)


async def test_a_failure_leads_to_its_trace_which_is_copied_and_exported(
    browser: Browser, world: World, tmp_path: Path
) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    async with opened(browser, world.visitor.url, permissions=permissions) as screen:
        page = screen.page
        await screen.open(f"/rollouts/{world.failed}")
        await page.get_by_role("link", name="Open the trace").first.click()
        await page.locator("[data-span]").first.wait_for()
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Close", exact=True).wait_for()
        await page.keyboard.press("Escape")
        await page.wait_for_url(re.compile("/traces/[0-9a-f]+$"))
        trace_id = page.url.rpartition("/")[2]
        stored = (await world.visitor.get(f"/api/v1/traces/{trace_id}/spans")).body["items"]
        await screen.press("Copy as JSON")
        await screen.sees("Copied")
        assert json.loads(await page.evaluate("navigator.clipboard.readText()")) == stored
        async with page.expect_download() as download:
            await screen.press("Export")
        saved = await download.value
        assert saved.suggested_filename == f"trace-{trace_id}.json"
        await saved.save_as(tmp_path / "trace.json")
        assert json.loads((tmp_path / "trace.json").read_text()) == stored


async def test_the_transcript_of_a_sub_agent_is_read(browser: Browser, world: World) -> None:
    sessions = world.visitor.app.services.sessions
    await sessions.append("with-helper", LINES)
    helper = [spoken(1, "user", "Count the files."), spoken(2, "assistant", f"Twelve. {HOSTILE[0]}")]
    await sessions.append("with-helper", helper, sub_agent="helper")
    async with opened(browser, world.visitor.url) as screen:
        await screen.open("/sessions/with-helper")
        await screen.sees("The total leaves out the tax.")
        await screen.page.get_by_role("combobox", name="Sub-agent").click()
        await screen.page.get_by_role("option", name="helper").click()
        await screen.sees(f"Twelve. {HOSTILE[0]}")
        await screen.page.wait_for_url("**?agent=helper")
        await expect(screen.page.get_by_text("leaves out the tax")).to_have_count(0, timeout=TIMEOUT)


async def look_away(page: Page) -> None:
    """Hide the page, until it has stopped to listen."""
    await page.evaluate(
        "Object.defineProperty(document, 'visibilityState', {value: 'hidden', configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    await page.clock.run_for(HIDDEN_MS)
    await page.locator("[data-feed=paused]").wait_for()


async def look_again(page: Page) -> None:
    await page.evaluate(
        "delete document.visibilityState; document.dispatchEvent(new Event('visibilitychange'))"
    )
    await page.locator("[data-feed=live]").wait_for()


async def test_a_page_that_nobody_sees_pauses_and_catches_up(browser: Browser, world: World) -> None:
    async with opened(browser, world.visitor.url) as screen:
        page = screen.page
        await page.clock.install()
        await screen.open("/rollouts")
        await page.locator("[data-feed=live]").wait_for()
        await look_away(page)
        made = await world.store.enqueue_rollout({"question": "While nobody looked?"})
        await look_again(page)
        await page.locator(f"[data-row={made.rollout_id}]").wait_for()


async def test_what_changes_while_a_list_is_first_read_is_shown(browser: Browser, world: World) -> None:
    """The list was read before the change, and comes to the page after it."""
    is_read, go_on = asyncio.Event(), asyncio.Event()

    async def hold_first(route: Route) -> None:
        if is_read.is_set():
            return await route.continue_()
        answer = await route.fetch()
        is_read.set()
        await go_on.wait()
        return await route.fulfill(response=answer)

    async with opened(browser, world.visitor.url) as screen:
        page = screen.page
        await page.clock.install()
        await page.route("**/api/v1/rollouts?*", hold_first)
        await screen.open("/rollouts")
        await page.locator("[data-feed=live]").wait_for()
        await soon(is_read.wait())
        await look_away(page)
        made = await world.store.enqueue_rollout({"question": "While it was read?"})
        await look_again(page)
        go_on.set()
        await page.locator(f"[data-row={made.rollout_id}]").wait_for()


async def test_settings_show_the_process_and_what_doctor_finds(browser: Browser, world: World) -> None:
    found = (await world.visitor.get("/api/v1/doctor")).body["items"]
    health = (await world.visitor.get("/api/v1/health")).body
    async with opened(browser, world.visitor.url) as screen:
        await screen.open("/settings")
        rows = screen.page.locator("[data-doctor] li")
        await expect(rows).to_have_count(len(found), timeout=TIMEOUT)
        for check in found:
            await expect(rows.filter(has_text=check["name"]).first).to_be_visible()
        await screen.sees(str(health["process_id"]))


async def test_every_list_keeps_its_filter_in_the_url_and_moves_by_keys(
    browser: Browser, world: World
) -> None:
    async with opened(browser, world.visitor.url) as screen:
        page = screen.page
        for path, chip in (
            ("/rollouts", "failed"),
            ("/runs", "error"),
            ("/threads", "idle"),
            ("/traces", "error"),
            ("/workflow-runs", "failed"),
            ("/approvals", "rejected"),
            ("/schedules", "enabled"),
            ("/outbox", "dead"),
            ("/workers", "busy"),
        ):
            await screen.goes(path)
            await page.get_by_role("button", name=chip, exact=True).click()
            await page.wait_for_url(f"**{path}?*={chip}")
            await page.get_by_role("button", name="Views").first.wait_for()
        await screen.goes("/traces")
        await page.locator("[data-row]").first.wait_for()
        await page.keyboard.press("j")
        await expect(page.locator(".is-current")).to_have_count(1, timeout=TIMEOUT)
        await page.keyboard.press("Control+k")
        await page.get_by_role("combobox", name="Find anything").wait_for()


async def test_work_is_started_from_the_page(browser: Browser, world: World) -> None:
    services = world.visitor.app.services
    services.definitions.add(workflow(STARTED))
    async with opened(browser, world.visitor.url) as screen:
        page = screen.page
        await screen.open("/rollouts")
        await screen.press("New rollout")
        await page.get_by_label("Input").fill("{")
        await expect(page.get_by_role("button", name="Queue it")).to_be_disabled()
        await page.get_by_label("Input").fill('{"task": "from the page"}')
        await screen.press("Queue it")
        await page.wait_for_url("**/rollouts/ro-*")
        rollout_id = page.url.rpartition("/")[2]
        stored = await world.store.get_rollout_by_id(rollout_id)
        assert stored is not None
        assert stored.input == {"task": "from the page"}
        await screen.goes("/workflows")
        await page.get_by_label("Run started", exact=True).click()
        await page.get_by_label("Context").fill('{"title": "it"}')
        await screen.press("Run it")
        await screen.heading("started")
        run_id = page.url.rpartition("/")[2]
        assert (await services.workflows.get(run_id)).context["title"] == "it"
        await expect(page.locator(".nav .count")).not_to_be_empty(timeout=TIMEOUT)
        await page.get_by_role("link", name="Answer it").click()
        await screen.sees("Start it?")


async def test_workflow_runs_are_cancelled_and_retried_at_once(browser: Browser, world: World) -> None:
    services = world.visitor.app.services
    services.definitions.add(workflow(STARTED.replace("name: started", "name: many")))
    runs = [(await services.workflows.run("many", context={})).workflow_run_id or "" for _ in range(2)]
    async with opened(browser, world.visitor.url) as screen:
        await screen.open("/workflow-runs?workflow=many")
        for action, sure, told, statuses in (
            ("Cancel 2", "Cancel them", "Cancelled: 2 workflow runs", {"cancelled"}),
            ("Retry 2", "Run again", "Run again: 2 workflow runs", {"running", "paused", "queued"}),
        ):
            for run_id in runs:
                await screen.page.get_by_label(f"Select {run_id}").check()
            await screen.press(action)
            await screen.press(sure)
            await screen.sees(told)
            assert {(await services.workflows.get(run_id)).status for run_id in runs} <= statuses
            selected = screen.page.locator("[data-row][aria-selected=true]")
            await expect(selected).to_have_count(0, timeout=TIMEOUT)
