"""A real Chromium for tests. `python -m tests.support.browser` installs it where it is missing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, async_playwright

VARIABLE = "TEST_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find() -> str | None:
    """The browser's program; None leaves it to Playwright, which has a folder for its own."""
    given = os.environ.get(VARIABLE)
    return given or next(filter(None, map(shutil.which, NAMES)), None)


@asynccontextmanager
async def browsing(*arguments: str) -> AsyncIterator[Browser]:
    """A browser without a window, with a profile that is empty at first and removed at the end."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find(), args=[*ARGUMENTS, *arguments])
        try:
            yield browser
        finally:
            await browser.close()


def debian_commands(package: str) -> list[list[str]]:
    """What installs a package of Debian; nothing where there is none, or where we may not."""
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if is_root and shutil.which("apt-get") and platform.freedesktop_os_release().get("ID") == "debian":
        install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", package]
        return [["apt-get", "update", "--quiet"], install]
    return []


def commands() -> list[list[str]]:
    """What installs a browser: Debian's package where we may install it, else Playwright's own."""
    return debian_commands("chromium") or [[sys.executable, "-m", "playwright", "install", "chromium"]]


def main() -> None:
    if find() is None:
        for command in commands():
            subprocess.run(command, check=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    print(f"The browser is {find() or 'the one that Playwright installed'}.")


if __name__ == "__main__":
    main()
