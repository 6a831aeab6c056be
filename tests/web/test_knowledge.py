"""Sessions, memory and settings in a real browser."""

from __future__ import annotations

from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect
from tests.server.support import serving
from tests.web.knowledge import Knowledge, fill_knowledge, spoken
from tests.web.world import HOSTILE, TIMEOUT, World, opened, shows_well

from perdure import InMemoryLightningStore
from perdure.kernel.config import SecretKey

pytestmark = pytest.mark.asyncio(loop_scope="package")
KEY = SecretKey("only-the-operator-knows")


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def knowledge(world: World) -> Knowledge:
    return await fill_knowledge(world.visitor.app.services)


async def test_a_session_is_read_searched_and_followed(
    browser: Browser, world: World, knowledge: Knowledge
) -> None:
    async with opened(browser, world.visitor.url) as screen:
        page = screen.page
        await screen.open("/sessions")
        await page.locator("[data-row]").filter(has_text="Review the change").first.click()
        await screen.heading("1")
        await screen.sees(HOSTILE[1])
        await page.get_by_role("button", name="Read", exact=False).filter(has_text="done").click()
        await screen.sees("total = price")
        await page.locator("[data-tail=live]").wait_for()
        await knowledge.services.sessions.append("1", [spoken(5, "user", f"Then add it. {HOSTILE[2]}")])
        await screen.sees(f"Then add it. {HOSTILE[2]}")
        await page.get_by_label("Search this session").fill("leaves out")
        await expect(page.locator(".said")).to_have_count(1, timeout=TIMEOUT)
        assert "owned" not in await page.title()
        await screen.open("/sessions?q=leaves%20out")
        await page.get_by_role("link", name="leaves out").click()
        await expect(page.locator(".said.is-found")).to_contain_text("leaves out the tax", timeout=TIMEOUT)


async def test_memory_is_browsed_and_its_citations_open_their_events(
    browser: Browser, world: World, knowledge: Knowledge
) -> None:
    async with opened(browser, world.visitor.url) as screen:
        page = screen.page
        await screen.open("/memory")
        for level in ("Months", "Weeks", "Days", "Segments", "Events"):
            await page.locator(".rows a").first.click()
            await expect(page.get_by_role("heading", level=2).filter(has_text=level)).to_be_visible(
                timeout=TIMEOUT
            )
        await screen.sees(f"Which database do we choose? {HOSTILE[3]}")
        await page.get_by_label("Search memory").fill("SQLite")
        await page.locator(".hit").first.get_by_label("Citation 1").click()
        await expect(page.locator(".cited")).to_contain_text("PostgreSQL, since it has", timeout=TIMEOUT)
        await page.get_by_role("link", name="The session of these events").click()
        await screen.heading("1")
        assert "owned" not in await page.title()


async def test_a_token_is_created_shown_once_and_revoked(browser: Browser) -> None:
    async with (
        InMemoryLightningStore() as store,
        serving(store, api_key=KEY) as visitor,
        opened(browser, visitor.url) as screen,
    ):
        page = screen.page
        await screen.open("/settings")
        await page.get_by_label("Token").fill(str(KEY))
        await screen.press("Log in")
        await screen.press("Create a token")
        await page.get_by_role("textbox", name="Name", exact=True).fill("robot")
        await page.get_by_label("admin").check()
        await screen.press("Create")
        secret = (await page.locator("[data-secret]").inner_text()).strip()
        bearer = {"Authorization": f"Bearer {secret}"}
        made = await visitor.get("/api/v1/me", headers=bearer)
        assert (made.status, set(made.body["scopes"])) == (200, {"read", "admin"})
        await screen.press("Done")
        row = page.locator("[data-token]")
        await expect(row).to_contain_text("robot", timeout=TIMEOUT)
        assert secret not in await page.content()
        await row.get_by_role("button", name="Revoke").click()
        await screen.press("Revoke it")
        await expect(row.locator("[data-status=revoked]")).to_be_visible(timeout=TIMEOUT)
        assert (await visitor.get("/api/v1/me", headers=bearer)).status == 401
        screen.errors = [error for error in screen.errors if "401" not in error]


async def test_screens_of_knowledge_open_in_both_themes_and_on_a_phone(
    browser: Browser, world: World, knowledge: Knowledge
) -> None:
    screens = {
        "/sessions": "Sessions",
        "/sessions/1": "1",
        "/memory?q=SQLite": "Memory",
        f"/memory/{quote(knowledge.node, safe='')}": "2026",
        "/settings": "Settings",
    }
    await shows_well(browser, world, screens)
    async with opened(browser, world.visitor.url) as screen:
        for path in ("/sessions/nobody", "/memory/nobody"):
            await screen.open(path)
            await screen.sees("There is nothing here")
        screen.errors = [error for error in screen.errors if "404" not in error]
