"""Event loops in separate threads for the code of agents, so that no agent blocks the worker."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec

from perdure.kernel.background import new_loop

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

BLOCKED_SECONDS = 1.0
"""A loop gets no more runs after one callback has held it for this time."""
NEW_SECONDS = 1.0
"""A loop is not checked before this age, because agents import and load much in their first run."""
CLOSE_SECONDS = 2.0

IDLE_SECONDS = 10.0
"""How long an idle thread waits for another call before it ends."""

Work = Callable[[], Coroutine[Any, Any, Any]]


class AgentEnd(msgspec.Struct, frozen=True):
    """End of an agent's code: its return value, or its exception."""

    value: Any = None
    error: BaseException | None = None


class _Call(NamedTuple):
    """Function to call, and the future for its result."""

    future: Future[Any]
    function: Callable[[], Any]


class DaemonThreads(ThreadPoolExecutor):
    """Executor that runs each call at once, in its own daemon thread.

    A call that never ends blocks neither other calls nor the exit. Idle threads are reused.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[SimpleQueue[_Call]] = deque()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        call = _Call(future, partial(fn, *args, **kwargs))
        try:
            calls = self._waiting.pop()
        except IndexError:
            calls = SimpleQueue()
            work = partial(self._work, calls)
            threading.Thread(target=work, name="perdure-agent-call", daemon=True).start()
        calls.put(call)
        return future

    def _work(self, calls: SimpleQueue[_Call]) -> None:
        while True:
            try:
                call = calls.get(timeout=IDLE_SECONDS)
            except Empty:
                try:
                    self._waiting.remove(calls)
                except ValueError:
                    # `submit` has just taken this thread for a call.
                    continue
                return
            self._run(call, calls)
            del call

    def _run(self, call: _Call, calls: SimpleQueue[_Call]) -> None:
        if not call.future.set_running_or_notify_cancel():
            self._waiting.append(calls)
            return
        try:
            result = call.function()
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self._waiting.append(calls)
            call.future.set_exception(error)
        else:
            self._waiting.append(calls)
            call.future.set_result(result)


class ThreadUsage(NamedTuple):
    """CPU usage of a thread so far, in seconds."""

    sleeps: bool
    """True if the thread waits for something other than a core, such as a blocking call."""
    on_core: float
    delay: float
    """Time in which the thread was ready but had no core. Linux adds a delay only at its end."""


def read_usage(thread: int | None) -> ThreadUsage:
    """Return the usage of a thread by its native ID. Without data from the system it counts as asleep."""
    try:
        with open(f"/proc/self/task/{thread}/schedstat", encoding="ascii") as file:
            on_core, delay, _ = map(int, file.read().split())
        with open(f"/proc/self/task/{thread}/stat", encoding="utf-8", errors="replace") as file:
            state = file.read().rpartition(")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return ThreadUsage(True, 0.0, 0.0)
    return ThreadUsage(state != "R", on_core / 1e9, delay / 1e9)


class _Held(NamedTuple):
    """Callback that holds a loop: its task, when it was last seen, and how long it has held the loop."""

    holder: object
    seen_at: float
    usage: ThreadUsage
    seconds: float


class AgentLoop:
    """Event loop in a daemon thread, for the code of agents."""

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.loop = new_loop()
        self.loop.set_default_executor(DaemonThreads())
        self.jobs: set[AgentJob] = set()
        self.retired = False
        self._unanswered = False
        self._held: _Held | None = None
        """Callback that holds the loop since it stopped responding."""
        self._started_at = time.monotonic()
        name = f"perdure-agents-{next(self._numbers)}"
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self._serve()
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()

    def _serve(self) -> None:
        while True:
            try:
                return self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                # A background task of one agent must not end the loop of other agents.
                logger.error("a task of an agent raised %s; its event loop continues", type(error).__name__)

    def call_soon(self, action: Callable[[], object]) -> None:
        """Call a function in the loop, from any thread. A closed loop ignores it."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(action)

    def look(self) -> bool:
        """Return whether one callback has held the loop for too long; ping the loop if it has responded.

        Time in which the thread waits for a core does not count, so a busy machine blocks no loop.
        """
        now = time.monotonic()
        if now - self._started_at < NEW_SECONDS:
            return False
        if not self._unanswered:
            self._unanswered, self._held = True, None
            self.call_soon(self._answer)
            return False
        holder, usage = self._holder(), read_usage(self._thread.native_id)
        before = self._held
        if before is None or before.holder is not holder:
            # Another callback runs now, so the previous one has returned.
            self._held = _Held(holder, now, usage, 0.0)
            return False
        seconds = before.seconds + usage.on_core - before.usage.on_core
        if usage.sleeps:
            # A blocking call: all the time counts, except the time it waited for a core before.
            seconds = before.seconds + max(0.0, now - before.seen_at - usage.delay + before.usage.delay)
        self._held = _Held(holder, now, usage, seconds)
        return seconds > BLOCKED_SECONDS

    def _answer(self) -> None:
        self._unanswered = False

    def _holder(self) -> object:
        """Return the task that the loop executes; the loop itself outside of tasks."""
        return asyncio.current_task(self.loop) or self.loop

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def retire(self) -> None:
        """Accept no more runs; end after the last run."""
        self.retired = True
        if not self.jobs:
            self.stop()

    def stop(self) -> None:
        """Cancel all tasks and end as soon as nothing blocks."""
        self.call_soon(self.loop.stop)

    def join(self, timeout: float) -> bool:
        """Wait for the thread; return whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()


class AgentJob:
    """Agent that runs in its loop. `done` is a future of the starting loop and never has an exception."""

    def __init__(self, home: AgentLoop, work: Work, name: str) -> None:
        self.home = home
        self.name = name
        self.heard = False
        """True if its loop was able to cancel it."""
        self._control = asyncio.get_running_loop()
        self.done: asyncio.Future[AgentEnd] = self._control.create_future()
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self._lock = threading.Lock()
        self._begun = False
        self._enter(home)

    def _enter(self, home: AgentLoop) -> None:
        home.jobs.add(self)
        home.call_soon(lambda: self._begin(home))

    def move(self, home: AgentLoop) -> None:
        """Start in another loop, unless it has already started."""
        with self._lock:
            if self._begun:
                return
            self.home.jobs.discard(self)
            self.home = home
        self._enter(home)

    def _begin(self, home: AgentLoop) -> None:
        with self._lock:
            if self.home is not home:
                return
            self._begun = True
        self._task = home.loop.create_task(self._run(), name=self.name)

    async def _run(self) -> None:
        try:
            ended = AgentEnd(value=await self._work())
        except BaseException as error:  # noqa: BLE001 - the worker decides what it means
            ended = AgentEnd(error=error)
        with suppress(RuntimeError):
            # The worker may have abandoned this job and ended.
            self._control.call_soon_threadsafe(self._report, ended)

    def _report(self, ended: AgentEnd) -> None:
        self.home.jobs.discard(self)
        if self.home.retired and not self.home.jobs:
            self.home.stop()
        if not self.done.done():
            self.done.set_result(ended)

    def cancel(self) -> None:
        """Cancel the task at its next await."""
        self.home.call_soon(self._cancel)

    def _cancel(self) -> None:
        self.heard = True
        if self._task is not None:
            self._task.cancel()


class AgentLoops:
    """Loops of a worker: one loop shared by all runs, or one loop per run. Not thread-safe."""

    def __init__(self, *, isolated: bool = False) -> None:
        self._isolated = isolated
        self._shared: AgentLoop | None = None
        self._loops: list[AgentLoop] = []

    def start(self, work: Work, name: str) -> AgentJob:
        """Run a coroutine in a loop for agents."""
        job = AgentJob(self._home(), work, name)
        if self._isolated:
            job.home.retired = True
        return job

    def _home(self) -> AgentLoop:
        if self._isolated:
            return self._new()
        if self._shared is None or self._shared.retired:
            self._shared = self._new()
        return self._shared

    def _new(self) -> AgentLoop:
        self._loops = [loop for loop in self._loops if loop.alive]
        self._loops.append(AgentLoop())
        return self._loops[-1]

    def look(self) -> None:
        """Check the shared loop. If it is blocked, later runs get another loop."""
        loop = self._shared
        if loop is None or loop.retired:
            return
        if loop.look():
            self._replace(loop)

    def _replace(self, blocked: AgentLoop) -> None:
        """Retire a blocked loop. Jobs that have not started move to another loop."""
        names = sorted(job.name for job in blocked.jobs)
        blocked.retired = True
        for job in list(blocked.jobs):
            job.move(self._home())
        blocked.retire()
        logger.warning(
            "an agent blocks the event loop of %s; other runs get a new loop. "
            "Use async I/O instead of blocking calls, or set BG_JOB_ISOLATED_LOOPS=true",
            ", ".join(names) or "no run",
        )

    def abandon(self, job: AgentJob) -> None:
        """Abandon an agent that does not stop, and its thread."""
        logger.error("%s does not stop; its thread is abandoned", job.name)
        if job.home is self._shared and not job.heard:
            self._replace(job.home)

    def close(self) -> None:
        """End all loops; abandon blocked loops."""
        for loop in self._loops:
            loop.retired = True
            loop.stop()
        deadline = time.monotonic() + CLOSE_SECONDS
        left = [loop for loop in self._loops if not loop.join(max(0.0, deadline - time.monotonic()))]
        if left:
            logger.warning("%d event loops of agents are blocked and were abandoned", len(left))
        self._loops = left
        self._shared = None
