"""Takes a picture of every screen of a server's dashboard, in both themes and at a phone's width.

    python dashboard/screenshots.py FOLDER                starts `perdure dev --demo`, and shows what it holds
    python dashboard/screenshots.py FOLDER --url URL      shows a server that runs
    python dashboard/screenshots.py FOLDER --only rollout a few of them
    python dashboard/screenshots.py docs/images --docs    the ones that the documentation shows

Each screen of one object shows the first of its list. It needs what `./dev setup` installs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from playwright.async_api import Browser, Page, expect
from tests.support.browser import browsing

LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "has_touch": True},
}
LISTS = {
    "home": "/",
    "rollouts": "/rollouts",
    "runs": "/runs",
    "threads": "/threads",
    "chat": "/chat",
    "traces": "/traces",
    "workflow-runs": "/workflow-runs",
    "workflows": "/workflows",
    "approvals": "/approvals",
    "sessions": "/sessions",
    "memory": "/memory",
    "schedules": "/schedules",
    "outbox": "/outbox",
    "workers": "/workers",
    "settings": "/settings",
    "missing-screen": "/nothing",
    "missing-rollout": "/rollouts/ro-000000000000",
}
ONES = {
    "rollout": ("rollouts?status=failed&limit=1", "rollout_id", "/rollouts/"),
    "rollout-succeeded": ("rollouts?status=succeeded&limit=1", "rollout_id", "/rollouts/"),
    "run": ("runs?limit=1", "run_id", "/runs/"),
    "thread": ("threads?limit=1", "thread_id", "/threads/"),
    "trace": ("traces?limit=1", "trace_id", "/traces/"),
    "workflow-run": ("workflow-runs?limit=1", "workflow_run_id", "/workflow-runs/"),
    "approval": ("approvals?limit=1", "approval_id", "/approvals/"),
    "session": ("sessions?limit=1", "session_id", "/sessions/"),
    "memory-year": ("memory/toc?limit=1", "node_id", "/memory/"),
    "schedule": ("schedules?limit=1", "schedule_id", "/schedules/"),
    "worker": ("workers?limit=1", "worker_id", "/workers/"),
}


def read(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return json.load(answer)


def paths_of(url: str) -> dict[str, str]:
    """The path of every screen; of one object, where the server holds one."""
    found = dict(LISTS)
    for name, (query, field, place) in ONES.items():
        items = read(f"{url}/api/v1/{query}")["items"]
        if items:
            found[name] = place + urllib.parse.quote(str(items[0][field]), safe="")
    return found


DOCS = {"dashboard": ("home", "light"), "dashboard-rollout": ("rollout", "dark")}
"""The pictures of the documentation, each with its screen and look."""


async def settled(page: Page) -> None:
    """What is loading has been loaded. The change feed stays open, so an idle network is no sign."""
    await page.wait_for_selector("main h1, main h2, form h1", timeout=20_000)
    await expect(page.locator("main [aria-busy=true]")).to_have_count(0, timeout=20_000)
    await page.evaluate("document.fonts.ready")
    await page.wait_for_timeout(700)


async def shoot_docs(browser: Browser, url: str, folder: Path, paths: dict[str, str]) -> None:
    for name, (shown, look) in DOCS.items():
        context = await browser.new_context(**{**LOOKS[look], "viewport": {"width": 1200, "height": 760}})
        page = await context.new_page()
        await page.goto(f"{url}/ui{paths[shown]}")
        await settled(page)
        await page.screenshot(path=folder / f"{name}.png")
        await context.close()


async def shoot(browser: Browser, url: str, folder: Path, paths: dict[str, str]) -> None:
    for look, options in LOOKS.items():
        context = await browser.new_context(**options)
        page = await context.new_page()
        page.on("pageerror", lambda error: print("error:", error))
        for name, path in paths.items():
            await page.goto(f"{url}/ui{path}")
            await settled(page)
            await page.screenshot(path=folder / f"{name}-{look}.png")
            wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
            if wide > 0:
                print(f"{name} is {wide} px wider than the screen ({look})")
        await context.close()


@contextmanager
def demo() -> Iterator[str]:
    """A server with the data of the demo, in a folder of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        options = ["--demo", "--stay", "--no-reload", "--port", str(port)]
        server = subprocess.Popen(
            [sys.executable, "-m", "perdure.cli", "dev", *options],
            cwd=folder,
            env={**os.environ, "HOME": folder},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            for line in server.stdout:
                if re.search(r"^Memory, asked", line):
                    break
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.communicate(timeout=30)


async def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url")
    parser.add_argument("--only", nargs="+", help="names of screens, such as home or workflow-run")
    parser.add_argument("--docs", action="store_true", help="only what the documentation shows")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with demo() if given.url is None else nullcontext(given.url) as url:
        await take(url, given)


async def take(url: str, given: argparse.Namespace) -> None:
    paths = paths_of(url)
    chosen = {name: path for name, path in paths.items() if not given.only or name in given.only}
    async with browsing() as browser:
        if given.docs:
            await shoot_docs(browser, url, given.folder, paths)
        else:
            await shoot(browser, url, given.folder, chosen)
    print(f"{len(DOCS) if given.docs else len(chosen) * len(LOOKS)} pictures are in {given.folder}")


if __name__ == "__main__":
    asyncio.run(main())
