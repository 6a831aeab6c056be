"""Properties of files: torn, replaced, linked, or written by other processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from perdure.eventlog import file_lines, file_log
from perdure.eventlog.file_log import FileEventLog
from perdure.eventlog.port import LogName, encode_line
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import InvalidInput, StorageClosed, StorageUnavailable

NAME = LogName("-app", "s")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "agent-sessions"


@pytest.fixture
async def log(root: Path) -> AsyncIterator[FileEventLog]:
    opened = FileEventLog(root, sync=False)
    yield opened
    await opened.close()


def path_of(root: Path) -> Path:
    return root / "projects" / "-app" / "s.jsonl"


def line(number: int, **more: object) -> bytes:
    return encode_line({"n": number, **more})


def read(log: FileEventLog, after: int = 0, limit: int = 1000) -> tuple[list[bytes], int]:
    page = log.read_now(1, NAME, after, limit)
    assert page is not None
    return [line.body for line in page.lines], page.reached


async def test_files_belong_to_their_owner_alone(log: FileEventLog, root: Path) -> None:
    await log.append(1, NAME, [line(1)])
    assert path_of(root).stat().st_mode & 0o777 == 0o600
    assert path_of(root).parent.stat().st_mode & 0o777 == 0o700
    assert (root / "projects").stat().st_mode & 0o777 == 0o700


async def test_a_torn_line_stands_alone_and_no_byte_is_removed(root: Path) -> None:
    path = path_of(root)
    path.parent.mkdir(parents=True)
    torn = line(1) + b"\n" + line(2) + b'\n{"n":3,"text":"\xe4\xb8'
    path.write_bytes(torn)
    log = FileEventLog(root, sync=False)
    bodies, reached = read(log)
    assert bodies == [line(1), line(2)]
    await log.append(1, NAME, [line(4)])
    assert path.read_bytes() == torn + b"\n" + line(4) + b"\n"
    assert read(log, reached)[0] == [b'{"n":3,"text":"\xe4\xb8', line(4)]
    await log.close()


async def test_a_batch_that_a_crash_tore_is_completed_when_it_is_sent_again(root: Path) -> None:
    first = FileEventLog(root, sync=False)
    batch = [line(number, text="é" * 5) for number in range(1, 6)]
    await first.append(1, NAME, batch, attempt_id="at-1")
    await first.close()
    whole = path_of(root).read_bytes()
    for cut in range(len(whole)):
        path_of(root).write_bytes(whole[:cut])
        again = FileEventLog(root, sync=False)
        await again.append(1, NAME, batch, attempt_id="at-1")
        seen = []
        for body in read(again)[0]:
            try:
                seen.append(decode_json(body)["n"])
            except InvalidInput:
                continue
        assert sorted(set(seen)) == [1, 2, 3, 4, 5], cut
        assert len(seen) <= 6, cut
        await again.close()


@pytest.mark.parametrize("size", [file_lines.CHUNK - 700, file_lines.CHUNK, 3 << 20])
async def test_a_batch_is_completed_also_if_the_torn_line_is_long(root: Path, size: int) -> None:
    log = FileEventLog(root, sync=False)
    batch = [line(1), line(2), line(3, text="x" * size)]
    await log.append(1, NAME, batch, attempt_id="at-1")
    await log.close()
    whole = path_of(root).read_bytes()
    for missing, kept in ((2, [1, 2]), (0, [1, 2, 3])):
        path_of(root).write_bytes(whole[: len(whole) - missing])
        again = FileEventLog(root, sync=False)
        await again.append(1, NAME, batch, attempt_id="at-1")
        written = path_of(root).read_bytes()[len(whole) - missing :]
        assert written.count(b"\n") == (1 + 3 - len(kept) if missing else 0)
        assert not any(b'{"n":%d,' % number in written for number in kept)
        await again.close()


async def test_a_tail_never_splits_a_character_or_loses_a_line(root: Path) -> None:
    """Another process writes its file in pieces of any size; a reader follows it."""
    lines = [line(number, text="世界" * (number % 7)) for number in range(200)]
    content = b"".join(line + b"\n" for line in lines)
    path = path_of(root)
    path.parent.mkdir(parents=True)
    log = FileEventLog(root, sync=False)
    chance = random.Random(7)
    seen: list[bytes] = []
    written, reached = 0, 0
    with path.open("ab", buffering=0) as file:
        while written < len(content):
            size = chance.randint(1, 50)
            file.write(content[written : written + size])
            written += size
            bodies, reached = read(log, reached, limit=3)
            seen += bodies
    while (page := read(log, reached))[0]:
        seen, reached = seen + page[0], page[1]
    assert seen == lines
    await log.close()


async def test_binary_and_very_long_lines_never_raise(
    log: FileEventLog, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_lines, "MAX_READ", 10_000)
    monkeypatch.setattr(file_lines, "CHUNK", 4096)
    path = path_of(root)
    path.parent.mkdir(parents=True)
    long = b"x" * 100_000
    path.write_bytes(bytes(range(10)) + b"\n\n" + long + b"\n" + line(1) + b"\n" + long)
    bodies, reached = read(log)
    assert bodies == [bytes(range(10)), long[:10_000], line(1)]
    assert path.read_bytes()[:reached].endswith(line(1) + b"\n")
    (edges,) = await log.edges(1, [NAME])
    assert edges is not None


async def test_a_log_that_was_replaced_by_a_shorter_one_is_read_anew(log: FileEventLog, root: Path) -> None:
    await log.append(1, NAME, [line(1), line(2)])
    _, reached = read(log)
    path_of(root).unlink()
    path_of(root).write_bytes(line(9) + b"\n")
    assert read(log, reached)[0] == [line(9)]


async def test_links_are_not_followed(log: FileEventLog, root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_bytes(line(1) + b"\n")
    path = path_of(root)
    path.parent.mkdir(parents=True)
    path.symlink_to(secret)
    assert await log.read(1, NAME) is None
    with pytest.raises(StorageUnavailable):
        await log.append(1, NAME, [line(2)])
    path.unlink()
    (root / "projects" / "-out").symlink_to(tmp_path)
    with pytest.raises(StorageUnavailable):
        await log.append(1, LogName("-out", "secret"), [line(2)])
    assert await log.logs(1) == []
    assert await log.logs(1, project="-out") == []
    assert await log.find(1, "secret") == []
    assert await log.read(1, LogName("-out", "secret")) is None
    assert await log.edges(1, [LogName("-out", "secret")]) == [None]
    (path.parent / "s").symlink_to(tmp_path)
    assert await log.read(1, LogName("-app", "s", "secret")) is None
    assert secret.read_bytes() == line(1) + b"\n"


async def test_a_root_that_is_a_link_itself_is_the_operators_choice(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "disk")
    log = FileEventLog(tmp_path / "root")
    await log.append(1, NAME, [line(1)])
    assert read(log)[0] == [line(1)]
    await log.close()


async def test_a_line_that_looks_like_one_of_an_attempt_speaks_for_none(root: Path) -> None:
    log = FileEventLog(root)
    forged = line(1, _perdure=["at-1", 9])
    await log.append(1, NAME, [forged])
    await log.close()
    opened_again = FileEventLog(root)
    await opened_again.append(1, NAME, [line(2), forged], attempt_id="at-1")
    assert read(opened_again)[0] == [forged, line(2), forged]
    await opened_again.close()


async def test_a_line_and_the_folders_above_it_are_on_the_disk_before_it_is_acknowledged(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    calls = {"fsync": os.fsync, "fdatasync": os.fdatasync}

    def recording(name: str) -> Callable[[int], None]:
        def sync(descriptor: int) -> None:
            synced.append(os.fstat(descriptor).st_ino)
            calls[name](descriptor)

        return sync

    for name in calls:
        monkeypatch.setattr(os, name, recording(name))
    log = FileEventLog(root)
    await log.append(1, NAME, [line(1)])
    path = path_of(root)
    folders = [root, root / "projects", path.parent]
    assert {item.stat().st_ino for item in (*folders, path)} <= set(synced)
    synced.clear()
    await log.append(1, NAME, [line(2)])
    assert synced == [path.stat().st_ino]
    await log.close()
    synced.clear()
    without = FileEventLog(root, sync=False)
    await without.append(1, NAME, [line(3)])
    assert synced == []
    await without.close()


async def test_more_logs_than_open_files(
    log: FileEventLog, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_log, "MAX_OPEN", 3)
    names = [LogName("-app", f"s{number}") for number in range(10)]
    before = len(os.listdir("/proc/self/fd"))
    for turn in range(3):
        for name in names:
            await log.append(1, name, [line(turn)], attempt_id="at-1", first=turn + 1)
    assert len(os.listdir("/proc/self/fd")) <= before + 8
    for name in names:
        page = await log.read(1, name)
        assert page is not None
        assert [decode_json(line.body)["n"] for line in page.lines] == [0, 1, 2]


async def test_a_line_that_names_its_original_has_one_mark(log: FileEventLog, root: Path) -> None:
    digest = "ab" * 32
    marked = [line(1, _perdure={"original": digest}), line(2, _perdure={"original": digest, "part": 2})]
    await log.append(1, NAME, marked, attempt_id="at-1")
    await log.append(1, NAME, [*marked[1:], line(3)], attempt_id="at-1", first=2)
    # A line with an end that only looks numbered is not numbered.
    forged = line(4, _perdure={"original": digest, "line": ["at-1", 9]})
    await log.append(1, NAME, [forged])
    await log.close()
    written = path_of(root).read_bytes().splitlines()
    assert [line.count(b"_perdure") for line in written] == [1, 1, 1, 2]
    assert decode_json(written[1])["_perdure"] == {"original": digest, "part": 2, "line": ["at-1", 2]}
    reopened = FileEventLog(root, sync=False)
    await reopened.append(1, NAME, [line(3), line(5)], attempt_id="at-1", first=3)
    assert read(reopened)[0] == [*marked, line(3), forged, line(5)]
    await reopened.close()


DESCRIPTORS = """
import asyncio, os, resource, sys
from perdure.kernel.errors import StorageUnavailable
from perdure.eventlog.file_log import FileEventLog
from perdure.eventlog.port import LogName

