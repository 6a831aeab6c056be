"""The guide: the documentation as pages, which a server shows and a browser searches without a network."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from docs import build_site
from tests.server.support import Visitor, serving
from tests.support.browser import browsing

from perdure import InMemoryLightningStore
from perdure.kernel.config import SecretKey
from perdure.server.native import guide

KEY = SecretKey("only-the-operator-knows")
TASKS = [
    "Start",
    "Serve LangGraph",
    "Train with Agent-lightning",
    "Workflows",
    "Memory",
    "Operate",
    "Reference",
]
OUTSIDE = (
    "manifest.json",
    "nothing.html",
    "../guide.py",
    "%2e%2e/%2e%2e/server/native/guide.py",
    "..%2f..%2fpy.typed",
    "//etc/passwd",
    "/etc/passwd",
    "assets/../../../py.typed",
    "assets",
    "index.html/",
    "C:\\windows\\win.ini",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guide, built once for this module; a dead link or a page that no task names ends the build."""
    return build_site.build(tmp_path_factory.mktemp("guide") / "site")


@pytest_asyncio.fixture
async def visitor(site: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Visitor]:
    monkeypatch.setattr(guide, "SITE", site)
    async with InMemoryLightningStore() as store, serving(store, api_key=KEY) as visitor:
        yield visitor


def test_every_page_stands_in_the_table_of_contents() -> None:
    sections = build_site.contents()
    assert [title for title in TASKS if title not in [section.title for section in sections]] == []
    entries = [entry for section in sections for entry in section.entries]
    named = [entry.page for entry in entries]
    assert sorted(set(named)) == sorted(named), "a page stands twice in docs/index.md"
    assert [entry.title for entry in entries if not entry.about.endswith(("?", "."))] == []
    pages = [path.relative_to(build_site.ROOT).as_posix() for path in build_site.DOCS.rglob("*.md")]
    missing = [page for page in pages if page not in [*named, "docs/index.md"] and "/adr/0" not in page]
    assert missing == [], (
        f"{missing} are in no task of the table of contents: add the line "
        "'- [Title](page.md): The question that it answers?' below the heading of its task in docs/index.md"
    )


def test_a_dead_link_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = {"index.md": "# Start\n\n[page](nowhere.md) and [place](#nowhere)\n", "lost.md": "# In no task\n"}
    monkeypatch.setattr(build_site, "staged", lambda: dead)
    monkeypatch.setattr(build_site, "contents", list)
    with pytest.raises(build_site.NotBuilt) as refused:
        build_site.build(tmp_path / "site")
    for name in ("nowhere.md", "#nowhere", "lost.md"):
        assert name in str(refused.value)
    assert not (tmp_path / "site").exists()


def test_links_to_the_repository_lead_to_pages_of_the_guide() -> None:
    pages = build_site.staged()
    assert "(project/CONTRIBUTING.md)" in pages["index.md"]
    assert "](project/examples/agents.py.md)" in pages["troubleshooting.md"]
    assert pages["project/examples/agents.py.md"].startswith("# examples/agents.py\n\n````python\n")
    assert "](../../index.md)" in pages["project/examples/README.md"]
    assert not [place for place in pages if "secrets" in place]


def test_charts_are_tables(site: Path) -> None:
    page = (site / "state-machines.html").read_text(encoding="utf-8")
    assert "mermaid" not in page
    assert re.search(r"<td><code>queuing</code></td>\s*<td>claimed or reported preparing</td>", page)


async def test_it_is_served_to_everybody_and_asked_for_again(visitor: Visitor, site: Path) -> None:
    entered = await visitor.get("/docs/guide", allow_redirects=False)
    assert (entered.status, entered.headers["Location"]) == (307, "guide/")
    first = await visitor.get("/docs/guide")
    assert first.status == 200
    assert first.body == (site / "index.html").read_bytes()
    assert first.headers["Content-Type"] == "text/html; charset=utf-8"
    assert first.headers["Cache-Control"] == "no-cache"
    assert first.headers["X-Content-Type-Options"] == "nosniff"
    policy = first.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self' 'sha256-")
    assert "unsafe" not in policy
    again = await visitor.get("/docs/guide/", headers={"If-None-Match": first.headers["Etag"]})
    assert (again.status, again.body) == (304, b"")
    names = re.findall(r'<script src="([^"]+)"', first.body.decode())
    assert names
    for name in names:
        script = await visitor.get(f"/docs/guide/{name}")
        assert script.headers["Content-Type"] == "text/javascript; charset=utf-8"
        assert script.headers["Cache-Control"] == "public, max-age=31536000, immutable"


