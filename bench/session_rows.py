"""Logs of sessions in files: appending with and without a sync, lists without a full parse, and following."""

import asyncio
import os
import time
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

from bench.cpu import Meter, own_seconds, with_raw
from bench.host import Host
from bench.measures import Figures, Measure, Row
from bench.sizes import Sizes
from bench.timing import Side, interleave, milliseconds
from perdure import Perdure
from perdure.eventlog.file_log import FileEventLog
from perdure.eventlog.port import LogName
from perdure.kernel.codec import encode_json
from perdure.sessions.service import Sessions

BATCH = 20
LISTS = 5
SESSION_BYTES = 1 << 20
LINE = {
    "type": "assistant",
    "message": {"role": "assistant", "content": [{"type": "text", "text": "x" * 100}], "model": "m-1"},
    "timestamp": "2026-01-01T00:00:00.000Z",
    "sessionId": "bench",
}
BODY = encode_json(LINE).encode()


def measures(sizes: Sizes) -> list[Measure]:
    lines = f"lines of {len(BODY)} bytes, batches of {BATCH}"
    return [
        Measure(
            (Row("sessions/append", f"{lines}, without a sync", "lines/s", target=200_000.0),),
            partial(_appends, sync=False, size=sizes.session_lines),
        ),
        Measure(
            (Row("sessions/append_sync", f"{lines}, each on the disk", "lines/s", target_raw=0.5),),
            partial(_appends, sync=True, size=sizes.synced_lines),
        ),
        Measure(
            (Row("sessions/list", f"list {sizes.sessions} sessions of 1 MB", "ms", "lower", target=100.0),),
            partial(_list, sessions=sizes.sessions),
        ),
        Measure(
            (Row("sessions/tail", "append of a line to its arrival at a reader, p50", "ms", "lower", 50.0),),
            partial(_tail, times=sizes.tails),
        ),
    ]


async def _appends(host: Host, sync: bool, size: int) -> list[Figures]:
    log = FileEventLog(host.new_folder(), sync=sync)
    numbers = count()
    meter, beside = Meter({"client": own_seconds}), Meter({"client": own_seconds})
    sides: dict[str, Side] = {"ours": meter.around(partial(_append, log, numbers))}
    if sync:
        sides["raw"] = beside.around(partial(_append_raw, host.new_folder()))
    try:
        found = await interleave(size, host.sizes.rounds, sides)
        return [{**found, **meter.figures(), **with_raw(beside)}]
    finally:
        await log.close()


async def _append(log: FileEventLog, numbers: "count[int]", size: int) -> float:
    return await asyncio.to_thread(_append_lines, log, LogName("-bench", f"s-{next(numbers)}"), size)


def _append_lines(log: FileEventLog, name: LogName, size: int) -> float:
    """Return lines per second of one writer, numbered within an attempt."""
    bodies = [BODY] * BATCH
    started = time.perf_counter()
    for first in range(1, size + 1, BATCH):
        log.append_now(1, name, bodies, "attempt", first)
    return size / (time.perf_counter() - started)


async def _append_raw(folder: Path, size: int) -> float:
    return await asyncio.to_thread(_write_lines, folder / f"raw-{time.time_ns()}", size)


def _write_lines(path: Path, size: int) -> float:
    """Return lines per second with one write and one fdatasync per batch."""
    data = (BODY + b"\n") * BATCH
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    started = time.perf_counter()
    for _ in range(0, size, BATCH):
        os.write(descriptor, data)
        os.fdatasync(descriptor)
    os.close(descriptor)
    return size / (time.perf_counter() - started)


async def _list(host: Host, sessions: int) -> list[Figures]:
    folder = host.new_folder()
    prompt = {"type": "user", "message": {"role": "user", "content": "Review the change."}}
    text = encode_json(prompt).encode() + b"\n" + (BODY + b"\n") * (SESSION_BYTES // len(BODY))
    projects = folder / "agent-sessions" / "projects" / "-bench"
    projects.mkdir(parents=True)
    for number in range(sessions):
        (projects / f"s-{number}.jsonl").write_bytes(text)
    async with Perdure(f"sqlite:///{folder}/own.db") as perdure:
        await perdure.sessions.append("own", [LINE])
        taken = [await milliseconds(lambda: _page(perdure.sessions, sessions)) for _ in range(LISTS)]
    return [{"ours": median(taken)}]


async def _page(sessions: Sessions, count: int) -> None:
    page = await sessions.list(project="-bench", limit=count)
    assert len(page.items) == count


async def _tail(host: Host, times: int) -> list[Figures]:
    """Measure a reader that waits in the writing process."""
    async with Perdure(f"sqlite:///{host.new_folder()}/own.db") as perdure:
        sessions = perdure.sessions
        after = (await sessions.append("s", [LINE])).after
        taken = []
        for _ in range(times):
            reading = asyncio.create_task(sessions.messages("s", after=after, wait=10))
            await asyncio.sleep(0.005)
            started = time.perf_counter()
            await sessions.append("s", [LINE])
            after = (await reading).after
            taken.append((time.perf_counter() - started) * 1000)
    return [{"ours": median(taken)}]
