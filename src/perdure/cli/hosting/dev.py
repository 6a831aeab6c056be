"""`perdure dev`: a development server with every protocol enabled, and optionally the demo."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from perdure.cli.demo.command import RolloutsOption, SeedOption
from perdure.cli.hosting.agents import AgentsOption, gather_agents
from perdure.cli.hosting.serve import GrpcPortOption, HostOption, PortOption, ServedDatabase
from perdure.cli.shell.options import JsonOption, LogLevelOption, NoColorOption, flag
from perdure.cli.shell.target import DEFAULT_URL

if TYPE_CHECKING:
    from perdure.cli.demo.play import Report
    from perdure.cli.shell.output import Output
    from perdure.kernel.config import Settings
    from perdure.runtime.app import App

OTLP_GRPC_PORT = 4317
MEMORY_PORT = 50051
"""Where clients of agent-memory look for it."""


def dev(
    database: ServedDatabase = None,
    host: HostOption = None,
    port: PortOption = None,
    grpc_port: GrpcPortOption = None,
    agents: AgentsOption = None,
    log_level: LogLevelOption = None,
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
    """Start a development server: all protocols enabled, all traces kept."""
    from perdure.cli.demo.agents import Plan
    from perdure.cli.hosting import logs, server
    from perdure.cli.shell.output import Output

    settings, grpc_note = _settings(database, host, port, grpc_port, log_level)
    logs.configure(settings)
    output = Output(as_json=as_json, no_color=no_color)
    with server.listen(settings) as listening:
        url = server.address_of(settings, listening)
        found = gather_agents(settings, agents or ())
        app = server.open_app(settings, url)
        services = server.services_of(app, agents=found, further_ports=(MEMORY_PORT,))
        services = [server.Administration(url, app), *services]
        show = Show(app, url, output, Plan(rollouts, seed), found.names)
        show.stays = not demo or not (_is_unattended() if once is None else once)

        process = server.ServerProcess(app, listening, services)
        process.when_running(lambda: show.announce(process.key_needed, app.grpc_ports, grpc_note))
        server.run(process, show.play if demo else None)


def _settings(*given: Any) -> tuple[Settings, str]:
    """The settings of a server with everything enabled, and why gRPC is not."""
    from perdure.cli.hosting.server import settings_from
    from perdure.server.http.origins import ANY, LOCAL_ORIGINS

    names = ("database_url", "host", "port", "grpc_port", "log_level")
    explicit = {**dict(zip(names, given, strict=True)), "keep_traces": True, "memory_feed": True}
    explicit["discard_other_signals"] = True
    settings = settings_from(explicit)
    if settings.sources["log_level"] == "default":
        explicit["log_level"] = "warning"
    if ANY not in settings.cors_allow_origins:
        explicit["cors_allow_origins"] = (*settings.cors_allow_origins, *LOCAL_ORIGINS)
    note = ""
    if settings.grpc_port is None:
        explicit["grpc_port"], note = _grpc_port(settings.host)
    return settings_from(explicit), note


def _grpc_port(host: str) -> tuple[int | None, str]:
    """The port of gRPC, or why there is none."""
    from importlib.util import find_spec

    from perdure.server.http.server import is_free

    if find_spec("grpc") is None:
        return None, "disabled: pip install 'perdure[grpc]'"
    for port in (OTLP_GRPC_PORT, MEMORY_PORT):
        if is_free(host, port):
            return port, ""
    busy = f"ports {OTLP_GRPC_PORT} and {MEMORY_PORT} are in use"
    return None, f"disabled: {busy}; choose another with --grpc-port"


def _addresses(host: str, ports: Sequence[int]) -> str:
    return ", ".join(f"{host}:{port}" for port in ports) + " (OTLP, memory, health)"


def _is_unattended() -> bool:
    in_ci = os.environ.get("CI", "").lower() in ("1", "true", "yes")
    return in_ci or not (sys.stdin.isatty() or sys.stdout.isatty())


class Show:
    """What `dev` prints, and the demo that it runs."""

    def __init__(self, app: App, url: str, output: Output, plan: Any, agents: Sequence[str] = ()) -> None:
        self._app = app
        self._url = url
        self._output = output
        self._plan = plan
        self._agents = list(agents)
        self._started = asyncio.Event()
        self.stays = True

    def announce(self, closed: bool, grpc_ports: Sequence[int], grpc_note: str) -> None:
        """Print the URLs of the server."""
        from perdure.cli.hosting.serve import facts_of

        facts = facts_of(self._app.settings, self._url, closed)
        facts["grpc_port"] = next(iter(grpc_ports), None)
        facts["grpc_ports"] = list(grpc_ports)
        facts["agents"] = self._agents
        if self._output.as_json:
            self._output.line(facts)
        else:
            self._print_facts(facts["callers"], grpc_note or _addresses(self._app.settings.host, grpc_ports))
        self._started.set()

    def _print_facts(self, callers: str, grpc: str) -> None:
        from perdure.kernel.config import mask_url

        settings, url = self._app.settings, self._url
        for line in (
            f"perdure is listening on {url}",
            f"  database   {mask_url(settings.database_url)}",
            f"  callers    {callers}",
            f"  agents     {', '.join(self._agents) or 'none; add some with --agents or in perdure.toml'}",
            f"  API        {url}/api/v1 (documentation: {url}/docs)",
            f'  client     perdure.LightningStoreClient("{url}") or agentlightning\'s',
            f"  OTLP       {url}/v1/traces",
            f"  gRPC       {grpc}",
            f"  metrics    {url}/metrics",
        ):
            self._output.print(line)
        if self.stays:
            self._output.print("\nTry, in another terminal:\n" + "\n".join(self._snippets()) + "\n")

    def _snippets(self, rollout_id: str | None = None) -> list[str]:
        lines = [] if self._url == DEFAULT_URL else [f"  export PERDURE_URL={self._url}"]
        if rollout_id is None and self._agents:
            return [*lines, f"  perdure run create {min(self._agents)} '{{}}' --watch", "  perdure run ls"]
        if rollout_id is None:
            lines.append("""  perdure rollout enqueue '{"question": 1}'""")
        lines.append("  perdure rollout list")
        if rollout_id is not None:
            lines += [f"  perdure rollout show {rollout_id}", f"  perdure span list {rollout_id}"]
            lines += ["  perdure worker list"]
        else:
            lines.append(f"  OTEL_EXPORTER_OTLP_ENDPOINT={self._url} python your_agent.py")
        return lines

    async def play(self) -> None:
        """Run the demo against the server, over HTTP; then keep serving, or let the server stop."""
        from perdure.cli.demo.memory import recall
        from perdure.cli.demo.play import play
        from perdure.client.lightning import LightningStoreClient

        await self._started.wait()
        token = self._app.settings.api_key or os.environ.get("PERDURE_TOKEN")
        async with LightningStoreClient(self._url, token=token) as store:
            report = await play(store, self._plan, self._output.console)
        recalled = await recall(self._app.services.storage, self._app.namespace, report.works)
        self._print_report(replace(report, recalled=recalled))
        if self.stays:
            await asyncio.Event().wait()

    def _print_report(self, report: Report) -> None:
        from perdure.cli.demo.play import print_report, report_document

        if self._output.as_json:
            self._output.line(report_document(self._plan, report))
            return
        print_report(self._output.console, report)
        if self.stays:
            where = "\nThe server is still running; stop it with Ctrl-C. Try, in another terminal:"
            self._output.print("\n".join((where, *self._snippets(report.rollout.rollout_id))))
        else:
            self._output.print("\nThe server stops now. Use --stay to keep it running.")
