"""Did runs keep their promise? A checker of effects, not only of rows.

The promise, as precisely as it is checked here:

- An acknowledged run exists, and ends once: its stream has one `end`, at its end, with the run's status; the
outbox has one effect for it if it has a webhook. At the end of the check every run has ended. - An attempt is
*live* from its claim until it has reported its end, or its lease has passed without a renewal, or its run was
cancelled and it has stopped or its grace has passed. A thread has at most one live attempt: none is claimed
while another is live. - Only the last claimed attempt of a thread can write. Every write of an older one is
refused (`Fenced`): it cannot append, save, keep or finish, however late it wakes up. - Agent code runs at
least once. A worker that was frozen past its lease may continue for a moment while another one has its run:
such effects come only from attempts that are no longer live, and change nothing. - A step is executed at
least once, and one result of it is kept: every attempt that continues sees the same. - Everything that was
acknowledged to a worker or a client is in the database, once: every event, checkpoint, step and end. Every
attempt belongs to a claim. - An attempt that was handed back does not count as a try of its run. - A reader
of a stream gets each event once, in order and without a gap, however often the connection is cut.

The checker knows these calls of a history; `given` and `got` contain these values:

| function | given | got |
|---|---|---|
| `create` | token, thread, strategy | run |
| `cancel` | run, thread | status |
| `claim` | worker, limit | claims: (run, thread, attempt, number, lease) |
| `renew` | attempts | going: attempts |
| `append` | attempt, run, thread, events: (event, body), after | seq |
| `save` | attempt, run, thread, events, values | id |
| `keep` | attempt, run, thread, origin, name, body, events | |
| `finish` | attempt, run, thread, result, events, values | status |
| `hand_back` | attempts | |

and these effects of an agent: `begin`, `step` (step, value), `kept` (step, value) and `end`, each with a run,
a thread and the number of an attempt; and `read` (reader, stream, events: (seq, event, body)). All times come
from one monotonic clock, so all processes must run on one machine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
from tests.support.acknowledged import ACKNOWLEDGED, Rule
from tests.support.effect_index import WRITES, Claim, Index, reads
from tests.support.history import UNTYPED, Effect, History
from tests.support.run_snapshot import EventRow, RunRow, RunRows

from perdure.rollouts.model import RELEASED
from perdure.threads.model import LIVE_STATUSES, STOPPED


@dataclass
class EffectReport:
    """The violations that a check found, and counts of what it saw."""

    violations: list[str] = field(default_factory=list)
    facts: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        return not self.violations

    def __str__(self) -> str:
        seen = ", ".join(f"{number} {name}" for name, number in self.facts.items())
        listed = "".join(f"\n  - {violation}" for violation in self.violations[:50])
        return f"{len(self.violations)} violations in {seen}{listed}"


def check_effects(history: History, rows: RunRows, *, grace: float, resent: bool = False) -> EffectReport:
    """Compare requests, answers, effects and reads with the final content of the database.

    `grace` is the time in seconds that a cancelled attempt has to stop. If a client repeats lost requests
    (`resent`), a refused call may have been executed before.
    """
    checking = Index(history, rows, grace, resent=resent)
    report = EffectReport(facts=checking.facts())
    for rule in _RULES:
        title = rule.__name__.strip("_").replace("_", " ")
        report.violations += [f"{title}: {found}" for found in rule(checking)]
    return report


# --- rows ---------------------------------------------------------------------------------------------------


def _rules_of_the_rows(checking: Index) -> Iterator[str]:
    yield from checking.rows.broken_rules


def _created_once(checking: Index) -> Iterator[str]:
    """An acknowledged run exists, a refused one does not, and none exists twice."""
    runs = defaultdict(list)
    for run in checking.rows.runs.values():
        runs[run.token].append(run.id)
    possible = {call.given["token"] for call in checking.calls["create"] if call.outcome != "fail"}
    for token, ids in runs.items():
        if len(ids) > 1:
            yield f"doubled: {token} is {', '.join(ids)}"
        if token not in possible:
            yield f"{ids[0]} of {token} exists, though no call that may have made it"
    for call in checking.calls["create"]:
        if call.ok and call.got["run"] not in runs[call.given["token"]]:
            yield f"lost: {call.got['run']} of {call.given['token']}, acknowledged to {call}"


def _ended_once(checking: Index) -> Iterator[str]:
    rows = checking.rows
    for run in rows.runs.values():
        if run.status in LIVE_STATUSES:
            yield f"run {run.id} of {run.token} is {run.status} and has not ended"
            continue
        yield from (f"run {run.id} {found}" for found in _ends(run, rows.streams.get(run.id, [])))
        effects = rows.webhooks.get(run.id, 0)
        if effects != run.webhook:
            yield f"run {run.id} has {effects} webhooks in the outbox, and was asked for {int(run.webhook)}"


def _ends(run: RunRow, events: Sequence[EventRow]) -> Iterator[str]:
    ends = [event for event in events if event.event == "end"]
    if len(ends) != 1 or events[-1] is not ends[0]:
        yield f"ended {len(ends)} times: its stream is {[event.event for event in events]}"
    elif msgspec.json.decode(ends[0].body).get("status") != run.status:
        yield f"is {run.status}, and its stream ends with {ends[0].body}"


def _handed_back_for_nothing(checking: Index) -> Iterator[str]:
    """Handed back attempts are not charged, all others are, and no run is tried too often."""
    attempts = checking.rows.attempts
    for call in checking.calls["hand_back"]:
        for attempt in call.given["attempts"]:
            row = attempts.get(attempt)
            if call.ok and row is not None and row.reason == RELEASED and row.charged:
                yield f"{attempt} was handed back by {call} and is charged"
    charged = Counter(row.run for row in attempts.values() if row.charged)
    for row in attempts.values():
        if not row.charged and row.reason != RELEASED:
            yield f"{row.id} is not charged, and nobody handed it back: {row}"
    for run in checking.rows.runs.values():
        if charged[run.id] > run.max_attempts:
            yield f"run {run.id} was tried {charged[run.id]} times, and may be {run.max_attempts} times"


# --- execution and writes -----------------------------------------------------------------------------------


def _claimed_once(checking: Index) -> Iterator[str]:
    given: dict[str, Claim] = {}
    for claim in checking.claims:
        if claim.attempt in given:
            yield f"{claim} was also given to {given[claim.attempt].call}"
        given[claim.attempt] = claim
        row = checking.rows.attempts.get(claim.attempt)
        if row is None or (row.run, row.number) != (claim.run, claim.number):
            yield f"{claim} is {row} in the database"


def _one_attempt_holds_a_thread(checking: Index) -> Iterator[str]:
    """Of two attempts of a thread, the older was no longer live and could not write when the newer came."""
    for orders in checking.pairs():
        objections = [_live_too(checking, *order) or _stale_write(checking, *order) for order in orders]
        if all(objections):
            yield " and ".join(map(str, objections))


def _live_too(checking: Index, older: Claim, newer: Claim) -> str | None:
    """Return the violation if the older attempt was live when the newer one was claimed."""
    claimed = newer.call.ended or 0
    ends = (checking.told_end(older), checking.cancel_grace_end(older), checking.lease_end(older))
    if any(end is not None and end <= claimed for end in ends):
        return None
    left = (checking.lease_end(older) - claimed) / 1e9
    return f"{newer} was claimed while {older} had {left:.2f} s left and had not told its end"


def _stale_write(checking: Index, older: Claim, newer: Claim) -> str | None:
    """Return the violation if a write of the older one certainly happened after the newer one's claim."""
    claimed = newer.call.ended or 0
    told = checking.told_end(older)
    for call in checking.of(older, *WRITES):
        # A repeated end whose first answer was lost is answered again; a stop only confirms.
        again = call.function == "finish" and told is not None and told < claimed
        if call.ok and call.started > claimed and not again and call.given.get("result") != STOPPED:
            return f"{call} of {older} was accepted after {newer} was claimed"
    return None


