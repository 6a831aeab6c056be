"""The dashboard in a real browser: screens open, actions act, changes arrive, and text is text."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, Response, expect
from tests.server.native.support import request
from tests.web.world import HOSTILE, TIMEOUT, World, opened, shows_well

pytestmark = pytest.mark.asyncio(loop_scope="package")
FIRST_SCREEN_BYTES = 300_000
"""What the first screen may weigh as it is sent, with its font and charts."""


async def test_every_screen_opens_in_both_themes_without_an_error(browser: Browser, world: World) -> None:
    screens = {
        "/": "Home",
        "/rollouts?status=failed": "Rollouts",
        f"/rollouts/{world.failed}": world.failed,
        f"/rollouts/{world.running}": world.running,
        "/runs": "Runs",
        f"/runs/{world.run}": world.run,
        "/workers": "Workers",
        "/workers/worker-1": "worker-1",
    }
    await shows_well(browser, world, screens)


async def test_what_agents_wrote_stays_text(browser: Browser, world: World) -> None:
    async with opened(browser, world.visitor.url) as screen:
        for path in (
            "/",
            "/rollouts?status=failed",
            f"/rollouts/{world.failed}",
            f"/runs/{world.run}",
            "/workers",
        ):
            await screen.open(path)
            await expect(
                screen.page.get_by_text("onerror").or_(screen.page.get_by_text("<script>")).first
            ).to_be_visible(timeout=TIMEOUT)
            assert "owned" not in await screen.page.title()
            assert await screen.page.locator("img, main script, main style, main iframe").count() == 0
        await screen.open(f"/rollouts/{world.failed}")
        for text in HOSTILE:
            escaped = text.replace('"', '\\"')
            await screen.sees(escaped)


async def test_two_attempts_and_two_versions_stand_side_by_side(browser: Browser, world: World) -> None:
    async with opened(browser, world.visitor.url) as screen:
        await screen.open(f"/rollouts/{world.failed}")
        await screen.sees(f"They are alike for 1 span, and part at “{HOSTILE[3]}”, which only the right")
        await expect(screen.page.locator(".is-parting")).to_contain_text(HOSTILE[3], timeout=TIMEOUT)
        await expect(screen.page.locator(".diff .removed")).to_contain_text("Answer.", timeout=TIMEOUT)
        await expect(screen.page.locator(".diff .added")).to_contain_text("<script>", timeout=TIMEOUT)
        path = (await world.visitor.get(f"/api/v1/rollouts/{world.failed}/path")).body["items"]
        for state in {each["status"] for each in path}:
            await expect(screen.page.locator(f"g[data-visited=true]:has-text('{state}')")).not_to_have_count(
                0, timeout=TIMEOUT
            )
        await expect(screen.page.locator(".states li")).to_have_count(len(path), timeout=TIMEOUT)
        await screen.sees("claimed by worker worker-1 as attempt 2")


async def test_actions_change_the_database(browser: Browser, world: World) -> None:
    async with opened(browser, world.visitor.url) as screen:
        await screen.open(f"/rollouts/{world.retried}")
        await screen.press("Retry")
        await screen.sees("Queued again")
        assert await world.status(world.retried) == "requeuing"
        await screen.press("Cancel")
        await screen.press("Cancel it")
        await expect(screen.page.locator(".head [data-status]")).to_have_text("cancelled", timeout=TIMEOUT)
        assert await world.status(world.retried) == "cancelled"
        await screen.open(f"/runs/{world.run}")
        await screen.press("Cancel")
        await screen.press("Cancel it")
        await expect(screen.page.locator(".head [data-status]")).to_have_text("interrupted", timeout=TIMEOUT)
    audit = await world.visitor.get("/api/v1/audit")
    actions = {(entry["actor"], entry["action"]) for entry in audit.body["items"]}
    assert {("anonymous", "update_rollout"), ("anonymous", "cancel_run")} <= actions, actions


async def test_the_first_screen_is_small(browser: Browser, world: World) -> None:
    async with opened(browser, world.visitor.url) as screen:
        sent: list[Response] = []
        screen.page.on("response", lambda answer: sent.append(answer))
        await screen.open("/")
        await screen.heading("Home")
        await expect(screen.page.locator(".chart canvas").first).to_be_visible(timeout=TIMEOUT)
        await screen.page.locator("[data-feed=live]").wait_for()
        files = [answer for answer in sent if "/ui/" in answer.url]
        total = sum([(await answer.request.sizes())["responseBodySize"] for answer in files])
        assert 50_000 < total < FIRST_SCREEN_BYTES, total


async def test_home_draws_the_queues_and_what_models_cost(browser: Browser, world: World) -> None:
    async with opened(browser, world.visitor.url) as screen:
        await screen.open("/")
        for title in ("Queue depth", "Waiting time", "Throughput", "Cost of models, by hour", "Models"):
            await screen.sees(title)
        await expect(screen.page.locator(".chart canvas").first).to_be_visible(timeout=TIMEOUT)
        await screen.sees("1 call · 990 tokens · $0.0032")
        await screen.shot("home-charts")
        await screen.open(f"/rollouts/{world.running}")
        await screen.sees("$0.0032")


async def test_a_worker_is_drained_and_a_run_is_run_again(browser: Browser, world: World) -> None:
    run = await world.visitor.app.services.threads.create_run(request(on_completion="keep"))
    await world.visitor.app.services.threads.cancel_run(run.run_id)
    async with opened(browser, world.visitor.url) as screen:
        await screen.open("/workers/worker-1")
        await screen.press("Drain")
        await expect(screen.page.locator(".head [data-status]")).to_have_text("draining", timeout=TIMEOUT)
        assert (await world.visitor.app.services.workers.get("worker-1")).draining_since is not None
        await screen.press("Let it claim again")
        await expect(screen.page.locator(".head [data-status]")).not_to_have_text("draining", timeout=TIMEOUT)
        await screen.open("/runs?status=interrupted")
        await screen.page.get_by_label(f"Select {run.run_id}").check()
        await screen.press("Retry 1")
        await screen.press("Run again")
        await screen.sees("Run again: 1 run")
    found = await world.visitor.app.services.threads.list_runs(status="pending")
    assert run.run_id in [each.metadata.get("retry_of") for each in found]


async def test_a_view_is_saved_and_opened(browser: Browser, world: World) -> None:
    async with opened(browser, world.visitor.url) as screen:
        await screen.open("/rollouts?status=failed")
        await screen.press("Views")
        await screen.page.get_by_label("Name of a new view").fill("what failed")
        await screen.page.keyboard.press("Enter")
        await screen.sees("Saved: what failed")
        await screen.open("/rollouts")
        await screen.press("Views (1)")
        await screen.page.get_by_role("menuitem", name="what failed").click()
        await screen.page.wait_for_url("**/rollouts?status=failed")
    (view,) = await world.visitor.app.services.access.list_views()
    assert (view.screen, view.query, view.shared) == ("rollouts", "status=failed", True)


async def test_many_are_cancelled_and_retried_at_once(browser: Browser, world: World) -> None:
    async with opened(browser, world.visitor.url) as screen:
        await screen.open("/rollouts?status=queuing")
        rows = screen.page.locator("[data-row]")
        await expect(rows.first).to_be_visible(timeout=TIMEOUT)
        chosen = [await rows.nth(place).get_attribute("data-row") for place in range(3)]
        for rollout_id in chosen:
            await screen.page.get_by_label(f"Select {rollout_id}").check()
        await screen.press("Cancel 3")
        await screen.press("Cancel them")
        await screen.sees("Cancelled: 3 rollouts")
        assert {await world.status(str(each)) for each in chosen} == {"cancelled"}
        await screen.goes("/rollouts?status=cancelled")
        for rollout_id in chosen:
            await screen.page.get_by_label(f"Select {rollout_id}").check()
        await screen.press("Retry 3")
        await screen.press("Run again")
        await screen.sees("Queued again: 3 rollouts")
        assert {await world.status(str(each)) for each in chosen} == {"requeuing"}


async def test_a_long_list_has_few_rows_in_the_page_and_moves_by_keys(browser: Browser, world: World) -> None:
    async with opened(browser, world.visitor.url) as screen:
        await screen.open("/rollouts")
        await expect(screen.page.locator("[data-row]").first).to_be_visible(timeout=TIMEOUT)
        table = screen.page.get_by_role("table")
        await table.evaluate("table => table.scrollTo(0, table.scrollHeight)")
        foot = screen.page.locator(".table-foot")
        await expect(foot).to_contain_text(re.compile(r"(\d+) of \1$"), timeout=TIMEOUT)
        assert await screen.page.locator("[data-row]").count() < 80
        await table.evaluate("table => table.scrollTo(0, 0)")
        await screen.page.keyboard.press("j")
        await screen.page.keyboard.press("j")
        current = await screen.page.locator(".is-current").get_attribute("data-row")
        await screen.page.keyboard.press("Enter")
        await screen.heading(str(current))
        await screen.page.keyboard.press("?")
        await screen.sees("List the keys")
        await screen.page.keyboard.press("Escape")
        await expect(screen.page.get_by_role("dialog")).to_have_count(0, timeout=TIMEOUT)
        await screen.page.keyboard.press("g")
        await screen.page.keyboard.press("w")
        await screen.heading("Workers")


async def test_anything_is_found_by_the_beginning_of_its_id(browser: Browser, world: World) -> None:
    async with opened(browser, world.visitor.url) as screen:
        await screen.open("/")
        await screen.heading("Home")
        await screen.page.keyboard.press("Control+k")
        await screen.page.get_by_role("combobox").fill(world.succeeded[:9])
        await screen.page.get_by_role("option").filter(has_text=world.succeeded).wait_for()
        await screen.page.keyboard.press("Enter")
        await screen.heading(world.succeeded)


async def test_changes_arrive_without_a_reload(browser: Browser, world: World) -> None:
    async with opened(browser, world.visitor.url) as screen:
        await screen.open(f"/rollouts/{world.waiting}")
        await expect(screen.page.locator(".head [data-status]")).to_have_text("queuing", timeout=TIMEOUT)
        await screen.page.locator("[data-feed=live]").wait_for()
        await world.store.update_rollout(world.waiting, status="succeeded")
        await expect(screen.page.locator(".head [data-status]")).to_have_text("succeeded", timeout=TIMEOUT)


async def test_it_works_on_a_phone(browser: Browser, world: World) -> None:
    async with opened(
        browser, world.visitor.url, viewport={"width": 375, "height": 720}, has_touch=True
    ) as screen:
        for path in ("/", "/rollouts", f"/rollouts/{world.running}"):
            await screen.open(path)
            await expect(screen.page.get_by_role("heading", level=1)).to_be_visible(timeout=TIMEOUT)
            assert await screen.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            await screen.shot("phone-" + (path.split("/")[1] or "home"))
        await screen.press("Open the navigation")
        await screen.page.get_by_role("link", name="Workers").click()
        await screen.heading("Workers")


async def test_an_empty_server_teaches_and_notices_the_first_rollout(browser: Browser, world: World) -> None:
    empty = {"X-Perdure-Namespace": "empty"}
    async with opened(browser, world.visitor.url) as screen:
        await screen.page.add_init_script("localStorage.setItem('perdure.namespace', 'empty')")
        await screen.open("/rollouts")
        await screen.sees("No rollouts yet")
        await screen.page.locator("[data-feed=live]").wait_for()
        made = await world.visitor.post("/api/v1/rollouts", json={"input": "first"}, headers=empty)
        await screen.page.locator(f"[data-row={made.body['rollout_id']}]").wait_for()
