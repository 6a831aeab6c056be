"""The options of a worker, and their defaults."""

from __future__ import annotations

import os
import socket
from secrets import token_hex
from typing import Any, Final

import msgspec

from perdure.agents.confinement import Confinement, SandboxName
from perdure.agents.private_paths import list_private_paths
from perdure.kernel.config import Settings
from perdure.threads.model import RUN_QUEUES, QueueName

ASYNC_RUNS: Final = 10
"""Number of runs of async agents that a worker executes by default, as on LangGraph's server."""
STATE: Final = ("agent-sessions", "backups")


def make_worker_id() -> str:
    """Create a unique worker id: the host name, the process id and random digits."""
    return f"{socket.gethostname()}-{os.getpid()}-{token_hex(3)}"


def _state_folders(workspaces: str | None) -> list[str]:
    """Folders with state beside that of the workspaces."""
    return (
        [] if workspaces is None else [workspaces, *(os.path.join(workspaces, "..", name) for name in STATE)]
    )


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a worker. Durations are in seconds."""

    worker_id: str = msgspec.field(default_factory=make_worker_id)
    concurrency: int | None = 1
    """Number of runs that it executes at the same time. Without one, `ASYNC_RUNS` runs of async agents, and a
    run for each core of the others, which occupy a thread or a process."""
    heartbeat: float = 10.0
    """Duration of a lease; leases are renewed three times as often."""
    interval: float = 5.0
    """Polling interval when no signal arrives."""
    timeout: float | None = None
    """Timeout of an attempt, unless the run, its agent or the server sets one."""
    grace: float = 5.0
    """How long runs may continue when the worker stops."""
    cancel_grace: float = 3.0
    """How long a cancelled agent may take to stop before its thread is abandoned."""
    isolated_loops: bool = False
    """Whether each run gets its own event loop and thread."""
    retriable: tuple[str, ...] = ()
    """Names of additional exception classes that are retried."""
    stats_interval: float = 60.0
    trace_sample: float = 1.0
    """The share of runs whose attempts, steps, nodes, model and tool calls are recorded; 0 is none."""
    trace_content: bool = True
    """Whether spans hold messages, arguments, results and the texts of errors."""

    queues: tuple[QueueName, ...] = RUN_QUEUES
    """The queues that it claims from: `agents` has the runs of callers, `workflows` the phases."""

    workspaces: str | None = None
    """The folder with the working directories of workflow runs; without one, no command is executed."""
    http_allow_private: bool = False
    """Whether requests of phases may go to private addresses."""
    http_allowed_hosts: tuple[str, ...] = ()
    """The hosts to which they may go; none is all."""

    command_sandbox: SandboxName | None = None
    """The sandbox of commands, scripts and checks, and of agents in processes of their own."""
    command_network: bool = False
    """Whether processes in the sandbox have a network."""
    command_uid: int | str | None = None
    """The user that executes them, if the worker runs as root."""
    private_paths: tuple[str, ...] = ()
    """Files and folders that no sandbox shows."""

    session_log: bool = True
    """Whether what agents say is written to sessions."""
    session_content: bool = True
    """Whether sessions hold texts, arguments and results, or only who spoke, which tools, and usage."""

    @classmethod
    def from_settings(cls, settings: Settings, **more: Any) -> WorkerOptions:
        """The options of the settings; arguments that are not None have precedence."""
        found = {
            "heartbeat": settings.job_heartbeat,
            "interval": settings.job_interval,
            "timeout": settings.job_timeout,
            "grace": settings.shutdown_grace_period,
            "isolated_loops": settings.job_isolated_loops,
            "retriable": settings.job_retriable,
            "stats_interval": settings.stats_interval,
            "trace_sample": settings.trace_sample,
            "trace_content": settings.trace_content,
            "http_allow_private": settings.webhook_allow_private,
            "http_allowed_hosts": tuple(settings.webhook_allowed_hosts),
            "command_sandbox": settings.command_sandbox,
            "command_network": settings.command_network,
            "command_uid": settings.command_uid,
            "private_paths": list_private_paths(settings, *_state_folders(more.get("workspaces"))),
            "session_log": settings.session_log,
            "session_content": settings.session_content,
        }
        given = {name: value for name, value in more.items() if value is not None}
        return cls(**{"concurrency": settings.jobs_per_worker, **found, **given})

    def confinement(self, *, required: bool, network: bool, workspace: str | None) -> Confinement:
        """How the process of an attempt is kept apart; `required` and `network` are what its phase says."""
        return Confinement(
            sandbox=required or self.command_sandbox is not None,
            required=required,
            network=network or self.command_network,
            user=None if self.command_uid is None else str(self.command_uid),
            writable=() if workspace is None else (workspace,),
            private=self.private_paths,
            variables=(("PERDURE_JOB_RETRIABLE", ",".join(self.retriable)),),
        )
