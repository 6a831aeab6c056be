"""Kinds of rollouts: a process sweeps only those that it has registered."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import UNSET
from tests.rollouts.house import House

from perdure.kernel.errors import NotFound
from perdure.rollouts.encoding import attempted_from
from perdure.rollouts.model import TASK, RolloutKind
from perdure.rollouts.operations import enqueue as enqueues
from perdure.rollouts.operations import queries
from perdure.rollouts.operations.enqueue import NewRollout
from perdure.rollouts.operations.queries import Query
from perdure.rollouts.operations.report import SWEEP_ROWS
from perdure.rollouts.records import AttemptedRollout
from perdure.rollouts.rows import ClaimedRollout
from perdure.rollouts.service import Rollouts
from perdure.testing.contract.support import make_span

NEWER = "newer"
"""A kind that only one of two processes has registered."""
LIMITED = '{"timeout_seconds":10.0,"unresponsive_seconds":null,"max_attempts":1,"retry_condition":[]}'
EVERYTHING = Query()
PATIENCE = 20.0


# --- the sweep --------------------------------------------------------------------------------------------


async def _start(rollouts: Rollouts, count: int) -> list[ClaimedRollout]:
    new = _part(rollouts.kind)
    return await rollouts.write(enqueues.start_rollouts, [new] * count, rollouts.kinds)


async def _statuses(house: House, kind: str) -> set[str]:
    """Return the stored statuses, without a sweep before."""
    ns = await house.rollouts(RolloutKind(kind)).ns()
    (rows, _), _ = await house.storage.read(queries.query_rollouts, EVERYTHING, kind, ns=ns)
    return {row.status for row in rows}


async def test_a_sweep_leaves_alone_what_its_process_does_not_know(house: House) -> None:
    """Use as many rollouts as one sweep takes, all of them overdue for longer than a task."""
    newer, tasks = house.rollouts(RolloutKind(NEWER)), house.rollouts(RolloutKind(TASK))
    await _start(newer, SWEEP_ROWS)
    await house.advance(1)
    await _start(tasks, 1)
    await house.advance(20)
    await asyncio.wait_for(tasks.watchdog.sweep(), PATIENCE)
    assert await _statuses(house, TASK) == {"failed"}
    assert await _statuses(house, NEWER) == {"preparing"}
    await newer.watchdog.sweep()
    assert await _statuses(house, NEWER) == {"failed"}


async def test_nobody_sweeps_for_what_is_overdue_and_unknown(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer, tasks = house.rollouts(RolloutKind(NEWER)), house.rollouts(RolloutKind(TASK))
    await _start(newer, 1)
    await _start(tasks, 1)
    await house.advance(20)
    assert {each.status for each in (await tasks.search()).items} == {"failed"}
    swept: list[None] = []

    async def sweep() -> None:
        swept.append(None)

    monkeypatch.setattr(tasks.watchdog, "sweep", sweep)
    await tasks.search()
    assert not swept
    await newer.watchdog.sweep()


async def test_spans_of_an_unknown_kind_are_refused(house: House) -> None:
    newer, tasks = house.rollouts(RolloutKind(NEWER)), house.rollouts(RolloutKind(TASK))
    (started,) = await _start(newer, 1)
    with pytest.raises(NotFound):
        await tasks.store_spans([make_span(attempted_from(started))])


# --- children of a parent -----------------------------------------------------------------------------


def _part(kind: str, parent: str | None = None, **fields: Any) -> NewRollout:
    new = NewRollout(input="1", config=LIMITED, metadata="{}", resources_id="r", kind=kind, parent=parent)
    return msgspec.structs.replace(new, **fields)


async def test_a_rollout_shows_what_it_is_a_part_of(house: House) -> None:
    tasks = house.rollouts(RolloutKind(TASK), RolloutKind(NEWER))
    queued = [
        await tasks.enqueue_new(new)
        for new in (_part(TASK), _part(TASK, "whole"), _part(NEWER, "whole"), _part(NEWER, "other"))
    ]
    alone, task, newer, _ = [each.rollout_id for each in queued]
    assert [each.parent for each in queued] == [UNSET, "whole", "whole", "other"]
    assert "parent" not in queued[0].model_dump()
    assert (await tasks.get(newer)).parent == "whole"
    parts = await tasks.search(parent="whole", sort_order="asc")
    assert ([each.rollout_id for each in parts.items], parts.total) == ([task, newer], 2)
    (claimed,) = await tasks.claim("w", limit=1)
    assert (claimed.rollout_id, claimed.parent) == (alone, UNSET)
    (claimed,) = await tasks.claim("w", limit=1)
    assert (claimed.rollout_id, claimed.parent) == (task, "whole")
    found = await tasks.search(parent="whole", status=["preparing"])
    assert [each.rollout_id for each in found.items] == [task]
    assert isinstance(found.items[0], AttemptedRollout)
    assert {each.rollout_id for each in (await tasks.search()).items} == {alone, task}
    assert not (await tasks.search(parent="nobody")).items
