"""One process owns a database file: others get its id, and nothing is left when it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.kernel.support import NS, THINGS, put, stored

from perdure.kernel.errors import DatabaseOwned
from perdure.kernel.storage.ownership import Ownership
from perdure.kernel.storage.sqlite import SqliteStorage

OWN = """
import sys
from pathlib import Path
from perdure.kernel.storage.ownership import Ownership

ownership = Ownership(Path(sys.argv[1]), "http://127.0.0.1:4747")
print("owned", flush=True)
sys.stdin.read()
"""


class Owner:
    """Run another process that owns a file."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-c", OWN, str(path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "owned\n"
        self.pid = self._process.pid

    def __enter__(self) -> Owner:
        return self

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def __exit__(self, *exception: object) -> None:
        with self._process:
            self._process.kill()


def test_whoever_comes_second_is_told_who_was_first(tmp_path: Path) -> None:
    path = tmp_path / "things.db"
    with Owner(path) as owner:
        with pytest.raises(DatabaseOwned) as refused:
            SqliteStorage(path, [THINGS])
        assert f"process {owner.pid}" in str(refused.value)
        assert "http://127.0.0.1:4747" in str(refused.value)
        assert str(path) in str(refused.value)
        assert not path.exists()


async def test_a_lock_left_by_a_killed_process_blocks_nobody(tmp_path: Path) -> None:
    path = tmp_path / "things.db"
    with Owner(path) as owner:
        owner.kill()
        storage = SqliteStorage(path, [THINGS])
        await storage.run(put, "a", ns=NS)
        await storage.close()


async def test_one_process_opens_a_file_once(tmp_path: Path) -> None:
    path = tmp_path / "things.db"
    storage = SqliteStorage(path, [THINGS])
    (tmp_path / "link.db").symlink_to(path)
    for other in (path, tmp_path / "link.db", tmp_path / "." / "things.db"):
        with pytest.raises(DatabaseOwned, match=str(os.getpid())):
            SqliteStorage(other, [THINGS])
    await storage.run(put, "a", ns=NS)
    await storage.close()
    again = SqliteStorage(tmp_path / "link.db", [THINGS])
    assert await stored(again) == ["a"]
    await again.close()


def test_the_lock_says_who_holds_it(tmp_path: Path) -> None:
    ownership = Ownership(tmp_path / "things.db", "http://127.0.0.1:1")
    content = json.loads((tmp_path / "things.db.lock").read_text())
    ownership.release()
    assert content == {"pid": os.getpid(), "url": "http://127.0.0.1:1"}


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"pid": 1', "\x00\xff", "x" * 10_000])
def test_what_an_old_lock_says_does_not_matter(tmp_path: Path, content: str) -> None:
    (tmp_path / "things.db.lock").write_text(content)
    first = Ownership(tmp_path / "things.db")
    (tmp_path / "things.db.lock").write_text(content)
    with pytest.raises(DatabaseOwned, match="another process"):
        Ownership(tmp_path / "things.db")
    first.release()
    first.release()
    Ownership(tmp_path / "things.db").release()


def test_a_refused_open_keeps_nothing_open(tmp_path: Path) -> None:
    first = Ownership(tmp_path / "things.db")
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for _ in range(20):
        with pytest.raises(DatabaseOwned):
            Ownership(tmp_path / "things.db")
    after = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    assert after == before
    first.release()


FORK = """
import asyncio, os, signal, sys, warnings
from pathlib import Path

warnings.simplefilter("ignore", DeprecationWarning)
signal.alarm(60)

from perdure import SqliteLightningStore
from perdure.kernel.errors import DatabaseOwned, StorageClosed

path = Path(sys.argv[1])
store = SqliteLightningStore(path)
asyncio.run(store.enqueue_rollout("before"))
to_child, from_parent = os.pipe()[::-1]
from_child, to_parent = os.pipe()

if os.fork() == 0:
    signal.alarm(60)
    try:
        asyncio.run(store.enqueue_rollout("in the child"))
        answer = b"written"
    except StorageClosed as error:
        answer = b"closed"
    asyncio.run(store.close())
    os.write(to_parent, answer)
    os.read(from_parent, 1)
    os._exit(0)

print(os.read(from_child, 100).decode())
asyncio.run(store.enqueue_rollout("after"))
try:
    SqliteLightningStore(path)
except DatabaseOwned:
    print("still owned")
asyncio.run(store.close())
again = SqliteLightningStore(path)
print(len(list(asyncio.run(again.query_rollouts()))))
asyncio.run(again.close())
os.write(to_child, b"x")
os.wait()
"""


def test_a_fork_neither_uses_the_database_nor_keeps_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(FORK), str(tmp_path / "things.db")]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
    assert answer.stdout.split("\n") == ["closed", "still owned", "2", ""], answer.stderr
