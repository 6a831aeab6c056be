"""Plugins of the test command: the most expensive files at its end, and the selection for daily work."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Generator
from typing import Any

import pytest

CPU = "cpu"
SERVER_FIXTURES = {
    "database_url",
    "postgres_server_url",
    "postgres_url",
    "redis_url",
    "shared_database_url",
    "shared_postgres_url",
    "shared_redis_url",
}
ENGINE_FIXTURES = ("engine_url", "new_engine_url", "shared_engine_url")
SLOW = (
    "tests/cli/",
    "tests/reliability/",
    "tests/security/test_browser.py",
    "tests/security/test_generated.py",
    "tests/server/langgraph/",
    "tests/server/native/test_kills.py",
    "tests/test_bench.py",
    "tests/test_docs.py",
    "tests/test_servers.py",
)
"""Files that start processes, or search for long."""


class DearestFiles:
    """Sum the CPU and wall time of each file over its tests, and print the files with the most CPU time.

    CPU time is that of the test's process and of the processes that it has waited for.
    """

    def __init__(self, shown: int) -> None:
        self._shown = shown
        self._measured = _cpu_seconds()
        self._cpu: defaultdict[str, float] = defaultdict(float)
        self._wall: defaultdict[str, float] = defaultdict(float)
        self._tests: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = _cpu_seconds()
        report.user_properties.append((CPU, now - self._measured))
        self._measured = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        # The properties of a test accumulate over its phases: the last one is of this phase.
        measured = [seconds for name, seconds in report.user_properties if name == CPU]
        self._cpu[file] += float(str(measured[-1])) if measured else 0.0
        self._wall[file] += report.duration
        self._tests[file] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._cpu:
            return
        cpu, wall = sum(self._cpu.values()), sum(self._wall.values())
        terminalreporter.section(f"dearest files, of {cpu:.0f} s CPU and {wall:.0f} s in all workers")
        for file in sorted(self._cpu, key=lambda file: self._cpu[file], reverse=True)[: self._shown]:
            figures = f"{self._cpu[file]:7.1f} s CPU {self._wall[file]:7.1f} s  {self._tests[file]:5} tests"
            terminalreporter.write_line(f"{figures}  {file}")


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class FastSelection:
    """Deselects tests that need a server or take long, and reports their number at the end."""

    def __init__(self) -> None:
        self._left_out: Counter[str] = Counter()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept: list[pytest.Item] = []
        dropped: list[pytest.Item] = []
        for item in items:
            reason = why_left_out(item)
            (dropped if reason else kept).append(item)
            if reason:
                self._left_out[reason] += 1
        items[:] = kept
        if dropped:
            config.hook.pytest_deselected(items=dropped)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["left_out"] = dict(self._left_out)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        # Every worker has collected and deselected the same tests.
        self._left_out = Counter(getattr(node, "workeroutput", {}).get("left_out", {})) or self._left_out

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        parts = [f"{count} {reason}" for reason, count in sorted(self._left_out.items())]
        terminalreporter.section("left out by --fast")
        terminalreporter.write_line(", ".join(parts) or "nothing")


def why_left_out(item: pytest.Item) -> str | None:
    """Return why `--fast` does not run a test."""
    if item.nodeid.startswith(SLOW):
        return "in files that start processes or search for long"
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    fixtures = set(getattr(item, "fixturenames", ()))
    named = [each for each in parameters.values() if isinstance(each, str)]
    if any(parameters.get(name, "sqlite") != "sqlite" for name in ENGINE_FIXTURES) or "postgres" in named:
        return "on PostgreSQL"
    if fixtures & SERVER_FIXTURES:
        return "with a PostgreSQL or a Redis"
    return None
