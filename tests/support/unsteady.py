"""Reruns failed tests by themselves, and names those that then pass: they are unsteady.

A busy moment of the machine does not fail an otherwise sound run; the names are printed prominently, so that
the tests get fixed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

MOST = 10
"""Maximum tests that are rerun; more failures are not chance."""
SECONDS = 1200.0
LONGEST_REASON = 500
HEADING = "unsteady: passed only when run alone"


def add_options(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rerun-alone",
        action="store_true",
        help=f"run up to {MOST} tests that failed once more, in a process of their own",
    )
    parser.addoption("--outcomes", metavar="FILE", help="write the outcome of each test to a file, as JSON")


def register(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    if config.getoption("--rerun-alone"):
        config.pluginmanager.register(RerunAlone(config))
    if config.getoption("--outcomes"):
        config.pluginmanager.register(Outcomes(Path(config.getoption("--outcomes"))))


class Outcomes:
    """Records whether each test passed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._passed: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed[report.nodeid] = self._passed.get(report.nodeid, True) and not report.failed

    def pytest_sessionfinish(self) -> None:
        self._file.write_text(json.dumps(self._passed), encoding="utf-8")


class RerunAlone:
    """Reruns failed tests after the run, and removes failures that do not repeat."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._failed: dict[str, pytest.TestReport] = {}
        """By test: its first failure."""
        self._unsteady: list[str] = []
        self._output = ""
        """Failures of the second run."""
        self.file = config.rootpath / ".pytest_cache" / "unsteady.txt"

    def pytest_sessionstart(self) -> None:
        self.file.unlink(missing_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.setdefault(report.nodeid, report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus != pytest.ExitCode.TESTS_FAILED or not 0 < len(self._failed) <= MOST:
            return
        passed = self._run_again()
        self._unsteady = [name for name in self._failed if passed.get(name)]
        self._take_back()
        if len(self._unsteady) == len(self._failed):
            session.exitstatus = pytest.ExitCode.OK
        if self._unsteady:
            self._write()

    def _run_again(self) -> dict[str, bool]:
        with tempfile.TemporaryDirectory() as folder:
            outcomes = Path(folder) / "outcomes.json"
            alone = ["-n", "0", "-p", "no:randomly", "-p", "no:cacheprovider"]
            command = [sys.executable, "-m", "pytest", *alone, *self._same_options()]
            command += [f"--outcomes={outcomes}", *self._failed]
            try:
                ended = subprocess.run(
                    command,
                    cwd=self._config.rootpath,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    timeout=SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                self._output = f"They took longer than {SECONDS:.0f} s."
                return {}
            if ended.returncode != 0:
                self._output = ended.stdout
            try:
                found: dict[str, bool] = json.loads(outcomes.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                return {}
            return found

    def _same_options(self) -> list[str]:
        """Return the options that select the tests."""
        options: list[str] = []
        if self._config.getoption("--fast", False):
            options.append("--fast")
        if servers := self._config.getoption("--servers", None):
            options.append(f"--servers={servers}")
        return options

    def _take_back(self) -> None:
        """Count tests that passed the second time as passed."""
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        taken = set(self._unsteady)
        for kind in ("failed", "error"):
            left = [report for report in reporter.stats.get(kind, []) if report.nodeid not in taken]
            if left:
                reporter.stats[kind] = left
            else:
                reporter.stats.pop(kind, None)
        counted = {report.nodeid for report in reporter.stats.get("passed", [])}
        for name in self._unsteady:
            if name not in counted:
                reporter.stats.setdefault("passed", []).append(self._failed[name])

    def _write(self) -> None:
        self.file.parent.mkdir(exist_ok=True)
        parts = [f"{name}\n\n{self._failed[name].longreprtext}\n" for name in self._unsteady]
        self.file.write_text("\n".join(parts), encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if len(self._failed) > MOST:
            terminalreporter.write_line(f"{len(self._failed)} tests failed: too many to run them again alone")
        if self._output:
            terminalreporter.section("failed again when run alone", "=", red=True, bold=True)
            terminalreporter.write_line(self._output)
        if self._unsteady:
            terminalreporter.section(HEADING, "!", red=True, bold=True)
            for name in self._unsteady:
                terminalreporter.write_line(f"{name}: {_reason(self._failed[name])}")
            terminalreporter.write_line(f"Their first failures are in {self.file}")
            terminalreporter.section("mend them", "!", red=True, bold=True)


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    return " ".join(text.split())[:LONGEST_REASON]
