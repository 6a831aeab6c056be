"""References generated from the code: the command line, settings, metrics and the HTTP API."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, NamedTuple, get_args

import typer.main
from prometheus_client.core import Metric
from starlette.requests import Request

from perdure import InMemoryLightningStore
from perdure.cli import app as command_line
from perdure.cli.examples import EXAMPLES
from perdure.kernel.config import PREFIX, SECRETS, VARIABLES, Settings
from perdure.runtime.app import build_app
from perdure.server.http.routes import Call, Route
from perdure.server.native.metrics import list_families
from perdure.server.native.run_metrics import read_run_metrics
from perdure.server.native.wire import MetricsQuery
from perdure.server.table import ROUTES
from perdure.service.callers import Caller
from perdure.workflows.schema import VARIABLES as TEMPLATE_VARIABLES
from perdure.workflows.schema import json_schema

GENERATED = "<!-- Written by docs/regenerate.py: change the code, not this page. -->\n\n"

ABOUT: Mapping[str, Mapping[str, str]] = {
    "Database": {
        "database_url": "URL: `sqlite:///file.db`, `postgresql://…` or `memory:`; see [stores](../stores.md)",
        "namespace": "namespace that is used if a caller names none",
        "pool_size": "connections to PostgreSQL",
        "timeout": "seconds that a call of the database may take",
        "pgbouncer": "whether PgBouncer in transaction mode stands before PostgreSQL",
        "synchronous": "how SQLite writes: `FULL` survives a power failure",
        "watchdog_interval": "seconds between two searches for lost attempts; `off` for none",
    },
    "Server": {
        "host": "address to listen on",
        "port": "port to listen on; 0 takes a free one",
        "metrics_port": "port on which `perdure worker` answers probes and metrics; 0 takes a free one",
        "grpc_port": "port for [gRPC](../grpc.md)",
        "tls_cert_file": "certificate (PEM) for HTTP and gRPC",
        "tls_key_file": "its key; by default in the same file",
        "tls_client_ca_file": "accept only clients with a certificate of this authority",
        "api_key": "API key of the operator; see [the server](../server.md)",
        "insecure_no_auth": "accept requests without a token from other machines",
        "local_secret": "whether the command of the server's user needs no token: `auto` (unless there is an "
        "API key), `on` or `off`; see [the server](../server.md)",
        "allow_core_dumps": "let core dumps, debuggers and profilers read the memory of server and worker",
        "cors_allow_origins": "origins whose pages may send requests, separated by commas; `*` for any",
        "allowed_hosts": "accepted `Host` names besides local ones, separated by commas",
        "trusted_proxies": "addresses and networks of proxies whose `X-Forwarded-For` counts, with commas",
        "public_url": "address of this server as others see it, for links",
        "max_body_bytes": "largest body of a request, in bytes",
        "max_decompressed_bytes": "largest body after decompression, in bytes",
        "login_idle_timeout": "seconds without a request after which a login of the dashboard ends",
        "rate_limit": "requests per second and caller",
        "max_connections": "most HTTP connections of a process; by default as many as open files allow",
        "max_streams": "most streams of events that one caller has open at a time",
        "head_timeout": "seconds for the head of a request to arrive",
        "body_timeout": "seconds for the body of a request to arrive",
        "keep_alive_timeout": "seconds until an idle connection is closed",
        "shutdown_grace_period": "seconds that runs may go on when a process stops",
        "shutdown_timeout": "seconds that a shutdown may take; 30, or 10 more than the grace period",
        "log_level": "how much is logged",
        "log_json": "log JSON instead of text",
        "stats_interval": "seconds between two lines of statistics in the log",
    },
    "Redis": {
        "redis_url": "URL of Redis or Valkey, which carries hints between processes",
        "redis_key_prefix": "what the names of its keys begin with",
        "redis_max_connections": "connections to it",
    },
    "Workers": {
        "jobs_per_worker": "runs that a worker executes at once; by default 10 of async agents, and one"
        " per core of the others",
        "job_interval": "seconds between two looks into the queue, if no hint arrives",
        "job_heartbeat": "seconds that a lease lasts without a heartbeat",
        "job_timeout": "seconds that an attempt may take if neither its run nor its agent sets a timeout; "
        "by default 300, and 86,400 for graphs of a `langgraph.json`",
        "job_max_retries": "attempts of a run, the first included; set it where runs are created",
        "job_isolated_loops": "execute each agent in an event loop of its own",
        "job_retriable": "names of further exceptions that are retried, separated by commas",
        "agents": "agents by name, in `perdure.toml`; see [agents](../agents.md)",
        "stream_ttl": "seconds that the events of an ended run are kept; by default as long as the run",
        "state_dir": "directory of session logs and workspaces; by default beside the database",
    },
    "Traces and sessions": {
        "keep_traces": "keep spans that belong to no attempt; on in `perdure dev`",
        "discard_other_signals": "accept OTLP logs and metrics, and discard them; on in `perdure dev`",
        "trace_sample": "share of the runs that are traced, from 0 to 1",
        "price_file": "TOML file with the prices of models; by default prices.toml beside perdure.toml",
        "trace_content": "whether traces contain messages, arguments and results",
        "session_log": "write what agents say to their [sessions](../sessions.md)",
        "session_content": "whether sessions contain texts, arguments and results",
        "session_sync": "acknowledge a line of a session only when it is on the disk",
    },
    "Memory": {
        "memory_feed": "store what runs, phases, workflow runs and sessions said; on in `perdure dev`",
        "memory_event_bytes": "longest text of an event, in bytes",
        "memory_rest": "seconds without a new event until a segment is summarised",
        "memory_embedder": "function or model that makes vectors for [search](../memory.md)",
        "memory_model": "name of the model that writes summaries; without it none is asked",
        "memory_model_url": "OpenAI-compatible URL of that model",
        "memory_model_key": "key of that model",
        "memory_model_timeout": "seconds to wait for an answer of that model",
    },
    "Workflows, chats and schedules": {
        "workflow_dir": "directory of [workflow](../workflows.md) files",
        "cron_dir": "directory of cron files",
        "handlers": "functions that [cron](../crons.md) files name, in `perdure.toml`",
        "conditions": "predicates that [cron](../crons.md) files name, in `perdure.toml`",
        "max_workflows": "workflow runs of a namespace that run at once; others wait",
        "workflow_gates": "approval gates that are switched on, separated by commas",
        "workflow_models": "model of each phase that names none: `plan=large,default=small`",
        "workflow_variants": "variant of each phase that names none",
        "workflow_assistants": "assistant of each phase that names none",
        "workflow_sandbox": "sandbox in which the agents of phases run, for `requires_sandbox`",
        "command_sandbox": "[sandbox](../workers.md#sandbox) of commands and isolated agents: `bubblewrap`",
        "command_network": "whether they have a network there",
        "command_uid": "user, by name or number, that executes them if the server runs as root",
        "workflow_sandbox_images": "images of that sandbox beside its default one, for `sandbox_image`",
        "approval_webhook_url": "URL that is sent requests for [approval](../approvals.md)",
        "chat_idle_timeout": "seconds without a message until a [chat](../chat.md) ends",
    },
    "Webhooks and retention": {
        "webhook_secret": "secret that signs [webhooks](../webhooks.md)",
        "webhook_allow_private": "allow URLs of private networks",
        "webhook_allow_loopback": "allow URLs of this machine, on any port; on in `perdure dev`",
        "webhook_allowed_hosts": "the only hosts that webhooks may go to, separated by commas",
        "retention_audit": "days that the audit is kept",
        "retention_keys": "days that idempotency keys are kept",
        "retention_delivered": "days that delivered entries of the outbox are kept",
        "retention_dead": "days that dead letters are kept",
        "retention_jobs": "days that ended internal jobs are kept",
        "retention_statistics": "days that the minutes of queues are kept",
        "retention_usage": "days that the hours of tokens and costs are kept",
        "retention_spans": "days that spans of what has ended are kept",
        "retention_rollouts": "days that rollouts of the queue that have ended are kept, with their spans",
        "retention_threads": "days that threads are kept that nothing has changed, with their runs",
        "retention_temporary": "days that threads created for one run are kept, with the run, unless their"
        " caller keeps them; also temporary runs that failed",
        "retention_runs": "days that the traces of deleted runs and of runs without a thread are kept;"
        " as long as threads without it",
        "retention_workflow_runs": "days that workflow runs that have ended are kept",
        "retention_messaging": "days that [chats](../chat.md) without a new message are kept",
        "retention_sessions": "days that the logs of agent sessions are kept that have not changed",
        "retention_memory": "days that events of [memory](../memory.md) are kept",
        "backup_schedule": "cron expression of backups; none are made without it",
        "backup_dir": "directory of scheduled backups; `backups` in the state directory",
        "backup_keep": "how many scheduled backups are kept",
    },
}
"""The meaning of each setting, in the order of the page. A test fails for a setting without a sentence."""


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def _table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [f"| {' | '.join(heads)} |"]
    lines.append("|" + "---|" * (lines[0].count("|") - 1))
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return "\n".join(lines) + "\n"


# --- settings ---------------------------------------------------------------------------------------------


def setting_names() -> list[str]:
    return [name for name in Settings.__struct_fields__ if name != "sources"]


def settings_page() -> str:
    """Generate the page of settings, with their variables and defaults."""
    parts = [
        "# Settings\n\n" + GENERATED,
        "## Environment variables, options and perdure.toml\n\n"
        "A setting is a command-line option, an environment variable, or a line in the table `[perdure]` of "
        "`perdure.toml`, in this order of precedence. An empty variable counts as not set. `perdure doctor` "
        "shows the effective values and where each comes from. Of several variables, the first that is set "
        "counts. Settings marked with * are secrets: a variable with the suffix `_FILE` names a file that "
        "holds the value.\n",
    ]
    defaults = Settings()
    known = set(setting_names())
    for heading, meanings in ABOUT.items():
        rows = [
            (
                f"`{name}`" + (" *" if name in SECRETS else ""),
                ", ".join(f"`{each}`" for each in VARIABLES.get(name, (PREFIX + name.upper(),))),
                _default(name, getattr(defaults, name)),
                meaning + _choices(name),
            )
            for name, meaning in meanings.items()
            if name in known
        ]
        parts.append(f"\n## {heading}\n\n" + _table(("setting", "variable", "default", "meaning"), rows))
    return "".join(parts)


def _default(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None or value in ((), [], {}, ""):
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _choices(name: str) -> str:
    choices = [each for each in get_args(Settings.__annotations__.get(name)) if isinstance(each, str)]
    return f" ({', '.join(choices)})" if choices else ""


# --- the command line -------------------------------------------------------------------------------------

COMMON_SHARE = 3
"""An option shared by more than 1 in this many commands is listed once, at the top."""


def cli_page() -> str:
    """Generate the page of commands with their arguments and options."""
    root = typer.main.get_command(command_line)
    commands = list(_commands(root, "perdure"))
    uses = Counter(_row(each) for _, command in commands for each in command.params if _is_shown(each))
    common = [row for row, count in uses.items() if count > len(commands) / COMMON_SHARE]
    parts = [
        "# Commands\n\n" + GENERATED,
        f"All {len(commands)} commands of `perdure`, with their arguments and options. "
        "[The command line](../cli.md) explains how to use them.\n",
        "\n## Options of most commands\n\n" + _table(("option", "meaning"), common),
    ]
    for path, command in commands:
        parts.append(f"\n## {path}\n\n{_cell(_escaped(_help(command)))}\n")
        parts.append(f"\nExample: `{EXAMPLES[path.removeprefix('perdure ')]}`\n")
        rows = [row for row in map(_row, filter(_is_shown, command.params)) if row not in common]
        if rows:
            parts.append("\n" + _table(("option", "meaning"), rows))
    return "".join(parts)


def _commands(command: Any, path: str) -> Iterable[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    for name, each in sorted(below.items()):
        if not each.hidden:
            yield from _commands(each, f"{path} {name}")


def _help(command: Any) -> str:
    return (command.help or "").replace("\b", "").strip()


def _is_shown(parameter: Any) -> bool:
    return not getattr(parameter, "hidden", False) and "--help" not in parameter.opts


def _row(parameter: Any) -> tuple[str, str]:
    return _names(parameter), _option(parameter)


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = (parameter.metavar or parameter.name.upper()).strip("[]")
        return f"`{name}`" if parameter.required else f"`[{name}]`"
    return ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def _option(parameter: Any) -> str:
    text = getattr(parameter, "help", None) or ""
    variable = parameter.envvar
    names = [variable] if isinstance(variable, str) else list(variable or ())
    shown = f" ({', '.join(f'`{name}`' for name in names)})" if names else ""
    return _escaped(text) + shown


def _escaped(text: str) -> str:
    """Escape angle brackets, so that a viewer does not read them as HTML."""
    return text.replace("<", "&lt;").replace(">", "&gt;")


# --- workflow files ---------------------------------------------------------------------------------------

PARTS = {
    "Workflow": "A workflow file",
    "Phase": "A phase",
    "Retry": "`retry` of a phase",
    "OnFailure": "`on_failure` of a phase",
    "HttpCall": "`http` of a phase",
    "OnOutput": "`on_output` of a phase",
    "Blocked": "`contains_BLOCKED` of `on_output`",
    "ReadyRule": "`contains_READY` of `on_output`",
    "OnSuccess": "`on_success` of a phase",
    "GenericLoop": "`generic_loop` of a phase",
    "OnSoftFailure": "`on_soft_failure` of a `generic_loop`",
    "ReviewLoop": "`loop` of a phase",
    "OnRequestChanges": "`on_request_changes` of a `loop`",
    "LoopMessages": "`messages` of a `loop`",
    "Messages": "`messages` of a phase",
    "FromContext": "A number from the context",
    "Classification": "`classification` of a workflow",
    "Chat": "`chat` of a workflow",
    "Cron": "A cron file",
    "CronCondition": "`condition` of a cron",
}
"""Parts of workflow and cron files, in the order of the page. A part without a heading fails the build."""


def workflows_page() -> str:
    """Generate the page of workflow and cron file fields and template variables from the schema."""
    components = json_schema()["$defs"]
    parts = [
        "# Workflow files\n\n" + GENERATED,
        "Every field of a workflow file and of a cron file, and every variable of a template. "
        "[Workflows](../workflows.md) and [crons](../crons.md) explain how to use them; "
        "`perdure workflow schema` prints the same as JSON Schema, for editors. Fields in bold are required. "
        "A field that is not listed is a mistake.\n",
    ]
    for name in [*PARTS, *sorted(components.keys() - PARTS.keys())]:
        part = components[name]
        rows = [
            (
                f"**`{field}`**" if field in part.get("required", ()) else f"`{field}`",
                _kind_of(each),
                _default(field, each.get("default")),
                each["description"],
            )
            for field, each in part["properties"].items()
        ]
        table = _table(("field", "value", "default", "meaning"), rows)
        parts.append(f"\n## {PARTS[name]}\n\n{part['description']}\n\n{table}")
    variables = [(f"`{{{{{each.name}}}}}`", each.where, each.about) for each in TEMPLATE_VARIABLES]
    parts.append(
        "\n## Variables of templates\n\n"
        "Names in capitals are yours. A name is looked for in this order: what the moment adds (from `phase` "
        "to `error` in this table), `phaseOutputs` and `scratch`, the context, `output`, `models` and "
        "`variants`, the outputs of phases. The input of a phase is all that a worker gets: `prompt`, "
        "`fix_prompt`, "
        "`re_review_prompt`, `command`, `input`, `http`, `model` and `variant`. A value that is missing is "
        "empty. Conditions (`skip_if`, `until`) read the same names without braces.\n\n"
        + _table(("variable", "where it has a value", "meaning"), variables)
    )
    return "".join(parts)


def _kind_of(field: Mapping[str, Any]) -> str:
    """Describe the values that a field takes."""
    if "anyOf" in field:
        kinds = [_kind_of(each) for each in field["anyOf"] if each.get("type") != "null"]
        return " or ".join(kinds)
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[1]
        # The guide and GitHub build the same anchor from the heading.
        anchor = PARTS[name].lower().replace("`", "").replace(" ", "-")
        return f"[object](#{anchor})"
    if "enum" in field:
        return ", ".join(f"`{each}`" for each in field["enum"])
    kind = field.get("type")
    if kind == "array":
        return "list of " + _kind_of(field.get("items", {}))
    low = field.get("minimum", field.get("exclusiveMinimum"))
    high = field.get("maximum")
    names = {"string": "text", "boolean": "true or false", "integer": "whole number", "object": "object"}
    found = names.get(str(kind), str(kind) if kind else "any value")
    if low is None or high is None:
        return found
    above = "above " if "exclusiveMinimum" in field else ""
    return f"{found}, {above}{low:,} to {high:,}"


# --- metrics ----------------------------------------------------------------------------------------------


def metrics_page() -> str:
    """Generate the page of a server's metric families."""
    families = asyncio.run(_families())
    ours = [each.row for each in families if each.metric.name.startswith("perdure_")]
    theirs = [each.row for each in families if not each.metric.name.startswith(("perdure_", "process_"))]
    heads = ("metric", "type", "labels", "meaning")
    return (
        "# Metrics\n\n"
        + GENERATED
        + "What `GET /metrics` shows, for Prometheus; `?format=json` gives the same as JSON. Counters are "
        "those of the process that answers; gauges are read from the database. On Linux there are also the "
        "usual `process_…` metrics, and on PostgreSQL `perdure_db_pool_…` of the connection pool.\n\n"
        + _table(heads, ours)
        + "\n## Names of LangGraph's server\n\nFor boards that exist already. Those with the prefix "
        "`lg_api_` are shown with `?format=prometheus`.\n\n"
        + _table(heads[:2] + heads[3:], (row[:2] + row[3:] for row in theirs))
    )


