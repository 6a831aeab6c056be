"""`python -m tests.chaos`, behind `./dev chaos`: kills, crashes and damage of any size.

Without a size all scenarios run, each at its default; naming sizes runs those scenarios alone.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from tests.chaos.births import kill_at_birth
from tests.chaos.damaged import damage_files
from tests.chaos.postgres_crashes import crash_postgres
from tests.chaos.scenario import Run, Scenario, Show
from tests.chaos.sqlite_kills import kill_on_sqlite
from tests.chaos.torn import tear_logs

SCENARIOS = (
    Scenario(
        "sqlite-kills", "kills", 200, "kill -9 of a process that works on a SQLite file", kill_on_sqlite
    ),
    Scenario("births", "births", 60, "kill -9 while a SQLite file is made or upgraded", kill_at_birth),
    Scenario("postgres-crashes", "crashes", 10, "PostgreSQL crashed under two processes", crash_postgres),
    Scenario("torn", "cuts", 500, "a SQLite log cut or flipped at any place", tear_logs),
    Scenario("damaged", "damages", 300, "a SQLite file whose own pages are damaged", damage_files),
)
SHOWN_FACTS = 8


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", description=(__doc__ or "").partition("\n\n")[2])
    for scenario in SCENARIOS:
        help_text = f"{scenario.name}: {scenario.what} (default {scenario.default})"
        parser.add_argument(f"--{scenario.unit}", type=_size, metavar="N", help=help_text)
    parser.add_argument("--seed", type=int, help="repeat the choices of an earlier run")
    parser.add_argument("--only", type=_names, metavar="NAME,…", help="only these scenarios")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument(
        "--keep", action="store_true", help="keep the files of scenarios that found something"
    )
    return parser.parse_args(argv)


def _size(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a size")
    return int(text)


def _names(text: str) -> list[str]:
    names, known = text.split(","), [scenario.name for scenario in SCENARIOS]
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
    return names


def chosen(options: argparse.Namespace) -> list[tuple[Scenario, int]]:
    """The scenarios to run and their sizes."""
    sizes = {scenario: getattr(options, scenario.unit) for scenario in SCENARIOS}
    names = options.only or [each.name for each, size in sizes.items() if size is not None]
    return [
        (each, each.default if size is None else size)
        for each, size in sizes.items()
        if not names or each.name in names
    ]


def perform(scenario: Scenario, size: int, seed: int, show: Show, *, keep: bool = False) -> Run:
    """Run one scenario in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-chaos-"))
    run = Run(size, seed, folder, show)
    try:
        scenario.run(run)
    except Exception:  # noqa: BLE001 - a scenario that cannot go on has found something too
        run.found("it could not go on", [traceback.format_exc()])
    if keep and run.violations:
        run.violations.append(f"the files are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return run


@contextmanager
def progress(console: Console, scenario: Scenario) -> Iterator[Show]:
    """A line that says how far the scenario is; off a terminal, a line every now and then."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=8, transient=True) as live:
            yield lambda run: live.update(_line(scenario, run))
        return

    def say(run: Run) -> None:
        if run.done % max(run.size // 10, 1) == 0:
            console.print(_line(scenario, run), highlight=False, soft_wrap=True)

    yield say


def _line(scenario: Scenario, run: Run) -> str:
    rate = run.done / run.seconds * 60 if run.seconds else 0.0
    line = (
        f"{scenario.name}: {run.done}/{run.size} {scenario.unit} in {run.seconds:.0f} s, {rate:.0f} a minute"
    )
    note = f"; {run.note}" if run.note else ""
    return f"{line}{note}; {len(run.violations)} violations"


def table(results: Sequence[dict[str, Any]]) -> Table:
    """The summary: a row for each scenario."""
    drawn = Table(title=f"seed {results[0]['seed']}" if results else None, title_justify="left")
    for name in ("scenario", "done", "seconds", "what was seen", "violations"):
        drawn.add_column(name, justify="right" if name in ("done", "seconds", "violations") else "left")
    for result in results:
        facts = sorted(result["facts"].items(), key=lambda fact: -fact[1])[:SHOWN_FACTS]
        drawn.add_row(
            result["scenario"],
            f"{result['done']} {result['unit']}",
            f"{result['seconds']:.0f}",
            ", ".join(f"{number} {name}" for name, number in facts),
            str(len(result["violations"])),
        )
    return drawn


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    errors = Console(stderr=True)
    results = []
    for scenario, size in chosen(options):
        with progress(errors, scenario) as show:
            results.append(scenario.summary(perform(scenario, size, seed, show, keep=options.keep)))
    violations = [f"{each['scenario']}: {found}" for each in results for found in each["violations"]]
    if options.json:
        print(json.dumps({"seed": seed, "ok": not violations, "scenarios": results}, indent=2))
    else:
        Console().print(table(results))
        print("\n".join(violations[:100]) or "none lost, none doubled, nothing torn")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
