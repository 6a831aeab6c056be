"""The commands that read and change a live server, for a person and for a script."""

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.python_process import PythonProcess

from perdure import (
    LightningStore,
    NamedResources,
    PromptTemplate,
    RolloutConfig,
    Span,
    TraceStatus,
    open_store,
)
from perdure.client.lightning import LightningStoreClient

from .command import COLOR, COMMAND, Server, Terminal, run_here, settings, start

DATABASE = "sqlite:///agents.db"
UNREACHABLE = {"PERDURE_URL": "http://127.0.0.1:1"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """Return a namespace for each test."""
    name = re.sub(r"\W", "-", request.node.name)
    return {"PERDURE_NAMESPACE": name}


def with_store(server: Server, place: Mapping[str, str], work: Any) -> Any:
    """Run a function on the server's store in a test's namespace."""

    async def run() -> Any:
        async with LightningStoreClient(server.url, namespace=place["PERDURE_NAMESPACE"]) as store:
            return await work(store)

    return asyncio.run(run())


async def fail_once(store: LightningStore) -> str:
    """Create a rollout whose only attempt failed, with a trace."""
    queued = await store.enqueue_rollout(
        {"question": "why?"}, config=RolloutConfig(retry_condition=["timeout"])
    )
    claimed = await store.dequeue_rollout("worker-1")
    assert claimed is not None
    ids: dict[str, Any] = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
    whole = Span.from_attributes(
        **ids, sequence_id=1, span_id="a" * 16, name="agent", attributes={}, start_time=1.0, end_time=3.5
    )
    step = Span.from_attributes(
        **ids,
        sequence_id=2,
        span_id="b" * 16,
        parent_id="a" * 16,
        name="tool",
        attributes={},
        start_time=1.0,
        end_time=1.25,
        status=TraceStatus(status_code="ERROR", description="no answer"),
    )
    await store.add_many_spans([whole, step])
    await store.update_attempt(**ids, status="failed")
    return queued.rollout_id


def said(ended: subprocess.CompletedProcess[str]) -> str:
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("rollout list", "perdure rollout enqueue"),
        ("worker list", "dequeue_rollout"),
        ("resources list", "add_resources"),
    ],
)
def test_empty_lists_teach(server: Server, place: Mapping[str, str], command: str, hint: str) -> None:
    assert hint in said(server.run(*command.split(), more=place))
    assert server.json(*command.split(), more=place) == {"items": [], "total": 0}


def test_a_rollout_from_the_queue_to_its_end(server: Server, place: Mapping[str, str]) -> None:
    rollout_id = said(server.run("rollout", "enqueue", '{"question": 1}', more=place)).strip()
    listed = said(server.run("rollout", "list", more=place))
    assert re.search(rf"{rollout_id} +queuing .*ago +- +{{\"question\":1}}", listed)
    shown = said(server.run("rollout", "show", rollout_id, more=place))
    assert "is waiting for a worker; no worker is alive for queue 'default'" in shown
    assert "none has connected yet" in shown

    assert server.json("rollout", "cancel", rollout_id, more=place)["changed"] == [
        {"rollout_id": rollout_id, "status": "cancelled"}
    ]
    again = server.run("rollout", "cancel", rollout_id, more=place)
    assert (again.returncode, again.stdout) == (1, "")
    assert "conflict" in again.stderr
    assert "was cancelled by anonymous at" in said(server.run("rollout", "show", rollout_id, more=place))

    assert "requeuing" in said(server.run("rollout", "retry", rollout_id, more=place))
    assert "has not ended yet" in server.run("rollout", "retry", rollout_id, more=place).stderr


