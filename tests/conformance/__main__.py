"""`python -m tests.conformance`, behind `./dev conformance`: agentlightning's own client against our server.

The client is installed, unmodified, into an environment of its own. It runs through the whole contract on
SQLite and on PostgreSQL; each check has a namespace to itself.
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
from pathlib import Path
from typing import Any

from bench.peer import PEER, ROOT, PeerError, ensure_environment
from tests.conformance.server import ENGINES, Server, ServerFailed, running

from perdure.testing.binaries import ServerNotFound

Result = dict[str, Any]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="conformance", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--engine", choices=ENGINES, help="only this engine")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    return parser.parse_args(argv)


def check(engines: Sequence[str], python: Path) -> Iterator[Result]:
    """The results of all checks on each engine, as they come."""
    key = secrets.token_urlsafe(24)
    with ExitStack() as stack:
        servers = {}
        for engine in engines:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="perdure-conformance-"))
            servers[engine] = stack.enter_context(running(engine, key, Path(folder)))
        yield from drive(servers, python, key)


def drive(servers: dict[str, Server], python: Path, key: str) -> Iterator[Result]:
    """Run the client, and kill a server when it asks for that."""
    targets = [f"{engine}={server.url}" for engine, server in servers.items()]
    settings = {
        "PYTHONPATH": str(ROOT),
        "PERDURE_CONFORMANCE_KEY": key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            [str(python), "-m", "tests.conformance.client", *targets],
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


def run(engines: Sequence[str], *, quiet: bool) -> list[Result]:
    python = ensure_environment()
    print(f"starting {PEER} against {' and '.join(engines)}", file=sys.stderr, flush=True)
    results = []
    for result in check(engines, python):
        results.append(result)
        if not quiet:
            show(result)
    return results


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    started = time.monotonic()
    try:
        results = run([options.engine] if options.engine else ENGINES, quiet=options.json)
    except (PeerError, ServerFailed, ServerNotFound) as error:
        print(error, file=sys.stderr)
        return 1
    failed = [result for result in results if result["error"]]
    seconds = time.monotonic() - started
    if options.json:
        ok = bool(results) and not failed
        print(json.dumps({"client": PEER, "ok": ok, "seconds": seconds, "checks": results}, indent=2))
    else:
        print(f"\n{PEER}: {len(results) - len(failed)} of {len(results)} checks passed in {seconds:.0f} s")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
