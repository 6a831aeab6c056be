"""Settings: precedence of sources, errors of bad values, and secrets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.pretty import pretty_repr

from perdure.kernel.config import FILE_NAME, VARIABLES, Secret, Settings, load_settings, mask_url
from perdure.kernel.errors import InvalidInput

URL = "postgresql://anna:s3cr3t@db.example:5432/agents"


def load(
    directory: Path, explicit: dict[str, Any] | None = None, file: str | None = None, /, **environment: str
) -> Settings:
    if file is not None:
        (directory / FILE_NAME).write_text(file)
    return load_settings(explicit, environment=environment, directory=directory)


def refusal(directory: Path, *args: Any, **environment: str) -> str:
    with pytest.raises(InvalidInput) as refused:
        load(directory, *args, **environment)
    return str(refused.value)


def test_nothing_given_means_the_defaults(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert msgspec.structs.asdict(settings) == {
        "database_url": "sqlite:///perdure.db",
        "namespace": "default",
        "watchdog_interval": 1.0,
        "pool_size": 4,
        "timeout": 30.0,
        "pgbouncer": False,
        "synchronous": "FULL",
        "host": "127.0.0.1",
        "port": 4747,
        "grpc_port": None,
        "metrics_port": None,
        "tls_cert_file": None,
        "tls_key_file": None,
        "tls_client_ca_file": None,
        "api_key": None,
        "insecure_no_auth": False,
        "command_sandbox": None,
        "command_network": False,
        "command_uid": None,
        "local_secret": "auto",
        "allow_core_dumps": False,
        "cors_allow_origins": (),
        "allowed_hosts": (),
        "trusted_proxies": (),
        "max_body_bytes": 4 << 20,
        "max_decompressed_bytes": 16 << 20,
        "login_idle_timeout": 86_400.0,
        "rate_limit": None,
        "max_connections": None,
        "max_streams": 10_000,
        "head_timeout": 10.0,
        "body_timeout": 30.0,
        "keep_alive_timeout": 75.0,
        "keep_traces": False,
        "discard_other_signals": False,
        "trace_sample": 1.0,
        "trace_content": True,
        "price_file": None,
        "redis_url": None,
        "redis_key_prefix": "",
        "redis_max_connections": 50,
        "jobs_per_worker": None,
        "job_interval": 5.0,
        "job_heartbeat": 10.0,
        "job_timeout": None,
        "job_max_retries": 3,
        "job_isolated_loops": False,
        "job_retriable": (),
        "stats_interval": 60.0,
        "shutdown_grace_period": 5.0,
        "shutdown_timeout": None,
        "stream_ttl": None,
        "state_dir": None,
        "workflow_dir": None,
        "cron_dir": None,
        "session_sync": True,
        "session_log": True,
        "session_content": True,
        "memory_feed": False,
        "memory_event_bytes": 4 << 20,
        "memory_rest": 60.0,
        "memory_embedder": None,
        "memory_model": None,
        "memory_model_url": None,
        "memory_model_key": None,
        "memory_model_timeout": 60.0,
        "backup_schedule": None,
        "backup_dir": None,
        "backup_keep": 7,
        "retention_audit": 90.0,
        "retention_keys": 1.0,
        "retention_delivered": 7.0,
        "retention_dead": 30.0,
        "retention_jobs": 7.0,
        "retention_statistics": 30.0,
        "retention_usage": 400.0,
        "retention_spans": None,
        "retention_rollouts": None,
        "retention_threads": None,
        "retention_temporary": 7.0,
        "retention_runs": None,
        "retention_workflow_runs": None,
        "retention_messaging": None,
        "retention_sessions": None,
        "retention_memory": None,
        "webhook_secret": None,
        "webhook_allow_private": False,
        "webhook_allow_loopback": False,
        "webhook_allowed_hosts": (),
        "public_url": None,
        "approval_webhook_url": None,
        "chat_idle_timeout": 1800.0,
        "max_workflows": 4,
        "workflow_gates": (),
        "workflow_models": {},
        "workflow_variants": {},
        "workflow_assistants": {},
        "workflow_sandbox": None,
        "workflow_sandbox_images": (),
        "agents": {},
        "handlers": {},
        "conditions": {},
        "log_level": "info",
        "log_json": False,
        "sources": settings.sources,
    }
    assert set(settings.sources.values()) == {"default"}
    assert set(settings.sources) == set(Settings.__struct_fields__) - {"sources"}


SEED = {
    "N_JOBS_PER_WORKER": ("7", "jobs_per_worker", 7),
    "BG_JOB_INTERVAL": ("2", "job_interval", 2.0),
    "BG_JOB_HEARTBEAT": ("20", "job_heartbeat", 20.0),
    "BG_JOB_TIMEOUT_SECS": ("86400", "job_timeout", 86400.0),
    "BG_JOB_MAX_RETRIES": ("5", "job_max_retries", 5),
    "BG_JOB_ISOLATED_LOOPS": ("true", "job_isolated_loops", True),
    "STATS_INTERVAL_SECS": ("30", "stats_interval", 30.0),
    "SHUTDOWN_GRACE_PERIOD_SECS": ("9", "shutdown_grace_period", 9.0),
    "REDIS_URI": ("redis://localhost:6379", "redis_url", "redis://localhost:6379"),
    "REDIS_MAX_CONNECTIONS": ("10", "redis_max_connections", 10),
    "DATABASE_URI": ("postgresql://h/d", "database_url", "postgresql://h/d"),
}
"""Variables known to users of a LangGraph server, with the setting of each."""


@pytest.mark.parametrize("variable", SEED)
def test_the_variables_of_a_langgraph_server_count(variable: str, tmp_path: Path) -> None:
    given, name, value = SEED[variable]
    settings = load(tmp_path, **{variable: given})
    assert getattr(settings, name) == value
    assert settings.sources[name] == f"environment {variable}"


def test_the_process_and_its_working_directory_are_where_it_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FILE_NAME).write_text("[perdure]\npool_size = 7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERDURE_NAMESPACE", "team")
    settings = load_settings()
    assert (settings.pool_size, settings.namespace) == (7, "team")


def test_maps_are_read_from_the_environment_and_from_a_file(tmp_path: Path) -> None:
    settings = load(tmp_path, PERDURE_WORKFLOW_MODELS="plan = big, build=small", PERDURE_WORKFLOW_GATES="a,b")
    assert settings.workflow_models == {"plan": "big", "build": "small"}
    assert settings.workflow_gates == ("a", "b")
    (tmp_path / FILE_NAME).write_text('[perdure.workflow_assistants]\ndefault = "coder"\n')
    assert load(tmp_path).workflow_assistants == {"default": "coder"}


@pytest.mark.parametrize("text", ['{"default": "coder"}', "coder", "default=", "=coder", "a=b,c"])
def test_a_map_that_is_no_map_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInput, match=r"workflow_assistants from .* write it as name=value,name=value"):
        load(tmp_path, PERDURE_WORKFLOW_ASSISTANTS=text)


# --- which source wins ------------------------------------------------------------------------------------


def test_explicit_wins_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = '[perdure]\nnamespace = "file"\npool_size = 11\ntimeout = 12\n'
    environment = {"PERDURE_NAMESPACE": "environment", "PERDURE_POOL_SIZE": "21"}
    settings = load(tmp_path, {"namespace": "argument"}, file, **environment)
    assert (settings.namespace, settings.pool_size, settings.timeout) == ("argument", 21, 12.0)
    assert dict(settings.sources) == {
        **dict.fromkeys(settings.sources, "default"),
        "namespace": "argument",
        "pool_size": "environment PERDURE_POOL_SIZE",
        "timeout": f"file {tmp_path / FILE_NAME}",
    }


@pytest.mark.parametrize("position", range(len(VARIABLES["database_url"])))
def test_the_variables_of_the_database_in_their_order(tmp_path: Path, position: int) -> None:
    names = VARIABLES["database_url"]
    environment = {name: f"sqlite:///{name}.db" for name in names[position:]}
    settings = load(tmp_path, **environment)
    assert settings.database_url == f"sqlite:///{names[position]}.db"
    assert settings.sources["database_url"] == f"environment {names[position]}"


def test_the_order_of_the_variables() -> None:
    assert VARIABLES["database_url"] == (
        "PERDURE_DATABASE_URL",
        "DATABASE_URL",
        "DATABASE_URI",
        "POSTGRES_URI",
        "POSTGRES_URI_CUSTOM",
    )


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    settings = load(tmp_path, PERDURE_DATABASE_URL="", DATABASE_URL=URL, PERDURE_POOL_SIZE="")
    assert (settings.database_url, settings.pool_size) == (URL, 4)


def test_an_explicit_none_counts_where_none_is_a_value(tmp_path: Path) -> None:
    given: dict[str, Any] = {"database_url": None, "namespace": None, "watchdog_interval": None}
    settings = load(tmp_path, given, PERDURE_DATABASE_URL=URL, PERDURE_WATCHDOG_INTERVAL="5")
    assert (settings.database_url, settings.namespace, settings.watchdog_interval) == (URL, "default", None)
    assert settings.sources["watchdog_interval"] == "argument"


def test_the_file_that_a_variable_names(tmp_path: Path) -> None:
    other = tmp_path / "elsewhere.toml"
    other.write_text('[perdure]\nlog_level = "debug"\n')
    settings = load(tmp_path, None, '[perdure]\nlog_level = "error"\n', PERDURE_CONFIG=str(other))
    assert (settings.log_level, settings.sources["log_level"]) == ("debug", f"file {other}")


def test_a_file_without_our_table_says_nothing(tmp_path: Path) -> None:
    assert load(tmp_path, None, "") == load(tmp_path)


# --- how values are written -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("PERDURE_POOL_SIZE", "16", "pool_size", 16),
        ("PERDURE_TIMEOUT", "2.5", "timeout", 2.5),
        ("PERDURE_WATCHDOG_INTERVAL", "off", "watchdog_interval", None),
        ("PERDURE_WATCHDOG_INTERVAL", "None", "watchdog_interval", None),
        ("PERDURE_WATCHDOG_INTERVAL", "0.25", "watchdog_interval", 0.25),
        ("PERDURE_PGBOUNCER", "1", "pgbouncer", True),
        ("PERDURE_PGBOUNCER", "Yes", "pgbouncer", True),
        ("PERDURE_PGBOUNCER", "off", "pgbouncer", False),
        ("PERDURE_LOG_JSON", "true", "log_json", True),
        ("PERDURE_LOG_LEVEL", "WARNING", "log_level", "warning"),
        ("PERDURE_SYNCHRONOUS", "normal", "synchronous", "NORMAL"),
    ],
)
def test_values_of_variables(tmp_path: Path, variable: str, text: str, name: str, value: Any) -> None:
    assert getattr(load(tmp_path, **{variable: text}), name) == value


def test_values_of_a_file(tmp_path: Path) -> None:
    file = """
    [perdure]
    database_url = "memory:"
    watchdog_interval = "off"
    pool_size = 2
    timeout = 3
    pgbouncer = true
    synchronous = "normal"
    """
    settings = load(tmp_path, None, file)
    assert (settings.database_url, settings.watchdog_interval, settings.pool_size) == ("memory:", None, 2)
    assert (settings.timeout, settings.pgbouncer, settings.synchronous) == (3.0, True, "NORMAL")


# --- what bad values get ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("PERDURE_POOL_SIZE", "many"),
        ("PERDURE_POOL_SIZE", "0"),
        ("PERDURE_POOL_SIZE", "2.5"),
        ("PERDURE_TIMEOUT", "nan"),
        ("PERDURE_TIMEOUT", "inf"),
        ("PERDURE_TIMEOUT", "-1"),
        ("PERDURE_WATCHDOG_INTERVAL", "0"),
        ("PERDURE_PGBOUNCER", "perhaps"),
        ("PERDURE_SYNCHRONOUS", "OFF"),
        ("PERDURE_LOG_LEVEL", "loud"),
        ("PERDURE_NAMESPACE", "a\0b"),
        ("PERDURE_NAMESPACE", "n" * 2000),
    ],
)
def test_a_variable_that_cannot_be_read_is_named(tmp_path: Path, variable: str, text: str) -> None:
    message = refusal(tmp_path, **{variable: text})
    assert variable in message
    assert variable.removeprefix("PERDURE_").lower() in message


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('pool_size = "many"', "pool_size"),
        ("timeout = nan", "timeout"),
        ("timeout = true", "timeout"),
        ('pgbouncer = "yes"', "pgbouncer"),
        ("namespace = ''", "namespace"),
        ("database_url = 5", "database_url"),
        ("database_ulr = 'memory:'", "database_ulr"),
        ("sources = {}", "sources"),
    ],
)
def test_a_line_that_cannot_be_read_is_named_with_its_file(tmp_path: Path, line: str, key: str) -> None:
    message = refusal(tmp_path, None, f"[perdure]\n{line}\n")
    assert key in message
    assert str(tmp_path / FILE_NAME) in message


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"[perdure\n", "line 1"),
        (b"pool_size = 4\n", "[perdure]"),
        (b"perdure = 4\n", "[perdure]"),
        (b"[perdure]\nnamespace = '\xff'\n", "UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    message = refusal(tmp_path)
    assert told in message
    assert str(tmp_path / FILE_NAME) in message


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    message = refusal(tmp_path, PERDURE_CONFIG="missing.toml")
    assert str(tmp_path / "missing.toml") in message
    assert "No such file" in message


def test_an_unknown_argument_is_named(tmp_path: Path) -> None:
    assert "databse" in refusal(tmp_path, {"databse": "memory:"})


@pytest.mark.parametrize("value", [{"pool_size": "4"}, {"pool_size": True}, {"timeout": "30"}])
def test_an_argument_has_its_own_type(tmp_path: Path, value: dict[str, Any]) -> None:
    assert "argument" in refusal(tmp_path, value)


# --- secrets ----------------------------------------------------------------------------------------------


def test_a_secret_in_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "url"
    path.write_text(URL + "\n")
    settings = load(tmp_path, PERDURE_DATABASE_URL_FILE=str(path), DATABASE_URL="memory:")
    assert settings.database_url == URL
    assert settings.sources["database_url"] == "environment PERDURE_DATABASE_URL_FILE"


def test_a_secret_cannot_have_two_homes(tmp_path: Path) -> None:
    message = refusal(tmp_path, DATABASE_URL=URL, DATABASE_URL_FILE="anything")
    assert "DATABASE_URL_FILE" in message
    assert "s3cr3t" not in message


def test_a_secret_whose_file_is_missing_is_named(tmp_path: Path) -> None:
    message = refusal(tmp_path, PERDURE_DATABASE_URL_FILE=str(tmp_path / "missing"))
    assert "PERDURE_DATABASE_URL_FILE" in message
    assert str(tmp_path / "missing") in message


def test_only_secrets_are_read_from_files(tmp_path: Path) -> None:
    assert load(tmp_path, PERDURE_NAMESPACE_FILE="missing").namespace == "default"


def test_a_secret_is_used_and_not_shown(tmp_path: Path) -> None:
    settings = load(tmp_path, {"database_url": URL})
    assert settings.database_url == URL
    assert str(settings.database_url) == URL
    for shown in (repr(settings), str(settings), pretty_repr(settings), repr([settings.database_url])):
        assert "s3cr3t" not in shown
        assert "anna:***@db.example" in shown


def test_a_bad_secret_is_not_shown(tmp_path: Path) -> None:
    message = refusal(tmp_path, DATABASE_URL=URL + "\0")
    assert "s3cr3t" not in message
    assert "DATABASE_URL" in message


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        (URL, "postgresql://anna:***@db.example:5432/agents"),
        ("postgresql://anna@db.example:5432/agents", "postgresql://anna@db.example:5432/agents"),
        ("postgresql://db.example:5432/agents", "postgresql://db.example:5432/agents"),
        ("postgresql://anna:p@ss:w0rd@db/agents", "postgresql://anna:***@db/agents"),
        ("postgresql://anna:p/a?s#s@db/agents", "postgresql://anna:***@db/agents"),
        ("postgresql://db/agents?user=anna&password=x%20y&a=b", "postgresql://db/agents?user=anna&password=***&a=b"),
        ("postgresql://db/agents?sslpassword=xy", "postgresql://db/agents?sslpassword=***"),
        ("host=db password=xy dbname=agents", "host=db password=*** dbname=agents"),
        ("sqlite:///perdure.db", "sqlite:///perdure.db"),
        ("memory:", "memory:"),
        ("", ""),
    ],
)  # fmt: skip
def test_passwords_are_masked(url: str, masked: str) -> None:
    assert mask_url(url) == masked
    assert repr(Secret(url)) == repr(masked)


def test_settings_do_not_change(tmp_path: Path) -> None:
    settings = load(tmp_path)
    with pytest.raises(AttributeError):
        settings.pool_size = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        settings.sources["pool_size"] = "elsewhere"  # type: ignore[index]


def test_loading_changes_no_environment(tmp_path: Path) -> None:
    before = dict(os.environ)
    load_settings(directory=tmp_path)
    assert dict(os.environ) == before
