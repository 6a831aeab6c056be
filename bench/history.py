"""Figures of releases: `bench/history.jsonl`, a line for each, the source of docs/benchmarks.md."""

import os
import platform
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bench.report import Result

HISTORY = Path(__file__).resolve().parent / "history.jsonl"


class Release(msgspec.Struct, kw_only=True):
    """The figures of one release, on one machine; `rows` are in the order of the bench."""

    version: str
    date: str
    machine: str
    rows: list[Result]

    def row(self, name: str) -> Result | None:
        return next((each for each in self.rows if each.name == name), None)


def read(path: Path = HISTORY) -> list[Release]:
    """Read every release, oldest first."""
    return [msgspec.json.decode(line, type=Release) for line in path.read_bytes().splitlines()]


def record(
    version: str, results: Iterable[Result], order: Sequence[str], path: Path = HISTORY
) -> list[Release]:
    """Write the figures of a release into its line.

    Existing figures that were not measured now stay; rows that the bench no longer has are removed.
    """
    releases = read(path) if path.exists() else []
    found = next((each for each in releases if each.version == version), None)
    kept = {each.name: each for each in (*(found.rows if found else ()), *results)}
    rows = [kept[name] for name in order if name in kept]
    made = Release(version=version, date=f"{datetime.now(UTC):%Y-%m-%d}", machine=machine(), rows=rows)
    releases = [made if each is found else each for each in releases] if found else [*releases, made]
    path.write_bytes(b"".join(_line(each) + b"\n" for each in releases))
    return releases


def _line(release: Release) -> bytes:
    """Encode a release without absent fields, so that a line stays short."""
    plain = msgspec.to_builtins(release)
    plain["rows"] = [
        {name: _short(each) for name, each in row.items() if each not in (None, {})} for row in plain["rows"]
    ]
    return msgspec.json.encode(plain)


def _short(value: object) -> object:
    """Round figures to 5 digits, because more are noise."""
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


def machine() -> str:
    cores = os.cpu_count() or 1
    return f"{cores} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
