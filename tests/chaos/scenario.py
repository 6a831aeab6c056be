"""What a long run is: a name, a size in a unit of its own, and a function that reports what it finds."""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.planted import Manner
from tests.support.history import History, Report

Show = Callable[["Run"], None]
ROLLOUTS = 10_000


@dataclass
class Run:
    """One run of a scenario: its size and seed, a folder of its own, and what it has found so far."""

    size: int
    seed: int
    folder: Path
    show: Show = lambda run: None
    rollouts: int = ROLLOUTS
    """How many rollouts make up the load, where a scenario has a load that ends."""
    planted: Manner | None = None
    """A fault that the scenario must find, where it can have one."""
    done: int = 0
    note: str = ""
    facts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    def advance(self, note: str = "", count: int = 1) -> None:
        """One more is done, or several."""
        self.done += count
        self.note = note
        self.seconds = time.monotonic() - self.started
        self.show(self)

    def found(self, where: str, violations: list[str]) -> None:
        """Violations, if any, and where they were found."""
        self.violations += [f"{where}: {violation}" for violation in violations]

    def checked(self, where: str, report: Report) -> None:
        self.facts["checks"] += 1
        self.found(where, report.violations)

    def count(self, history: History) -> None:
        """Add what a history saw to the facts."""
        self.facts["calls"] += len(history)
        self.facts.update(history.outcomes())


def run_clean(scenario: Callable[[Run], None], size: int, folder: Path, *, rollouts: int = ROLLOUTS) -> Run:
    """Run a scenario in a test, where it must find nothing."""
    run = Run(size, random.getrandbits(31), folder, rollouts=rollouts)
    scenario(run)
    assert run.violations == [], f"seed {run.seed}"
    return run


@dataclass(frozen=True)
class Scenario:
    """A long run that `python -m tests.chaos` offers; `--<unit> N` sets the size of all with this unit."""

    name: str
    unit: str
    default: int
    what: str
    run: Callable[[Run], None]
    when_named: bool = False
    """Whether it runs only when it, or a size for it, is asked for."""

    def summary(self, run: Run) -> dict[str, Any]:
        return {
            "scenario": self.name,
            "unit": self.unit,
            "size": run.size,
            "done": run.done,
            "seed": run.seed,
            "seconds": round(run.seconds, 1),
            "facts": dict(run.facts),
            "violations": run.violations,
        }