async def test_only_what_was_built_is_served(visitor: Visitor) -> None:
    for name in OUTSIDE:
        answer = await visitor.get(f"/docs/guide/{name}")
        assert answer.status in (401, 404), name
        assert b"No such page" in answer.body if answer.status == 404 else True
    assert (await visitor.post("/docs/guide/index.html")).status in (401, 405)


async def test_coding_agents_find_the_pages_as_text(visitor: Visitor, site: Path) -> None:
    listed = await visitor.get("/llms.txt")
    assert (listed.status, listed.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    text = listed.body.decode()
    assert text.startswith("# perdure")
    assert "\n> perdure is a durable queue" in text
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): .+", text, re.MULTILINE)
    assert len(links) == sum(len(section.entries) for section in build_site.contents())
    assert [link for link in links if not (site / link).is_file()] == []
    page = await visitor.get(f"/docs/guide/{links[0]}")
    assert (page.status, page.headers["Content-Type"]) == (200, "text/markdown; charset=utf-8")
    whole = (await visitor.get("/llms-full.txt")).body.decode()
    pages = build_site.staged()
    assert [
        place for place in pages if not place.startswith("project/") and pages[place].strip() not in whole
    ] == []


async def test_without_a_build_a_page_says_how_to_make_one(
    visitor: Visitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guide, "SITE", tmp_path)
    answer = await visitor.get("/docs/guide/")
    assert answer.status == 404
    assert b"./dev docs" in answer.body


async def test_a_browser_reads_and_searches_it_without_a_network(visitor: Visitor) -> None:
    asked: list[str] = []
    problems: list[str] = []
    async with browsing() as browser:
        page = await browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("requestfailed", lambda request: problems.append(request.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: _note(problems, message))
        await page.goto(f"{visitor.url}/docs/guide/runs.html")
        assert await page.locator("article h1").inner_text() == "Threads and runs#"
        # The page reads the word when a key is released, or once when its index is ready; `fill` has no keys.
        await page.locator("input[data-md-component=search-query]").press_sequentially("lease")
        found = page.locator(".md-search-result__item").first
        await found.wait_for()
        assert "lease" in (await found.inner_text()).lower()
        # The first link is that of the page, which has the word only if its title does.
        await found.locator("a[href*='h=lease']").first.click()
        await page.wait_for_url(re.compile(r"h=lease"))
        assert await page.locator("article h1").count() == 1
    assert {urlsplit(url).netloc for url in asked if url.startswith("http")} == {urlsplit(visitor.url).netloc}
    assert problems == []


WORDS = {
    "concurrency limit": "workers.html#concurrency-limits",
    "dead letter": "outbox.html#dead-letters",
    "health check": "server.html#health-checks",
    "environment variable": "settings.html#environment-variables",
    "timeout": "agents.html#timeouts",
}
"""What people type, and where the first result leads them."""


async def test_the_words_that_people_type_are_found(visitor: Visitor) -> None:
    async with browsing() as browser:
        for words, answer in WORDS.items():
            page = await browser.new_page()
            await page.goto(f"{visitor.url}/docs/guide/")
            await page.locator("input[data-md-component=search-query]").click()
            await page.keyboard.type(words)
            place = answer.partition("#")[0]
            await page.locator(f".md-search-result__item a[href*='{place}']").first.wait_for()
            first = page.locator(".md-search-result__item").first
            links = [await link.get_attribute("href") or "" for link in await first.locator("a").all()]
            assert any(answer in re.sub(r"\?h=[^#]*", "", each) for each in links), (words, links)
            await page.close()


def _note(problems: list[str], message: Any) -> None:
    if message.type in ("error", "warning"):
        problems.append(message.text)
