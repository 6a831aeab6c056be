"""`perdure start`, `stop`, `status` and `restart`: a background server, one for each database."""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.hosting.serve import ServeOptions, serve_options
from perdure.cli.shell.options import JsonOption, NoColorOption, duration, flag, text, with_options
from perdure.cli.shell.output import NOT_FOUND, TIMED_OUT, Output, human_duration, warn
from perdure.kernel.errors import StartRefused

if TYPE_CHECKING:
    from perdure.kernel.config import Settings
    from perdure.runtime.pid_file import Daemon, DaemonRecord

START_SECONDS = 60.0
STOP_MARGIN = 10.0
"""Additional seconds that the command waits beyond the stop time of a server."""
POLL_SECONDS = 0.05
PROBE_SECONDS = 3.0

LogFileOption = Annotated[
    str | None,
    text("FILE", "Log file (default: in ~/.local/state/perdure).", "--log-file"),
]
StartTimeout = Annotated[
    float | None, duration("Maximum time to wait until it is ready (default: 60s)", "--timeout")
]
StopTimeout = Annotated[float | None, duration("Maximum time to wait until it has stopped", "--timeout")]
DaemonDatabase = Annotated[
    str | None, text("URL", "Database of the server (default: sqlite:///perdure.db).", "--database")
]


# --- start ------------------------------------------------------------------------------------------------


@with_options(serve_options, first=True)
def start(
    options: ServeOptions,
    foreground: Annotated[
        bool, flag("--foreground", "-f", help="Stay in the foreground, and log to stderr.")
    ] = False,
    log_file: LogFileOption = None,
    timeout: StartTimeout = None,
    as_json: JsonOption = False,
    no_color: NoColorOption = False,
    report_fd: Annotated[int | None, typer.Option("--report-fd", hidden=True)] = None,
) -> None:
    """Start a server in the background, with the options of `serve`.

    It waits until the server answers. `perdure stop` stops it, `perdure status` shows it.
    """
    if report_fd is not None:
        _serve(options, report_fd, as_json=as_json)
        return
    settings = options.load_settings()
    check_stopped(settings)
    if foreground:
        if log_file is not None:
            raise typer.BadParameter("a server in the foreground logs to stderr", param_hint="--log-file")
        _serve(options, None, as_json=as_json)
        return
    facts = _start(settings, options, log_file, timeout)
    _show_start(facts, options, Output(as_json=as_json, no_color=no_color))


def _serve(options: ServeOptions, descriptor: int | None, *, as_json: bool) -> None:
    from perdure.cli.hosting.background import DaemonHost, StartReport
    from perdure.cli.hosting.serve import serve_with

    report = StartReport(as_json=as_json, descriptor=descriptor)
    order = report.order()
    os.environ.update(order.secrets)
    if descriptor is None:
        order.options = given(options)
    with report.failures():
        settings = options.load_settings()
        host = DaemonHost(settings, order, report)
        serve_with(settings, options.workers or 1, named=options.named, host=host)


def check_stopped(settings: Settings) -> None:
    """Refuse to start a second server for a database."""
    from perdure.runtime.pid_file import find_daemon

    daemon = find_daemon(settings.database_url)
    if daemon.is_running and daemon.record is not None:
        at = f" at {daemon.record.url}" if daemon.record.url else ""
        raise StartRefused(
            f"perdure is already {daemon.status} for {daemon.record.database}: "
            f"process {daemon.record.pid}{at}. "
            "Use `perdure restart` to restart it, or `perdure stop` to stop it."
        )
    if daemon.owner is not None:
        raise StartRefused(f"{_owned(settings, daemon)}; stop it first, or use it")


def _owned(settings: Settings, daemon: Daemon) -> str:
    from perdure.kernel.config import mask_url

    assert daemon.owner is not None
    at = f", which serves it at {daemon.owner.url}" if daemon.owner.url else ""
    owner = f"process {daemon.owner.pid}{at} and was not started with `perdure start`"
    return f"{mask_url(settings.database_url)} is in use by {owner}"


def given(options: ServeOptions) -> dict[str, Any]:
    """Return the given options, except the database. Port 0 counts as given, although 0 equals False."""
    options_given = {
        name: value
        for name, value in asdict(options).items()
        if value is not None and value is not False and value != []
    }
    options_given.pop("database", None)
    return options_given


def _start(
    settings: Settings, options: ServeOptions, log_file: str | None, timeout: float | None
) -> dict[str, Any]:
    from perdure.cli.hosting.background import show_warnings, start_in_background

    started = start_in_background(
        settings,
        _arguments(options),
        given(options) | ({} if log_file is None else {"log_file": log_file}),
        log_file,
        START_SECONDS if timeout is None else timeout,
    )
    show_warnings(started)
    return started.facts