def test_a_failure_is_explained_and_its_trace_drawn(server: Server, place: Mapping[str, str]) -> None:
    rollout_id = with_store(server, place, fail_once)
    shown = said(server.run("rollout", "show", rollout_id, more=place))
    assert "attempt 1 failed, and 'failed' is not in its retry_condition" in shown
    assert "Last error: tool: no answer" in shown
    assert "perdure span list" in shown
    document = server.json("rollout", "show", rollout_id, more=place)
    assert document["rollout"]["status"] == "failed"
    assert document["spans"] == 2
    assert [attempt["status"] for attempt in document["attempts"]] == ["failed"]

    path = said(server.run("rollout", "path", rollout_id, more=place))
    assert re.search(r"preparing .* worker-1 +claimed by worker worker-1 as attempt 1", path)
    assert "When a first span arrived is not stored" in path
    states = server.json("rollout", "path", rollout_id, more=place)["items"]
    assert [each["status"] for each in states] == ["queuing", "preparing", "running", "failed"]
    with_itself = said(server.run("rollout", "compare", rollout_id, "1", "1", more=place))
    assert "Both attempts did the same." in with_itself
    assert re.search(r"same +agent +agent", with_itself)

    tree = said(server.run("span", "list", rollout_id, more=place))
    assert re.search(r"└── attempt 1 by worker-1: failed", tree)
    assert re.search(r"└── agent  2\.50 s  aaaaaaaa\n +└── tool  250 ms  no answer  bbbbbbbb", tree)
    assert server.json("span", "list", rollout_id, more=place)["total"] == 2
    assert "worker-1" in said(server.run("worker", "list", "--status", "idle", more=place))
    assert server.json("worker", "list", "--status", "busy", more=place)["items"] == []


def test_lists_are_filtered(server: Server, place: Mapping[str, str]) -> None:
    async def prepare(store: LightningStore) -> None:
        for number in range(5):
            await store.enqueue_rollout(number)

    with_store(server, place, prepare)
    page = server.json("rollout", "list", "--limit", "2", "--status", "queuing", "--since", "1h", more=place)
    assert [each["input"] for each in page["items"]] == [4, 3]
    assert page["total"] == 5
    assert server.json("rollout", "list", "--status", "failed", more=place)["items"] == []
    assert "Showing 2 of 5 rollouts" in said(server.run("rollout", "list", "--limit", "2", more=place))


