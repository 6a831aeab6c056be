"""Options of a worker, with their defaults."""

from __future__ import annotations

import os
import socket
from secrets import token_hex
from typing import Any, Final

import msgspec

from perdure.agents.confinement import Confinement, SandboxName, list_private_paths
from perdure.kernel.config import Settings
from perdure.threads.model import RUN_QUEUES, QueueName

ASYNC_RUNS: Final = 10
"""Number of runs of async agents that a worker executes by default, as on LangGraph's server."""
STATE: Final = ("agent-sessions", "backups")


def make_worker_id() -> str:
    """Create a unique worker ID: the host name, the process ID and random digits."""
    return f"{socket.gethostname()}-{os.getpid()}-{token_hex(3)}"


def _state_folders(workspaces: str | None) -> list[str]:
    """Return the folder of workspaces and the other folders with state next to it."""
    return (
        [] if workspaces is None else [workspaces, *(os.path.join(workspaces, "..", name) for name in STATE)]
    )


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a worker. Durations are in seconds."""

    worker_id: str = msgspec.field(default_factory=make_worker_id)
    concurrency: int | None = 1
    """Number of concurrent runs. None means `ASYNC_RUNS` runs of async agents, and one run per core of
    agents that occupy a thread or a process."""
    heartbeat: float = 10.0
    """Duration of a lease; leases are renewed three times per duration."""
    interval: float = 5.0
    """Polling interval when no signal arrives."""
    timeout: float | None = None
    """Timeout of an attempt, unless the run, its agent or the server sets one."""
    grace: float = 5.0
    """Time that runs have to end when the worker stops."""
    cancel_grace: float = 3.0
    """Time that a cancelled agent has to stop before its thread is abandoned."""
    isolated_loops: bool = False
    """Run each run in its own event loop and thread."""
    retriable: tuple[str, ...] = ()
    """Names of additional exception classes that are retried."""
    stats_interval: float = 60.0
    trace_sample: float = 1.0
    """Share of runs whose attempts, steps, nodes, model and tool calls are recorded; 0 records none."""
    trace_content: bool = True
    """Store messages, arguments, results and error texts in spans."""

    queues: tuple[QueueName, ...] = RUN_QUEUES
    """Queues to claim from: `agents` has the runs of callers, `workflows` the phases."""

    workspaces: str | None = None
    """Folder with the working directories of workflow runs. Without it, no command is executed."""
    http_allow_private: bool = False
    """Allow requests of phases to private addresses."""
    http_allowed_hosts: tuple[str, ...] = ()
    """Hosts that requests of phases may reach; empty allows all."""

    command_sandbox: SandboxName | None = None
    """Sandbox of commands, scripts and checks, and of agents in their own processes."""
    command_network: bool = False
    """Give processes in the sandbox network access."""
    command_uid: int | str | None = None
    """User of the executed processes, if the worker runs as root."""
    private_paths: tuple[str, ...] = ()
    """Files and folders that sandboxes hide."""

    session_log: bool = True
    """Write the actions of agents to sessions."""
    session_content: bool = True
    """Store texts, arguments and results in sessions; otherwise only roles, tools and usage."""

    @classmethod
    def from_settings(cls, settings: Settings, **more: Any) -> WorkerOptions:
        """Build options from the settings. Arguments that are not None have precedence."""
        defaults = {
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
        return cls(**{"concurrency": settings.jobs_per_worker, **defaults, **given})

    def confinement(self, *, required: bool, network: bool, workspace: str | None) -> Confinement:
        """Return how the process of an attempt is confined. `required` and `network` come from its phase."""
        return Confinement(
            sandbox=required or self.command_sandbox is not None,
            required=required,
            network=network or self.command_network,
            user=None if self.command_uid is None else str(self.command_uid),
            writable=() if workspace is None else (workspace,),
            private=self.private_paths,
            variables=(("PERDURE_JOB_RETRIABLE", ",".join(self.retriable)),),
        )
