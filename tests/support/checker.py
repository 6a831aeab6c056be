"""Does the database agree with what callers saw?

The checker knows these calls of a history; `given` and `got` hold what is named here:

| function | given | got |
|---|---|---|
| `enqueue` | tokens | ids |
| `start` | tokens, worker | ids, claims |
| `dequeue` | worker, limit | claims: (rollout_id, attempt_id, sequence_id) |
| `spans` | rollout, attempt, spans: span ids | stored: span ids; numbers, if they were allocated |
| `sequence` | rollouts | numbers |
| `report` | rollout, attempt, status, token | status, end_time |
| `edit` | rollout, token | |
| `cancel` | rollout | |
| `resources` | id, token | version |

A token is unique; a rollout's input and metadata, and an attempt's metadata, hold it as `{"token": …}`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise

from tests.support.history import UNTYPED, Call, History, Report
from tests.support.snapshot import AttemptRow, RolloutRow, Snapshot

from perdure.rollouts.model import CANCELLED, ENDED, LIVE, PREPARING, QUEUING, SUCCEEDED

Endings = Mapping[str, Sequence[str]]
"""The statuses with which each rollout ended, as passed to its kind's `on_ended` until the check."""


def check(
    history: History,
    snapshot: Snapshot,
    *,
    endings: Endings | None = None,
    deadline: float | None = None,
    resent: bool = False,
) -> Report:
    """Compare the calls seen until the snapshot was read with its content.

    `deadline` is the maximum duration of a call in seconds. If a client repeats lost requests (`resent`), it
    cannot distinguish its own lost request from an earlier one, so two callers may learn that a span is new.
    """
    calls = history.as_of(snapshot.began, snapshot.ended)
    checking = _Checking(calls, snapshot, resent=resent)
    report = Report(
        calls=len(calls),
        rollouts=len(snapshot.rollouts),
        attempts=sum(map(len, snapshot.attempts.values())),
        spans=len(snapshot.spans),
    )
    for rule in _RULES:
        report.violations += [f"{_title(rule)}: {found}" for found in rule(checking)]
    if endings is not None:
        report.violations += [f"ended once: {found}" for found in _ended_once(snapshot, endings)]
    report.violations += [f"answered: {found}" for found in _answered(history, deadline)]
    return report


def check_rows(snapshot: Snapshot) -> list[str]:
    """Check only the rows among themselves, for a database without a known history."""
    checking = _Checking([], snapshot)
    return [f"{_title(rule)}: {found}" for rule in _ROW_RULES for found in rule(checking)]


class _Checking:
    """The calls by function and the rows by key."""

    def __init__(self, calls: Sequence[Call], snapshot: Snapshot, *, resent: bool = False) -> None:
        self.snapshot = snapshot
        self.resent = resent
        self._calls: dict[str, list[Call]] = defaultdict(list)
        for call in calls:
            self._calls[call.function].append(call)
        self.attempts = {row.id: row for rows in snapshot.attempts.values() for row in rows}

    def calls(self, *functions: str) -> Iterator[Call]:
        for function in functions:
            yield from self._calls[function]


# --- rows among themselves ---------------------------------------------------------------------------------


def _rules_of_the_rows(checking: _Checking) -> Iterator[str]:
    yield from checking.snapshot.broken_rules


def _statuses_agree(checking: _Checking) -> Iterator[str]:
    for row in checking.snapshot.rollouts.values():
        attempts = checking.snapshot.attempts.get(row.id)
        latest = attempts[-1].status if attempts else None
        if not _agree(row.status, latest):
            yield f"{row.id} is {row.status}, its latest attempt {latest}"


def _agree(rollout: str, attempt: str | None) -> bool:
    if rollout == CANCELLED:
        return True
    if rollout == QUEUING or attempt is None:
        return rollout == QUEUING and attempt is None
    if rollout in LIVE or rollout == SUCCEEDED:
        return attempt == rollout
    return attempt not in LIVE and attempt != SUCCEEDED


def _resources_are_dense(checking: _Checking) -> Iterator[str]:
    versions = defaultdict(list)
    for resources_id, version in checking.snapshot.resources:
        versions[resources_id].append(version)
    for resources_id, numbers in versions.items():
        if sorted(numbers) != list(range(1, len(numbers) + 1)):
            yield f"{resources_id} has versions {sorted(numbers)}"


# --- calls -------------------------------------------------------------------------------------------------


