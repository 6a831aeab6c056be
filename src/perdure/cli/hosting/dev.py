"""`perdure dev`: a development server with every protocol enabled, and optionally the demo."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer

from perdure.cli.demo.command import RolloutsOption, SeedOption
from perdure.cli.hosting.agents import AgentsOption, gather
from perdure.cli.hosting.serve import GrpcPortOption, HostOption, PortOption, ServedDatabase
from perdure.cli.shell.options import JsonOption, LogLevelOption, NoColorOption, flag, number, text
from perdure.cli.shell.target import DEFAULT_URL

if TYPE_CHECKING:
    from perdure.cli.demo.play import DemoReport
    from perdure.cli.shell.output import Output
    from perdure.kernel.config import Settings
    from perdure.runtime.app import App
    from perdure.runtime.reloads import ReloadReport
    from perdure.worker.registry import Agents

OTLP_GRPC_PORT = 4317
MEMORY_PORT = 50051
"""Default port of agent-memory clients."""
RUN_LOG = "perdure.worker.execution"
"""The logger of the starts and ends of runs."""
DEMO_AGENTS = "perdure.cli.demo.scene:AGENTS"
PAGE = "/ui/"
"""The path of the dashboard."""
OFF = "disabled by --no-grpc"
DEBUGGER = "start it under the debugger: python -m debugpy --listen 5678 {wait}-m perdure.cli dev"
NOT_SUPPORTED = {
    "--tunnel": "perdure sends nothing through the servers of others. "
    "Use `ssh -R`, or set an API key and --host to listen on another address",
    "--debug-port": DEBUGGER.format(wait=""),
    "--wait-for-client": DEBUGGER.format(wait="--wait-for-client "),
    "--studio-url": "no browser is opened. The page of this server is at /ui/; "
    "a Studio finds the server by its own `baseUrl` parameter",
    "--grpc-port with --no-grpc": "give one of them",
}
"""Refused options of `langgraph dev` and combinations, with alternatives."""


def dev(
    database: ServedDatabase = None,
    host: HostOption = None,
    port: PortOption = None,
    grpc_port: GrpcPortOption = None,
    no_grpc: Annotated[bool, flag("--no-grpc", help="Do not serve gRPC.")] = False,
    agents: AgentsOption = None,
    config: Annotated[
        str | None,
        text("PATH", "The project's langgraph.json or perdure.toml (default: those here).", "--config", "-c"),
    ] = None,
    no_reload: Annotated[
        bool, flag("--no-reload", help="Do not load the project's code again when a file changes.")
    ] = False,
    jobs: Annotated[
        int | None,
        number(
            "Number of runs at the same time (default: 10 of async agents, one for each CPU of others).",
            "--n-jobs-per-worker",
            min=1,
            max=10_000,
        ),
    ] = None,
    allow_blocking: Annotated[
        bool, flag("--allow-blocking", help="Give each run an event loop, which it may block.")
    ] = False,
    log_level: LogLevelOption = None,
    server_log_level: Annotated[str | None, typer.Option("--server-log-level", hidden=True)] = None,
    no_browser: Annotated[
        bool, flag("--no-browser", help="Accepted for scripts of `langgraph dev`: no browser is opened.")
    ] = False,
    ssl_certfile: Annotated[
        str | None, text("FILE", "Certificate for HTTPS (the setting tls_cert_file).", "--ssl-certfile")
    ] = None,
    ssl_keyfile: Annotated[
        str | None, text("FILE", "Key of the certificate (the setting tls_key_file).", "--ssl-keyfile")
    ] = None,
    tunnel: Annotated[bool, typer.Option("--tunnel", hidden=True)] = False,
    debug_port: Annotated[int | None, typer.Option("--debug-port", hidden=True)] = None,
    wait_for_client: Annotated[bool, typer.Option("--wait-for-client", hidden=True)] = False,
    studio_url: Annotated[str | None, typer.Option("--studio-url", hidden=True)] = None,
    demo: Annotated[bool, flag("--demo", help="Run the demo on this server.")] = False,
    once: Annotated[
        bool | None,
        flag(
            "--once/--stay",
            help="Stop after the demo, or keep serving (default: stop without a terminal or in CI).",
        ),
    ] = None,
    rollouts: RolloutsOption = 24,
    seed: SeedOption = 11,
    as_json: JsonOption = False,
    no_color: NoColorOption = False,
) -> None:
    """Start a development server: all protocols enabled, all traces kept, code reloaded when it changes."""
    from perdure.cli.demo.agents import DemoPlan
    from perdure.cli.hosting import logs, project, server
    from perdure.cli.hosting.process_secrets import protect_process
    from perdure.cli.shell.output import Output
    from perdure.kernel.errors import InvalidInput
    from perdure.runtime.components import EmbeddedWorker

    given = {
        "--tunnel": tunnel,
        "--debug-port": debug_port is not None,
        "--wait-for-client": wait_for_client,
        "--studio-url": studio_url is not None,
        "--grpc-port with --no-grpc": no_grpc and grpc_port is not None,
    }
    for option, reason in NOT_SUPPORTED.items():
        if given[option]:
            raise InvalidInput(f"{option} is not supported: {reason}")
    log_level = log_level or server_log_level
    place = project.project_place(config)
    named = [*(agents or ()), *([DEMO_AGENTS] if demo else ())]
    settings, grpc_note, is_chosen = _settings(
        {
            "database_url": database,
            "host": host,
            "port": port,
            "grpc_port": grpc_port,
            "log_level": log_level,
            "jobs_per_worker": jobs,
            "job_isolated_loops": allow_blocking,
            "tls_cert_file": ssl_certfile,
            "tls_key_file": ssl_keyfile,
        },
        no_grpc=no_grpc,
    )
    protect_process(settings)
    logs.configure(settings)
    if log_level is None and settings.log_level == "warning":
        # A development server logs its runs, and otherwise only warnings and errors.
        logging.getLogger(RUN_LOG).setLevel(logging.INFO)
    output = Output(as_json=as_json or settings.log_json, no_color=no_color)
    with server.listen(settings, any_port=settings.sources["port"] == "default") as listening:
        url = server.build_url(settings, listening)
        loaded = gather(settings, named, place)
        app = server.open_app(settings, url, place)
        services = server.build_services(
            app,
            agents=loaded.agents,
            without_agents=not no_reload,
            further_ports=(MEMORY_PORT,),
            any_grpc_port=is_chosen,
        )
        services = [server.Administration(url, settings, app), *services]
        show = Show(app, url, output, DemoPlan(rollouts, seed), place, loaded.agents)
        show.stays = not demo or not (_is_unattended() if once is None else once)
        if not no_reload:
            worker = next(service for service in services if isinstance(service, EmbeddedWorker))
            code = project.ProjectCode(app, worker, loaded, place, named)
            services.append(project.FileWatch(app, code, show.reloaded))
            show.reloads = True

        process = server.HttpServerProcess(app, listening, services)
        process.when_running(lambda: show.announce(process.key_needed, app.grpc_ports, grpc_note))
        server.run(process, show.play if demo else None)


class DevSettings(NamedTuple):
    """Settings of a server with everything enabled, why gRPC is off, and whether its port was chosen here."""

    settings: Settings
    grpc_note: str
    is_grpc_port_chosen: bool


def _settings(given: dict[str, Any], *, no_grpc: bool = False) -> DevSettings:
    from perdure.cli.hosting.server import settings_from
    from perdure.server.http.gate import ANY, LOCAL_ORIGINS

    explicit = {**given, "keep_traces": True, "memory_feed": True, "discard_other_signals": True}
    settings = settings_from(explicit)
    for name, value in (("webhook_allow_loopback", True), ("log_level", "warning")):
        if settings.sources[name] == "default":
            explicit[name] = value
    if ANY not in settings.cors_allow_origins:
        explicit["cors_allow_origins"] = (*settings.cors_allow_origins, *LOCAL_ORIGINS)
    if no_grpc:
        return DevSettings(msgspec.structs.replace(settings_from(explicit), grpc_port=None), OFF, False)
    if settings.grpc_port is not None:
        return DevSettings(settings_from(explicit), "", False)
    explicit["grpc_port"], note = _grpc_port(settings.host)
    return DevSettings(settings_from(explicit), note, True)


def _grpc_port(host: str) -> tuple[int | None, str]:
    """Choose a port for gRPC, or return why gRPC is off."""
    from perdure.cli.hosting.server import load_grpc_server
    from perdure.kernel.errors import InvalidInput
    from perdure.server.http.server import is_free

    try:
        load_grpc_server()
    except InvalidInput as error:
        return None, f"disabled: {error.message}"
    # Another server on this machine may use both ports.
    return next((port for port in (OTLP_GRPC_PORT, MEMORY_PORT) if is_free(host, port)), 0), ""


def _addresses(host: str, ports: Sequence[int]) -> str:
    return ", ".join(f"{host}:{port}" for port in ports) + " (OTLP, memory, health)"


def _has_page() -> bool:
    from perdure.server.table import ROUTES

    return any(route.path.startswith(PAGE) for route in ROUTES)


def _is_unattended() -> bool:
    in_ci = os.environ.get("CI", "").lower() in ("1", "true", "yes")
    return in_ci or not (sys.stdin.isatty() or sys.stdout.isatty())


class Show:
    """Prints the output of `dev`, and runs the demo."""

    def __init__(self, app: App, url: str, output: Output, plan: Any, place: Path, agents: Agents) -> None:
        self._app = app
        self._url = url
        self._output = output
        self._plan = plan
        self._place = place
        self._loaded = agents
        self._started = asyncio.Event()
        self.stays = True
        self.reloads = False

    @property
    def _agents(self) -> Agents:
        return self._app.agents if self._app.agents is not None else self._loaded

    def announce(self, closed: bool, grpc_ports: Sequence[int], grpc_note: str) -> None:
        """Print the URLs of the server."""
        from perdure.cli.hosting.serve import list_facts

        facts = list_facts(self._app.settings, self._url, closed)
        facts["grpc_port"] = next(iter(grpc_ports), None)
        facts["grpc_ports"] = list(grpc_ports)
        facts["grpc_note"] = grpc_note or None
        facts["agents"] = self._agents.names
        if self._output.as_json:
            self._output.line(facts)
        else:
            self._print_facts(facts["callers"], grpc_note or _addresses(self._app.settings.host, grpc_ports))
        self._started.set()

    def _print_facts(self, callers: str, grpc: str) -> None:
        from perdure.agents.sections import auth_path
        from perdure.kernel.config import mask_url

        settings, url = self._app.settings, self._url
        agents = ", ".join(self._agents) or "none; `perdure init` writes a project with one"
        auth = auth_path(self._place)
        watched = "when a file of the project changes" if self.reloads else None
        facts = {
            "database": mask_url(settings.database_url),
            "callers": callers,
            "auth": None if auth is None else f"{auth} ({self._place.name}) decides on the LangGraph routes",
            "agents": agents,
            "reload": watched,
            "client": self._client(),
            "page": f"{url}{PAGE}" if _has_page() else None,
            "API": f"{url}/api/v1 (documentation: {url}/docs)",
            "OTLP": f"{url}/v1/traces",
            "gRPC": grpc,
            "metrics": f"{url}/metrics",
        }
        self._output.print(f"perdure is listening on {url}")
        for name, fact in facts.items():
            if fact is not None:
                self._output.print(f"  {name:<10} {fact}")
        if self.stays:
            self._output.print("\nTry, in another terminal:\n" + "\n".join(self._snippets()) + "\n")

    def _client(self) -> str:
        """Return the client that fits this project."""
        if self._place.exists() or any(spec.kind == "graph" for spec in self._agents.specs):
            return f'langgraph_sdk.get_client(url="{self._url}")'
        if self._agents:
            return f'perdure.PerdureClient("{self._url}")'
        return f'perdure.LightningStoreClient("{self._url}") or agentlightning\'s'

    def reloaded(self, files: Sequence[Path], report: ReloadReport) -> None:
        """Print the changes of a reload, and what could not be loaded."""
        from perdure.cli.shell.output import warn

        if self._output.as_json:
            self._output.line({"changed": [str(path) for path in files], "reload": report})
            return
        names = ", ".join(path.name for path in files[:3]) + (", …" if len(files) > 3 else "")
        for part, change in report.changed.items():
            self._output.print(f"{names} changed; {part} reloaded: {change}")
        for part, reason in report.failed.items():
            warn(f"{names} changed; {part} stay as they were: {reason}")
        if report.needs_restart:
            warn(f"{names} changed; restart for: {', '.join(report.needs_restart)}")

    def _snippets(self, rollout_id: str | None = None) -> list[str]:
        lines = [] if self._url == DEFAULT_URL else [f"  export PERDURE_URL={self._url}"]
        if rollout_id is None and self._agents:
            return [*lines, f"  perdure run create {self._first_run()} --watch", "  perdure run ls"]
        if rollout_id is None:
            lines.append("""  perdure rollout enqueue '{"question": 1}'""")
        lines.append("  perdure rollout list")
        if rollout_id is not None:
            lines += [f"  perdure rollout show {rollout_id}", f"  perdure span list {rollout_id}"]
            lines += ["  perdure worker list"]
        else:
            lines.append(f"  OTEL_EXPORTER_OTLP_ENDPOINT={self._url} python your_agent.py")
        return lines

    def _first_run(self) -> str:
        """Return the first agent with an input for it."""
        spec = self._agents.specs[0]
        fields = (spec.input_schema or {}).get("properties") or {}
        given = {"messages": [{"role": "user", "content": "Hello"}]} if "messages" in fields else {}
        return f"{spec.name} '{json.dumps(given)}'"

    async def play(self) -> None:
        """Run the demo against the server over HTTP; then keep serving, or let the server stop."""
        from perdure.cli.demo.play import play, recall
        from perdure.cli.demo.scene import play_scene
        from perdure.client.lightning import LightningStoreClient

        await self._started.wait()
        token = self._app.settings.api_key or os.environ.get("PERDURE_TOKEN")
        async with LightningStoreClient(self._url, token=token) as store:
            report = await play(store, self._plan, self._output.console)
        commands = await play_scene(self._app.services)
        recalled = await recall(self._app.services.storage, self._app.namespace, report.works)
        self._print_report(replace(report, recalled=recalled), commands)
        if self.stays:
            await asyncio.Event().wait()

    def _print_report(self, report: DemoReport, commands: Sequence[str]) -> None:
        from perdure.cli.demo.play import print_report, report_document

        if self._output.as_json:
            self._output.line(report_document(self._plan, report))
            return
        print_report(self._output.console, report)
        if self.stays:
            where = "\nThe server is still running; stop it with Ctrl-C. Try, in another terminal:"
            lines = [*self._snippets(report.rollout.rollout_id), *(f"  {command}" for command in commands)]
            self._output.print("\n".join((where, *lines)))
        else:
            self._output.print("\nThe server stops now. Use --stay to keep it running.")
