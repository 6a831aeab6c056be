"""How a peer works in a process of its own: jobs come by standard input, answers go by standard output.

Only the standard library is imported, since every peer runs this in an environment of its own. Each line in
is a job `{"work": name, "size": count, "url": address or null}`, each line out `{"figure": number}`.
"""

import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TextIO

Do = Callable[[str, int, str | None], Awaitable[float]]


async def work_off(do: Do) -> None:
    """Do one job after the other until nobody is there to ask for more."""
    answers = _answers()
    for line in sys.stdin:
        job = json.loads(line)
        figure = 0.0 if job["work"] == "hello" else await do(job["work"], job["size"], job["url"])
        print(json.dumps({"figure": figure}), file=answers, flush=True)


def _answers() -> TextIO:
    """Keep standard output for answers alone: whatever else prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers
