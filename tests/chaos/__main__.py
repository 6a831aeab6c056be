"""`python -m tests.chaos`, behind `./dev chaos`: kills, crashes, damage and long searches of any size.

Without a size all kills, crashes and damages run, each at its default; naming sizes or scenarios runs those
alone. The searches, which are the long forms of tests, run only when they are named.
"""

import argparse
import json
import logging
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from tests.chaos import long_runs
from tests.chaos.births import kill_at_birth
from tests.chaos.damaged import damage_files
from tests.chaos.long_runs import chosen_size
from tests.chaos.planted import MANNERS, ONE_IN, Manner
from tests.chaos.postgres_crashes import crash_postgres
from tests.chaos.rolling_restart import restart_workers_on_postgres
from tests.chaos.scenario import ROLLOUTS, Run, Scenario, Show
from tests.chaos.scheduler_kills import kill_schedulers_on_postgres
from tests.chaos.server_kills import kill_server_on_postgres, kill_server_on_sqlite
from tests.chaos.soak import MINUTES, soak_on_sqlite
from tests.chaos.sqlite_kills import kill_on_sqlite
from tests.chaos.torn import tear_logs
from tests.chaos.worker_chaos import torment_on_postgres, torment_on_sqlite
from tests.chaos.workflow_chaos import workflows_on_postgres, workflows_on_sqlite

SCENARIOS = (
    Scenario(
        "sqlite-kills", "kills", 200, "kill -9 of a process that works on a SQLite file", kill_on_sqlite
    ),
    Scenario("births", "births", 60, "kill -9 while a SQLite file is made or upgraded", kill_at_birth),
    Scenario("postgres-crashes", "crashes", 10, "PostgreSQL crashed under two processes", crash_postgres),
    Scenario("torn", "cuts", 500, "a SQLite log cut or flipped at any place", tear_logs),
    Scenario("damaged", "damages", 300, "a SQLite file whose own pages are damaged", damage_files),
    Scenario(
        "server-kills-sqlite",
        "server-kills",
        10,
        "kill -9 of the server on SQLite under --rollouts",
        kill_server_on_sqlite,
    ),
    Scenario(
        "server-kills-postgres",
        "server-kills",
        10,
        "kill -9 of the server on PostgreSQL under --rollouts",
        kill_server_on_postgres,
    ),
    Scenario(
        "worker-chaos-postgres",
        "runs",
        5_000,
        "workers and Redis killed, frozen and stopped under runs on PostgreSQL",
        torment_on_postgres,
    ),
    Scenario(
        "worker-chaos-sqlite",
        "runs",
        5_000,
        "remote workers and their server on SQLite killed, frozen and stopped under runs",
        torment_on_sqlite,
    ),
    Scenario(
        "rolling-restart",
        "runs",
        200,
        "two workers with different agents on PostgreSQL restarted by turns under runs",
        restart_workers_on_postgres,
    ),
    Scenario(
        "scheduler-kills",
        "firings",
        1_000,
        "three processes on PostgreSQL that fire schedules, killed at random",
        kill_schedulers_on_postgres,
    ),
    Scenario(
        "year",
        "hourly",
        60,
        "a year of firings of so many hourly schedules, over every change of the clocks",
        long_runs.fire_for_a_year,
        when_named=True,
    ),
    Scenario(
        "workflows-postgres",
        "workflows",
        100,
        "two servers on PostgreSQL killed under workflow runs",
        workflows_on_postgres,
    ),
    Scenario(
        "workflows-sqlite",
        "workflows",
        100,
        "a server on SQLite and its remote worker killed under workflow runs",
        workflows_on_sqlite,
    ),
    Scenario(
        "model",
        "examples",
        chosen_size("PERDURE_EXAMPLES", 2_000),
        "random histories, of PERDURE_STEPS steps each, beside a model",
        long_runs.compare_with_model,
        when_named=True,
    ),
    Scenario(
        "workflow-model",
        "examples",
        chosen_size("PERDURE_EXAMPLES", 500),
        "random histories of workflow runs and approvals, of PERDURE_STEPS steps each, beside a model",
        long_runs.compare_workflows_with_model,
        when_named=True,
    ),
    Scenario(
        "simulation",
        "seeds",
        chosen_size("PERDURE_SEEDS", 5_000),
        "storms of crashes, lost answers and clock jumps in simulated time",
        long_runs.simulate,
        when_named=True,
    ),
    Scenario(
        "faults",
        "sweeps",
        1,
        "every use case, with every statement failed in its turn",
        long_runs.sweep_faults,
        when_named=True,
    ),
    Scenario(
        "lost-connections",
        "sweeps",
        1,
        "every use case on PostgreSQL, with every connection cut in its turn",
        long_runs.sweep_connections,
        when_named=True,
    ),
    Scenario(
        "workflow-crashes",
        "sweeps",
        1,
        "a process that dies before and after every commit of the workflow engine",
        long_runs.crash_workflows,
        when_named=True,
    ),
    Scenario(
        "interleavings",
        "switches",
        3,
        "pairs of operations in every order, with so many free switches; 0 is no bound",
        long_runs.interleave,
        when_named=True,
    ),
    Scenario(
        "stories",
        "length",
        5,
        "every story of a rollout with so many events",
        long_runs.tell_stories,
        when_named=True,
    ),
    Scenario(
        "stores",
        "rounds",
        1,
        "hundreds of stores opened and closed on each engine, which leave nothing behind",
        long_runs.open_and_close_stores,
        when_named=True,
    ),
    Scenario(
        "requests",
        "requests",
        20,
        "generated requests to every route, valid and not",
        long_runs.generate_requests,
        when_named=True,
    ),
    Scenario(
        "soak",
        "soak",
        MINUTES,
        "minutes of a mixed load on a server on SQLite, whose memory, descriptors, threads and log stay flat;"
        " PERDURE_SOAK_CSV names a file for the samples, PERDURE_SOAK_RATE is the rate in percent",
        soak_on_sqlite,
        when_named=True,
    ),
    Scenario(
        "bench",
        "benches",
        1,
        "every row of ./dev bench --quick that needs no peer",
        long_runs.measure_every_row,
        when_named=True,
    ),
)
SHOWN_FACTS = 8


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", description=(__doc__ or "").partition("\n\n")[2])
    for unit, group in groupby(SCENARIOS, lambda scenario: scenario.unit):
        scenarios = list(group)
        texts = [f"{each.name}: {each.what} (default {each.default})" for each in scenarios]
        parser.add_argument(
            f"--{unit}",
            type=_size,
            nargs="?",
            const=scenarios[0].default,
            metavar="N",
            dest=unit,
            help="; ".join(texts),
        )
    parser.add_argument(
        "--rollouts", type=_size, metavar="N", default=ROLLOUTS, help=f"the load (default {ROLLOUTS})"
    )
    parser.add_argument(
        "--planted",
        choices=MANNERS,
        help=f"let 1 in {ONE_IN} commits of the worker scenarios be acknowledged and lost, or be doubled:"
        " they must find it",
    )
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
    names = names or [each.name for each in SCENARIOS if not each.when_named]
    return [
        (each, each.default if size is None else size) for each, size in sizes.items() if each.name in names
    ]


def perform(
    scenario: Scenario,
    size: int,
    seed: int,
    show: Show,
    *,
    keep: bool = False,
    rollouts: int = ROLLOUTS,
    planted: Manner | None = None,
) -> Run:
    """Run one scenario in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-chaos-"))
    run = Run(size, seed, folder, show, rollouts=rollouts, planted=planted)
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


def leave(number: int, frame: object) -> None:
    """End by an exception, so that whatever was started ends too."""
    sys.exit(128 + number)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    errors = Console(stderr=True)
    results = []
    for scenario, size in chosen(options):
        with progress(errors, scenario) as show:
            run = perform(
                scenario,
                size,
                seed,
                show,
                keep=options.keep,
                rollouts=options.rollouts,
                planted=options.planted,
            )
            results.append(scenario.summary(run))
    violations = [f"{each['scenario']}: {found}" for each in results for found in each["violations"]]
    if options.json:
        print(json.dumps({"seed": seed, "ok": not violations, "scenarios": results}, indent=2))
    else:
        Console().print(table(results))
        print("\n".join(violations[:100]) or "none lost, none doubled, nothing torn")
    return 1 if violations else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, leave)
    logging.disable()
    sys.exit(main())