def _agents_stay_within_their_attempt(checking: Index) -> Iterator[str]:
    """An agent starts once, in the process that claimed its attempt, and has stopped when that ends."""
    claims = {(claim.run, claim.number): claim for claim in checking.claims}
    for key, effects in checking.effects.items():
        claim = claims.get(key)
        if claim is None:
            yield f"attempt {key[1]} of run {key[0]} was executed, and nobody was given it"
            continue
        yield from (f"{claim} {found}" for found in _within(claim, effects, checking.told_end(claim)))


def _within(claim: Claim, effects: Sequence[Effect], told: int | None) -> Iterator[str]:
    begun = sum(effect.what == "begin" for effect in effects)
    if begun != 1:
        yield f"began {begun} times"
    for effect in effects:
        if effect.process != claim.call.process or effect.at < claim.call.started:
            yield f"did {effect.what} in {effect.process}, before or without being given to it"
        if told is not None and effect.at > told:
            yield f"did {effect.what} after its end was told"


def _one_run_at_a_time_in_a_thread(checking: Index) -> Iterator[str]:
    """In a thread's stream, whose order is the database's, no run writes between another's events."""
    runs = checking.rows.runs
    for thread in {run.thread for run in runs.values()}:
        told = [event.source for event in checking.rows.streams.get(thread, ())]
        # A run that was cancelled before its start may end anywhere.
        told = [source for source in told if source in runs and runs[source].attempts > 0]
        changes = [told[0], *(after for before, after in pairwise(told) if before != after)] if told else []
        for source, times in Counter(changes).items():
            if times > 1:
                yield f"run {source} told in thread {thread} {times} times, with others in between"


