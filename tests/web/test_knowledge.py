"""Sessions, memory and settings in a real browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect
from tests.server.support import serving
from tests.web.world import HOSTILE, TIMEOUT, World, opened, shows_well

from perdure import InMemoryLightningStore
from perdure.jobs.model import JobContext
from perdure.kernel.config import Key, Settings
from perdure.kernel.ids import derived_ulid
from perdure.memory.records import NewMemoryEvent
from perdure.memory.service import REBUILD_JOB
from perdure.runtime.memory_work import MemoryWork
from perdure.runtime.services import Services

pytestmark = pytest.mark.asyncio(loop_scope="package")
KEY = Key("only-the-operator-knows")
NOON = 1_771_934_400_000


def spoken(number: int, role: str, content: Any) -> dict[str, Any]:
    """A line as Claude Code writes it."""
    time = f"2026-02-24T12:00:{number:02}Z"
    message = {"role": role, "content": content, **({"id": f"m{number}"} if role == "assistant" else {})}
    return {"type": role, "uuid": f"line-{number}", "timestamp": time, "message": message}


LINES = [
    spoken(1, "user", f"Review the change. {HOSTILE[1]}"),
    spoken(2, "assistant", [{"type": "tool_use", "id": "t1", "name": "Read", "input": {"file": HOSTILE[0]}}]),
    spoken(3, "user", [{"type": "tool_result", "tool_use_id": "t1", "content": "total = price"}]),
    spoken(4, "assistant", [{"type": "text", "text": "The total leaves out the tax."}]),
]


class Knowledge(NamedTuple):
    services: Services
    node: str
    """A day of the table of contents."""


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def knowledge(world: World) -> AsyncIterator[Knowledge]:
    services = world.visitor.app.services
    await services.sessions.append("1", LINES)
    events = [
        NewMemoryEvent(
            event_id=derived_ulid(NOON + number * 1000, "memory", str(number)),
            session_id="1",
            timestamp_ms=NOON + number * 1000,
            role="user" if number % 2 == 0 else "assistant",
            event_type="user_message" if number % 2 == 0 else "assistant_message",
            text=text,
        )
        for number, text in enumerate(
            (
                f"Which database do we choose? {HOSTILE[3]}",
                "We choose SQLite, because it needs no server.",
                "And for the large ones?",
                "PostgreSQL, since it has many writers.",
            )
        )
    ]
    await services.memory.ingest_many(events)
    job = JobContext(
        storage=services.storage,
        ns=await services.memory.ns("write"),
        namespace=services.memory.namespace,
        job_id="test",
        name=REBUILD_JOB,
        key=None,
        attempt=1,
    )
    await MemoryWork(services.storage, Settings()).jobs.rebuild(job, {})
    node = (await services.memory.toc_root())[0]
    while node.level != "day":
        node = (await services.memory.browse(node.node_id)).items[0]
    yield Knowledge(services, node.node_id)


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
