"""The measures run to their end and say what they found in the promised shape; no figure is judged here."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench import http_otlp, report, rows
from bench.__main__ import chosen
from bench.http_rows import resident_mebibytes
from bench.measures import Row
from bench.report import Result
from bench.sizes import FULL, QUICK, label
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

ROOT = Path(__file__).resolve().parent.parent
NUMBERS = ("peer", "raw", "ratio_peer", "ratio_raw", "target_peer", "target_raw", "target")
KEYS = {"name", "ours", "unit", "better", "what", *NUMBERS}


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


def test_quick_run_without_peer_gives_every_row(postgres_server_url: str, tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    printed = run_bench(
        "--quick", "--no-peer", "--json", "--postgres", postgres_server_url, "--output", str(output)
    )
    results = json.loads(output.read_text())
    assert json.loads(printed) == results
    measures = chosen(rows.all_measures(QUICK), None, with_peer=False)
    assert {each.needs_peer for each in measures} == {False}
    assert [result["name"] for result in results] == [row.name for each in measures for row in each.rows]
    for result in results:
        assert_shape(result)


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
    assert len(report.cells(result)) == 10


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
