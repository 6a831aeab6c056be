"""The checker finds what it is there to find: a sound history passes, and each way to break it is named."""

import asyncio
import json
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import apsw
import pytest
from tests.chaos import __main__ as command
from tests.chaos.load import Load
from tests.chaos.scenario import Run, Scenario
from tests.chaos.stores import open_storage, read, store_over
from tests.support.checker import check
from tests.support.history import History, Recorder, Report

from perdure.kernel.errors import OutcomeUnknown, StorageUnavailable, Unreachable

CALLS = 400

Lines = Sequence[bytes]


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file on which one worker has worked, the same in every run, and its history."""
    folder = tmp_path_factory.mktemp("worked")
    lines = asyncio.run(_work(folder / "worked.db"))
    (folder / "worked.jsonl").write_bytes(b"".join(lines))
    return folder


async def _work(path: Path) -> list[bytes]:
    lines: list[bytes] = []
    stop = asyncio.Event()

    def write(line: bytes) -> None:
        lines.append(line)
        if len(lines) >= 2 * CALLS:
            stop.set()

    store = store_over(open_storage(str(path)), "default", 60.0)
    await Load(store, Recorder("p", write), number=1, seed=3, silence=3600.0).run(1, stop)
    await store.close()
    return lines


@pytest.fixture
def database(worked: Path, tmp_path: Path) -> Path:
    """A copy of the file, to be broken."""
    shutil.copytree(worked, tmp_path, dirs_exist_ok=True)
    return tmp_path / "worked.db"


async def _check(path: Path, *, without: str = "", and_then: Lines = (), resent: bool = False) -> Report:
    history = History()
    history.read([*path.with_suffix(".jsonl").read_bytes().splitlines(), *and_then])
    if without:
        history.calls = {key: call for key, call in history.calls.items() if call.function != without}
    storage = open_storage(str(path))
    try:
        snapshot, endings = await read(storage, "default")
    finally:
        await storage.close()
    return check(history, snapshot, endings=endings, resent=resent)


async def test_what_happened_agrees_with_what_was_seen(database: Path) -> None:
    report = await _check(database)
    assert report.violations == []
    assert report.calls >= CALLS
    assert min(report.rollouts, report.attempts, report.spans) > 0
    assert str(report).startswith("none lost, none doubled")


BROKEN = {
    "lost: ro-": "DELETE FROM rollouts WHERE id = (SELECT id FROM rollouts LIMIT 1)",
    "doubled": "UPDATE rollouts SET input = (SELECT input FROM rollouts ORDER BY id LIMIT 1)",
    "counts say": "UPDATE rollout_counts SET total = total + 1 WHERE status = 'succeeded'",
    "totals say": "UPDATE rollout_totals SET total = total - 1 WHERE name = 'attempts'",
    "places in the queue": "UPDATE rollouts SET ready = NULL WHERE status = 'queuing'",
    "has attempts": "UPDATE rollouts SET attempts = attempts + 1 WHERE status = 'succeeded'",
    "lost: at-": "DELETE FROM attempts WHERE id = (SELECT id FROM attempts LIMIT 1)",
    "was answered": "UPDATE attempts SET end_time = end_time + 1 WHERE end_time IS NOT NULL",
    "which was refused or never made": 'UPDATE attempts SET metadata = \'{"token": "forged"}\'',
    "its latest attempt": "UPDATE attempts SET status = 'running' WHERE status = 'succeeded'",
    "more than it can have asked for": "UPDATE attempts SET worker_id = 'nobody', id = id || 'x'",
    "spans acknowledged": "DELETE FROM spans WHERE span_id = (SELECT span_id FROM spans LIMIT 1)",
    "that may have stored it": "UPDATE spans SET span_id = 'x' || span_id",
    "beyond its counter": "UPDATE span_counters SET sequence = 0",
    "lost: version": "UPDATE resource_versions SET body = '{}'",
    "has versions": "UPDATE resource_versions SET version = version + 1000",
    "cancel of ro-": "UPDATE rollouts SET status = 'failed' WHERE status = 'cancelled'",
    "edit of ro-": "UPDATE rollouts SET metadata = '{}'",
    "its kind was told []": "DELETE FROM chaos_endings",
    "ended twice": "INSERT INTO chaos_endings SELECT ns, rollout_id, id || 'x', status FROM chaos_endings",
}


@pytest.mark.parametrize("named", BROKEN)
async def test_each_way_to_break_a_database_is_named(database: Path, named: str) -> None:
    connection = apsw.Connection(str(database))
    connection.execute(BROKEN[named])
    assert connection.changes() > 0
    connection.close()
    report = await _check(database)
    assert any(named in violation for violation in report.violations), str(report)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        ("enqueue", "though no call that may have made it"),
        ("dequeue", "more than it can have asked for"),
        ("spans", "though no call that may have stored it"),
        ("report", "which was refused or never made"),
    ],
)
async def test_what_nobody_asked_for_is_named(database: Path, function: str, named: str) -> None:
    report = await _check(database, without=function)
    assert any(named in violation for violation in report.violations), str(report)


async def test_a_span_that_two_were_told_is_new_is_named_unless_requests_are_resent(database: Path) -> None:
    history = History()
    history.read(database.with_suffix(".jsonl").read_bytes().splitlines())
    call = next(call for call in history if call.function == "spans" and call.got.get("stored"))
    again = [
        json.dumps(["invoke", "q", 1, time.monotonic_ns(), "spans", call.given]).encode(),
        json.dumps(["ok", "q", 1, time.monotonic_ns(), {"stored": call.got["stored"]}]).encode(),
    ]
    report = await _check(database, and_then=again)
    assert any("was stored by" in violation for violation in report.violations), str(report)
    assert (await _check(database, and_then=again, resent=True)).violations == []


async def _recorded(action: Callable[[], Awaitable[object]]) -> History:
    lines: list[bytes] = []
    await Recorder("p", lines.append).call(
        "enqueue", {"tokens": ["t"]}, action(), lambda _: {"ids": ["ro-1"]}
    )
    history = History()
    history.read(lines)
    return history


async def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "outcome", "code"),
    [
        (StorageUnavailable(), "fail", "storage_unavailable"),
        (OutcomeUnknown(), "info", "outcome_unknown"),
        (Unreachable(), "info", "unreachable"),
        (RuntimeError("bare"), "info", "untyped"),
    ],
)
async def test_an_error_is_certain_or_not(error: Exception, outcome: str, code: str) -> None:
    history = await _recorded(lambda: _raise(error))
    (call,) = history
    assert (call.outcome, call.code) == (outcome, code)
    assert history.outcomes()[f"{outcome}: {code}"] == 1


async def test_a_call_that_was_never_answered_or_later_than_the_reading_is_open() -> None:
    history = History()
    history.read([b'["invoke","p",1,10,"enqueue",{"tokens":["t"]}]', b'["ok","p",1,20,{"ids":["ro-1"]}]'])
    history.read([b'["invoke","p",2,30,"enqueue",{"tokens":["u"]}]', b'["mark","p",0,40,"end"]'])
    assert [call.outcome for call in history.as_of(25, 26)] == ["ok"]
    assert [call.outcome for call in history.as_of(15, 16)] == ["info"]
    assert [call.outcome for call in history.as_of(50, 60)] == ["ok", "info"]
    assert history.as_of(5, 6) == []


@pytest.mark.parametrize(("wrong", "code"), [([], 0), (["a rollout is lost"], 1)])
def test_the_command_fails_if_anything_was_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: list[str], code: int
) -> None:
    def scenario(run: Run) -> None:
        run.found("here", wrong)
        run.advance()

    monkeypatch.setattr(command, "SCENARIOS", (Scenario("small", "things", 1, "one thing", scenario),))
    assert command.main(["--things", "1", "--seed", "5"]) == code
    shown = capsys.readouterr().out
    assert ("small: here: a rollout is lost" in shown) == bool(wrong)
    assert command.main(["--only", "small", "--json"]) == code


def test_naming_sizes_chooses_their_scenarios() -> None:
    def names(*arguments: str) -> list[tuple[str, int]]:
        return [(each.name, size) for each, size in command.chosen(command.arguments(arguments))]

    unnamed = [scenario.name for scenario in command.SCENARIOS if not scenario.when_named]
    assert [name for name, _ in names()] == unnamed
    assert names("--kills", "1000") == [("sqlite-kills", 1000)]
    assert names("--server-kills", "2") == [("server-kills-sqlite", 2), ("server-kills-postgres", 2)]
    workers = ["worker-chaos-postgres", "worker-chaos-sqlite", "rolling-restart"]
    assert names("--runs", "9") == [(name, 9) for name in workers]
    assert names("--seeds", "3") == [("simulation", 3)]
    assert names("--only", "stories,model", "--length", "2") == [("model", 2000), ("stories", 2)]
    assert names("--kills", "7", "--crashes", "3") == [("sqlite-kills", 7), ("postgres-crashes", 3)]
    assert names("--only", "torn", "--cuts", "9", "--kills", "1") == [("torn", 9)]
