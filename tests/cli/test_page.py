"""Every command on docs/cli.md runs, in the order of the page."""

import asyncio
import re
import shlex
from pathlib import Path

import pytest
import typer

from perdure import LightningStore, NamedResources, PromptTemplate
from perdure.cli import app
from perdure.protocols.lightning.client import LightningStoreClient

from .command import ROOT, Server

PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
LINES = [
    line.partition(" #")[0].strip()
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
SERVERS = ("dev", "serve", "store")


def options_of(words: list[str]) -> set[str]:
    """The options that the command of these words knows."""
    command = typer.main.get_command(app)
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("line", LINES)
def test_the_options_of_every_command_exist(line: str) -> None:
    words = shlex.split(line)
    assert words[0] == "perdure"
    assert {word for word in words if word.startswith("--")} <= options_of(words[1:])


def test_every_option_in_the_tables_exists() -> None:
    for command in ("serve", "store"):
        section = PAGE.partition(f"### {command}\n")[2].partition("\n#")[0]
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


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    known = {}
    with Server(tmp_path) as server:
        known["rs-0123456789ab"] = asyncio.run(resources_on(server.url))
        for line in LINES:
            words = [known.get(word, word) for word in shlex.split(line)[1:]]
            if words[0] in SERVERS:
                continue
            ended = server.run(*words)
            assert ended.returncode == 0, (line, ended.stderr)
            if "enqueue" in words:
                known.setdefault("ro-0123456789ab", ended.stdout.strip())
            if words[:2] == ["token", "create"]:
                known["0123456789abcdef"] = ended.stdout.split("_")[1]
