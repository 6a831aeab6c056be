"""The log contains no secret, whatever is logged."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import Agents, Context, Perdure, PostgresLightningStore
from perdure.cli.hosting.agents import load_quietly
from perdure.cli.hosting.logs import Redaction, configure, find_warning, list_secrets
from perdure.kernel.config import Secret, SecretKey, Settings
from perdure.kernel.errors import Unauthorized
from perdure.kernel.log_fields import LOG_FIELDS
from perdure.runtime.services import Services
from perdure.threads.records import RunRequest

TOKEN = "pdr_0123456789abcdef_" + "A" * 43
SETTINGS = Settings(
    database_url=Secret("postgresql://anna:p%40ss+word@db.example/agents"),
    api_key=SecretKey("a-key-of-the-server-1"),
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abcdefgh12345678", "Authorization: Bearer ***"),
        ("authorization: Basic YW5uYTpzZWNyZXQ=", "authorization: Basic ***"),
        ("{'authorization': 'Bearer abcdefgh12345678', 'a': 1}", "{'authorization': 'Bearer ***', 'a': 1}"),
        ("(b'authorization', b'Bearer abcdefgh12345678')", "(b'authorization', b'Bearer ***')"),
        ("Authorization=plain-old-key", "Authorization=***"),
        ("x-api-key: abc123", "x-api-key: ***"),
        ('{"api_key": "abc123", "model": "m"}', '{"api_key": "***", "model": "m"}'),
        ("a call with Bearer abcdefgh12345678 failed", "a call with Bearer *** failed"),
        (f"token {TOKEN} is new", "token pdr_0123456789abcdef_*** is new"),
        ("postgresql://anna:secret@db/agents down", "postgresql://anna:***@db/agents down"),
        ("redis://:secret@cache:6379/0", "redis://:***@cache:6379/0"),
        ("http://anna:p@ss@host/x", "http://anna:***@host/x"),
        ("password=hunter22 user=anna", "password=*** user=anna"),
        ("sslpassword='hunter22'", "sslpassword='***'"),
        ("PERDURE_TOKEN=abc", "PERDURE_TOKEN=***"),
    ],
)
def test_what_has_the_form_of_a_secret_is_hidden(text: str, shown: str) -> None:
    assert Redaction()(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "request 1f: GET /v1/agl/rollouts took 12 ms",
        "the Basic credentials cannot be read",
        "Set PERDURE_API_KEY to a key of at least 16 characters",
        "http://127.0.0.1:4747/v1/traces cannot be reached",
        "use it as PERDURE_TOKEN or as Authorization: Bearer, or as x-api-key",
        Unauthorized().message,
        "sqlite:///perdure.db is open at 12:30:00",
    ],
)
def test_what_is_none_is_left_alone(text: str) -> None:
    assert Redaction()(text) == text


def test_what_the_settings_hold_is_hidden_wherever_it_stands() -> None:
    redaction = Redaction(list_secrets(SETTINGS))
    shown = redaction("the words p%40ss+word, p@ss+word and a-key-of-the-server-1 stand alone")
    assert shown == "the words ***, *** and *** stand alone"


@pytest.fixture
def restored() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("log_json", [False, True])
def test_neither_messages_nor_tracebacks_show_secrets(log_json: bool) -> None:
    stream = io.StringIO()
    settings = Settings(database_url=SETTINGS.database_url, api_key=SETTINGS.api_key, log_json=log_json)
    configure(settings, stream)
    try:
        raise ValueError(f"cannot use {TOKEN} at {settings.database_url!s}")
    except ValueError:
        logging.getLogger("perdure.test").exception("with the key %s", str(settings.api_key))
    written = stream.getvalue()
    assert "with the key ***" in written
    assert "ValueError" in written
    for secret in ("A" * 43, "p%40ss", "a-key-of"):
        assert secret not in written


@pytest.mark.usefixtures("restored")
def test_machines_get_one_json_object_a_line() -> None:
    stream = io.StringIO()
    configure(Settings(log_json=True, log_level="info"), stream)
    logger = logging.getLogger("perdure.test")
    logger.info("two\nlines")
    logger.debug("not wanted")
    logger.warning("x %s", 1)
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("info", "perdure.test", "two\nlines")
    assert second["message"] == "x 1"
    assert second["time"].endswith("Z")


@pytest.mark.usefixtures("restored")
async def test_lines_of_a_run_have_its_ids_as_fields() -> None:
    stream = io.StringIO()
    agents = Agents()

    @agents.agent("talker")
    async def talker(ctx: Context, input: object) -> None:
        ctx.logger.info("by the context")
        logging.getLogger("somebody.else").info("in the loop")
        await asyncio.to_thread(logging.getLogger("somebody.else").info, "in a thread")

    async with Perdure("memory:", agents=agents) as perdure:
        configure(Settings(log_json=True, log_level="info"), stream)
        thread = await perdure.threads.create_thread()
        run = await perdure.threads.create_run(
            RunRequest(assistant_id="talker", thread_id=thread.thread_id, input={})
        )
        await perdure.threads.join_run(run.run_id, timeout=10)
        logging.getLogger("perdure.test").info("outside")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    ids = {"run_id": run.run_id, "thread_id": thread.thread_id, "agent": "talker", "attempt": 1}
    for message in (f"run {run.run_id}: by the context", "in the loop", "in a thread"):
        (line,) = [each for each in lines if each["message"] == message]
        assert {name: line[name] for name in LOG_FIELDS} == ids
    (outside,) = [each for each in lines if each["message"] == "outside"]
    assert not set(LOG_FIELDS) & set(outside)


async def test_pools_are_logged(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with PostgresLightningStore(postgres_url) as store:
        services = Services(store, Settings())
        await services.ping()
        with caplog.at_level("INFO"):
            await services.log_pools()
    assert "Pool stats: pool=database" in caplog.text
    assert "max_connections=4" in caplog.text


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("log_json", [False, True])
def test_warnings_and_errors_are_found_in_a_log_file(log_json: bool, tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    with file.open("w") as stream:
        configure(Settings(log_json=log_json, log_level="info"), stream)
        stream.write("perdure: printed by a command\n")
        logging.getLogger("perdure.agents.loading").error("agent 'bad': there is no file")
        logging.getLogger("perdure.runtime").warning("the limit is low")
        logging.getLogger("perdure.runtime").info("a server is ready")
        stream.write("[1, 2]\nTraceback (most recent call last):\n")
    found = [text for line in file.read_text().splitlines() if (text := find_warning(line)) is not None]
    assert found == ["printed by a command", "agent 'bad': there is no file", "the limit is low"]


@pytest.mark.usefixtures("restored")
def test_a_quiet_load_leaves_the_log_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_quietly(Settings()).failures == []
    assert not logging.getLogger("perdure.agents.loading").disabled
