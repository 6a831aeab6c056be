"""A history of runs by attempt and thread, with the times at which attempts were live."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from tests.support.history import Call, Effect, History
from tests.support.run_snapshot import RunRows

from perdure.kernel.errors import Fenced
from perdure.rollouts.model import RELEASED, UNRESPONSIVE

CLOCK_ERROR = 20_000_000
"""Nanoseconds by which the database's clock may differ within a lease."""
WRITES = ("append", "save", "keep", "finish")
ENDS = ("finish", "hand_back")
OF_AGENTS = ("begin", "step", "kept", "saved", "end")


def reads(history: History) -> Iterator[Effect]:
    """Yield the events that readers of streams got."""
    return (effect for effect in history.effects if effect.what == "read")


class Claim(NamedTuple):
    """An attempt that a process claimed, and the call that claimed it."""

    run: str
    thread: str
    attempt: str
    number: int
    lease: float
    call: Call

    @classmethod
    def of(cls, told: Sequence[Any], call: Call) -> Claim:
        run, thread, attempt, number, lease = told
        return cls(run, thread, attempt, number, lease, call)

    def __str__(self) -> str:
        return f"attempt {self.number} of run {self.run} ({self.attempt}, {self.call.process})"

    def before(self, other: Claim) -> bool:
        """Return whether this attempt was certainly claimed first; calls that overlap have no order."""
        if self.run == other.run:
            return self.number < other.number
        return self.call.before(other.call)


class Index:
    """A history by attempt and thread."""

    def __init__(self, history: History, rows: RunRows, grace: float, *, resent: bool = False) -> None:
        self.history = history
        self.rows = rows
        self.resent = resent
        self.grace = int(grace * 1e9)
        self.calls: dict[str, list[Call]] = defaultdict(list)
        for call in history:
            self.calls[call.function].append(call)
        self.claims = [
            Claim.of(claim, call) for call in self.calls["claim"] for claim in call.got.get("claims", ())
        ]
        self.threads: dict[str, list[Claim]] = defaultdict(list)
        for claim in self.claims:
            self.threads[claim.thread].append(claim)
        self._by_attempt = self._calls_by_attempt()
        self._cancels: dict[str, list[Call]] = defaultdict(list)
        for call in (*self.calls["create"], *self.calls["cancel"]):
            if call.function == "cancel" or call.given["strategy"] in ("interrupt", "rollback"):
                self._cancels[call.given["thread"]].append(call)
        self.effects: dict[tuple[str, int], list[Effect]] = defaultdict(list)
        for effect in history.effects:
            if effect.what in OF_AGENTS:
                self.effects[effect.about["run"], effect.about["number"]].append(effect)

    def _calls_by_attempt(self) -> dict[str, list[Call]]:
        found: dict[str, list[Call]] = defaultdict(list)
        for function in ("renew", "hand_back", *WRITES):
            for call in self.calls[function]:
                for attempt in call.given.get("attempts") or [call.given["attempt"]]:
                    found[attempt].append(call)
        return found

    def of(self, claim: Claim, *functions: str) -> Iterator[Call]:
        return (call for call in self._by_attempt[claim.attempt] if call.function in functions)

    def possible(self, claim: Claim, *functions: str) -> Iterator[Call]:
        """Yield the calls of an attempt that may have had an effect."""
        return (call for call in self.of(claim, *functions) if self.resent or call.outcome != "fail")

    def told_end(self, claim: Claim) -> int | None:
        """Return when the attempt first reported its end without being refused."""
        return min((call.started for call in self.of(claim, *ENDS) if call.outcome != "fail"), default=None)

    def lease_end(self, claim: Claim) -> int:
        """Return the earliest end of its lease; each renewal counts from its request."""
        renewed = [
            call.started for call in self.of(claim, "renew") if claim.attempt in call.got.get("going", ())
        ]
        return max([claim.call.started, *renewed]) + int(claim.lease * 1e9) - CLOCK_ERROR

    def cancel_grace_end(self, claim: Claim) -> int | None:
        """Return the end of its time to stop, if a caller may have cancelled its run."""
        asked = [
            call.started
            for call in self._cancels[claim.thread]
            if call.outcome != "fail" and (call.ended is None or call.ended > claim.call.started)
        ]
        return min(asked) + self.grace - CLOCK_ERROR if asked else None

    def pairs(self) -> Iterator[list[tuple[Claim, Claim]]]:
        """Yield pairs of attempts of a thread, older and newer, in each possible order."""
        for claims in self.threads.values():
            for one, other in combinations(claims, 2):
                if one.before(other):
                    yield [(one, other)]
                elif other.before(one):
                    yield [(other, one)]
                else:
                    yield [(one, other), (other, one)]

    def stale(self) -> Iterator[Effect]:
        """Yield effects of attempts after a later attempt of the same thread was claimed."""
        for orders in self.pairs():
            older, newer = orders[0]
            for effect in self.effects.get((older.run, older.number), ()):
                if len(orders) == 1 and effect.at > (newer.call.ended or 0):
                    yield effect

    def facts(self) -> Counter[str]:
        rows = self.rows
        refused = [call for name in (*WRITES, "hand_back") for call in self.calls[name]]
        return Counter(
            {
                "runs": len(rows.runs),
                "attempts": len(rows.attempts),
                "retries": len(rows.attempts) - sum(run.attempts > 0 for run in rows.runs.values()),
                "lapses": sum(row.status == UNRESPONSIVE for row in rows.attempts.values()),
                "hand-backs": sum(row.reason == RELEASED for row in rows.attempts.values()),
                "effects": sum(map(len, self.effects.values())),
                "stale effects": len({(effect.process, effect.at) for effect in self.stale()}),
                "fenced writes": sum(call.code == Fenced.code for call in refused),
                "accepted writes": sum(call.ok for call in refused),
                "acknowledged events": sum(len(call.given.get("events", ())) for call in refused if call.ok),
                "events read": sum(len(each.about["events"]) for each in reads(self.history)),
            }
        )
