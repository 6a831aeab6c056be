"""Output of commands: tables, sentences and times for people, JSON for programs."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from perdure.kernel.clock import human_duration as human_duration

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table


def parse_moment(moment: str) -> float:
    """Convert a time to epoch seconds."""
    return datetime.fromisoformat(moment).timestamp()


def seconds_of_or_none(moment: str | None) -> float | None:
    return None if moment is None else parse_moment(moment)


NOT_FOUND = 4
TIMED_OUT = 5
PIPE_WIDTH = 10_000
"""Output to a pipe or a file is not wrapped."""
LONGEST_CELL = 60
LONGEST_FACT = 2000
STYLES = {
    "queued": "cyan",
    "queuing": "cyan",
    "requeuing": "cyan",
    "preparing": "yellow",
    "cancelled": "dim",
    "running": "yellow",
    "succeeded": "green",
    "failed": "red",
    "unresponsive": "magenta",
    "timeout": "magenta",
    "idle": "dim",
    "busy": "yellow",
    "unknown": "magenta",
    "pending": "cyan",
    "success": "green",
    "error": "red",
    "interrupted": "magenta",
    "rollback": "magenta",
    "delivered": "green",
    "dead": "red",
    "processing": "yellow",
    "completed": "green",
    "approved": "green",
    "rejected": "red",
    "expired": "magenta",
    "withdrawn": "dim",
}
"""Styles of all statuses."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
GAP = 2
"""Spaces between columns."""
LEAST_CELL = 6
"""Minimum width of a truncated column without ids, if its name is not longer."""
WHOLE_CELL = 24
"""A column up to this width, such as a time, a status or a schedule, is never truncated, only left out."""
TEXTS = ("error", "last error", "question", "title", "description", "input", "text", "differences")
"""Columns that are truncated instead of left out, even if they are short."""
LEAST_TEXT = 14
_ID = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?:ro|at|rs)-[0-9a-f]+|[0-9a-f]{16}|[0-9a-f]{32}|[0-9A-Z]{26}"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)?")


def make_console(*, no_color: bool = False, quiet: bool = False) -> Console:
    """Build a console on stdout that wraps lines only on a terminal."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(no_color=no_color or None, highlight=False, emoji=False, quiet=quiet, width=width)


class Output:
    """Prints the results of a command."""

    def __init__(self, *, as_json: bool = False, no_color: bool = False) -> None:
        self.as_json = as_json
        self.console = make_console(no_color=no_color, quiet=as_json)

    def document(self, value: Any) -> None:
        """Print one JSON document."""
        print_json(value)

    def line(self, value: Any) -> None:
        """Print one JSON document on one line, for output that continues."""
        from perdure.kernel.codec import encode_wire

        typer.echo(encode_wire(value).decode())

    def print(self, text: str) -> None:
        """Print text, unless --json is set. On a terminal, wrap sentences, but not commands and data."""
        for line in text.split("\n"):
            whole = not self.console.is_terminal or line.startswith("  ")
            self.console.print(line, markup=False, soft_wrap=whole)

    def item(self, mark: str, text: str) -> None:
        """Print an item of a list, unless --json is set. On a terminal, wrapped lines are aligned."""
        from rich.text import Text

        lines = [Text(text)]
        if self.console.is_terminal:
            lines = list(lines[0].wrap(self.console, max(self.console.width - len(mark), 20)))
        for number, line in enumerate(lines):
            self.console.print(f"{' ' * len(mark) if number else mark}{line}", markup=False, soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Print a table that fits the terminal, unless --json is set. Elsewhere nothing is truncated."""
        if self.console.is_terminal:
            self.show(make_table(columns, rows, self.console.width))
        elif not self.as_json:
            typer.echo("\n".join(_plain_lines(columns, rows)))

    def facts(self, rows: Iterable[tuple[str, Any]]) -> None:
        """Print the properties of one thing, a line each, unless --json is set."""
        if self.console.is_terminal:
            self.show(facts_table(rows))
        elif not self.as_json:
            shown = [(name, _fact_text(value)) for name, value in rows if value is not None]
            width = max((len(name) for name, _ in shown), default=0)
            typer.echo("\n".join(f"{name.ljust(width)}   {text}".rstrip() for name, text in shown))

    def show(self, what: RenderableType) -> None:
        """Print a table or a styled text, unless --json is set."""
        self.console.print(what, soft_wrap=not self.console.is_terminal)


def print_json(value: Any) -> None:
    """Print one JSON document, indented."""
    import msgspec

    from perdure.kernel.codec import encode_wire

    typer.echo(msgspec.json.format(encode_wire(value), indent=2).decode())


def warn(text: str) -> None:
    """Print a message on stderr."""
    line = f"perdure: {' '.join(text.split())}"
    if sys.stderr.isatty():
        import shutil
        import textwrap

        width = shutil.get_terminal_size().columns
        line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
    typer.echo(line, err=True)


def wants_json() -> bool:
    """Return whether the command line has --json."""
    return "--json" in sys.argv[1:]


def print_error(code: str, message: str, exit_code: int) -> None:
    """Print an error on stderr: one line for people, or with --json one JSON document on a line."""
    if not wants_json():
        if any(getattr(handler.formatter, "is_json", False) for handler in logging.getLogger().handlers):
            logging.getLogger("perdure").error("%s: %s", code, message)
        else:
            warn(f"{code}: {message}")
        return
    from perdure.kernel.codec import encode_wire

    error = {"code": code.replace(" ", "_"), "message": " ".join(message.split()), "exit_code": exit_code}
    typer.echo(encode_wire({"error": error}).decode(), err=True)


