"""The lives of a server process and of a client's connection: their statuses, and the phases of a stop.

Objects that are created at the start of a server process are never scanned again by garbage collection.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Mapping
from enum import IntEnum
from typing import Final, Literal, Protocol, get_args, runtime_checkable

from perdure.kernel.machine import Machine

DaemonStatus = Literal["stopped", "starting", "running", "stopping"]

STOPPED: Final = "stopped"
STARTING: Final = "starting"
RUNNING: Final = "running"
STOPPING: Final = "stopping"

START: Final = "start"
READY: Final = "all services started"
START_FAILED: Final = "start failed"
STOP: Final = "stop requested"
SERVICE_FAILED: Final = "service failed"
CLEANED_UP: Final = "cleaned up"

DAEMON: Final = (
    Machine("daemon", (STOPPED, STARTING, RUNNING, STOPPING), start={"installed": STOPPED}, final=(STOPPED,))
    .on(START, (STOPPED,), STARTING)
    .on(READY, (STARTING,), RUNNING)
    .on(START_FAILED, (STARTING,), STOPPED)
    .on(STOP, (STARTING, RUNNING), STOPPING)
    .on(SERVICE_FAILED, (RUNNING,), STOPPING)
    .on(CLEANED_UP, (STOPPING,), STOPPED)
)
"""Statuses of a server process."""


class StopPhase(IntEnum):
    """Phases of a stopping process, in order. All services of a phase stop at the same time."""

    ANNOUNCE = 1
    """Health checks report that the process stops; requests are still answered."""
    INTAKE = 2
    """Claims and schedules stop."""
    STREAMS = 3
    """Endless responses end, with an id to resume from."""
    REQUESTS = 4
    """Accepted requests and calls are answered; then the listeners close."""
    WORK = 5
    """Runs and jobs end, are cancelled or are handed back; workers sign off."""
    SUPPORT = 6
    """Services that runs and requests needed stop: deliveries, the operator's application."""
    STORAGE = 7
    """The database is flushed and closed."""
    PROCESS = 8
    """Files about this process are removed: its secret and its PID file."""


Step = Callable[[], Awaitable[None]]


class Component(Protocol):
    """A service that runs from `start` to `stop` in the event loop of its process.

    `stop` may follow a `start` that failed or was cancelled.
    """

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


@runtime_checkable
class Phased(Protocol):
    """A component that stops in other phases than `WORK`, or in several."""

    def stop_steps(self) -> Mapping[StopPhase, Step]:
        """Return the action of each phase."""
        ...


@runtime_checkable
class Claiming(Protocol):
    """A component that claims work, and stops claiming before the work itself has to end."""

    async def stop_claiming(self) -> None: ...


@runtime_checkable
class Endable(Protocol):
    """A component that may end by itself, which stops the process."""

    async def ended(self) -> None:
        """Wait for the end; raise its reason."""
        ...


class InPhase:
    """A third-party component that stops in one phase."""

    def __init__(self, phase: StopPhase, component: Component) -> None:
        self._phase = phase
        self._component = component
        self.start = component.start
        self.stop = component.stop

    def __repr__(self) -> str:
        return get_component_name(self._component)

    def stop_steps(self) -> Mapping[StopPhase, Step]:
        return {self._phase: self.stop}


def get_steps(component: Component) -> Mapping[StopPhase, Step]:
    """Return the action of each phase; by default claims stop first, then the component with the work."""
    if isinstance(component, Phased):
        return component.stop_steps()
    if isinstance(component, Claiming):
        return {StopPhase.INTAKE: component.stop_claiming, StopPhase.WORK: component.stop}
    return {StopPhase.WORK: component.stop}


def get_component_name(component: Component) -> str:
    """Return the name of a component in the log."""
    return repr(component) if isinstance(component, InPhase) else type(component).__name__


# --- connections ------------------------------------------------------------------------------------------


ConnectionState = Literal["disconnected", "connecting", "connected", "streaming", "conn_failed"]
STATES: Final[tuple[ConnectionState, ...]] = get_args(ConnectionState)
DISCONNECTED, CONNECTING, CONNECTED, STREAMING, CONN_FAILED = STATES

CONNECT: Final = "connect"
ESTABLISHED: Final = "established"
FAILED: Final = "transport error"
GIVEN_UP: Final = "connection given up"
STARTED: Final = "request started"
ENDED: Final = "last response or error"
LOST: Final = "server unavailable"
CLOSED: Final = "closed"

CONNECTION = (
    Machine("grpc connection", STATES, start={"created": DISCONNECTED}, final=[])
    .on(CONNECT, [DISCONNECTED], CONNECTING)
    .on(ESTABLISHED, [CONNECTING], CONNECTED)
    .on(FAILED, [CONNECTING], CONN_FAILED)
    .on(GIVEN_UP, [CONN_FAILED], DISCONNECTED)
    .on(STARTED, [CONNECTED], STREAMING)
    .on(ENDED, [STREAMING], CONNECTED)
    .on(LOST, [CONNECTED, STREAMING], DISCONNECTED)
    .on(CLOSED, [CONNECTING, CONNECTED, STREAMING, CONN_FAILED], DISCONNECTED)
)
"""Requests may overlap: the connection is streaming while there is at least one."""


# --- garbage collection -----------------------------------------------------------------------------------


THRESHOLDS = (20_000, 20, 10)
"""Python's default (700, 10, 10) took 1/8 of a server's CPU; few requests create cycles."""


def settle_garbage_collector(*, collect: bool = True) -> None:
    """Exclude all existing objects from collections, and collect the others less often.

    Without `collect`, garbage of start-up stays too: short-lived processes save the time.
    """
    if collect:
        gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.enable()
