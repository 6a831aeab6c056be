"""The loop of a peer in its own process: jobs arrive on standard input, answers go to standard output.

Only the standard library is imported, because every peer runs this in its own environment. Each input line is
a job `{"work": name, "size": count, "url": address or null}`, each output line `{"figure": number}`.
"""

import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TextIO

Do = Callable[[str, int, str | None], Awaitable[float]]


async def work_off(do: Do) -> None:
    """Do jobs one by one until the input ends."""
    answers = _answers()
    for line in sys.stdin:
        job = json.loads(line)
        figure = 0.0 if job["work"] == "hello" else await do(job["work"], job["size"], job["url"])
        print(json.dumps({"figure": figure}), file=answers, flush=True)


def _answers() -> TextIO:
    """Reserve standard output for answers; other prints go to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers
