"""Settings from arguments, environment variables and a file, each with its source.

Arguments take precedence over the environment, the environment over the file, the file over the default. An
empty variable counts as not set. A variable with the suffix `_FILE` holds the path of a file with the value,
so that secrets stay out of the environment.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

import msgspec

from perdure.kernel.checks import MAX_TEXT, build_detail, check_text, parse_place
from perdure.kernel.errors import InvalidInput

__all__ = ["Secret", "SecretKey", "Settings", "arguments_of", "load_settings", "mask_url", "reload_settings"]

FILE_NAME = "perdure.toml"
FILE_VARIABLE = "PERDURE_CONFIG"
PREFIX = "PERDURE_"
TABLE = "perdure"
ARGUMENT = "argument"

VARIABLES = {
    "database_url": (
        "PERDURE_DATABASE_URL",
        "DATABASE_URL",
        "DATABASE_URI",
        "POSTGRES_URI",
        "POSTGRES_URI_CUSTOM",
    ),
    "host": ("PERDURE_HOST", "HOST"),
    "port": ("PERDURE_PORT", "PORT"),
    "cors_allow_origins": ("PERDURE_CORS_ALLOW_ORIGINS", "CORS_ALLOW_ORIGINS"),
    "log_level": ("PERDURE_LOG_LEVEL", "LOG_LEVEL"),
    "log_json": ("PERDURE_LOG_JSON", "LOG_JSON"),
    "redis_url": ("PERDURE_REDIS_URL", "REDIS_URI", "REDIS_URL", "REDIS_URI_CUSTOM"),
    "redis_key_prefix": ("PERDURE_REDIS_KEY_PREFIX", "REDIS_KEY_PREFIX"),
    "redis_max_connections": ("PERDURE_REDIS_MAX_CONNECTIONS", "REDIS_MAX_CONNECTIONS"),
    "jobs_per_worker": ("PERDURE_JOBS_PER_WORKER", "N_JOBS_PER_WORKER"),
    "job_interval": ("PERDURE_JOB_INTERVAL", "BG_JOB_INTERVAL"),
    "job_heartbeat": ("PERDURE_JOB_HEARTBEAT", "BG_JOB_HEARTBEAT"),
    "job_timeout": ("PERDURE_JOB_TIMEOUT", "BG_JOB_TIMEOUT_SECS"),
    "job_max_retries": ("PERDURE_JOB_MAX_RETRIES", "BG_JOB_MAX_RETRIES"),
    "job_isolated_loops": ("PERDURE_JOB_ISOLATED_LOOPS", "BG_JOB_ISOLATED_LOOPS"),
    "stats_interval": ("PERDURE_STATS_INTERVAL", "STATS_INTERVAL_SECS"),
    "shutdown_grace_period": (
        "PERDURE_SHUTDOWN_GRACE_PERIOD",
        "SHUTDOWN_GRACE_PERIOD_SECS",
        "BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS",
    ),
    "state_dir": ("PERDURE_STATE_DIR", "STATE_DIR"),
    "stream_ttl": ("PERDURE_STREAM_TTL", "RESUMABLE_STREAM_TTL_SECONDS"),
}
"""Settings with more environment variables than `PERDURE_` and their name; the first set variable counts."""

SECRETS = frozenset(
    {"database_url", "api_key", "redis_url", "webhook_secret", "memory_model_key", "approval_webhook_url"}
)
DATABASE_PASSWORD = "PGPASSWORD"  # noqa: S105 - the name of a variable
"""Variable from which PostgreSQL drivers read a password that is not in the URL."""
MAX_URL = 16_384
SHUTDOWN_SECONDS = 30.0
AFTER_GRACE_SECONDS = 10.0
"""Time for a process to stop everything else after the grace period of its worker."""

_IN_URL = re.compile(r"(?s)^([^:/?#]+://[^:]*:).*(@.*)$")
_IN_WORDS = re.compile(r"(?i)(\b\w*(?:password|passwd|pwd|secret|token)=)[^&\s]*")
_SWITCHES = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def secret_variables() -> frozenset[str]:
    """Return the names of the environment variables with perdure's secrets, or with paths of secret files."""
    names = [name for secret in SECRETS for name in VARIABLES.get(secret, (PREFIX + secret.upper(),))]
    return frozenset((*names, *(name + "_FILE" for name in names), PREFIX + "TOKEN", DATABASE_PASSWORD))


