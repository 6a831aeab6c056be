"""`python -m tests.conformance`, behind `./dev conformance`: the clients of others against our server.

Each client is installed, unmodified, into an environment of its own: agentlightning's, which goes through the
whole contract, its Trainer, LangGraph's for JavaScript, the agent SDKs of Claude and OpenAI, and LangChain's
adapters of the Model Context Protocol. They run on SQLite and on PostgreSQL.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.environments import Environment
from bench.peer import PEER, ROOT, PeerError, ensure_environment
from tests.conformance import node, sdks
from tests.conformance.server import ENGINES, Server, ServerFailed, running
from tests.server.langgraph.project import project

from perdure.testing.binaries import ServerNotFound

Result = dict[str, Any]


class Client(Protocol):
    """A client of somebody else's."""

    @property
    def title(self) -> str: ...

    def command(self) -> list[str]:
        """What runs its checks; it is installed if it is not there yet."""
        ...

    def furnish(self, folder: Path) -> None:
        """Put what its server shall find into the server's folder."""
        ...


@dataclass(frozen=True)
class AgentLightning:
    """The client of `agentlightning`, in Python."""

    title: str = PEER

    def command(self) -> list[str]:
        return [str(ensure_environment()), "-m", "tests.conformance.client"]

    def furnish(self, folder: Path) -> None:
        """Its server needs nothing."""


@dataclass(frozen=True)
class Trainer:
    """The Trainer of `agentlightning`, as our page for its users shows it."""

    title: str = f"Trainer of {PEER}"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.conformance.trainer", str(ensure_environment())]

    def furnish(self, folder: Path) -> None:
        """Its server needs nothing."""


@dataclass(frozen=True)
class LangGraph:
    """The client of LangGraph's platform, in JavaScript."""

    title: str = node.title()

    def command(self) -> list[str]:
        return node.ensure()

    def furnish(self, folder: Path) -> None:
        project(folder)


@dataclass(frozen=True)
class PythonSdks:
    """SDKs in Python, and our checks of them, in an environment that has no perdure installed."""

    environment: Environment
    module: str

    @property
    def title(self) -> str:
        return " and ".join(self.environment.packages[:2])

    def command(self) -> list[str]:
        return [str(self.environment.ensure()), "-m", self.module]

    def furnish(self, folder: Path) -> None:
        """Their server needs nothing."""


@dataclass(frozen=True)
class Frameworks:
    """The agent frameworks of docs/frameworks.md, each with its newest release."""

    title: str = "frameworks"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.conformance.framework_client"]

    def furnish(self, folder: Path) -> None:
        """Its server needs nothing: spans in a run need no setting."""


CLIENTS: dict[str, Client] = {
    "agentlightning": AgentLightning(),
    "trainer": Trainer(),
    "langgraph": LangGraph(),
    "agent-sdks": PythonSdks(sdks.SDKS, "tests.conformance.sdk_client"),
    "mcp-adapters": PythonSdks(sdks.MCP_ADAPTERS, "tests.conformance.mcp_client"),
    "frameworks": Frameworks(),
}
ON_REQUEST = ("frameworks",)
"""Clients that run only with `--client`: these install eight frameworks, which takes 20 minutes."""


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="conformance", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--engine", choices=ENGINES, help="only this engine")
    parser.add_argument("--client", choices=sorted(CLIENTS), help="only this client")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    return parser.parse_args(argv)


def check(engines: Sequence[str], client: Client) -> Iterator[Result]:
    """The results of all checks on each engine, as they come."""
    key = secrets.token_urlsafe(24)
    with ExitStack() as stack:
        servers = {}
        for engine in engines:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="perdure-conformance-"))
            client.furnish(Path(folder))
            servers[engine] = stack.enter_context(running(engine, key, Path(folder)))
        yield from drive(servers, client.command(), key)


def drive(servers: dict[str, Server], command: list[str], key: str) -> Iterator[Result]:
    """Run the client, and kill a server when it asks for that."""
    targets = [f"{engine}={server.url}" for engine, server in servers.items()]
    settings = {
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))),
        "PERDURE_CONFORMANCE_KEY": key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            [*command, *targets],
            cwd=ROOT, env=os.environ | settings, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
        ) as client,
    ):  # fmt: skip
        try:
            yield from answered(client, servers)
        finally:
            if client.poll() is None:
                client.kill()
        if client.returncode:
            log.seek(0)
            raise PeerError(f"the client ended early:\n{log.read()[-3000:]}")


def answered(client: "subprocess.Popen[str]", servers: dict[str, Server]) -> Iterator[Result]:
    assert client.stdin is not None
    assert client.stdout is not None
    for line in client.stdout:
        message = json.loads(line)
        if "kill" not in message:
            yield message
            continue
        servers[message["kill"]].kill()
        servers[message["kill"]].start()
        client.stdin.write("done\n")
        client.stdin.flush()
    client.wait()


def show(result: Result) -> None:
    verdict = "FAILED" if result["error"] else "ok"
    print(f"{result['engine']:<9} {verdict:<6} {result['seconds']:6.2f} s  {result['check']}", flush=True)
    if result["error"]:
        print("    " + result["error"].strip().replace("\n", "\n    "), flush=True)


def run(engines: Sequence[str], client: Client, *, quiet: bool) -> list[Result]:
    print(f"starting {client.title} against {' and '.join(engines)}", file=sys.stderr, flush=True)
    results = []
    for result in check(engines, client):
        results.append({"client": client.title, **result})
        if not quiet:
            show(result)
    if not results:
        raise PeerError(f"{client.title} checked nothing")
    return results


def summed_up(results: Sequence[Result], seconds: float) -> str:
    lines = []
    for title in dict.fromkeys(result["client"] for result in results):
        mine = [result for result in results if result["client"] == title]
        passed = sum(not result["error"] for result in mine)
        lines.append(f"{title}: {passed} of {len(mine)} checks passed")
    return "\n" + "\n".join(lines) + f"\nin {seconds:.0f} s"


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    started = time.monotonic()
    engines = [options.engine] if options.engine else ENGINES
    chosen = [options.client] if options.client else [name for name in CLIENTS if name not in ON_REQUEST]
    results: list[Result] = []
    try:
        for name in chosen:
            results += run(engines, CLIENTS[name], quiet=options.json)
    except (PeerError, ServerFailed, ServerNotFound) as error:
        print(error, file=sys.stderr)
        return 1
    ok = not any(result["error"] for result in results)
    seconds = time.monotonic() - started
    if options.json:
        clients = [CLIENTS[name].title for name in chosen]
        print(json.dumps({"clients": clients, "ok": ok, "seconds": seconds, "checks": results}, indent=2))
    else:
        print(summed_up(results, seconds))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
