"""Results of a run: the table on the screen and the list in `bench/results.json`."""

import platform
from pathlib import Path
from typing import Literal

import apsw
import msgspec
from rich.console import Console
from rich.table import Table

Better = Literal["higher", "lower"]
RESULTS = Path(__file__).resolve().parent / "results.json"


class Result(msgspec.Struct, kw_only=True):
    """One row. A ratio is ours divided by theirs; `target` is a limit on our own figure."""

    name: str
    ours: float
    peer: float | None = None
    raw: float | None = None
    ratio_peer: float | None = None
    ratio_raw: float | None = None
    target_peer: float | None = None
    target_raw: float | None = None
    unit: str
    better: Better = "higher"
    target: float | None = None
    what: str = ""
    cpu: dict[str, float] = {}
    """Milliseconds of CPU time per unit of work, by process: ours are server, client and database."""

    def passed(self) -> bool | None:
        """Return whether every target is met; None without a target."""
        checks = (
            (self.ratio_peer, self.target_peer),
            (self.ratio_raw, self.target_raw),
            (self.ours, self.target),
        )
        met = [self._meets(figure, target) for figure, target in checks if None not in (figure, target)]
        return all(met) if met else None

    def _meets(self, figure: float | None, target: float | None) -> bool:
        assert figure is not None
        assert target is not None
        return figure >= target if self.better == "higher" else figure <= target


def write(results: list[Result], path: Path = RESULTS) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")


def read(path: Path) -> list[Result]:
    """Read the output of `write`."""
    return msgspec.json.decode(path.read_bytes(), type=list[Result])


def show(results: list[Result]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    console.print(table(results))
    verdicts = [result.passed() for result in results]
    console.print(
        f"{verdicts.count(True)} met, {verdicts.count(False)} missed, {verdicts.count(None)} without a target"
    )


def table(results: list[Result]) -> Table:
    title = f"Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}, {platform.machine()}"
    made = Table(title=title, caption="ratio = ours / theirs; medians of interleaved rounds")
    for heading in (
        "name",
        "what",
        "unit",
        "ours",
        "peer",
        "raw",
        "ours/peer",
        "ours/raw",
        "CPU ms",
        "target",
        "",
    ):
        made.add_column(heading, justify="left" if heading in ("name", "what", "unit", "") else "right")
    for result in results:
        made.add_row(*cells(result))
    return made


def brief(result: Result) -> str:
    """Summarize a result, for the progress output."""
    ratios = (("peer", result.ratio_peer), ("raw", result.ratio_raw))
    told = [f"{ratio:.3g} × {name}" for name, ratio in ratios if ratio is not None]
    return " ".join([result.name, rounded(result.ours), result.unit, *told])


def cells(result: Result) -> list[str]:
    verdict = {True: "[green]pass", False: "[red]miss", None: ""}[result.passed()]
    figures = (result.ours, result.peer, result.raw, result.ratio_peer, result.ratio_raw)
    return [
        result.name,
        result.what,
        result.unit,
        *map(rounded, figures),
        costs(result),
        targets(result),
        verdict,
    ]


def targets(result: Result) -> str:
    sign = "≥" if result.better == "higher" else "≤"
    named = (("peer", result.target_peer), ("raw", result.target_raw), ("ours", result.target))
    return ", ".join(f"{name} {sign} {target:g}" for name, target in named if target is not None)


def costs(result: Result) -> str:
    return ", ".join(f"{name} {rounded(figure)}" for name, figure in result.cpu.items())


def rounded(figure: float | None) -> str:
    if figure is None:
        return ""
    return f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"
