"""The sandbox of commands. `python -m tests.support.bubblewrap` installs it if it is missing."""

from __future__ import annotations

import os
import shutil
import subprocess

from tests.support.browser import debian_commands

PROGRAM = "bwrap"


def commands() -> list[list[str]]:
    """Return the commands that install Debian's package, with sudo if we are not root."""
    install = debian_commands("bubblewrap")
    if not install and shutil.which("apt-get") and shutil.which("sudo"):
        return [["sudo", "-n", "apt-get", "install", "--yes", "--quiet", "bubblewrap"]]
    return install


def main() -> None:
    if shutil.which(PROGRAM) is None:
        for command in commands():
            subprocess.run(command, check=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    print(f"The sandbox is {shutil.which(PROGRAM) or 'missing: install the package bubblewrap'}.")


if __name__ == "__main__":
    main()