def make_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], width: int | None = None) -> Table:
    """Build a table without lines; a missing value is a dash.

    With a width, ids stay whole: other columns are truncated, and the last ones are left out if necessary.
    """
    from rich.table import Table
    from rich.text import Text

    cells = _cells(rows)
    widths = _column_widths(columns, cells, width)
    table = Table(box=None, padding=(0, GAP, 0, 0), header_style="dim", pad_edge=False)
    for number, shown in widths.items():
        table.add_column(columns[number], width=shown, no_wrap=True, overflow="ellipsis")
    for row in cells:
        table.add_row(*(Text(row[number], style=STYLES.get(row[number], "")) for number in widths))
    return table


def _cells(rows: Iterable[Sequence[Any]]) -> list[list[str]]:
    return [["-" if cell is None else printable(str(cell)) for cell in row] for row in rows]


def _plain_lines(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Format a table as text, without trailing spaces."""
    lines = [list(columns), *_cells(rows)]
    widths = [max(map(len, column)) + GAP for column in zip(*lines, strict=True)]
    return ["".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def _column_widths(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None
) -> dict[int, int]:
    """Return the columns that fit, with the width of each."""
    from rich.cells import cell_len

    parts = [[name, *(row[number] for row in rows)] for number, name in enumerate(columns)]
    widths = {number: max(map(cell_len, cells)) for number, cells in enumerate(parts)}
    if width is None:
        return widths
    least = {number: _least(parts[number], wide) for number, wide in widths.items()}
    empty = [number for number, cells in enumerate(parts) if number and set(cells[1:]) == {"-"}]
    for number in (*empty, *sorted(set(widths) - set(empty), reverse=True)):
        fits = sum(least[kept] + GAP for kept in widths) - GAP <= width
        if number and (not fits or (number in empty and sum(widths.values()) + GAP * len(widths) > width)):
            del widths[number]
    for number, cells in enumerate(parts):
        # A narrow column may still fit where a wide one did not.
        candidates = [*widths, number]
        if number not in (*widths, *empty) and sum(least[kept] + GAP for kept in candidates) - GAP <= width:
            widths[number] = max(map(cell_len, cells))
    widths = dict(sorted(widths.items()))
    while sum(widths.values()) + GAP * (len(widths) - 1) > width:
        widest = max(widths, key=lambda number: widths[number] - least[number])
        if widths[widest] <= least[widest]:
            break
        widths[widest] -= 1
    return widths


def _least(cells: Sequence[str], wide: int) -> int:
    """Return the minimum width of a column."""
    name = cells[0]
    if name in TEXTS:
        return min(wide, LEAST_TEXT)
    if wide <= WHOLE_CELL or _has_ids(cells):
        return wide
    return max(LEAST_CELL, len(name))


def _has_ids(cells: Sequence[str]) -> bool:
    return cells[0].endswith("id") or any(_ID.fullmatch(cell) for cell in cells[1:])


def facts_table(rows: Iterable[tuple[str, Any]]) -> Table:
    """Build a table of the properties of one thing, a line each; missing values are left out."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 3, 0, 0))
    for name, value in rows:
        if value is not None:
            text = _fact_text(value)
            table.add_row(Text(name, style="dim"), Text(text, style=STYLES.get(text, "")))
    return table


def _fact_text(value: Any) -> str:
    return value if isinstance(value, str) else shorten(value, LONGEST_FACT)


def shorten(value: Any, longest: int = LONGEST_CELL) -> str:
    """Format a value as JSON that fits a cell."""
    from perdure.kernel.codec import encode_wire

    text = value if isinstance(value, str) else encode_wire(value).decode()
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def printable(text: str) -> str:
    """Replace characters that would move the cursor or change the terminal, in text from others."""
    return _CONTROL.sub("\ufffd", text)


def tokens_text(input_tokens: int, output_tokens: int) -> str | None:
    """Format input and output tokens, such as `812 in, 96 out`; None if there are none."""
    return f"{input_tokens} in, {output_tokens} out" if input_tokens or output_tokens else None


def cost_text(cost: float | None) -> str | None:
    """Format a cost in US dollars, such as `$0.0123`; None if it is unknown."""
    return None if cost is None else f"${cost:,.4f}" if cost < 1 else f"${cost:,.2f}"


def ago(then: float | None, now: float | None = None) -> str | None:
    """Format the time since `then`, such as `30 s ago`."""
    if then is None:
        return None
    return f"{human_duration((time.time() if now is None else now) - then)} ago"


def in_time(then: float | None, now: float | None = None) -> str | None:
    """Format the time until `then`, such as `in 30 s`; `now` if it is over."""
    if then is None:
        return None
    left = then - (time.time() if now is None else now)
    return f"in {human_duration(left)}" if left > 0 else "now"


def error_text(error: Any) -> str | None:
    """Format the error of a run or a thread in one line."""
    return None if error is None else f"{error.error}: {error.message}"


def parse_duration(text: str) -> float:
    """Parse seconds from `90`, `30s`, `10m`, `1h`, `2d` or `1w`."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a duration; write 30s, 10m, 1h, 2d or 1w")
    return float(match[1]) * _UNITS[match[2] or "s"]
