"""Who sees the dashboard: logins, tokens that only read, unknown ids, and a server that goes away."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, expect
from tests.access.support import access_of
from tests.server.native.support import AGENT
from tests.support.python_process import PythonProcess
from tests.web.knowledge import fill_knowledge
from tests.web.world import ROOT, TIMEOUT, Screen, World, filled_server, opened, violations
from tests.workflows.support import workflow

from perdure.kernel.config import SecretKey
from perdure.outbox.operations import NewEffect, put
from perdure.testing.serving import ServerProcess

pytestmark = pytest.mark.asyncio(loop_scope="package")
KEY = SecretKey("only-the-operator-knows")
ACTION = re.compile(
    r"^(Retry|Run|Cancel|Pause|Resume|New|Trigger|Drain|Create|Delete|Revoke|Send|Views|Approve|Reject|Reply"
    r"|Disable|Enable|Stop|Edit|Go on|Let it)\b"
)
"""What somebody who may only read is not offered."""
ASKING = """
name: asking
phases:
  - {name: agree, type: approval, approval_gate_message: "Go on?"}
"""


def screens() -> list[str]:
    """The paths of all screens, as the app has them."""
    table = (ROOT / "dashboard" / "src" / "app" / "screens.tsx").read_text()
    return re.findall(r'^  screen\("([^"]+)"', table, re.MULTILINE)


async def fill_all(world: World) -> dict[str, str]:
    """Something for each screen; gives the id for each name in the paths."""
    services = world.visitor.app.services
    services.definitions.add(workflow(ASKING))
    run = await services.workflows.run("asking")
    schedule = await services.schedules.create("0 9 * * *", assistant_id=AGENT, name="nightly")
    await services.outbox.write(put, [NewEffect("webhook", "run-1", "{}")])
    knowledge = await fill_knowledge(services)
    return {
        "rollout_id": world.failed,
        "run_id": world.run,
        "thread_id": (await services.threads.get_run(world.run)).thread_id,
        "trace_id": (await services.traces.list()).items[0].trace_id,
        "workflow_run_id": run.workflow_run_id or "",
        "approval_id": (await services.approvals.list()).items[0].approval_id,
        "session_id": "1",
        "node_id": knowledge.node,
        "schedule_id": schedule.schedule_id,
        "worker_id": "worker-1",
    }


def filled(path: str, ids: dict[str, str]) -> str:
    return re.sub(r":(\w+)", lambda found: quote(ids[found[1]], safe=""), path)


async def log_in(screen: Screen, token: str) -> None:
    await screen.page.get_by_label("Token").fill(token)
    await screen.press("Log in")


async def test_a_login_returns_to_where_the_person_was_and_shows_what_the_token_allows(
    browser: Browser,
) -> None:
    async with filled_server(api_key=KEY) as world:
        ids = await fill_all(world)
        access = access_of(world.visitor.app)
        _, secret = await access.create_token("eve", scopes=("read",), actor="test")
        async with opened(browser, world.visitor.url) as screen:
            page = screen.page
            await screen.open(f"/rollouts/{world.failed}")
            await page.get_by_label("Token").wait_for()
            assert not (found := await violations(page)), found
            await screen.shot("login-light")
            await log_in(screen, "wrong")
            await screen.sees("this token is unknown")
            assert not (found := await violations(page)), found
            await log_in(screen, secret)
            await screen.heading(world.failed)
            await page.locator("[data-feed=live]").wait_for()
            assert await page.evaluate("document.cookie") == ""
            for path in screens():
                await screen.goes(filled(path, ids))
                await expect(page).to_have_url(re.compile(re.escape(filled(path, ids)) + "$"))
                await expect(page.get_by_role("heading", level=1)).to_be_visible(timeout=TIMEOUT)
                await expect(page.locator("[data-row], .card, .empty, .rows").first).to_be_visible()
                assert await page.get_by_role("button", name=ACTION).count() == 0, path
                assert await page.locator("[role=switch]:enabled, .composer textarea").count() == 0, path
            await screen.goes("/rollouts?status=failed")
            await screen.heading("Rollouts")
            await access.revoke_token(secret.split("_")[1], actor="test")
            await log_in(screen, str(KEY))
            await screen.heading("Rollouts")
            await expect(page).to_have_url(re.compile(r"/rollouts\?status=failed$"))
            await screen.goes(f"/rollouts/{world.failed}")
            await page.get_by_role("button", name="Retry", exact=True).wait_for()
            await screen.press("Log out")
            await page.get_by_label("Token").wait_for()
            # No worker has told the drawing of the agent of the thread, which is 503.
            screen.errors = [error for error in screen.errors if not re.search("401|503", error)]


async def test_the_login_page_is_accessible_in_the_dark(browser: Browser) -> None:
    async with (
        filled_server(api_key=KEY) as world,
        opened(browser, world.visitor.url, color_scheme="dark") as screen,
    ):
        await screen.open("/")
        await screen.page.get_by_label("Token").wait_for()
        assert not (found := await violations(screen.page)), found
        await screen.shot("login-dark")
        screen.errors = [error for error in screen.errors if "401" not in error]


async def test_an_unknown_id_gets_a_page_that_says_so(browser: Browser, world: World) -> None:
    ones = [re.sub(r":\w+", "nobody", path) for path in screens() if ":" in path]
    assert len(ones) == 10
    async with opened(browser, world.visitor.url) as screen:
        for path in (*ones, "/no/such/page"):
            await screen.open(path)
            await screen.sees("There is nothing here")
            await screen.page.get_by_label("Find something else").fill(world.succeeded[:9])
            await screen.press("Find")
            await screen.page.get_by_role("option").filter(has_text=world.succeeded).wait_for()
        screen.errors = [error for error in screen.errors if "404" not in error]


async def test_a_server_that_goes_away_is_shown_and_recovered_from(browser: Browser, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "perdure.cli", "serve", "--database", f"sqlite:///{tmp_path}/a.db")
    with ServerProcess(command, folder=tmp_path, popen=PythonProcess) as server:
        async with opened(browser, server.url) as screen:
            page = screen.page
            await screen.open("/workers")
            await screen.sees("No workers")
            await page.locator("[data-feed=live]").wait_for()
            await page.evaluate("window.isTheSamePage = true")
            await asyncio.to_thread(server.kill)
            await screen.sees("The server does not answer.")
            await screen.goes("/rollouts")
            await asyncio.to_thread(server.start)
            await expect(page.get_by_text("The server does not answer.")).to_have_count(0, timeout=TIMEOUT)
            await screen.sees("No rollouts yet")
            await page.locator("[data-feed=live]").wait_for()
            made = await page.evaluate(
                "fetch('/api/v1/rollouts', {method: 'POST', body: JSON.stringify({input: 'first'}), "
                "headers: {'Content-Type': 'application/json'}}).then(answer => answer.json())"
            )
            await page.locator(f"[data-row={made['rollout_id']}]").wait_for()
            assert await page.evaluate("window.isTheSamePage")
            screen.errors = [error for error in screen.errors if "ERR_" not in error]


async def test_the_first_token_is_shown_before_the_page_needs_it(browser: Browser) -> None:
    async with filled_server() as world, opened(browser, world.visitor.url) as screen:
        page = screen.page
        await screen.open("/settings")
        await page.locator("[data-feed=live]").wait_for()
        await screen.press("Create a token")
        await screen.sees("It is the first token")
        assert not (found := await violations(page)), found
        await screen.shot("first-token-form")
        await page.get_by_role("textbox", name="Name", exact=True).fill("me")
        await page.get_by_role("button", name="Create", exact=True).click()
        secret = (await page.locator("[data-secret]").inner_text()).strip()
        assert secret.startswith("pdr_")
        shown = page.locator("[data-secret] pre")
        assert await shown.evaluate("each => each.scrollWidth <= each.clientWidth"), "all of it can be read"
        # Everybody else needs a token since then, and this page has a login with the new one.
        assert (await world.visitor.get("/api/v1/rollouts")).status == 401
        await screen.sees("This page is logged in with it.")
        await screen.shot("first-token-secret")
        assert not (found := await violations(page)), found
        await screen.press("Done")
        await expect(page.locator("[data-token]")).to_contain_text("me", timeout=TIMEOUT)
        await page.locator("[data-feed=live]").wait_for()
        await screen.goes(f"/rollouts/{world.failed}")
        await page.get_by_role("button", name="Retry", exact=True).wait_for()
        assert await page.get_by_label("Token").count() == 0
        await page.reload()
        await screen.heading(world.failed)
        await screen.press("Log out")
        await page.get_by_label("Token").wait_for()
        await log_in(screen, secret)
        await screen.heading(world.failed)
        screen.errors = [error for error in screen.errors if not re.search("401|503", error)]
