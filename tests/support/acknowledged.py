"""Is everything that was acknowledged to workers and clients in the database, and nothing twice?

These rules belong to the checker of effects, which documents the calls of a history. A rollback removes the
checkpoints and steps of its run, but not its events.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from tests.support.effect_index import WRITES, Claim, Index
from tests.support.history import Call
from tests.support.run_snapshot import CheckpointRow

from perdure.kernel.errors import Conflict
from perdure.rollouts.model import LIVE, RELEASED, SUCCEEDED, TIMEOUT
from perdure.threads.model import LIVE_STATUSES, PERMANENT, RETRIABLE, STOPPED

Rule = Callable[[Index], Iterator[str]]

OF_THE_SERVER = ("error", "control", "end")
"""Events that no worker appends."""
UNDONE = "rollback"
CANCELLED = ("interrupted", UNDONE)
REASONS = {
    "success": {SUCCEEDED},
    "error": {PERMANENT},
    "timeout": {TIMEOUT},
    "retriable": {RETRIABLE},
    "stopped": {STOPPED, RELEASED},
}
"""The reason of an attempt's end, by the result that its worker reported."""

Told = tuple[str, str]
"""The name and the body of an event."""


def _told(call: Call) -> list[Told]:
    return [(event, body) for event, body in call.given.get("events", ())]


def _status(checking: Index, run: str) -> str:
    row = checking.rows.runs.get(run)
    return "" if row is None else row.status


def _accepted(checking: Index, claim: Claim, call: Call) -> bool:
    """Return whether a call was executed. An end may be confirmed although the run was cancelled before."""
    row = checking.rows.attempts.get(claim.attempt)
    return call.ok and (
        call.function != "finish" or row is None or row.reason in REASONS[call.given["result"]]
    )


# --- events -------------------------------------------------------------------------------------------------


def _appended_where_it_was_acknowledged(checking: Index) -> Iterator[str]:
    """Each acknowledged append is in the stream of its run, with its numbers and its attempt."""
    for claim in checking.claims:
        stream = checking.rows.streams.get(claim.run, [])
        for call in checking.of(claim, "append"):
            if not call.ok:
                continue
            told, last = _told(call), call.got["seq"]
            stored = [(row.event, row.body) for row in stream[last - len(told) : last]]
            numbers = {row.attempt for row in stream[last - len(told) : last]}
            if stored != told or numbers - {claim.number}:
                yield f"lost: {told}, up to {last}, acknowledged to {call} of {claim}; there is {stored}"


def _events_stored_once(checking: Index) -> Iterator[str]:
    """An attempt's events are those of its acknowledged calls, and at most those of the unanswered ones."""
    stored: dict[tuple[str, int], Counter[Told]] = {}
    for run in checking.rows.runs:
        for row in checking.rows.streams.get(run, ()):
            if row.event not in OF_THE_SERVER:
                stored.setdefault((run, row.attempt), Counter())[row.event, row.body] += 1
    for claim in checking.claims:
        found = stored.pop((claim.run, claim.number), Counter())
        known = _events_of(call for call in checking.of(claim, *WRITES) if _accepted(checking, claim, call))
        possible = _events_of(checking.possible(claim, *WRITES))
        for told in known - found:
            yield f"lost: {told} of {claim}, acknowledged; {_evidence(checking, claim)}"
        for told in found - possible:
            counts = f"is stored {found[told]} times, and was sent {possible[told]} times"
            yield f"doubled: {told} of {claim} {counts}"
    for (run, number), found in stored.items():
        yield f"attempt {number} of run {run} appended {list(found)}, and nobody was given it"


def _knows_its_stream(checking: Index) -> Iterator[str]:
    """A worker that holds a run knows the events of its stream, so the server never rejects its position."""
    for claim in checking.claims:
        for call in checking.of(claim, *WRITES):
            if call.code == Conflict.code and "the stream of run" in call.message:
                yield f"{call} of {claim}: {call.message}; {_evidence(checking, claim)}"


def _evidence(checking: Index, claim: Claim) -> str:
    """Return everything that an attempt wrote, and the stream of its run."""
    calls = [(str(call), call.outcome, call.given, call.got) for call in checking.of(claim, *WRITES)]
    stream = [(row.attempt, row.event, row.body) for row in checking.rows.streams.get(claim.run, ())]
    return f"sent by {calls}; its stream has {stream}"


def _events_of(calls: Iterable[Call]) -> Counter[Told]:
    """Count the events of calls. A call repeated after a lost answer counts once."""
    distinct = {(call.function, call.given.get("after"), tuple(_told(call))) for call in calls}
    return sum((Counter(events) for _, _, events in distinct), Counter())


