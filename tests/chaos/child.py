"""A process that works on a store until it is killed: `python -m tests.chaos.child`.

It waits for a plan on stdin, so that it can be started ahead of its turn, and writes its history to stdout.
The end of its stdin, a line on it or SIGTERM asks it to finish.
"""

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Literal

import apsw
import msgspec
from tests.chaos.load import Load
from tests.chaos.stores import open_storage, store_over
from tests.support.history import Recorder

from perdure.rollouts.contract import LightningStore

During = Literal["work", "checkpoints", "closing"]


class Plan(msgspec.Struct):
    """What a child is to do."""

    url: str
    process: str
    number: int
    seed: int = 0
    namespace: str = "default"
    workers: int = 4
    silence: float = 0.5
    timeout: float = 10.0
    watchdog_interval: float = 0.05
    during: During = "work"
    """What else goes on: the log is written back all the time, or the store is closed after a while."""
    close_after: float = 0.05
    rollouts: int | None = None
    """How many rollouts to make and to work off before it ends by itself; None works until it is stopped."""


def main() -> None:
    line = sys.stdin.buffer.readline()
    if line:
        asyncio.run(work(msgspec.json.decode(line, type=Plan)))


async def work(plan: Plan) -> None:
    recorder = Recorder(plan.process, _write)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), stop.set)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    recorder.mark("opening")
    store = _open(plan)
    recorder.mark("open")
    if plan.during == "checkpoints":
        threading.Thread(target=_checkpoint, args=(Path(plan.url), recorder), daemon=True).start()
    elif plan.during == "closing":
        loop.call_later(plan.close_after, stop.set)
    load = Load(
        store,
        recorder,
        number=plan.number,
        seed=plan.seed,
        silence=plan.silence,
        rollouts=plan.rollouts,
    )
    await load.run(plan.workers, stop)
    recorder.mark("closing")
    await store.close()
    recorder.mark("closed")


def _open(plan: Plan) -> LightningStore:
    """The database itself, or the server in front of it."""
    if not plan.url.startswith("http://"):
        storage = open_storage(plan.url, timeout=plan.timeout)
        return store_over(storage, plan.namespace, plan.watchdog_interval)
    from perdure.client.lightning import LightningStoreClient

    return LightningStoreClient(plan.url, namespace=plan.namespace)


def _write(line: bytes) -> None:
    os.write(sys.stdout.fileno(), line)


def _checkpoint(path: Path, recorder: Recorder) -> None:
    """Write the log back into the database again and again, in turn with and without emptying it."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(100)
    modes = (apsw.SQLITE_CHECKPOINT_PASSIVE, apsw.SQLITE_CHECKPOINT_RESTART, apsw.SQLITE_CHECKPOINT_TRUNCATE)
    while True:
        for mode in modes:
            recorder.mark("checkpoint")
            try:
                connection.wal_checkpoint(mode=mode)
            except apsw.BusyError:
                continue


if __name__ == "__main__":
    main()