def _enqueued_once(checking: _Checking) -> Iterator[str]:
    """An acknowledged rollout exists, a refused one does not, and none exists twice."""
    rows = defaultdict(list)
    for row in checking.snapshot.rollouts.values():
        rows[row.token].append(row.id)
    calls = list(checking.calls("enqueue", "start"))
    possible = {token for call in calls if call.outcome != "fail" for token in call.given["tokens"]}
    for token, ids in rows.items():
        if len(ids) > 1:
            yield f"doubled: {token} is {', '.join(ids)}"
        if token not in possible:
            yield f"{ids[0]} of {token} exists, though no call that may have made it"
    for call in calls:
        tokens = call.given["tokens"]
        if call.ok:
            yield from _lost(call, zip(tokens, call.got["ids"], strict=True), checking.snapshot.rollouts)
        elif call.open and 0 < sum(token in rows for token in tokens) < len(tokens):
            yield f"{call} was done by half"


def _lost(
    call: Call, acknowledged: Iterable[tuple[str, str]], rollouts: Mapping[str, RolloutRow]
) -> Iterator[str]:
    for token, rollout_id in acknowledged:
        if rollout_id not in rollouts:
            yield f"lost: {rollout_id} of {token}, acknowledged to {call}"
        elif rollouts[rollout_id].token != token:
            yield f"{rollout_id} was acknowledged to {call} as {token} and is {rollouts[rollout_id].token}"


def _claimed_once(checking: _Checking) -> Iterator[str]:
    """Each attempt was assigned to one worker, and a worker requested each unreported one."""
    given: dict[str, Call] = {}
    unheard: Counter[str] = Counter()
    for call in checking.calls("dequeue", "start"):
        if call.open:
            unheard[call.given["worker"]] += call.given.get("limit", 1)
        for rollout_id, attempt_id, sequence_id in call.got.get("claims", ()):
            if attempt_id in given:
                yield f"{attempt_id} was given to {given[attempt_id]} and to {call}"
            given[attempt_id] = call
            row = checking.attempts.get(attempt_id)
            if row is None:
                yield f"lost: {attempt_id} of {rollout_id}, given to {call}"
            elif row[:2] != (rollout_id, sequence_id) or row.worker_id != call.given["worker"]:
                yield f"{attempt_id} was given to {call}, and is {row}"
    extra = Counter(row.worker_id or "" for row in checking.attempts.values() if row.id not in given)
    for worker_id, count in (extra - unheard).items():
        yield f"{worker_id or 'nobody'} has {count} attempts more than it can have asked for"


def _one_live_attempt(checking: _Checking) -> Iterator[str]:
    """Only the latest attempt is live, or an older one that a late span has revived."""
    claims = {
        claim[1]: call for call in checking.calls("dequeue", "start") for claim in call.got.get("claims", ())
    }
    spoke: dict[str, list[Call]] = defaultdict(list)
    for call in checking.calls("spans"):
        spoke[call.given["attempt"]].append(call)
    for attempts in checking.snapshot.attempts.values():
        for older, newer in pairwise(attempts):
            if older.status in LIVE and not _came_back(older, spoke[older.id], claims.get(newer.id)):
                yield f"{older.id} and {newer.id} of {older.rollout_id} are both live"


def _came_back(older: AttemptRow, spoke: Iterable[Call], claimed: Call | None) -> bool:
    """Return whether a span arrived when the next attempt may have started already."""
    if older.status == PREPARING:
        return False
    return any(call.outcome != "fail" and (claimed is None or not call.before(claimed)) for call in spoke)


def _reported_once(checking: _Checking) -> Iterator[str]:
    """An acknowledged report is stored as answered; a refused one has no effect."""
    possible: dict[str, set[str]] = defaultdict(set)
    reports = list(checking.calls("report"))
    for call in reports:
        if call.outcome != "fail":
            possible[call.given["attempt"]].add(call.given["token"])
        row = checking.attempts.get(call.given["attempt"])
        if call.ok and row is None:
            yield f"lost: {call.given['attempt']}, reported by {call}"
        elif call.ok and row is not None and (row.status, row.end_time) != _reported(call):
            yield f"{call} was answered {_reported(call)}, and {row.id} is {(row.status, row.end_time)}"
    for row in checking.attempts.values():
        if row.report and row.report not in possible[row.id]:
            yield f"{row.id} has the report {row.report}, which was refused or never made"


def _reported(call: Call) -> tuple[str, int]:
    return call.got["status"], call.got["end_time"]