# --- checkpoints and steps ----------------------------------------------------------------------------------


def _checkpoints_stored_once(checking: Index) -> Iterator[str]:
    """Each acknowledged checkpoint exists, and no attempt has more of them than it sent."""
    stored: dict[tuple[str | None, int | None], list[CheckpointRow]] = defaultdict(list)
    for row in checking.rows.checkpoints.values():
        stored[row.run, row.number].append(row)
    for claim in checking.claims:
        rows = stored.pop((claim.run, claim.number), [])
        sent = [call for call in checking.possible(claim, "save", "finish") if "values" in call.given]
        for call in sent:
            found = any(
                row.values == call.given["values"] and row.id == call.got.get("id", row.id) for row in rows
            )
            if not found and _accepted(checking, claim, call) and _status(checking, claim.run) != UNDONE:
                yield f"lost: the checkpoint of {call} of {claim}, {call.got}, which has {rows}"
        if len(rows) > len(sent):
            yield f"doubled: {claim} has {len(rows)} checkpoints, and sent {len(sent)}"
    for (run, number), rows in stored.items():
        if run is not None:
            yield f"attempt {number} of run {run} stored {len(rows)} checkpoints, and nobody was given it"


def _steps_stored(checking: Index) -> Iterator[str]:
    """Each acknowledged step exists, with a result that a worker sent."""
    sent: dict[tuple[str, str], list[Any]] = {}
    for call in checking.calls["keep"]:
        place = (call.given["origin"], call.given["name"])
        sent.setdefault(place, []).append(msgspec.json.decode(call.given["body"]))
    for call in checking.calls["keep"]:
        place = (call.given["origin"], call.given["name"])
        if call.ok and _status(checking, place[0]) != UNDONE and place not in checking.rows.steps:
            yield f"lost: step {place}, acknowledged to {call}"
    for place, value in checking.rows.steps.items():
        if value not in sent.get(place, ()):
            yield f"step {place} is {value}, and {sent.get(place, [])} were sent"


# --- ends and claims ----------------------------------------------------------------------------------------


def _ended_as_acknowledged(checking: Index) -> Iterator[str]:
    """An attempt ended as its worker reported, and a run as was acknowledged."""
    for claim in checking.claims:
        row = checking.rows.attempts.get(claim.attempt)
        for call in checking.of(claim, "finish", "hand_back"):
            if not call.ok or not _was_held(checking, claim, call):
                continue
            if row is None or row.status in LIVE or row.reason not in _reasons(checking, claim):
                yield f"lost: {call} of {claim}, with {call.given.get('result', RELEASED)}: it is {row}"
    for call in (*checking.calls["finish"], *checking.calls["cancel"]):
        said, status = call.got.get("status"), _status(checking, call.given["run"])
        if call.ok and said not in (None, *LIVE_STATUSES, status):
            yield f"lost: run {call.given['run']} was {said} for {call}, and is {status}"


def _was_held(checking: Index, claim: Claim, call: Call) -> bool:
    """Return whether an answer means that the attempt has ended, including a hand-back of a lost attempt."""
    return call.function == "finish" or (call.ended or 0) < checking.lease_end(claim)


def _reasons(checking: Index, claim: Claim) -> set[str]:
    found = {STOPPED} if _status(checking, claim.run) in CANCELLED else set()
    for call in checking.possible(claim, "finish", "hand_back"):
        found |= REASONS[call.given["result"]] if call.function == "finish" else {RELEASED}
    return found


def _given_to_somebody(checking: Index) -> Iterator[str]:
    """An attempt that no claim returned belongs to a claim whose answer was lost."""
    if checking.resent:
        # The client releases such an attempt by itself.
        return
    known = {claim.attempt for claim in checking.claims}
    open_claims: Counter[str] = Counter()
    for call in checking.calls["claim"]:
        open_claims[call.given["worker"]] += call.given["limit"] if call.open else 0
    for row in checking.rows.attempts.values():
        if row.id not in known:
            open_claims[row.worker or ""] -= 1
            if open_claims[row.worker or ""] < 0:
                yield f"doubled: attempt {row.number} of run {row.run} belongs to no claim of {row.worker}"


ACKNOWLEDGED: Sequence[Rule] = (
    _appended_where_it_was_acknowledged,
    _events_stored_once,
    _knows_its_stream,
    _checkpoints_stored_once,
    _steps_stored,
    _ended_as_acknowledged,
    _given_to_somebody,
)
