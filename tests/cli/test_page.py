"""Every command on the pages that need a server runs, in the order of each page."""

import asyncio
import re
import shlex
import shutil
from pathlib import Path

import pytest
from tests.test_docs import DOCS, README, SERVED, blocks_of, name_of

from perdure import LightningStore, NamedResources, PromptTemplate
from perdure.client.lightning import LightningStoreClient

from .command import ROOT, Server, commands

PAGE = DOCS / "cli.md"
SERVERS = ("dev", "serve", "store", "start", "stop", "status", "restart")
FIRST_RUN = "0192f0a1-7e5c-7b3a-9c1d-2e4f60718292"
LATEST_RUN = "0192f0a1-7e5c-7b3a-9c1d-2e4f60718293"
CRON = "0192f0a1-7e5c-7b3a-9c1d-2e4f60718294"
"""Placeholders on the pages for the first and the last run that a page creates."""


def lines_of(page: Path) -> list[str]:
    return [
        line.partition(" #")[0].strip()
        for block in blocks_of(page)
        if block.language == "sh"
        for line in block.text.splitlines()
        if line.startswith("perdure ")
    ]


def options_of(words: list[str]) -> set[str]:
    """Return the options of the command of these words."""
    command = commands()
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize(("page", "line"), [(page, line) for page in SERVED for line in lines_of(page)])
def test_the_options_of_every_command_exist(page: Path, line: str) -> None:
    words = shlex.split(line)
    assert {word for word in words if word.startswith("--")} <= options_of(words[1:])


def test_every_option_in_the_tables_exists() -> None:
    for command in ("serve", "store"):
        section = PAGE.read_text(encoding="utf-8").partition(f"### {command}\n")[2].partition("\n#")[0]
        named = set(re.findall(r"`(--[\w-]+)", section))
        assert named
        assert named <= options_of([command]) | {"--workers"}


async def prepare(store: LightningStore) -> str:
    added = await store.add_resources({"prompt": PromptTemplate(template="Hi", engine="jinja")})
    changed: NamedResources = {"prompt": PromptTemplate(template="Hello", engine="jinja")}
    await store.update_resources(added.resources_id, changed)
    return added.resources_id


async def resources_on(url: str) -> str:
    async with LightningStoreClient(url) as store:
        return await prepare(store)


def agents_for(page: Path, folder: Path) -> str:
    """Return the agents of a page; the README contains its own."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    if page != README:
        return "./examples/agents.py:agents"
    (own,) = [block.text for block in blocks_of(page) if block.text.startswith("# agents.py\n")]
    (folder / "agents.py").write_text(own)
    return "./agents.py:agents"


def is_served(words: list[str]) -> bool:
    return words[0] in SERVERS or (words[0] == "worker" and words[1] not in ("ls", "list"))


@pytest.mark.parametrize("page", SERVED, ids=name_of)
def test_the_commands_of_the_page_run(page: Path, tmp_path: Path) -> None:
    known = {}
    with Server(tmp_path, "serve", "--agents", agents_for(page, tmp_path)) as server:
        known["rs-0123456789ab"] = asyncio.run(resources_on(server.url))
        for line in lines_of(page):
            words = [known.get(word, word) for word in shlex.split(line)[1:]]
            if is_served(words):
                continue
            ended = server.run(*words)
            assert ended.returncode == 0, (line, ended.stderr)
            if "enqueue" in words:
                known.setdefault("ro-0123456789ab", ended.stdout.strip())
            if words[:2] == ["run", "create"] and not {"--wait", "--watch"} & set(words):
                known[LATEST_RUN] = ended.stdout.strip()
                known.setdefault(FIRST_RUN, ended.stdout.strip())
            if words[:2] == ["cron", "create"]:
                known[CRON] = ended.stdout.strip()
            if words[:2] == ["assistant", "create"]:
                known["7d0c1c7e-53a4-4c3f-9d3a-0f5d5a0b8f11"] = ended.stdout.strip()
            if words[:2] == ["token", "create"]:
                known["0123456789abcdef"] = ended.stdout.split("_")[1]