def _arguments(options: ServeOptions) -> list[str]:
    """Build the arguments that are not passed in the environment, as settings are."""
    arguments = ["--workers", str(options.workers or 1)]
    if options.no_worker:
        arguments.append("--no-worker")
    for path in options.agents or ():
        arguments += ["--agents", path]
    return arguments


def _show_start(
    facts: dict[str, Any], options: ServeOptions, output: Output, stopped: dict[str, Any] | None = None
) -> None:
    from perdure.cli.hosting.serve import start_lines

    if output.as_json:
        output.document(facts if stopped is None else {**facts, "stopped": stopped})
        return
    first, *lines = start_lines(facts)
    output.print(f"{first} in the background (process {facts['pid']})")
    for line in (*lines, f"  log        {facts['log_file']}"):
        output.print(line)
    which = "" if options.database is None else " and the same --database"
    output.print(f"\nLook at it with `perdure status`, stop it with `perdure stop`{which}.")


# --- stop and status --------------------------------------------------------------------------------------


def stop(
    database: DaemonDatabase = None,
    timeout: StopTimeout = None,
    force: Annotated[bool, flag("--force", help="Kill it if it has not stopped in time.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Stop the server that runs in the background, and wait until it has stopped.

    It finishes its requests, and its runs within their grace period.
    """
    from perdure.runtime.pid_file import find_daemon

    settings = ServeOptions(database=database).load_settings()
    daemon = find_daemon(settings.database_url)
    output = Output(as_json=as_json)
    if not daemon.is_running or daemon.record is None:
        _refuse_stop(settings, daemon, output)
        raise typer.Exit(NOT_FOUND)
    stopped = _stop(daemon.record, timeout, force=force)
    if as_json:
        output.document(stopped)
    else:
        output.print(_stopped_text(stopped))


def _refuse_stop(settings: Settings, daemon: Daemon, output: Output) -> None:
    from perdure.kernel.config import mask_url

    if daemon.owner is not None:
        warn(f"{_owned(settings, daemon)}; stop it where it was started")
        raise typer.Exit(1)
    if output.as_json:
        output.document({"status": "stopped", "pid": None, "database": mask_url(settings.database_url)})
    else:
        warn(f"perdure is not running for {mask_url(settings.database_url)}")


def _stop(record: DaemonRecord, timeout: float | None, *, force: bool) -> dict[str, Any]:
    began = time.monotonic()
    seconds = record.seconds_to_stop + STOP_MARGIN if timeout is None else timeout
    forced = False
    ended = _end(record.pid, signal.SIGTERM, seconds)
    if not ended and force:
        forced = ended = _end(record.pid, signal.SIGKILL, STOP_MARGIN)
    if not ended:
        warn(f"process {record.pid} is still stopping after {seconds:g} s; `perdure stop --force` kills it")
        raise typer.Exit(TIMED_OUT)
    took = round(time.monotonic() - began, 3)
    facts = {"status": "stopped", "pid": record.pid, "database": record.database, "url": record.url}
    return {**facts, "seconds": took, "forced": forced}


def _stopped_text(stopped: dict[str, Any]) -> str:
    how = "Killed" if stopped["forced"] else "Stopped"
    return f"{how} process {stopped['pid']} after {human_duration(stopped['seconds'])}."


def _end(pid: int, number: int, seconds: float) -> bool:
    """Send a signal to a process, and wait until it ends. Return whether it has ended."""
    from perdure.kernel.files import is_alive

    if hasattr(os, "pidfd_open"):
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            signal.pidfd_send_signal(process, number)
            return bool(select.select([process], [], [], seconds)[0])
        except ProcessLookupError:
            return True
        finally:
            os.close(process)
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return True
    until = time.monotonic() + seconds
    while is_alive(pid):
        if time.monotonic() > until:
            return False
        time.sleep(POLL_SECONDS)
    return True


def status(
    database: DaemonDatabase = None, as_json: JsonOption = False, no_color: NoColorOption = False
) -> None:
    """Show whether a server runs for a database (exit code 4 if none does)."""
    from perdure.runtime.pid_file import find_daemon

    settings = ServeOptions(database=database).load_settings()
    facts = _status(settings, find_daemon(settings.database_url))
    output = Output(as_json=as_json, no_color=no_color)
    if as_json:
        output.document(facts)
    else:
        _show_status(facts, output)
    if facts["status"] == "stopped":
        raise typer.Exit(NOT_FOUND)


def _status(settings: Settings, daemon: Daemon) -> dict[str, Any]:
    from perdure.kernel.config import mask_url
    from perdure.runtime.pid_file import DaemonFiles

    facts: dict[str, Any] = {"status": daemon.status, "database": mask_url(settings.database_url)}
    record = daemon.record
    if daemon.is_running and record is not None:
        names = ("pid", "url", "grpc_port", "workers", "agents", "started_at", "log_file", "directory")
        facts |= {name: getattr(record, name) for name in names}
        facts["pid_file"] = str(DaemonFiles.of(settings.database_url).pid)
        facts["daemon"] = True
    elif daemon.owner is not None:
        facts |= {"status": "running", "pid": daemon.owner.pid, "url": daemon.owner.url, "daemon": False}
    else:
        facts["crashed_pid"] = daemon.crashed_pid
        facts["log_file"] = None if record is None else record.log_file
        return facts
    facts["health"] = _health(facts["url"])
    return facts


def _health(url: str | None) -> str | None:
    """Return the result of the server's health check; None for a process without a server."""
    import json
    import urllib.error
    import urllib.request

    if url is None:
        return None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/readyz", timeout=PROBE_SECONDS) as answer:
            return str(json.load(answer)["status"])
    except urllib.error.HTTPError as refusal:
        with refusal:
            try:
                return str(json.load(refusal)["status"])
            except (ValueError, KeyError, TypeError):
                return f"status {refusal.code}"
    except (OSError, ValueError, KeyError) as error:
        return f"no answer: {getattr(error, 'reason', error)}"


def _show_status(facts: dict[str, Any], output: Output) -> None:
    database = facts["database"]
    if facts["status"] == "stopped":
        output.print(f"perdure is stopped for {database}. Start it with `perdure start`.")
        if facts["crashed_pid"] is not None:
            log = f"; see {facts['log_file']}" if facts["log_file"] else ""
            output.print(f"Process {facts['crashed_pid']} ended without stopping properly{log}")
        return
    how = "" if facts["daemon"] else ", not started with `perdure start`"
    output.print(f"perdure is {facts['status']}{how}.")
    since = facts.get("started_at")
    age = "" if since is None else f", for {human_duration(time.time() - since)}"
    shown = {
        "process": f"{facts['pid']}{age}",
        "URL": facts["url"],
        "health": facts["health"],
        "database": database,
        "gRPC port": facts.get("grpc_port"),
        "processes": facts["workers"] if facts.get("workers", 1) > 1 else None,
        "agents": ", ".join(facts.get("agents") or ()),
        "log": facts.get("log_file"),
    }
    for name, value in shown.items():
        if value:
            output.print(f"  {name:<10} {value}")


# --- restart ----------------------------------------------------------------------------------------------


@with_options(serve_options, first=True)
def restart(
    options: ServeOptions,
    log_file: LogFileOption = None,
    timeout: StartTimeout = None,
    force: Annotated[bool, flag("--force", help="Kill the old one if it does not stop in time.")] = False,
    as_json: JsonOption = False,
    no_color: NoColorOption = False,
) -> None:
    """Stop the server in the background, and start it again in its directory.

    Options that are not given are those of its last start.
    """
    from perdure.runtime.pid_file import find_daemon

    daemon = find_daemon(options.load_settings().database_url)
    record = daemon.record
    if record is not None:
        options, log_file = _as_before(options, log_file, record)
    # Find errors in the settings before anything is stopped.
    settings = options.load_settings()
    output = Output(as_json=as_json, no_color=no_color)
    stopped = None
    if record is not None and daemon.is_running:
        stopped = _stop(record, None, force=force)
        output.print(_stopped_text(stopped))
    check_stopped(settings)
    _show_start(_start(settings, options, log_file, timeout), options, output, stopped)


def _as_before(
    options: ServeOptions, log_file: str | None, record: DaemonRecord
) -> tuple[ServeOptions, str | None]:
    """Return the options of the last start, in its directory, with the given ones in place of them."""
    before = dict(record.options)
    log_file = log_file or before.pop("log_file", None)
    database = options.database
    if os.path.realpath(record.directory) != os.path.realpath("."):
        database = _absolute(options.load_settings().database_url)
        os.chdir(record.directory)
    previous = {name: value for name, value in before.items() if name in asdict(options)}
    return replace(ServeOptions(**{**previous, **given(options)}), database=database), log_file


def _absolute(database_url: str) -> str:
    """Return the URL of the same database for any directory."""
    from perdure.runtime.stores import sqlite_file

    file = sqlite_file(database_url)
    return database_url if file is None else f"sqlite:///{os.path.abspath(file)}"
