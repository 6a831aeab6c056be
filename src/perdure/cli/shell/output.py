"""How commands print: tables and sentences for people, JSON for programs."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from perdure.kernel.clock import human_duration as human_duration

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

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
"""The style of every status."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)?")


def make_console(*, no_color: bool = False, quiet: bool = False) -> Console:
    """A console on stdout, which wraps lines on a terminal only."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(no_color=no_color or None, highlight=False, quiet=quiet, width=width)


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
        """Print text, unless --json is set."""
        self.console.print(text, markup=False, soft_wrap=True)

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
    typer.echo(f"perdure: {' '.join(text.split())}", err=True)


def make_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table without lines; a missing value is a dash."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold" if column.endswith("id") else "ellipsis")
    for row in rows:
        cells = ["-" if cell is None else str(cell) for cell in row]
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in cells))
    return table


def facts_table(rows: Iterable[tuple[str, Any]]) -> Table:
    """The properties of one thing, a line each; missing values are left out."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 3, 0, 0))
    for name, value in rows:
        if value is not None:
            text = value if isinstance(value, str) else shorten(value, LONGEST_FACT)
            table.add_row(Text(name, style="dim"), Text(text, style=STYLES.get(text, "")))
    return table


def shorten(value: Any, longest: int = LONGEST_CELL) -> str:
    """A value as JSON that fits a cell."""
    from perdure.kernel.codec import encode_wire

    text = value if isinstance(value, str) else encode_wire(value).decode()
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def printable(text: str) -> str:
    """What somebody else wrote, without characters that would move the cursor or change the terminal."""
    return _CONTROL.sub("\ufffd", text)


def tokens_text(input_tokens: int, output_tokens: int) -> str | None:
    """Tokens read and written, such as `812 in, 96 out`; None if there are none."""
    return f"{input_tokens} in, {output_tokens} out" if input_tokens or output_tokens else None


def ago(then: float | None, now: float | None = None) -> str | None:
    """The time since `then`, such as `30 s ago`."""
    if then is None:
        return None
    return f"{human_duration((time.time() if now is None else now) - then)} ago"


def in_time(then: float | None, now: float | None = None) -> str | None:
    """The time until `then`, such as `in 30 s`; `now` if it has come."""
    if then is None:
        return None
    left = then - (time.time() if now is None else now)
    return f"in {human_duration(left)}" if left > 0 else "now"


def error_text(error: Any) -> str | None:
    """The error of a run or a thread in one line."""
    return None if error is None else f"{error.error}: {error.message}"


def parse_duration(text: str) -> float:
    """Seconds from `90`, `30s`, `10m`, `1h`, `2d` or `1w`."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a duration; write 30s, 10m, 1h, 2d or 1w")
    return float(found[1]) * _UNITS[found[2] or "s"]