# --- agents and readers -------------------------------------------------------------------------------------


def _steps_are_kept_once(checking: Index) -> Iterator[str]:
    """All attempts saw the same result of a step, and one of them had executed it."""
    executed: dict[tuple[str, str], list[Any]] = defaultdict(list)
    kept: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for effects in checking.effects.values():
        for effect in effects:
            if effect.what in ("step", "kept"):
                place = (effect.about["run"], effect.about["step"])
                (executed if effect.what == "step" else kept)[place].append(effect.about["value"])
    for place, values in kept.items():
        stored = checking.rows.steps.get(place, values[0])
        if any(value != stored for value in values):
            yield f"step {place} gave {values}, and {stored} is stored"
        if stored not in executed[place]:
            yield f"step {place} gave {stored}, and was executed with {executed[place]}"


def _streams_are_read_whole(checking: Index) -> Iterator[str]:
    """Each reader got the events of its stream as in the database, without duplicates and gaps."""
    readers: dict[tuple[str, str], list[tuple[int, str, str]]] = defaultdict(list)
    for read in reads(checking.history):
        place = (read.process + "/" + read.about["reader"], read.about["stream"])
        readers[place] += [(seq, event, body) for seq, event, body in read.about["events"]]
    for (reader, stream), events in readers.items():
        stored = [tuple(row[:3]) for row in checking.rows.streams.get(stream, ())]
        if events != stored:
            seen = _ranges([seq for seq, _, _ in events])
            yield f"{reader} read {seen} of stream {stream}, which has {len(stored)} events"


def _ranges(numbers: Sequence[int]) -> str:
    """Format numbers in order, with consecutive ones as a range."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(f"{first}-{last}" for first, last in ranges) or "nothing"


def _answered_in_form(checking: Index) -> Iterator[str]:
    for call in checking.history:
        if call.code == UNTYPED:
            yield f"{call} was answered with {call.message}"


_RULES: Sequence[Rule] = (
    _rules_of_the_rows,
    _created_once,
    _ended_once,
    _handed_back_for_nothing,
    _claimed_once,
    _one_attempt_holds_a_thread,
    _agents_stay_within_their_attempt,
    _one_run_at_a_time_in_a_thread,
    _steps_are_kept_once,
    _streams_are_read_whole,
    _answered_in_form,
    *ACKNOWLEDGED,
)
