"""Search by id: an exact id, a prefix, or the newest of a kind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Literal, NamedTuple, get_args

from perdure.access.model import TokenRow
from perdure.diagnostics import find_sql as sql
from perdure.diagnostics.find_sql import ObjectMatchRow, RolloutMatchRow
from perdure.executions.model import PHASE
from perdure.graph_requests.model import GRAPH_REQUEST
from perdure.jobs.model import JOB
from perdure.kernel.clock import to_seconds
from perdure.kernel.record import Record
from perdure.kernel.storage.dialect import Statement
from perdure.kernel.storage.port import Tx
from perdure.memory.calendar import LEVELS
from perdure.rollouts.model import KEPT_TRACE, ROLLOUT, TASK
from perdure.schedules.model import API, FILE
from perdure.sessions.model import Session
from perdure.threads.model import RUN, RUN_KINDS, run_status

Kind = Literal[
    "run",
    "thread",
    "rollout",
    "attempt",
    "workflow_run",
    "approval",
    "phase",
    "schedule",
    "assistant",
    "session",
    "messaging_session",
    "trace",
    "span",
    "memory_node",
    "memory_event",
    "memory_grip",
    "worker",
    "effect",
    "resources",
    "job",
    "request",
    "token",
]
"""Kinds of objects with an id, in the order of lists."""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
LAST: Final = "last"
"""Stands for the newest of its kind."""
AFTER_ALL: Final = "\U0010ffff"
"""Sorts after every character of an id."""
NEWEST_SPANS = 20_000
"""A search by span id alone reads this number of the newest spans."""
MOST_ROLLOUTS = 2000
"""Number of rollouts of a range that are read to find some kinds."""
MAX_FOUND: Final = 100
ROLLOUT_KINDS: Final[dict[str, Kind]] = {
    TASK: "rollout",
    KEPT_TRACE: "rollout",
    RUN: "run",
    PHASE: "phase",
    JOB: "job",
    GRAPH_REQUEST: "request",
}
_STARTING: Final[dict[Kind, Sequence[Statement[ObjectMatchRow]]]] = {
    "attempt": [sql.ATTEMPTS],
    "thread": [sql.THREADS],
    "span": [sql.SPANS],
    "trace": [sql.TRACES],
    "messaging_session": [sql.MESSAGING_SESSIONS],
    "worker": [sql.WORKERS],
    "workflow_run": [sql.WORKFLOW_RUNS],
    "approval": [sql.APPROVALS],
    "schedule": [sql.SCHEDULES, sql.NAMED_SCHEDULES],
    "assistant": [sql.ASSISTANTS],
    "memory_event": [sql.MEMORY_EVENTS],
    "memory_node": [sql.MEMORY_NODES],
    "memory_grip": [sql.MEMORY_GRIPS],
    "effect": [sql.EFFECTS],
    "resources": [sql.RESOURCES],
}
_NEWEST: Final[dict[Kind, tuple[Statement[ObjectMatchRow], Sequence[dict[str, Any]]]]] = {
    "thread": (sql.NEWEST_THREADS, [{}]),
    "trace": (sql.NEWEST_TRACES, [{}]),
    "messaging_session": (sql.NEWEST_MESSAGING_SESSIONS, [{}]),
    "worker": (sql.NEWEST_WORKERS, [{}]),
    "workflow_run": (sql.NEWEST_WORKFLOW_RUNS, [{}]),
    "approval": (sql.NEWEST_APPROVALS, [{"open": 1}, {"open": 0}]),
    "schedule": (sql.NEWEST_SCHEDULES, [{"api": API, "origins": [API, FILE]}]),
    "assistant": (sql.NEWEST_ASSISTANTS, [{}]),
    "memory_event": (sql.NEWEST_MEMORY_EVENTS, [{}]),
    "memory_node": (sql.NEWEST_MEMORY_NODES, [{"level": level + 1} for level, _ in enumerate(LEVELS)]),
    "memory_grip": (sql.NEWEST_MEMORY_GRIPS, [{}]),
    "effect": (sql.NEWEST_EFFECTS, [{}]),
    "resources": (sql.NEWEST_RESOURCES, [{}]),
}
"""The statements that find the newest object of a kind, with their values; the newest row counts."""


class IdMatch(Record, kw_only=True):
    """An object with an id, in short."""

    kind: Kind
    id: str
    title: str | None = None
    """Name of an agent, workflow, span or schedule."""
    status: str | None = None
    time: float | None = None
    """Start, creation or last sign of life, in epoch seconds."""
    parent_id: str | None = None
    """Owner: the rollout of an attempt or span, the thread of a run, the workflow run of an approval."""


class IdFilter(NamedTuple):
    """The prefix of ids, and the kinds to search."""

    start: str
    kinds: Collection[Kind]
    limit: int

    def bounds(self, kind: Kind) -> dict[str, Any]:
        # ULIDs are stored in upper case, however the caller writes them.
        start = self.start.upper() if kind == "memory_event" else self.start
        return {"first": start, "last": start + AFTER_ALL, "n": self.limit}


async def starting(tx: Tx, wanted: IdFilter) -> list[IdMatch]:
    """Return the objects with ids that begin with the prefix, up to the limit of each kind."""
    matches = [rollout_to_match(row) for row in await _find_rollouts(tx, wanted)]
    for kind, statements in _STARTING.items():
        if kind in wanted.kinds:
            for statement in statements:
                most = {"most": NEWEST_SPANS} if kind == "span" else {}
                rows = await tx.all(statement, **wanted.bounds(kind), **most)
                matches += [row_to_match(kind, row) for row in rows]
    return matches


async def _find_rollouts(tx: Tx, wanted: IdFilter) -> list[RolloutMatchRow]:
    kinds = [own for own, kind in ROLLOUT_KINDS.items() if kind in wanted.kinds]
    bounds = wanted.bounds("rollout")
    if not kinds:
        return []
    if len(kinds) == len(ROLLOUT_KINDS):
        return await tx.all(sql.ROLLOUTS, **bounds)
    return await tx.all(sql.ROLLOUTS_OF_KINDS, **bounds, kinds=kinds, most=MOST_ROLLOUTS)


async def newest(tx: Tx, kinds: Collection[Kind]) -> list[IdMatch]:
    """Return the newest of each kind."""
    matches = []
    for kind in kinds:
        rows = await _newest(tx, kind)
        if rows:
            matches.append(max(rows, key=lambda match: match.time or 0.0))
    return matches


async def _newest(tx: Tx, kind: Kind) -> list[IdMatch]:
    if kind in _NEWEST:
        statement, terms = _NEWEST[kind]
        rows = [await tx.one(statement, **values) for values in terms]
        return [row_to_match(kind, row) for row in rows if row is not None]
    if kind == "attempt":
        rollouts = await newest(tx, ["rollout", "run", "phase"])
        attempts = [await tx.one(sql.LATEST_ATTEMPTS, rollout_id=rollout.id) for rollout in rollouts]
        return [row_to_match(kind, row) for row in attempts if row is not None]
    own = next((own for own, name in ROLLOUT_KINDS.items() if name == kind), None)
    if own is None:
        return []
    if own == RUN:
        run = await tx.one(sql.NEWEST_RUNS, kind=own)
        return [] if run is None else [rollout_to_match(run)]
    newest_rows = [await tx.one(sql.NEWEST_ROLLOUTS, kind=own, status=status) for status in ROLLOUT.statuses]
    return [rollout_to_match(row) for row in newest_rows if row is not None]


class TokenMatches(NamedTuple):
    """Tokens, and the time of the read."""

    now: int
    rows: list[TokenRow]


async def tokens_starting(tx: Tx, wanted: IdFilter) -> TokenMatches:
    """Return the tokens with ids that begin with the prefix."""
    return TokenMatches(tx.wall, await tx.all(sql.TOKENS, **wanted.bounds("token")))


async def newest_tokens(tx: Tx, limit: int) -> TokenMatches:
    return TokenMatches(tx.wall, await tx.all(sql.NEWEST_TOKENS, n=limit))


# --- from rows to records ---------------------------------------------------------------------------------


def rollout_to_match(row: RolloutMatchRow) -> IdMatch:
    return IdMatch(
        kind=ROLLOUT_KINDS.get(row.kind, "rollout"),
        id=row.id,
        title=row.title,
        status=run_status(row.status, row.outcome) if row.kind in RUN_KINDS else row.status,
        time=to_seconds(row.time),
        parent_id=row.within,
    )


def row_to_match(kind: Kind, row: ObjectMatchRow) -> IdMatch:
    return IdMatch(
        kind=kind,
        id=row.id,
        title=row.title,
        status=_STATUS.get(kind, _format_stored)(row.status),
        time=None if row.time is None else to_seconds(row.time),
        parent_id=row.within,
    )


def _format_stored(status: str | int | None) -> str | None:
    return None if status is None else str(status)


_STATUS: Final[dict[Kind, Callable[[Any], str]]] = {
    "trace": lambda errors: "error" if errors else "ok",
    "messaging_session": lambda active: "active" if active else "closed",
    "schedule": lambda enabled: "enabled" if enabled else "paused",
    "span": lambda code: str(code).lower(),
}
"""Names of statuses stored as numbers; other kinds store names."""


def session_to_match(session: Session) -> IdMatch:
    return IdMatch(
        kind="session",
        id=session.session_id,
        title=session.first_message,
        time=session.updated_at,
        parent_id=session.project,
    )


def token_to_match(row: TokenRow, now: int) -> IdMatch:
    expired = row.expire_time is not None and row.expire_time <= now
    ended = "revoked" if row.revoke_time is not None else "expired" if expired else "active"
    return IdMatch(kind="token", id=row.id, title=row.name, status=ended, time=to_seconds(row.create_time))


def ordered(matches: Sequence[IdMatch], wanted: str, limit: int) -> list[IdMatch]:
    """Return exact matches first, then by kind and id, each once."""
    once = {(match.kind, match.id): match for match in matches}
    exact = {key for key, match in once.items() if wanted == match.id or _is_named(match, wanted)}
    places = sorted(once, key=lambda key: (key not in exact, KINDS.index(key[0]), key[1]))
    return [once[place] for place in places[:limit]]


def _is_named(match: IdMatch, name: str) -> bool:
    return match.kind == "schedule" and match.title == name
