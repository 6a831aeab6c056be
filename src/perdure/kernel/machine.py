"""State machines as transition tables, which also draw their charts.

A table is total: a status and event without an entry keep the status, so repeated events are harmless.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transition:
    """An event that moves any of `sources` to `target`; `always` means every status."""

    event: str
    sources: frozenset[str]
    target: str
    always: bool = False


class Machine:
    """A named set of statuses and the transitions between them."""

    def __init__(
        self, name: str, statuses: Iterable[str], *, start: dict[str, str], final: Iterable[str]
    ) -> None:
        self.name = name
        self.statuses = tuple(statuses)
        self.start = start
        self.final = frozenset(final)
        self._table: dict[tuple[str, str], str] = {}
        self._transitions: list[Transition] = []
        self._check(*self.start.values(), *self.final)

    def on(self, event: str, sources: Iterable[str], target: str) -> Machine:
        """Add a transition; a pair of status and event has only one target."""
        return self._add(Transition(event, frozenset(sources), target))

    def always(self, event: str, target: str) -> Machine:
        """Add a transition from every status, for a status that a caller sets explicitly."""
        return self._add(Transition(event, frozenset(self.statuses), target, always=True))

    def _add(self, transition: Transition) -> Machine:
        self._check(transition.target, *transition.sources)
        for source in transition.sources:
            if (source, transition.event) in self._table:
                raise AssertionError(f"{self.name}: {transition.event} from {source} is declared twice")
            self._table[source, transition.event] = transition.target
        self._transitions.append(transition)
        return self

    def step(self, status: str, event: str) -> str:
        """Return the status after `event`; without such a transition, the same status."""
        return self._table.get((status, event), status)

    def moves(self, status: str, event: str) -> bool:
        return (status, event) in self._table

    def sources(self, event: str) -> tuple[str, ...]:
        """Return the statuses that `event` moves, in the order of the declaration."""
        return tuple(status for status in self.statuses if (status, event) in self._table)

    @property
    def events(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(transition.event for transition in self._transitions))

    def __iter__(self) -> Iterator[Transition]:
        return iter(self._transitions)

    def chart(self) -> str:
        """Draw the table as a mermaid state diagram."""
        lines = ["stateDiagram-v2", "    direction LR"]
        lines += [f"    [*] --> {status}: {event}" for event, status in self.start.items()]
        for (source, target), events in self._edges().items():
            lines.append(f"    {source} --> {target}: {' or '.join(events)}")
        lines += [f"    {status} --> [*]" for status in self.statuses if status in self.final]
        always = [transition for transition in self._transitions if transition.always]
        if always:
            lines.append('    state "any status" as any')
        lines += [f"    any --> {transition.target}: {transition.event}" for transition in always]
        return "\n".join(lines) + "\n"

    def _edges(self) -> dict[tuple[str, str], list[str]]:
        edges: dict[tuple[str, str], list[str]] = {}
        for transition in self._transitions:
            if transition.always:
                continue
            for source in self.statuses:
                if source in transition.sources and source != transition.target:
                    edges.setdefault((source, transition.target), []).append(transition.event)
        return edges

    def _check(self, *statuses: str) -> None:
        unknown = set(statuses) - set(self.statuses)
        if unknown:
            raise AssertionError(f"{self.name}: no such status: {sorted(unknown)}")
