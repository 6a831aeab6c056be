"""Tables and plots of the benchmarks page, from the records of `./dev bench --record VERSION`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench import history
from bench.history import Release
from bench.report import Result, rounded, targets
from docs.plots import Bar, Panel, bars, panels

SECTIONS: dict[str, str] = {
    "sqlite": "In process on SQLite, `synchronous=FULL`; the peer is Agent-lightning's store in memory",
    "postgres": "In process on PostgreSQL; raw is SQL by hand on asyncpg",
    "http": "Through the server on SQLite; the peer is Agent-lightning's server in memory",
    "runs": "Runs of a native agent through the server",
    "graphs": "LangGraph graphs through the server; raw is the graph with `InMemorySaver` in one process",
    "queue": "The queue on PostgreSQL without agents; raw is SQL by hand on asyncpg",
    "start": "From asking for a run to its start in another process",
    "stream": "Streams of events",
    "threads": "Claims of runs with many threads",
    "lists": "Lists over HTTP with many rows",
    "command": "The command line",
    "page": "The dashboard in a browser",
    "tracing": "What traces cost",
    "bytes": "What is stored of a run of a graph, and of a span",
    "facts": "What taking tokens and costs out of spans takes",
    "workflows": "Workflows",
    "sessions": "Sessions",
    "memory": "Memory",
}
FOLLOWED = (
    "sqlite/enqueue",
    "sqlite/cycle",
    "postgres/claim_complete",
    "postgres/add_many_spans",
    "http/enqueue",
    "http/cycle",
    "http/otlp",
    "queue/vs_pgqueuer",
    "stream/sqlite_first",
)
"""Rows drawn over releases, by the ratio to a peer or a raw engine if they have one."""
GOALS, RELEASES = "images/benchmark-goals.svg", "images/benchmark-releases.svg"


def blocks() -> dict[str, str]:
    """Generate the parts of docs/benchmarks.md."""
    releases = history.read()
    newest = releases[-1]
    measured = f"Release {newest.version}, measured on {newest.date}: {newest.machine}.\n"
    goals = f"![Each figure beside its goal]({GOALS})\n"
    return {
        "figures": "\n".join([measured, goals, *_sections(newest), _not_met(newest)]),
        "releases": "\n".join([f"![Figures through releases]({RELEASES})\n", _releases(releases)]),
    }


def plots() -> dict[str, str]:
    """Generate the plots of the page, by path in docs/."""
    releases = history.read()
    judged = [each for row in releases[-1].rows if (each := _bar(row)) is not None]
    drawn = [panel for name in FOLLOWED if (panel := _panel(releases, name)) is not None]
    return {GOALS: bars(judged), RELEASES: panels(drawn)}


def _sections(release: Release) -> Iterator[str]:
    groups: dict[str, list[Result]] = {}
    for row in release.rows:
        groups.setdefault(row.name.partition("/")[0], []).append(row)
    for group, rows in groups.items():
        yield f"## {SECTIONS.get(group, group.capitalize())}\n"
        yield _table(rows)


def _table(rows: Sequence[Result]) -> str:
    lines = [
        "| row | work | perdure | against the peer | against raw | CPU | goal | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_line(row) for row in rows]
    return "\n".join(lines) + "\n"


def _line(row: Result) -> str:
    verdict = {True: "met", False: "missed", None: ""}[row.passed()]
    costs = ", ".join(f"{name.replace('_', ' ')} {rounded(cost)}" for name, cost in row.cpu.items())
    figure = f"{rounded(row.ours)} {row.unit}"
    cells = (
        f"`{row.name}`",
        row.what,
        figure,
        _times(row.ratio_peer),
        _times(row.ratio_raw),
        costs,
        targets(row),
    )
    return f"| {' | '.join(each.replace('|', chr(92) + '|') for each in cells)} | {verdict} |"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{rounded(ratio)} times"


def _not_met(release: Release) -> str:
    missed = [f"`{row.name}`" for row in release.rows if row.passed() is False]
    return f"Not met yet: {', '.join(missed)}.\n" if missed else "Every goal is met.\n"


def _judged(row: Result) -> tuple[float, float] | None:
    """Return the figure by which a row is judged, and its goal; the worst of several."""
    pairs = ((row.ratio_peer, row.target_peer), (row.ratio_raw, row.target_raw), (row.ours, row.target))
    known = [(figure, goal) for figure, goal in pairs if figure is not None and goal]
    return min(known, key=lambda each: _better(row, *each)) if known else None


def _better(row: Result, figure: float, goal: float) -> float:
    """Return how many times better than its goal a figure is."""
    return figure / goal if row.better == "higher" else goal / max(figure, 1e-9)


def _bar(row: Result) -> Bar | None:
    judged = _judged(row)
    if judged is None:
        return None
    figure, goal = judged
    return Bar(row.name, _better(row, figure, goal), f"{rounded(figure)}, goal {goal:g}")


def _followed(row: Result | None) -> float | None:
    if row is None:
        return None
    return next(each for each in (row.ratio_peer, row.ratio_raw, row.ours) if each is not None)


def _panel(releases: Sequence[Release], name: str) -> Panel | None:
    points = [
        (each.version, figure) for each in releases if (figure := _followed(each.row(name))) is not None
    ]
    newest = releases[-1].row(name)
    if newest is None or len(points) < 2:
        return None
    goal = next(
        goal
        for ratio, goal in (
            (newest.ratio_peer, newest.target_peer),
            (newest.ratio_raw, newest.target_raw),
            (newest.ours, newest.target),
        )
        if ratio is not None
    )
    return Panel(name, points, goal)


def _releases(releases: Sequence[Release]) -> str:
    lines = ["| row | " + " | ".join(each.version for each in releases) + " |"]
    lines.append("|---" * (len(releases) + 1) + "|")
    for name in FOLLOWED:
        rows = [each.row(name) for each in releases]
        if any(rows):
            lines.append(f"| `{name}` | " + " | ".join(map(_told, rows)) + " |")
    return "\n".join(lines) + "\n"


def _told(row: Result | None) -> str:
    if row is None:
        return ""
    ratios = (("the peer", row.ratio_peer), ("raw", row.ratio_raw))
    told = [f"{rounded(ratio)} of {name}" for name, ratio in ratios if ratio is not None]
    return "; ".join([f"{rounded(row.ours)} {row.unit}", *told])