def _spans_stored_once(checking: _Checking) -> Iterator[str]:
    """An acknowledged span is stored once; a call stores all of its spans or none."""
    rows = Counter(row.span_id for row in checking.snapshot.spans)
    senders: dict[str, list[Call]] = defaultdict(list)
    stored: dict[str, Call] = {}
    for call in checking.calls("spans"):
        for span_id in call.given["spans"]:
            senders[span_id].append(call)
        for span_id in call.got.get("stored", ()):
            if span_id in stored and not checking.resent:
                yield f"{span_id} was stored by {stored[span_id]} and by {call}"
            stored[span_id] = call
        present = sum(span_id in rows for span_id in call.given["spans"])
        if call.ok and present < len(call.given["spans"]):
            yield f"lost: {len(call.given['spans']) - present} spans acknowledged to {call}"
        elif call.open and 0 < present < len(call.given["spans"]):
            yield f"{call} was done by half"
    for span_id, count in rows.items():
        if count > 1:
            yield f"doubled: span {span_id} is there {count} times"
        if all(call.outcome == "fail" for call in senders[span_id]):
            yield f"span {span_id} is there, though no call that may have stored it"


def _numbers_increase(checking: _Checking) -> Iterator[str]:
    """Allocated sequence ids of a rollout are unique, and later calls get higher ones."""
    taken: dict[str, list[tuple[int, Call]]] = defaultdict(list)
    for call in checking.calls("sequence", "spans"):
        rollouts = call.given.get("rollouts") or [call.given.get("rollout")] * len(
            call.got.get("numbers", ())
        )
        for rollout_id, number in zip(rollouts, call.got.get("numbers", ()), strict=False):
            taken[rollout_id].append((number, call))
    for rollout_id, numbers in taken.items():
        counter = checking.snapshot.counters.get(rollout_id, 0)
        if max(number for number, _ in numbers) > counter:
            yield f"lost: a number of {rollout_id} beyond its counter {counter} was given out"
        for (low, first), (high, second) in combinations(sorted(numbers, key=lambda pair: pair[0]), 2):
            if low == high:
                yield f"{low} of {rollout_id} was given to {first} and to {second}"
            elif second.before(first):
                yield f"{rollout_id} gave {high} to {second} before {low} to {first}"


def _edits_stand(checking: _Checking) -> Iterator[str]:
    """The metadata come from a write that no later acknowledged write replaced."""
    edits: dict[str, list[Call]] = defaultdict(list)
    for call in checking.calls("edit"):
        edits[call.given["rollout"]].append(call)
    for rollout_id, calls in edits.items():
        row = checking.snapshot.rollouts.get(rollout_id)
        if row is None:
            continue
        written = [call for call in calls if call.given["token"] == row.edit and call.outcome != "fail"]
        if row.edit and not written:
            yield f"{rollout_id} has the edit {row.edit}, which was refused or never made"
        for call in calls:
            if call.ok and (not written or written[0].before(call)):
                yield f"lost: {call} of {rollout_id}, which has {row.edit or 'none'}"


def _cancels_stick(checking: _Checking) -> Iterator[str]:
    for call in checking.calls("cancel"):
        row = checking.snapshot.rollouts.get(call.given["rollout"])
        if call.ok and (row is None or row.status != CANCELLED):
            yield f"lost: {call} of {call.given['rollout']}, which is {row.status if row else 'gone'}"


def _versions_stand(checking: _Checking) -> Iterator[str]:
    for call in checking.calls("resources"):
        version = call.got.get("version")
        if call.ok and call.given["token"] not in checking.snapshot.resources.get(
            (call.given["id"], version or 0), ""
        ):
            yield f"lost: version {version} of {call.given['id']}, acknowledged to {call}"


def _ended_once(snapshot: Snapshot, endings: Endings) -> Iterator[str]:
    for row in snapshot.rollouts.values():
        told = list(endings.get(row.id, ()))
        if row.status in ENDED and row.status not in told:
            yield f"{row.id} is {row.status}, and its kind was told {told}"
        if told.count(SUCCEEDED) > 1 or told.count(CANCELLED) > 1:
            yield f"{row.id} ended twice: {told}"


def _answered(history: History, deadline: float | None) -> Iterator[str]:
    for call in history:
        if call.code == UNTYPED:
            yield f"{call} got {call.message}"
        if deadline is not None and call.ended is not None and call.ended - call.started > deadline * 1e9:
            yield f"{call} took {(call.ended - call.started) / 1e9:.1f} s"


Rule = Callable[[_Checking], Iterator[str]]

_ROW_RULES: tuple[Rule, ...] = (
    _rules_of_the_rows,
    _statuses_agree,
    _resources_are_dense,
)
_RULES: tuple[Rule, ...] = (
    *_ROW_RULES,
    _enqueued_once,
    _claimed_once,
    _one_live_attempt,
    _reported_once,
    _spans_stored_once,
    _numbers_increase,
    _edits_stand,
    _cancels_stick,
    _versions_stand,
)


def _title(rule: Rule) -> str:
    return rule.__name__.strip("_").replace("_", " ")
