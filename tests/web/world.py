"""A server with real data of every kind for browser tests, and pages that report what goes wrong in them."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from playwright.async_api import Browser, Page, ViewportSize, expect
from tests.queue_statistics.support import age
from tests.server.native.support import Worker, request
from tests.server.support import Visitor, serving

from perdure import InMemoryLightningStore, PromptTemplate, RolloutConfig
from perdure.runs.queue import RunQueue
from perdure.server.web.dashboard import find_build
from perdure.testing.contract.support import make_span

ROOT = Path(__file__).parents[2]
AXE = ROOT / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"
SHOTS = os.environ.get("TEST_SCREENSHOTS")
"""Where screenshots are put, if somebody wants them."""
TIMEOUT = 20_000
VIEWPORT: ViewportSize = {"width": 1280, "height": 800}
CALL = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "gpt-4o",
    "gen_ai.usage.input_tokens": 900,
    "gen_ai.usage.output_tokens": 90,
}
HOSTILE = (
    "<script>document.title = 'owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "javascript:document.title='owned'",
    "\"><svg onload=document.title='owned'>",
    "{{constructor.constructor('document.title=1')()}}",
    "</script><style>body{display:none}</style>",
)
"""What agents could write to change a page that shows it."""


class World(NamedTuple):
    """The server, and the ids of what it holds."""

    visitor: Visitor
    store: InMemoryLightningStore
    failed: str
    retried: str
    """One that failed too, which a test retries and cancels."""
    running: str
    waiting: str
    succeeded: str
    run: str
    worker: Worker

    async def status(self, rollout_id: str) -> str:
        found = await self.store.get_rollout_by_id(rollout_id)
        assert found is not None
        return found.status


async def fill(store: InMemoryLightningStore, visitor: Visitor) -> World:
    """Rollouts in several states, a worker that holds one, resources, spans, a thread with a run."""
    prompt = await store.add_resources({"prompt": PromptTemplate(template="Answer.", engine="f-string")})
    better = PromptTemplate(template=HOSTILE[0], engine="f-string")
    await store.update_resources(prompt.resources_id, {"prompt": better})
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"], timeout_seconds=60)
    failed = await store.enqueue_rollout(
        {"question": HOSTILE[1], "all": list(HOSTILE)}, config=config, resources_id=prompt.resources_id
    )
    for names in (["think"], ["think", HOSTILE[3]]):
        claimed = await store.dequeue_rollout(worker_id="worker-1")
        assert claimed is not None
        for number, name in enumerate(names, 1):
            await store.add_span(make_span(claimed, number, name=name))
        await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="failed")
    done = await store.start_rollout({"question": "Which metal is liquid?"}, worker_id="worker-1")
    await store.add_span(make_span(done))
    await store.update_attempt(done.rollout_id, done.attempt.attempt_id, status="succeeded")
    retried = await store.start_rollout({"question": "Once more?"}, worker_id="worker-1")
    await store.update_attempt(retried.rollout_id, retried.attempt.attempt_id, status="failed")
    running = await store.start_rollout({"task": "a" * 5000}, worker_id=HOSTILE[1])
    waiting = await store.enqueue_rollout({"question": "Who wrote it?"}, metadata={"note": HOSTILE[2]})
    for number in range(150):
        await store.enqueue_rollout({"number": number})
    worker = Worker(RunQueue.beside(visitor.app.services.threads))
    await worker.register()
    threads = visitor.app.services.threads
    thread = await threads.create_thread()
    run = await threads.create_run(request(thread_id=thread.thread_id, input={"text": HOSTILE[0]}))
    await store.add_span(make_span(running, 1, name="chat", attributes=CALL))
    for _ in range(2):
        await visitor.app.services.recorder.record()
        await store.storage.run(age, 1)
    await visitor.app.services.recorder.add_usage()
    return World(
        visitor=visitor,
        store=store,
        failed=failed.rollout_id,
        retried=retried.rollout_id,
        running=running.rollout_id,
        waiting=waiting.rollout_id,
        succeeded=done.rollout_id,
        run=run.run_id,
        worker=worker,
    )


@asynccontextmanager
async def filled_server(**settings: Any) -> AsyncIterator[World]:
    """A server with all of it; `settings` are those of the server."""
    assert find_build() is not None, "the dashboard is not built; ./dev setup says why"
    async with InMemoryLightningStore() as store, serving(store, **settings) as visitor:
        yield await fill(store, visitor)


class Screen:
    """A page of the dashboard that notes every error of its console."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.errors: list[str] = []
        page.set_default_timeout(TIMEOUT)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)

    async def open(self, path: str) -> None:
        await self.page.goto(f"{self.url}/ui{path}")

    async def goes(self, path: str) -> None:
        """Open another screen in the page that is loaded, as its own links do."""
        if self.page.url.startswith(self.url):
            await self.page.evaluate("path => history.pushState(null, '', path)", f"/ui{path}")
        else:
            await self.open(path)

    async def sees(self, text: str) -> None:
        await expect(self.page.get_by_text(text).first).to_be_visible(timeout=TIMEOUT)

    async def heading(self, name: str) -> None:
        await expect(self.page.get_by_role("heading", level=1)).to_contain_text(name, timeout=TIMEOUT)

    async def press(self, name: str) -> None:
        await self.page.get_by_role("button", name=name, exact=True).first.click()

    async def shot(self, name: str) -> None:
        if SHOTS:
            await self.page.screenshot(path=Path(SHOTS) / f"{name}.png")

    def is_sound(self) -> None:
        assert self.errors == [], self.errors


@asynccontextmanager
async def opened(browser: Browser, url: str, **options: Any) -> AsyncIterator[Screen]:
    """A page in a profile of its own; at the end it must have had no error."""
    context = await browser.new_context(**{"viewport": VIEWPORT, **options})
    try:
        screen = Screen(await context.new_page(), url)
        yield screen
        screen.is_sound()
    finally:
        await context.close()


FADED = """Promise.allSettled(document.getAnimations()
    .filter(each => each.effect?.getComputedTiming().endTime !== Infinity)
    .map(each => each.finished)).then(() => null)"""


async def violations(page: Page, rules: list[str] | None = None) -> list[str]:
    """What axe finds wrong for those who do not see the page or use no mouse, by all rules or some."""
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE.read_text())
    # Colours that fade in have less contrast than they will have.
    await page.evaluate(FADED)
    options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    found = await page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{each['id']}: {node['html'][:200]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


async def shows_well(browser: Browser, world: World, screens: dict[str, str]) -> None:
    """Screens open without an error, are accessible in both themes, fit a phone, and show text as text."""
    async with opened(browser, world.visitor.url) as screen:
        page = screen.page
        for path, heading in screens.items():
            await screen.goes(path)
            await screen.heading(heading)
            await expect(page.locator("[data-row], .card, .facts, .empty, form").first).to_be_visible(
                timeout=TIMEOUT
            )
            name = re.sub(r"\W+", "-", path).strip("-") or "home"
            await screen.shot(f"{name}-light")
            assert not (found := await violations(page)), (path, found)
            await screen.press("Use dark colours")
            await screen.shot(f"{name}-dark")
            assert not (found := await violations(page, ["color-contrast"])), (path, found)
            await screen.press("Use light colours")
            assert await page.locator("img, main script, main style, main iframe").count() == 0, path
            assert "owned" not in await page.title(), path
            await page.set_viewport_size({"width": 390, "height": 760})
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            await screen.shot(f"{name}-phone")
            await page.set_viewport_size(VIEWPORT)