class Family(NamedTuple):
    """A metric family, and the names of its labels."""

    metric: Metric
    labels: tuple[str, ...]

    @property
    def row(self) -> tuple[str, ...]:
        suffix = "_total" if self.metric.type == "counter" else ""
        labels = ", ".join(f"`{name}`" for name in self.labels)
        return f"`{self.metric.name}{suffix}`", self.metric.type, labels, self.metric.documentation


async def _families() -> list[Family]:
    """Collect the families of a server in memory."""
    async with InMemoryLightningStore() as store:
        app = build_app(store, Settings())
        request = Request({"type": "http", "method": "GET", "path": "/metrics", "headers": []})
        call = Call(request, app, Caller("docs", frozenset({"admin"}), app.namespace, None), {}, "docs")
        call.query = MetricsQuery(aliases=True)
        metrics = await list_families(call, await read_run_metrics(call))
        # A family without counts does not know its labels; its collector does.
        collectors = app.metrics.registry._names_to_collectors
        families = [
            Family(each, tuple(getattr(known, "_labelnames", ())))
            for each in metrics
            for known in (each if hasattr(each, "_labelnames") else collectors.get(each.name),)
        ]
    return sorted(families, key=lambda family: (family.metric.name, family.metric.type))


# --- the HTTP API -----------------------------------------------------------------------------------------

