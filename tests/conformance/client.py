"""The checks, run by the real client in the peer's environment; the runner is on the other side of a pipe."""

import asyncio
import logging
import os
import sys

from tests.conformance import checks_life, checks_queries, checks_queue, checks_spans
from tests.conformance.framework import Runner, run_all

MODULES = (checks_queue, checks_queries, checks_spans, checks_life)
"""Importing them fills the list of checks."""


async def run_engines(targets: list[str], runner: Runner) -> None:
    """Each target is an engine and the URL of a server on it."""
    for target in targets:
        engine, _, url = target.partition("=")
        await run_all(engine, url, os.environ["PERDURE_CONFORMANCE_KEY"], runner)


def main(targets: list[str]) -> None:
    """Keep standard output for answers alone: whatever else prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.getLogger("agentlightning").setLevel(logging.ERROR)
    asyncio.run(run_engines(targets, Runner(answers, sys.stdin)))


if __name__ == "__main__":
    main(sys.argv[1:])
