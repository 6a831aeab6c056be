"""The end of the test command: its expensive files, and the deselected tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_tests(*arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_fast_selection_starts_no_server_and_says_what_it_left_out() -> None:
    output = run_tests("-n", "1", "--fast", "--dearest-files=3", "tests/assistants")
    assert "servers: none needed" in output
    assert "postgres]" not in output
    summary = output.partition("left out by --fast")[2]
    assert " on PostgreSQL" in summary.splitlines()[1]
    dearest = output.partition("dearest files, of ")[2].splitlines()
    assert dearest[1].endswith("tests/assistants/test_assistants.py")
