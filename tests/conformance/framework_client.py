"""The programs of docs/frameworks.md with the real packages, as agents of a worker."""

import asyncio
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.environments import ROOT, Environment
from tests.conformance.checks import Check, CheckedServer, run_checks
from tests.conformance.sdks import client_dependencies
from tests.support.chat_model import ChatModel, serving_model

from perdure.client.native import PerdureClient
from perdure.errors import NotFound
from perdure.threads.records import RunEnd

PAGE = ROOT / "docs" / "frameworks.md"
SEEN = Path(__file__).with_name("frameworks_seen.json")
"""The digest of each program that has passed, written by a run with PERDURE_RECORD_FRAMEWORKS=1."""
QUESTION = "What is the weather in Rome?"
SECONDS = 120.0
_SECTION = re.compile(r"^## (?P<title>.+?)$(?P<body>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OPENTELEMETRY = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")


class FrameworkProgram(NamedTuple):
    """A section of the page: its framework, what it installs, and its program."""

    title: str
    packages: tuple[str, ...]
    program: str

    @property
    def name(self) -> str:
        return re.sub(r"\W+", "_", self.title.lower())

    @property
    def digest(self) -> str:
        return hashlib.sha256((read_common() + self.program).encode()).hexdigest()

    @property
    def environment(self) -> Environment:
        packages = (*self.packages, *OPENTELEMETRY, *client_dependencies())
        return Environment(f"framework_{self.name}", packages, pinned=False)


def read_programs() -> list[FrameworkProgram]:
    """Return the programs of the page, in its order."""
    programs: list[FrameworkProgram] = []
    for section in _SECTION.finditer(PAGE.read_text(encoding="utf-8")):
        blocks = _BLOCK.findall(section["body"])
        program = next((block for block in blocks if block.startswith("# guide.py\n")), None)
        if program is not None:
            command = next(block for block in blocks if block.startswith("pip install "))
            packages = tuple(word.strip('"') for word in command.split()[2:])
            programs.append(FrameworkProgram(section["title"], packages, program))
    return programs


def read_common() -> str:
    """Return the file that every program imports."""
    blocks: list[str] = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    return next(block for block in blocks if block.startswith("# common.py\n"))


def build_check(program: FrameworkProgram) -> Check:
    """Build the check of a program: its run answers, and its trace has the calls with their tokens."""

    async def check(server: CheckedServer) -> None:
        python = await asyncio.to_thread(program.environment.ensure)
        with tempfile.TemporaryDirectory(prefix="perdure-framework-") as place, serving_model() as model:
            folder = Path(place)
            (folder / "common.py").write_text(read_common(), encoding="utf-8")
            (folder / "guide.py").write_text(program.program, encoding="utf-8")
            async with server.connect() as client:
                with running_worker(python, folder, server, client, model):
                    await check_run(program, client)
        record(program)

    check.__name__ = program.name
    return check


@contextmanager
def running_worker(
    python: Path, folder: Path, server: CheckedServer, client: PerdureClient, model: ChatModel
) -> Iterator[None]:
    """Run a worker with the program in the environment of its framework."""
    namespace = client.transport.session.namespace
    settings = {
        "PYTHONPATH": str(ROOT / "src"),
        "PERDURE_URL": server.url,
        "PERDURE_TOKEN": server.key,
        "PERDURE_NAMESPACE": str(namespace),
        "OPENAI_API_KEY": "sk-of-the-test",
        "OPENAI_BASE_URL": model.url,
        "OPENAI_API_BASE": model.url,
        "OTEL_EXPORTER_OTLP_ENDPOINT": server.url,
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{server.key},x-perdure-namespace={namespace}",
        "CREWAI_DISABLE_TELEMETRY": "true",
        "CREWAI_TRACING_ENABLED": "false",
        "AGNO_TELEMETRY": "false",
    }
    command = [str(python), "-m", "perdure.cli", "worker", "--agents", "./guide.py:agents"]
    with (folder / "worker.log").open("w+b") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | settings, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield
        except BaseException as error:
            log.seek(0)
            error.add_note(log.read()[-4000:].decode(errors="replace"))
            raise
        finally:
            process.terminate()
            process.wait()


async def check_run(program: FrameworkProgram, client: PerdureClient) -> None:
    """Run the agent, and wait until its trace has a model call, the tool call and tokens."""
    is_graph = "agents.register(" in program.program
    given: Any = {"messages": [{"role": "user", "content": QUESTION}]} if is_graph else QUESTION
    async with asyncio.timeout(SECONDS):
        end = await run_when_known(client, given)
        assert end.run.status == "success", end
        assert "sunny" in json.dumps(end.values), end.values
        # Spans of the framework arrive a moment after the run has ended.
        while True:
            if await count_tokens(client, end.run.run_id):
                return
            await asyncio.sleep(0.2)


async def count_tokens(client: PerdureClient, run_id: str) -> int:
    """Return the input tokens in the trace of a run."""
    query = [("rollout_id", run_id)]
    answer = (await client.transport.session.request("GET", "/api/v1/figures", query=query)).json()
    return sum(figures.get("input_tokens", 0) for figures in answer["items"])


async def run_when_known(client: PerdureClient, given: Any) -> RunEnd:
    """Run the agent as soon as its worker has registered it."""
    while True:
        try:
            return await client.run("guide", given, on_completion="keep")
        except NotFound:
            await asyncio.sleep(0.2)


def record(program: FrameworkProgram) -> None:
    """Note that the program has passed, if that is asked for."""
    if os.environ.get("PERDURE_RECORD_FRAMEWORKS"):
        seen = json.loads(SEEN.read_text()) if SEEN.exists() else {}
        seen[program.title] = program.digest
        SEEN.write_text(json.dumps(seen, indent=1) + "\n")


if __name__ == "__main__":
    run_checks(sys.argv[1:], tuple(map(build_check, read_programs())))