def mask_url(url: str) -> str:
    """Replace the passwords in a URL for logs. In a malformed URL this hides more than needed."""
    return _IN_WORDS.sub(r"\1***", _IN_URL.sub(r"\1***\2", url))


class Secret(str):
    """A string whose `repr` hides the passwords in it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(mask_url(self))


class SecretKey(Secret):
    """A string whose `repr` hides it completely."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
Days = Annotated[float, msgspec.Meta(gt=0, le=36_500)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of perdure. `sources` holds the source of each value."""

    database_url: str = Secret("sqlite:///perdure.db")
    namespace: Annotated[str, msgspec.Meta(min_length=1)] = "default"
    watchdog_interval: Seconds | None = 1.0
    pool_size: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 4
    timeout: Seconds = 30.0
    pgbouncer: bool = False
    synchronous: Literal["FULL", "NORMAL", "EXTRA"] = "FULL"
    host: Annotated[str, msgspec.Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 4747
    metrics_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None = None
    grpc_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_client_ca_file: str | None = None
    api_key: Annotated[str, msgspec.Meta(min_length=16)] | None = None
    insecure_no_auth: bool = False
    command_sandbox: Literal["bubblewrap"] | None = None
    command_network: bool = False
    command_uid: int | str | None = None
    local_secret: Literal["auto", "on", "off"] = "auto"  # noqa: S105 - a choice
    allow_core_dumps: bool = False
    cors_allow_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    max_body_bytes: Annotated[int, msgspec.Meta(ge=1024, le=1 << 30)] = 4 << 20
    max_decompressed_bytes: Annotated[int, msgspec.Meta(ge=1024, le=1 << 30)] = 16 << 20
    login_idle_timeout: Annotated[float, msgspec.Meta(ge=60, le=7 * 86_400)] = 86_400.0
    rate_limit: Annotated[float, msgspec.Meta(gt=0)] | None = None
    max_connections: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    max_streams: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 10_000
    head_timeout: Seconds = 10.0
    body_timeout: Seconds = 30.0
    keep_alive_timeout: Seconds = 75.0
    keep_traces: bool = False
    discard_other_signals: bool = False
    trace_sample: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    trace_content: bool = True
    price_file: str | None = None
    redis_url: str | None = None
    redis_key_prefix: str = ""
    redis_max_connections: Annotated[int, msgspec.Meta(ge=2, le=10_000)] = 50
    jobs_per_worker: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    job_interval: Seconds = 5.0
    job_heartbeat: Seconds = 10.0
    job_timeout: Annotated[float, msgspec.Meta(gt=0, le=30 * 86_400)] | None = None
    job_max_retries: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3
    job_isolated_loops: bool = False
    job_retriable: tuple[str, ...] = ()
    stats_interval: Seconds = 60.0
    shutdown_grace_period: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 5.0
    shutdown_timeout: Seconds | None = None
    stream_ttl: Seconds | None = None
    state_dir: str | None = None
    workflow_dir: str | None = None
    cron_dir: str | None = None
    session_sync: bool = True
    session_log: bool = True
    session_content: bool = True
    memory_feed: bool = False
    memory_event_bytes: Annotated[int, msgspec.Meta(ge=1024, le=16 << 20)] = 4 << 20
    memory_rest: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 60.0
    memory_embedder: str | None = None
    memory_model: str | None = None
    memory_model_url: str | None = None
    memory_model_key: str | None = None
    memory_model_timeout: Seconds = 60.0
    backup_schedule: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    backup_dir: str | None = None
    backup_keep: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 7
    retention_audit: Days | None = 90.0
    retention_keys: Days | None = 1.0
    retention_delivered: Days | None = 7.0
    retention_dead: Days | None = 30.0
    retention_jobs: Days | None = 7.0
    retention_statistics: Days | None = 30.0
    retention_usage: Days | None = 400.0
    retention_spans: Days | None = None
    retention_rollouts: Days | None = None
    retention_threads: Days | None = None
    retention_temporary: Days | None = 7.0
    retention_runs: Days | None = None
    retention_workflow_runs: Days | None = None
    retention_messaging: Days | None = None
    retention_sessions: Days | None = None
    retention_memory: Days | None = None
    webhook_secret: Annotated[str, msgspec.Meta(min_length=16)] | None = None
    webhook_allow_private: bool = False
    webhook_allow_loopback: bool = False
    webhook_allowed_hosts: tuple[str, ...] = ()
    public_url: Annotated[str, msgspec.Meta(pattern="^https?://[^/?#]")] | None = None
    approval_webhook_url: str | None = None
    chat_idle_timeout: Annotated[float, msgspec.Meta(gt=0, le=366 * 86_400)] = 1800.0
    max_workflows: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 4
    workflow_gates: tuple[str, ...] = ()
    workflow_models: Mapping[str, str] = msgspec.field(default_factory=dict)
    workflow_variants: Mapping[str, str] = msgspec.field(default_factory=dict)
    workflow_assistants: Mapping[str, str] = msgspec.field(default_factory=dict)
    workflow_sandbox: str | None = None
    workflow_sandbox_images: tuple[str, ...] = ()
    agents: Mapping[str, Any] = msgspec.field(default_factory=dict)
    handlers: Mapping[str, str] = msgspec.field(default_factory=dict)
    conditions: Mapping[str, str] = msgspec.field(default_factory=dict)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_json: bool = False
    sources: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def seconds_to_stop(self) -> float:
        """Seconds to stop a process: `shutdown_timeout`, otherwise the grace period + 10 s, at least 30 s."""
        if self.shutdown_timeout is not None:
            return self.shutdown_timeout
        return max(SHUTDOWN_SECONDS, self.shutdown_grace_period + AFTER_GRACE_SECONDS)


class _Found(NamedTuple):
    """A value and its source. `text` marks a string that must be converted to the setting's type."""

    value: Any
    source: str
    text: bool = False


def load_settings(
    explicit: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    directory: str | os.PathLike[str] | None = None,
) -> Settings:
    """Load the settings for `directory` (by default the working directory) and `environment` (the process's).

    An explicit None counts as not given, unless None is a value of the setting (`watchdog_interval`).
    """
    environment = os.environ if environment is None else environment
    raws = {
        **_read_config_file(environment, Path(directory or ".")),
        **_read_environment(environment),
        **_read_arguments(explicit or {}),
    }
    values = {name: _value(name, raw) for name, raw in raws.items()}
    sources = {name: raws[name].source if name in raws else "default" for name in _get_types()}
    return Settings(**values, sources=MappingProxyType(sources))


def arguments_of(settings: Settings) -> dict[str, Any]:
    """Return the settings given as arguments."""
    given = [name for name, source in settings.sources.items() if source == ARGUMENT]
    return {name: getattr(settings, name) for name in given}


def reload_settings(settings: Settings) -> Settings:
    """Load the settings again: the same arguments, the current environment and files."""
    return load_settings(arguments_of(settings))


@cache
def _get_types() -> dict[str, Any]:
    hints = get_type_hints(Settings, include_extras=True)
    return {name: hints[name] for name in Settings.__struct_fields__ if name != "sources"}


def _read_arguments(explicit: Mapping[str, Any]) -> dict[str, _Found]:
    unknown = sorted(set(explicit) - set(_get_types()))
    if unknown:
        raise InvalidInput(f"unknown setting {unknown[0]!r}; known are {', '.join(_get_types())}")
    return {
        name: _Found(value, ARGUMENT)
        for name, value in explicit.items()
        if value is not None or type(None) in get_args(_get_types()[name])
    }


def _read_environment(environment: Mapping[str, str]) -> dict[str, _Found]:
    raws: dict[str, _Found] = {}
    for name in _get_types():
        for variable in VARIABLES.get(name, (PREFIX + name.upper(),)):
            raw = _read_variable(environment, variable, secret=name in SECRETS)
            if raw is not None and name not in raws:
                raws[name] = raw
    return raws


def _read_variable(environment: Mapping[str, str], variable: str, *, secret: bool) -> _Found | None:
    value = environment.get(variable)
    path = environment.get(variable + "_FILE") if secret else None
    if value and path:
        raise InvalidInput(f"{variable} and {variable}_FILE are both set; set only one of them")
    if path:
        return _Found(_read_secret(Path(path), variable + "_FILE"), f"environment {variable}_FILE", text=True)
    return _Found(value, f"environment {variable}", text=True) if value else None


def _read_secret(path: Path, variable: str) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{variable}: cannot read {path}: {_reason(error)}") from None


def config_file(
    environment: Mapping[str, str] | None = None, directory: str | os.PathLike[str] | None = None
) -> Path:
    """Return the path of perdure.toml; the file may be missing."""
    environment = os.environ if environment is None else environment
    return Path(directory or ".") / (environment.get(FILE_VARIABLE) or FILE_NAME)


def _read_config_file(environment: Mapping[str, str], directory: Path) -> dict[str, _Found]:
    path = config_file(environment, directory)
    if not environment.get(FILE_VARIABLE) and not path.exists():
        return {}
    table = _table(path)
    unknown = sorted(set(table) - set(_get_types()))
    if unknown:
        raise InvalidInput(f"{path}: unknown setting {unknown[0]!r}; known are {', '.join(_get_types())}")
    return {name: _Found(value, f"file {path}") for name, value in table.items()}


def _table(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot read {path}: {_reason(error)}") from None
    stray = sorted(set(content) - {TABLE})
    if stray:
        raise InvalidInput(f"{path}: {stray[0]!r} is unknown; settings belong in the table [{TABLE}]")
    table = content.get(TABLE, {})
    if not isinstance(table, dict):
        raise InvalidInput(f"{path}: {TABLE!r} must be a table; write [{TABLE}] above the settings")
    return table


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)


def _detail(error: Exception, kind: Any) -> str:
    if isinstance(error, msgspec.ValidationError):
        text, steps = parse_place(error)
        return build_detail(text, steps, kind)
    return str(error)


def _value(name: str, source_value: _Found) -> Any:
    kind = _get_types()[name]
    raw = _parse_text(source_value.value, kind) if isinstance(source_value.value, str) else source_value.value
    try:
        value = msgspec.convert(raw, kind, strict=not source_value.text)
        if isinstance(value, str):
            check_text(value, name, max_length=MAX_URL if name in SECRETS else MAX_TEXT)
    except (msgspec.ValidationError, InvalidInput) as error:
        shown = "" if name in SECRETS else f" {source_value.value!r}:"
        detail = MAP_FORM if kind == Mapping[str, str] and source_value.text else _detail(error, kind)
        raise InvalidInput(f"{name} from {source_value.source}:{shown} {detail}") from None
    if name not in SECRETS or value is None:
        return value
    return Secret(value) if name.endswith("_url") else SecretKey(value)


MAP_FORM = "write it as name=value,name=value"


def _pairs(text: str) -> dict[str, str] | str:
    """Parse `name=value,name=value`; return any other text unchanged, which then fails the type check."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not name.strip() or not value.strip() for name, _, value in pairs):
        return text
    return {name.strip(): value.strip() for name, _, value in pairs}


def _parse_text(text: str, kind: Any) -> Any:
    """Parse a choice, boolean, list, map or None from text."""
    if kind == tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind == Mapping[str, str]:
        return _pairs(text)
    choices = [choice for choice in get_args(kind) if isinstance(choice, str)]
    if choices:
        return next((choice for choice in choices if choice.lower() == text.strip().lower()), text)
    if type(None) in get_args(kind) and text.strip().lower() in ("off", "none"):
        return None
    if kind is bool:
        return _SWITCHES.get(text.strip().lower(), text.strip())
    return text
