"""Runs the checks of a client in its own environment, and prints the results for `./dev conformance`."""

import asyncio
import json
import os
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from uuid import uuid4

from perdure.client.native import PerdureClient


class CheckedServer(NamedTuple):
    """A server on one engine, and the key that opens it."""

    engine: str
    url: str
    key: str

    def connect(self) -> PerdureClient:
        """Create a client of a namespace that no other check uses."""
        return PerdureClient(self.url, token=self.key, namespace=f"client-{uuid4().hex[:12]}")


Check = Callable[[CheckedServer], Awaitable[None]]


def run_checks(targets: list[str], checks: tuple[Check, ...]) -> None:
    """Run the checks on each target, an engine and the URL of a server on it.

    Standard output carries results only.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for target in targets:
        engine, _, url = target.partition("=")
        server = CheckedServer(engine, url, os.environ["PERDURE_CONFORMANCE_KEY"])
        for check in checks:
            print(json.dumps(asyncio.run(_run_check(server, check))), file=answers, flush=True)


async def _run_check(server: CheckedServer, check: Check) -> dict[str, Any]:
    started, error = time.monotonic(), None
    try:
        await check(server)
    except Exception:  # noqa: BLE001 - it is the result
        error = traceback.format_exc()
    seconds = time.monotonic() - started
    words = check.__name__.replace("_", " ")
    return {"engine": server.engine, "check": words, "seconds": seconds, "error": error}
