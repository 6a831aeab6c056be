"""Measures: rows of the results, and the functions that return their figures."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.host import Host
from bench.report import Better, Result

Figures = dict[str, float]
CPU = "cpu_"
"""Prefix of figures of CPU time: `cpu_server` is in milliseconds per unit of work."""


@dataclass(frozen=True)
class Row:
    """A line of the results before it is measured."""

    name: str
    what: str
    unit: str
    better: Better = "higher"
    target: float | None = None
    target_peer: float | None = None
    target_raw: float | None = None

    def result(self, figures: Figures) -> Result:
        mine, peer, raw = figures["ours"], figures.get("peer"), figures.get("raw")
        return Result(
            name=self.name,
            ours=mine,
            peer=peer,
            raw=raw,
            ratio_peer=mine / peer if peer else None,
            ratio_raw=mine / raw if raw else None,
            target_peer=self.target_peer,
            target_raw=self.target_raw,
            unit=self.unit,
            better=self.better,
            target=self.target,
            what=self.what,
            cpu={name.removeprefix(CPU): figure for name, figure in figures.items() if name.startswith(CPU)},
        )


@dataclass(frozen=True)
class Measure:
    """Rows that are measured together; `run` returns the figures of each, in order."""

    rows: tuple[Row, ...]
    run: Callable[[Host], Awaitable[list[Figures]]]
    needs_peer: bool = False
    """Whether even our own figure needs the peer, so that nothing is measured without it."""

    async def results(self, host: Host) -> list[Result]:
        found = await self.run(host)
        return [row.result(figures) for row, figures in zip(self.rows, found, strict=True)]