PROTOCOLS = {
    "native": ("perdure's own API", "JSON; errors are [problem documents](../errors.md)."),
    "langgraph": ("LangGraph", "For `langgraph_sdk`; see [LangGraph](../langgraph.md)."),
    "lightning": ("Agent-lightning", "For `LightningStoreClient`; see [Agent-lightning](../differences.md)."),
    "otlp": ("OpenTelemetry", "For exporters; see [OpenTelemetry](../opentelemetry.md)."),
}


def http_page() -> str:
    """Generate the page of routes, by protocol and group."""
    parts = [
        "# HTTP API\n\n" + GENERATED,
        "Every route of a server, with the scope that a token needs. A server shows its routes at `/docs`; "
        "its OpenAPI document, with every field, is at `/openapi.json`. [The server](../server.md) explains "
        "tokens, namespaces, retries and limits.\n",
    ]
    routes = sorted(ROUTES, key=_group)
    for (protocol, tag), found in groupby(routes, key=_group):
        title, about = PROTOCOLS[protocol]
        if not any(f"\n## {title}\n" in part for part in parts):
            parts.append(f"\n## {title}\n\n{about}\n")
        rows = [
            (f"`{route.method}`", f"`{route.path}`", _escaped(route.summary), route.scope or "public")
            for route in found
        ]
        parts.append(f"\n### {tag}\n\n" + _table(("method", "path", "what it does", "scope"), rows))
    return "".join(parts)


def _group(route: Route) -> tuple[str, str]:
    return route.protocol.name, route.tag or route.protocol.name


PAGES = {
    "reference/cli.md": cli_page,
    "reference/settings.md": settings_page,
    "reference/workflows.md": workflows_page,
    "reference/metrics.md": metrics_page,
    "reference/http.md": http_page,
}
"""The generated pages, by path in docs/."""
