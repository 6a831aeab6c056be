"""Walks over threads that are idle for too long, and conversations whose last message is too old.

A thread is kept while it has an open run, while the worker of a cancelled run has not stopped, and while a
schedule continues it. A conversation is kept while one of its turns is open.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.executions.model import PHASE
from perdure.kernel.storage.port import Tx
from perdure.messaging import sql as messaging_sql
from perdure.messaging.model import OldSession
from perdure.messaging.operations.remove import (
    FOUND_SESSIONS,
    delete_executions,
    delete_session,
    end_quietly,
    is_open,
    old_sessions,
)
from perdure.retention import sql
from perdure.retention.walking import Dropped, DueItem, DueItems, Walk
from perdure.rollouts.operations.lines import lock_lines
from perdure.rollouts.operations.remove import delete_unused, drop_free_lines, in_line, unused_rollouts
from perdure.threads.operations.remove import (
    FOUND_THREADS,
    count_removed,
    give_up_threads,
    old_single_threads,
    old_threads,
    remove_idle,
    traces_of_removed,
)
from perdure.threads.removal_sql import OldThread

THREADS_AT_ONCE = 20
TURNS = 100
"""Number of turns that one transaction deletes."""


async def _find_threads(tx: Tx, age: int, place: OldThread | None, single: bool = False) -> DueItems:
    find = old_single_threads if single else old_threads
    page = await find(tx, tx.now - age, place or OldThread(0, ""))
    ids = [row.id for row in page]
    kept = set(await tx.all(sql.SCHEDULED_THREADS, ids=ids)) if ids else set()
    return [DueItem(id) for id in ids if id not in kept], page[-1] if len(page) == FOUND_THREADS else None


async def _drop_threads(tx: Tx, age: int, ids: Sequence[str], single: bool = False) -> Dropped:
    some = ids[:THREADS_AT_ONCE]
    kept = set(await tx.all(sql.SCHEDULED_THREADS, ids=list(some)))
    gone = await remove_idle(tx, [id for id in some if id not in kept], tx.now - age, single=single)
    return Dropped(len(gone), ids[THREADS_AT_ONCE:])


THREADS = [Walk(_find_threads, _drop_threads)]
SINGLE_THREADS = [Walk(_find_threads, _drop_threads, (True,))]
"""Threads that were created for one run."""


async def _find_sessions(tx: Tx, age: int, place: OldSession | None) -> DueItems:
    page = await old_sessions(tx, tx.now - age, place or OldSession(-1, ""))
    return [DueItem(row.id) for row in page], page[-1] if len(page) == FOUND_SESSIONS else None


async def _drop_sessions(tx: Tx, age: int, ids: Sequence[str]) -> Dropped:
    """Delete a part of the first conversation. It ends first, so that no new turn can begin."""
    first, *rest = ids
    before = tx.now - age
    seen = await tx.one(messaging_sql.GET_SESSION, id=first)
    if seen is None:
        return Dropped(0, rest)
    await lock_lines(tx, [seen.line])
    turns = await in_line(tx, seen.line, TURNS)
    unused = await unused_rollouts(tx, turns, before, lock=True)
    session = await tx.one(messaging_sql.LOCK_SESSION, id=first)
    if session is None or len(unused) < len(turns) or await is_open(tx, session, before):
        await drop_free_lines(tx, [seen.line])
        return Dropped(0, rest)
    await end_quietly(tx, session)
    await give_up_threads(tx, [session.line])
    if turns:
        traces = await traces_of_removed(tx, [row.id for row in unused])
        removal = await delete_unused(tx, unused, PHASE)
        count_removed(tx, [row for row in traces if row.id in set(removal.gone)], -1)
        await delete_executions(tx, removal.gone)
        if removal.left or len(turns) == TURNS:
            return Dropped(0, ids)
    gone = await delete_session(tx, session)
    await drop_free_lines(tx, [session.line])
    return Dropped(int(gone), rest if gone else ids)


MESSAGING = [Walk(_find_sessions, _drop_sessions)]
