"""A real Chromium for tests. `python -m tests.support.browser` installs it if it is missing."""

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
    """Return the browser's program; None uses Playwright's, which has its own folder."""
    given = os.environ.get(VARIABLE)
    return given or next(filter(None, map(shutil.which, NAMES)), None)


@asynccontextmanager
async def browsing(*arguments: str) -> AsyncIterator[Browser]:
    """Start a browser without a window, with a new profile that is removed at the end."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find(), args=[*ARGUMENTS, *arguments])
        try:
            yield browser
        finally:
            await browser.close()


def debian_commands(package: str) -> list[list[str]]:
    """Return the commands that install a Debian package; none on other systems or without permission."""
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if is_root and shutil.which("apt-get") and platform.freedesktop_os_release().get("ID") == "debian":
        install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", package]
        return [["apt-get", "update", "--quiet"], install]
    return []


def commands() -> list[list[str]]:
    """Return the commands that install a browser: Debian's package if permitted, otherwise Playwright's."""
    return debian_commands("chromium") or [[sys.executable, "-m", "playwright", "install", "chromium"]]


def main() -> None:
    if find() is None:
        for command in commands():
            subprocess.run(command, check=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    print(f"The browser is {find() or 'the one that Playwright installed'}.")


if __name__ == "__main__":
    main()