def test_many_are_queued_from_stdin_and_cancelled_at_once(server: Server, place: Mapping[str, str]) -> None:
    environment = settings(server.folder, {"PERDURE_URL": server.url, **place})
    ended = subprocess.run(
        [*COMMAND, "rollout", "enqueue", "-", "--max-attempts", "3", "--retry-on", "failed", "--json"],
        input='{"n": 1}\n\n{"n": 2}\n',
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    queued = json.loads(ended.stdout)
    assert [each["input"] for each in queued] == [{"n": 1}, {"n": 2}]
    assert queued[0]["config"]["retry_condition"] == ["failed"]

    unasked = server.run("rollout", "cancel", "--status", "queuing", more=place)
    assert unasked.returncode == 2
    assert "--yes" in unasked.stderr
    document = server.json("rollout", "cancel", "--status", "queuing", "--yes", more=place)
    assert len(document["changed"]) == 2


def test_watching_ends_with_the_rollout(server: Server, place: Mapping[str, str]) -> None:
    rollout_id = with_store(server, place, fail_once)
    (line,) = said(server.run("rollout", "watch", rollout_id, "--json", more=place)).splitlines()
    assert json.loads(line)["status"] == "failed"
    assert said(server.run("rollout", "watch", more=place)) == ""


def test_watching_follows_what_others_do(server: Server, place: Mapping[str, str]) -> None:
    more = {"PERDURE_URL": server.url, "PYTHONUNBUFFERED": "1", **place}
    watching = start(server.folder, "rollout", "watch", "--follow", "--json", more=more)
    with watching:
        assert watching.stdout is not None
        rollout_id = with_store(server, place, enqueue_one)
        assert next_change(watching) == (rollout_id, "queuing")
        assert server.run("rollout", "cancel", rollout_id, more=place).returncode == 0
        assert next_change(watching) == (rollout_id, "cancelled")
        watching.send_signal(2)
        assert watching.wait() == 130
        assert watching.communicate()[1] == ""


async def enqueue_one(store: LightningStore) -> str:
    return (await store.enqueue_rollout(1)).rollout_id


def next_change(watching: PythonProcess) -> tuple[str, str]:
    assert watching.stdout is not None
    change = json.loads(watching.stdout.readline())
    return change["rollout_id"], change["status"]


def test_waiting_too_long_is_code_5(server: Server, place: Mapping[str, str]) -> None:
    for command in (("enqueue", "1", "--wait"), ("watch",)):
        ended = server.run("rollout", *command, "--timeout", "0.2s", more=place)
        assert ended.returncode == 5
        assert "perdure: timed_out: 1 of 1 rollouts" in ended.stderr


def test_watching_on_a_terminal_draws_a_bar(server: Server, place: Mapping[str, str]) -> None:
    rollout_id = with_store(server, place, enqueue_one)
    more = {"PERDURE_URL": server.url, **place}
    terminal = Terminal(server.folder, "rollout", "watch", rollout_id, more=more)
    terminal.read_until("0/1")
    with_store(server, place, lambda store: store.update_rollout(rollout_id, status="succeeded"))
    assert terminal.end() == 0
    assert re.search(rf"{rollout_id}  succeeded", terminal.text)


def test_colors_are_for_terminals_that_want_them(server: Server, place: Mapping[str, str]) -> None:
    with_store(server, place, enqueue_one)
    more = {"PERDURE_URL": server.url, **place}
    for arguments, colored in (((), True), (("--no-color",), False)):
        terminal = Terminal(server.folder, "rollout", "list", *arguments, more=more)
        assert terminal.end() == 0
        assert bool(COLOR.search(terminal.output)) is colored
    assert "\x1b" not in said(server.run("rollout", "list", more=more))


def test_resources_and_what_changed_in_them(server: Server, place: Mapping[str, str]) -> None:
    async def prepare(store: LightningStore) -> str:
        added = await store.add_resources({"prompt": PromptTemplate(template="Hi\nthere", engine="jinja")})
        changed: NamedResources = {"prompt": PromptTemplate(template="Hi\nyou", engine="jinja")}
        await store.update_resources(added.resources_id, changed)
        return added.resources_id

    resources_id = with_store(server, place, prepare)
    assert re.search(rf"{resources_id} +2 +.*prompt", said(server.run("resources", "list", more=place)))
    assert "template: Hi\n    you" in said(server.run("resources", "show", more=place))
    diff = said(server.run("resources", "diff", resources_id, more=place))
    assert "-    there" in diff
    assert "+    you" in diff
    document = server.json("resources", "diff", resources_id, "1", "2", more=place)
    assert (document["old"], document["new"]) == (1, 2)
    assert "versions are identical" in said(
        server.run("resources", "diff", resources_id, "2", "2", more=place)
    )


@pytest.mark.parametrize(
    "command",
    [
        "rollout show ro-unknown",
        "rollout cancel ro-unknown",
        "rollout retry ro-unknown",
        "rollout watch ro-unknown",
        "span list ro-unknown",
        "resources show rs-unknown",
        "resources diff rs-unknown",
        "token revoke unknown",
    ],
)
def test_what_is_not_there_is_code_4(server: Server, command: str) -> None:
    ended = server.run(*command.split(), "--json")
    assert (ended.returncode, ended.stdout) == (4, "")
    assert json.loads(ended.stderr)["error"]["code"] == "not_found"
    assert re.fullmatch(r"perdure: not_found: .+\n", server.run(*command.split()).stderr)


@pytest.mark.parametrize(
    "command",
    [
        ("rollout", "list", "--status", "unknown"),
        ("rollout", "list", "--since", "yesterday"),
        ("rollout", "list", "--limit", "0"),
        ("rollout", "enqueue", "hello"),
        ("rollout", "enqueue", "@missing.json"),
        ("rollout", "enqueue", "1", "--metadata", "{"),
        ("rollout", "cancel"),
        ("worker", "list", "--status", "asleep"),
        ("resources", "diff", "rs-1", "0"),
        ("token", "create"),
        ("rollout",),
        ("span", "list"),
    ],
    ids=" ".join,
)
def test_bad_usage_is_code_2(tmp_path: Path, command: tuple[str, ...]) -> None:
    ended = run_here(tmp_path, *command, more=UNREACHABLE)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("command", ["rollout list", "worker list", "token list", "health"])
def test_a_server_that_is_not_there_says_how_to_start_one(tmp_path: Path, command: str) -> None:
    ended = run_here(tmp_path, *command.split(), more=UNREACHABLE)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.fullmatch(r"perdure: unreachable: .*`perdure dev`.*--url.*\n", ended.stderr)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("rollout", "enqueue", "1", "--mode", "play"), "invalid_input"),
        (("rollout", "enqueue", "1", "--retry-on", "sadness"), "invalid_input"),
        (("rollout", "list", "--url", "not a url"), "invalid_input"),
        (("rollout", "list", "--namespace", "\u00e4"), "invalid_input"),
        (("rollout", "list", "--database", "mysql://x/y"), "invalid_input"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_bad_input_is_one_line_with_its_code(tmp_path: Path, command: tuple[str, ...], code: str) -> None:
    ended = run_here(tmp_path, *command, more=UNREACHABLE if "--url" not in command else {})
    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.fullmatch(rf"perdure: {code}: .+\n", ended.stderr)


def test_a_database_can_be_asked_without_a_server(tmp_path: Path) -> None:
    missing = run_here(tmp_path, "rollout", "list", "--database", DATABASE)
    assert missing.returncode == 4
    assert list(tmp_path.iterdir()) == []
    queued = run_here(tmp_path, "rollout", "enqueue", "1", "--json", "--database", DATABASE)
    rollout_id = json.loads(queued.stdout)["rollout_id"]
    for command in ("rollout show", "span list", "rollout cancel", "rollout retry"):
        assert run_here(tmp_path, *command.split(), rollout_id, "--database", DATABASE).returncode == 0
    conflict = run_here(tmp_path, "rollout", "retry", rollout_id, "--database", DATABASE)
    assert conflict.returncode == 1
    waited = run_here(tmp_path, "rollout", "watch", "--timeout", "0.1s", "--database", DATABASE)
    assert waited.returncode == 5
    assert run_here(tmp_path, "health", "--json", "--database", DATABASE).returncode == 0
    assert asyncio.run(actors(tmp_path)) == ["cli"]


async def actors(folder: Path) -> list[str]:
    """Return the actors in the audit."""
    from perdure.access.service import Access

    async with open_store(str(folder / "agents.db")) as store:
        entries = (await Access(store.storage).query_audit()).items
        return sorted({entry.actor.partition(":")[0] for entry in entries})


def test_views_are_saved_listed_and_deleted(server: Server, place: Mapping[str, str]) -> None:
    assert "perdure view save" in said(server.run("view", "list", more=place))
    said(server.run("view", "save", "rollouts", "failed today", "?status=failed", more=place))
    (view,) = server.json("view", "list", more=place)["items"]
    assert (view["screen"], view["name"], view["query"]) == ("rollouts", "failed today", "?status=failed")
    assert "failed today" in said(server.run("view", "list", more=place))
    said(server.run("view", "delete", "rollouts", "failed today", "--yes", more=place))
    assert server.json("view", "list", more=place)["items"] == []


def test_the_doctor_of_a_server_tells_what_it_finds(server: Server, place: Mapping[str, str]) -> None:
    checks = {each["name"]: each["state"] for each in server.json("doctor", more=place)["checks"]}
    assert checks["server database"] == "ok"
    assert "server workers" in checks
