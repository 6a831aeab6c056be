"""The measures run to their end and say what they found in the promised shape; no figure is judged here."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bench import cpu, environments, history, http_otlp, report, rows
from bench.__main__ import chosen
from bench.environments import Environment, PeerError
from bench.host import Host
from bench.http_rows import resident_mebibytes
from bench.measures import Row
from bench.peer import PeerProcess
from bench.report import Result
from bench.seed_threads import copies, template_of
from bench.sizes import FULL, QUICK, label
from bench.socket_client import socket_client
from bench.stream_clients import Reader, unchunked
from bench.timing import interleave
from docs import benchmarks
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from tests.kernel.support import until

ROOT = Path(__file__).resolve().parent.parent
NUMBERS = ("peer", "raw", "ratio_peer", "ratio_raw", "target_peer", "target_raw", "target")
KEYS = {"name", "ours", "unit", "better", "what", "cpu", *NUMBERS}


def run_bench(*arguments: str) -> str:
    command = [sys.executable, "-m", "bench", *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def assert_shape(result: dict[str, Any]) -> None:
    assert set(result) == KEYS
    assert isinstance(result["ours"], float)
    assert all(result[key] is None or isinstance(result[key], float) for key in NUMBERS)
    assert result["better"] in ("higher", "lower")
    assert result["peer"] is None
    assert (result["raw"] is None) == (result["ratio_raw"] is None)


def run(postgres_server_url: str, folder: Path, *only: str) -> int:
    """A quick run without peers of the rows whose names hold one of these words; the long run is of all."""
    output = folder / "results.json"
    chosen_rows = ["--only", *only] if only else []
    printed = run_bench(
        "--quick",
        "--no-peer",
        "--json",
        *chosen_rows,
        "--postgres",
        postgres_server_url,
        "--output",
        str(output),
    )
    results = json.loads(output.read_text())
    assert json.loads(printed) == results
    measures = chosen(rows.all_measures(QUICK), list(only) or None, with_peer=False)
    assert {each.needs_peer for each in measures} == {False}
    assert [result["name"] for result in results] == [row.name for each in measures for row in each.rows]
    for result in results:
        assert_shape(result)
    return len(results)


def test_a_quick_run_without_peer_gives_the_chosen_rows(postgres_server_url: str, tmp_path: Path) -> None:
    """`./dev chaos` runs every row."""
    assert run(postgres_server_url, tmp_path, "sqlite/enqueue", "postgres/claim_complete") >= 2


def test_a_table_is_printed_for_the_chosen_rows(tmp_path: Path) -> None:
    printed = run_bench(
        "--quick", "--no-peer", "--only", "sqlite/enqueue", "--output", str(tmp_path / "results.json")
    )
    assert "sqlite/enqueue_many" in printed
    assert "ours/raw" in printed
    assert "sqlite/cycle" not in printed


def test_list_names_every_row() -> None:
    names = [line.split()[0] for line in run_bench("--list").splitlines()]
    assert names == [row.name for each in rows.all_measures(FULL) for row in each.rows]
    assert len(set(names)) == len(names)


def test_unknown_row_is_refused() -> None:
    assert chosen(rows.all_measures(QUICK), ["no such row"]) == []


@pytest.mark.parametrize(
    ("count", "expected"), [(50, "50"), (1_000, "1k"), (100_000, "100k"), (1_000_000, "1m")]
)
def test_label(count: int, expected: str) -> None:
    assert label(count) == expected


@pytest.mark.parametrize(
    ("result", "passed"),
    [
        (Result(name="a", ours=1.0, unit="ms"), None),
        (Result(name="a", ours=50.0, unit="x/s", ratio_raw=0.5, target_raw=0.5), True),
        (Result(name="a", ours=50.0, unit="x/s", ratio_raw=0.49, target_raw=0.5), False),
        (Result(name="a", ours=50.0, unit="x/s", target_peer=5.0), None),
        (Result(name="a", ours=1.6, unit="times", better="lower", target=1.5), False),
        (Result(name="a", ours=1.5, unit="times", better="lower", target=1.5), True),
    ],
)
def test_a_target_is_met_or_missed(result: Result, passed: bool | None) -> None:
    assert result.passed() is passed
    assert len(report.cells(result)) == 11


def test_a_ratio_is_ours_divided_by_theirs() -> None:
    row = Row("a", "what", "x/s", target_raw=0.5)
    result = row.result({"ours": 30.0, "raw": 40.0})
    assert (result.ratio_raw, result.ratio_peer, result.peer) == (0.75, None, None)


def test_what_needs_the_peer_is_left_out_without_it() -> None:
    everything = rows.all_measures(QUICK)
    left = chosen(everything, None, with_peer=False)
    assert [each.rows[0].name for each in everything if each not in left] == [
        "http/peer_enqueue",
        "http/peer_cycle",
        "http/peer_cycle_many",
    ]


async def test_a_batch_holds_its_spans_and_says_whose_they_are() -> None:
    async with http_otlp.exporter_to("http://127.0.0.1:9") as exporter:
        (group,) = TracesData.FromString(exporter.batch_of("ro-1", "at-1")).resource_spans
    owner = {each.key: each.value.string_value for each in group.resource.attributes}
    assert (owner["agentlightning.rollout_id"], owner["agentlightning.attempt_id"]) == ("ro-1", "at-1")
    assert len({span.span_id for span in group.scope_spans[0].spans}) == http_otlp.BATCH


def test_the_memory_of_a_process_is_read() -> None:
    assert 5 < resident_mebibytes(os.getpid()) < 100_000


PEERS = [each for each in vars(environments).values() if isinstance(each, Environment)]


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_everything_that_a_peer_brings_along_is_pinned(peer: Environment) -> None:
    pins = dict(line.split("==") for line in peer.pins.read_text().split())
    for package in peer.packages:
        name, _, version = package.partition("==")
        assert version in ("", pins.get(name.partition("[")[0], version))
    assert len({each.folder for each in PEERS}) == len(PEERS)


async def test_a_peer_that_cannot_be_installed_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: Environment) -> Path:
        raise PeerError(f"{self.title} could not be installed")

    monkeypatch.setattr(Environment, "ensure", fail)
    async with Host(QUICK) as host, AsyncExitStack() as stack:
        assert await host.try_peer(stack, PeerProcess(environments.DBOS)) is None
        assert await host.peer() is None
    assert "dbos==3.3.0 could not be installed" in capsys.readouterr().err


def test_a_row_without_its_peer_has_no_ratio() -> None:
    result = Row("a", "what", "x/s", target_peer=3.0).result({"ours": 30.0})
    assert (result.ours, result.ratio_peer, result.passed()) == (30.0, None, None)


def test_a_copied_thread_has_ids_an_order_and_a_lease_of_its_own() -> None:
    rows = [
        ("threads", {"ns": 1, "id": "t", "created_at": 5}),
        ("attempts", {"ns": 1, "rollout_id": "r", "sequence_id": 1, "check_at": 7, "worker_id": "w"}),
        ("workers", {"ns": 1, "id": "w", "rollout_id": "r"}),
    ]
    made = list(copies(template_of(rows, ["t", "r"]), ["t", "r"], [3]))
    assert made[0] == ("threads", {"ns": 1, "id": "t-3", "created_at": 8})
    assert made[1][1]["rollout_id"] == "r-3"
    assert made[1][1]["check_at"] > 1_000_000_000
    assert len(made) == 2


@pytest.mark.parametrize(("numbers", "whole"), [([2, 3, 4], True), ([2, 4], False), ([2, 2, 3], False)])
async def test_a_reader_sees_whether_an_event_is_missing_or_came_twice(
    numbers: list[int], whole: bool
) -> None:
    body = "".join(f"id: 17-{number}\nevent: custom\ndata: 1\n\n" for number in numbers).encode()
    sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    assert unchunked(sent) == body
    reader = Reader(b"")
    reader.data_received(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + sent)
    if whole:
        reader.check(3)
    else:
        with pytest.raises(RuntimeError, match="of 3 events"):
            reader.check(3)


async def test_the_cpu_time_of_a_side_is_taken_for_each_unit_and_without_its_warm_up() -> None:
    clock = iter([0.0, 9.0, 10.0, 10.4, 20.0, 20.8])
    meter = cpu.Meter({"server": lambda: next(clock), "database": None})

    async def side(size: int) -> float:
        return float(size)

    assert await interleave(100, 2, {"ours": meter.around(side, units=2)}) == {"ours": 100.0}
    assert meter.figures() == {"cpu_server": pytest.approx(3.0)}


async def test_a_slow_side_has_smaller_rounds_and_the_same_warm_up() -> None:
    asked: dict[str, list[int]] = {"ours": [], "slow": []}

    async def side(name: str, size: int) -> float:
        asked[name].append(size)
        return 1.0

    sides = {name: partial(side, name) for name in asked}
    await interleave(200, 2, {**sides}, shares={"slow": 4})
    assert asked == {"ours": [20, 200, 200], "slow": [20, 50, 50]}


def test_the_cpu_time_of_a_process_counts_its_children() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'sum(range(10**7))'])"
    before, own = cpu.seconds_of_tree(os.getpid()), cpu.seconds_of(os.getpid())
    subprocess.run([sys.executable, "-c", program], check=True)
    assert cpu.seconds_of_tree(os.getpid()) - before > cpu.seconds_of(os.getpid()) - own + 0.02


async def test_a_client_of_sockets_reads_answers_by_length_and_in_chunks_and_opens_again() -> None:
    answers = iter(
        [
            b'HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{"a":1}',
            b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n4\r\n":2}\r\n0\r\n\r\n',
            b"HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nbusy",
        ]
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(next(answers))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    async with server, socket_client(f"http://127.0.0.1:{port}", 1) as client:
        assert await client.post("/", {}) == {"a": 1}
        await until(lambda: not client.connections[0].is_open)
        with pytest.raises(ConnectionError):
            await client.post("/", {})
        await client.open()
        assert await client.post("/", {}) == {"a": 2}
        await until(lambda: not client.connections[0].is_open)
        await client.open()
        with pytest.raises(RuntimeError, match="busy"):
            await client.post("/", {})


def test_a_release_is_recorded_once_and_its_rows_in_the_order_of_the_bench(tmp_path: Path) -> None:
    record = partial(history.record, order=["a", "b", "c"], path=tmp_path / "history.jsonl")
    threads = Result(name="c", ours=0.0, unit="threads", target=0.0, cpu={"server": 1.5})
    record("1.0", [_result("b", 1.0), _result("gone", 1.0)])
    record("1.1", [threads])
    record("1.0", [_result("a", 2.123456), _result("b", 3.0)])
    first, second = history.read(tmp_path / "history.jsonl")
    assert (first.version, first.rows) == ("1.0", [_result("a", 2.1235), _result("b", 3.0)])
    assert second.rows == [threads]


def _result(name: str, ours: float) -> Result:
    return Result(name=name, ours=ours, unit="ms")


def test_a_quick_run_is_not_recorded() -> None:
    command = [sys.executable, "-m", "bench", "--quick", "--record", "1.0", "--only", "import"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 2


def test_every_section_of_the_page_of_benchmarks_is_of_rows_that_there_are() -> None:
    groups = {row.name.partition("/")[0] for each in rows.all_measures(FULL) for row in each.rows}
    assert set(benchmarks.SECTIONS) - groups == set()
    names = {row.name for each in rows.all_measures(FULL) for row in each.rows}
    assert set(benchmarks.FOLLOWED) <= names
