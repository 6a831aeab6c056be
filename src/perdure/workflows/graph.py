"""The order of phases: dependencies, cycles and trigger rules. Everything here is pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, get_args

TriggerRule = Literal["all_success", "one_success", "none_failed_min_one_success", "all_done"]
TRIGGER_RULES: Final = get_args(TriggerRule)

PENDING: Final = "pending"
RUNNING: Final = "running"
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"
ENDED: Final = frozenset({SUCCEEDED, FAILED, SKIPPED})

Dependencies = Mapping[str, Sequence[str]]


def compute_dependencies(phases: Sequence[tuple[str, Sequence[str] | None]]) -> dict[str, tuple[str, ...]]:
    """Return the dependencies of each phase. If no phase names any, each waits for the previous phase."""
    if all(names is None for _, names in phases):
        order = [name for name, _ in phases]
        return {name: (order[number - 1],) if number else () for number, name in enumerate(order)}
    return {name: tuple(names or ()) for name, names in phases}


def graph_mistakes(
    phases: Sequence[tuple[str, Sequence[str] | None]],
) -> Iterator[tuple[int | None, str]]:
    """Yield a message for each wrong dependency, with the phase's number, and a message for a cycle."""
    names = {name for name, _ in phases}
    wrong = False
    for number, (name, wanted) in enumerate(phases):
        for other in wanted or ():
            if other == name:
                wrong = True
                yield number, f"phase {name!r} depends on itself"
            elif other not in names:
                wrong = True
                yield number, f"phase {name!r} depends on {other!r}, which is no phase"
    cycle = [] if wrong or len(names) < len(phases) else _cycle(compute_dependencies(phases))
    if cycle:
        yield None, f"phases depend on each other in a cycle: {' → '.join(cycle)}"


def _cycle(dependencies: Dependencies) -> list[str]:
    """Return the path of a cycle, or an empty list."""
    done: set[str] = set()
    for start in dependencies:
        if start in done:
            continue
        path, iterators = [start], [iter(dependencies[start])]
        while path:
            following = next(iterators[-1], None)
            if following is None:
                done.add(path.pop())
                iterators.pop()
            elif following in path:
                return [*path[path.index(following) :], following]
            elif following not in done:
                path.append(following)
                iterators.append(iter(dependencies[following]))
    return []


def verdict(rule: str, statuses: Sequence[str]) -> Literal["run", "skip", "wait"]:
    """Return the next action for a phase, from the statuses of its dependencies."""
    if not all(status in ENDED for status in statuses):
        return "wait"
    runs = holds(rule, len(statuses), statuses.count(SUCCEEDED), statuses.count(FAILED))
    return "run" if runs else "skip"


def holds(rule: str, total: int, succeeded: int, failed: int) -> bool:
    """Return whether a trigger rule lets a phase run, from the counts of its dependencies by status."""
    return {
        "all_success": succeeded == total,
        "one_success": succeeded > 0 or not total,
        "none_failed_min_one_success": (not failed and succeeded > 0) or not total,
        "all_done": True,
    }[rule]
