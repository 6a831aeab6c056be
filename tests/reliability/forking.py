"""A process that opens a store and forks: `python -m tests.reliability.forking STORY URL`."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from perdure import LightningStoreThreaded, open_store
from perdure.kernel.errors import StorageClosed
from perdure.rollouts.contract import LightningStore

CHILD_SECONDS = 20


def fork(child: Callable[[], None]) -> int:
    """Run `child` in a fork, and give its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            child()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - told to the parent
            print(f"the fork failed: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
    return pid


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def _refused(call: Coroutine[Any, Any, Any]) -> None:
    try:
        await asyncio.wait_for(call, CHILD_SECONDS)
    except StorageClosed as error:
        if str(os.getppid()) not in str(error):
            raise
        return
    raise AssertionError("the call was not refused")


async def _use_in_fork(store: LightningStore) -> None:
    """Whatever a fork asks its parent's store for is refused; closing it is no error and closes nothing."""
    await _refused(store.enqueue_rollout("from the fork"))
    await _refused(store.dequeue_rollout("fork"))
    await _refused(store.query_rollouts())
    await _refused(store.wait_for_rollouts(rollout_ids=["ro-0"], timeout=5))


def use_in_fork(url: str) -> None:
    """A fork uses its parent's store, in an event loop of its own, and goes; the parent goes on."""
    store: LightningStore = open_store(url.removeprefix("threaded+"), watchdog_interval=0.05)
    if url.startswith("threaded+"):
        store = LightningStoreThreaded(store)

    async def work() -> None:
        await store.enqueue_rollout("before")
        assert await asyncio.to_thread(exit_code, fork(lambda: asyncio.run(_use_in_fork(store)))) == 0
        await store.enqueue_rollout("after")
        assert [rollout.input for rollout in await store.query_rollouts()] == ["before", "after"]
        await store.close()

    asyncio.run(work())
    print("done", flush=True)


def end_in_fork(url: str) -> None:
    """Forks end in the ordinary way, finalizers and all, or become other programs; the parent goes on."""
    store = open_store(url)
    for number in range(20):
        asyncio.run(store.enqueue_rollout(number))
        pid = os.fork()
        if pid == 0 and number % 2:
            os.execl(sys.executable, sys.executable, "-c", "")
        elif pid == 0:
            return
        assert exit_code(pid) == 0
    assert len(asyncio.run(store.query_rollouts())) == 20
    asyncio.run(store.close())
    print("done", flush=True)


def outlive(url: str) -> None:
    """A fork waits for the end of stdin while its parent owns the file; both say who they are."""
    store = open_store(url)
    asyncio.run(store.enqueue_rollout("kept"))
    print(os.getpid(), flush=True)
    exit_code(fork(_say_and_wait))


def _say_and_wait() -> None:
    print(os.getpid(), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    {"use": use_in_fork, "end": end_in_fork, "outlive": outlive}[sys.argv[1]](sys.argv[2])