NAMES = [LogName("-app", f"s{number}") for number in range(100)]
BODY = [b'{"n":1}']


def limit(number):
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))


def used():
    return len(os.listdir("/proc/self/fd"))


async def few(root):
    limit(64)
    log, before = FileEventLog(root, sync=False), used()
    for name in NAMES:
        await log.append(1, name, BODY)
    print(used() - before <= 8)
    await log.close()


async def fewer(root):
    log = FileEventLog(root, sync=False)
    for name in NAMES[:50]:
        await log.append(1, name, BODY)
    limit(64)
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for name in NAMES:
        await log.append(1, name, BODY)
    print([len((await log.read(1, name)).lines) for name in NAMES] == [2] * 50 + [1] * 50)
    await log.close()
    log = FileEventLog(root, sync=False)
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for call in (log.append(1, NAMES[0], BODY), log.read(1, NAMES[0])):
        try:
            print(await call)
        except StorageUnavailable as error:
            print(error.code)
    for descriptor in taken[:8]:
        os.close(descriptor)
    print(len((await log.read(1, NAMES[0])).lines))


asyncio.run(globals()[sys.argv[1]](sys.argv[2]))
"""


def test_few_descriptors_stop_no_append_and_hide_no_session(root: Path) -> None:
    def printed(case: str) -> list[str]:
        argv = [sys.executable, "-c", DESCRIPTORS, case, str(root / case)]
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120).stdout.split()

    assert printed("few") == ["True"]
    # If nothing can be opened at all, a session is not missing: the storage is unavailable.
    assert printed("fewer") == ["True", "storage_unavailable", "storage_unavailable", "2"]


async def test_a_session_may_be_named_like_a_sub_agent(log: FileEventLog, root: Path) -> None:
    name = LogName("-app", "agent-7")
    await log.append(1, name, [line(1)])
    # Claude Code writes the logs of its sub-agents to the same folder.
    side = root / "projects" / "-app" / "agent-8.jsonl"
    side.write_text('{"isSidechain": true, "sessionId": "s"}\n')
    assert [info.name for info in await log.logs(1)] == [name]
    assert [info.name for info in await log.starting(1, "agent-", 10)] == [name]
    assert [info.name for info in await log.idle(1, 0.0, None, 10)] == [name]
    assert await log.remove(1, name, 0.0)
    assert await log.logs(1) == []


async def test_the_latest_comes_first(log: FileEventLog, root: Path) -> None:
    for number, session_id in enumerate(("s1", "s2", "s0")):
        await log.append(1, LogName("-app", session_id), [line(1)])
        os.utime(root / "projects" / "-app" / f"{session_id}.jsonl", (number, number))
    assert [info.name.session_id for info in await log.logs(1)] == ["s0", "s2", "s1"]


async def test_a_closed_log_says_so(root: Path) -> None:
    log = FileEventLog(root)
    await log.append(1, NAME, [line(1)])
    await log.close()
    with pytest.raises(StorageClosed):
        await log.append(1, NAME, [line(2)])


WRITER = """
import sys
from perdure.eventlog.file_log import FileEventLog
from perdure.eventlog.port import LogName, encode_line
log, number = FileEventLog(sys.argv[1]), 0
while True:
    batch = [encode_line({"n": number + each}) for each in range(5)]
    log.append_now(1, LogName("-app", "s"), batch, "at-1", number + 1)
    number += 5
    print(number, flush=True)
"""


def test_what_was_acknowledged_outlives_a_kill(root: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    acknowledged = 0
    while acknowledged < 100:
        acknowledged = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    acknowledged = max([acknowledged, *map(int, process.stdout.read().split()[:-1])])
    process.wait()
    process.stdout.close()
    log = FileEventLog(root)
    seen = [decode_json(body)["n"] for body in read(log, limit=100_000)[0]]
    assert seen[:acknowledged] == list(range(acknowledged))


async def test_an_append_waits_until_a_file_is_deleted_and_begins_another(
    log: FileEventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.append(1, NAME, [line(1)])
    unlink = Path.unlink
    waits: list[bool] = []

    def look(path: Path, missing_ok: bool = False) -> None:
        # It must not be written to the file that is about to be deleted.
        waits.append(log._get_open_file((1, NAME)).lock.locked())
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", look)
    assert await log.remove(1, NAME, 0.0)
    assert waits == [True]
    await log.append(1, NAME, [line(2)])
    assert read(log)[0] == [line(2)]
