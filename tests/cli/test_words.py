"""Texts of commands: durations, the last error, and the drawing of a trace."""

from typing import Any

import pytest
import typer
from rich.console import Console

from perdure import Attempt, Rollout, RolloutConfig, Span, TraceStatus
from perdure.cli.commands.rollouts import last_error
from perdure.cli.commands.spans import trace_tree
from perdure.cli.shell.output import ago, human_duration, make_table, parse_duration, shorten

NOW = 1000.0


def rollout(status: Any, *, task: Any = 1, **config: Any) -> Rollout:
    return Rollout(
        rollout_id="ro-1",
        input=task,
        start_time=NOW - 100,
        end_time=NOW - 5,
        status=status,
        config=RolloutConfig(**config),
    )


def attempt(number: int, status: Any, **more: Any) -> Attempt:
    values: dict[str, Any] = {"worker_id": "worker-1", "start_time": NOW - 60, **more}
    return Attempt(rollout_id="ro-1", attempt_id=f"at-{number}", sequence_id=number, status=status, **values)


def span(span_id: str, parent_id: str | None = None, **more: Any) -> Span:
    return Span.from_attributes(
        rollout_id="ro-1",
        attempt_id="at-1",
        span_id=span_id * 16,
        parent_id=parent_id and parent_id * 16,
        name=f"span {span_id}",
        attributes={},
        **{"sequence_id": 1, "start_time": 1.0, "end_time": 2.0, **more},
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("30s", 30), ("1.5m", 90), ("1h", 3600), (" 2 d ", 172_800), ("1w", 604_800)],
)
def test_a_stretch_of_time_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1y", "-1s", "one hour", "1h30m", "nan"])
def test_what_is_no_stretch_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="30s, 10m"):
        parse_duration(text)


def test_times_are_said_as_people_say_them() -> None:
    seconds = (0.04, 9.94, 45, 119, 600, 7000, 90_000, 200_000)
    assert [human_duration(each) for each in seconds] == [
        "0.0 s", "9.9 s", "45 s", "119 s", "10 min", "117 min", "25 h", "2 d",
    ]  # fmt: skip
    assert ago(None) is None
    assert ago(NOW - 30, NOW) == "30 s ago"
    assert human_duration(-5) == "0.0 s"


def test_a_cell_holds_a_value_in_short() -> None:
    assert shorten({"a": [1, None]}) == '{"a":[1,null]}'
    assert shorten("two\nlines") == "two lines"
    assert shorten("x" * 100) == "x" * 59 + "…"


def test_the_last_error_is_that_of_the_latest_span() -> None:
    error = TraceStatus(status_code="ERROR", description="broken")
    assert last_error([span("a")]) is None
    late = span("b", status=error, end_time=5.0)
    early = span("c", status=TraceStatus(status_code="ERROR"), end_time=3.0)
    assert last_error([late, early, span("d", end_time=9.0)]) == "span b: broken"
    assert last_error([early]) == "span c: error"


def drawn(*spans: Span, task: Any = None) -> list[str]:
    console = Console(width=80, record=True, quiet=True)
    tree = trace_tree(rollout("running", task=task), [attempt(1, "running", worker_id=None)], spans)
    with console.capture() as capture:
        console.quiet = False
        console.print(tree)
    return capture.get().rstrip().splitlines()


def test_any_input_heads_a_trace() -> None:
    assert drawn(task={"question": "why?"})[0] == "ro-1 question: why? running"
    assert drawn(task={"question": 1})[0] == 'ro-1 {"question":1} running'
    assert drawn(task=[1, "a"])[0] == 'ro-1 [1,"a"] running'
    assert drawn()[1].startswith("└── attempt 1: running")


def test_no_span_is_left_out_of_a_trace() -> None:
    lost = span("a", "f")
    itself = span("b", "b")
    pair = (span("c", "d"), span("d", "c"))
    child = span("e", "a")
    lines = drawn(lost, itself, *pair, child)
    assert [sum(f"span {name}" in line for line in lines) for name in "abcde"] == [1] * 5


def test_markup_in_data_is_only_text() -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(make_table(("input",), [("[red]not a colour[/red]",)]))
    assert "[red]not a colour[/red]" in capture.get()
