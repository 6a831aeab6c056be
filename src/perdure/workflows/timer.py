"""Does what is due for workflow runs: waits end, runs are admitted, stray phases are stopped.

Each thing is an operation that checks under the lock of the run whether it is still to be done, so that any
number of processes may look at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from perdure.executions.model import PhaseStarter
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    PerdureError,
    StorageClosed,
    StorageError,
    TooLarge,
)
from perdure.kernel.ids import uuid
from perdure.kernel.storage.port import Storage, Tx
from perdure.workflows import sql
from perdure.workflows.hints import CHANNEL, DUE
from perdure.workflows.inputs import Reading, filled, strings_in
from perdure.workflows.model import MAX_INLINE, MAX_ITEMS, QUEUED, NodeKey
from perdure.workflows.operations import dispatch, due, lifecycle
from perdure.workflows.operations.due import MapItem
from perdure.workflows.operations.runs import load_plans
from perdure.workflows.planner import PlannedPhase
from perdure.workflows.rows import DueNode, DueRun, WorkflowNodeRow, WorkflowRunRow
from perdure.workflows.steps import decode_state
from perdure.workflows.templates import find
from perdure.workflows.templates import parse as parse_template
from perdure.workflows.values import Stored, stored

POLL_SECONDS: Final = 5.0
SHORTEST_WAIT: Final = 0.05
POSTPONED: Final = 30.0

logger = logging.getLogger(__name__)

Settle = Callable[[], Awaitable[float | None]]
"""What else is due: it does it, and gives the seconds until the next time, or None."""


class Look(NamedTuple):
    """A node whose time has come, with what its templates read."""

    run: WorkflowRunRow
    planned: PlannedPhase
    node: WorkflowNodeRow
    scope: Mapping[str, Any]
    context: Mapping[str, Any]
    answer: str | None


class WorkflowTimer:
    """Does what is due for the runs of every namespace, from `start` to `stop`."""

    def __init__(
        self,
        storage: Storage,
        phases: PhaseStarter,
        *,
        cap: int,
        also: Sequence[Settle] = (),
        poll: float = POLL_SECONDS,
    ) -> None:
        self.storage = storage
        self.phases = phases
        self.cap = cap
        self.also = list(also)
        self.poll = poll
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look, in the running event loop; a second call does nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_looking())

    async def stop(self) -> None:
        """Stop looking. What has begun is finished."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _keep_looking(self) -> None:
        with self.storage.signals.watch(CHANNEL, [DUE]) as watch:
            try:
                while True:
                    await watch.changed(await self._look())
            except StorageClosed:
                logger.info("workflows are not looked after any more: the storage is closed")

    async def _look(self) -> float:
        """Do what is due; returns the seconds until the next look."""
        try:
            wait = await self.settle()
        except StorageClosed:
            raise
        except Exception as error:  # noqa: BLE001 - nobody else would look in its place
            logger.warning("workflows cannot be looked after, trying again in %s s: %s", self.poll, error)
            return self.poll
        return self.poll if wait is None else max(min(wait, self.poll), SHORTEST_WAIT)

    async def settle(self) -> float | None:
        """Do what is due in every namespace; returns the seconds until something is due again."""
        for run in await self._all(due.due_runs):
            await self._guarded(run.ns, self.tend(run), f"workflow run {run.id}")
        for node in await self._all(due.due_nodes):
            await self._guarded(
                node.ns, self._tend_node(node), f"node {node.node} of workflow run {node.run_id}", node
            )
        for ns in await self.storage.read(due.queued_namespaces):
            while await self.storage.run(dispatch.admit, self.cap, self.phases, ns=ns):
                pass
        waits = [await settle() for settle in self.also]
        waits.append(await self.storage.read(due.until_next))
        return min((wait for wait in waits if wait is not None), default=None)

    async def _all(self, operation: Any) -> Sequence[Any]:
        """What is due now. What comes while it is done is left for the next look."""
        found: Sequence[Any] = await self.storage.read(operation)
        return found

    async def _guarded(self, ns: int, doing: Awaitable[None], what: str, node: DueNode | None = None) -> None:
        """One that fails does not hold up the others."""
        try:
            await doing
        except (StorageError, asyncio.CancelledError):
            raise
        except Conflict as error:
            logger.info("%s moved meanwhile: %s", what, error)
        except (InvalidInput, NotFound, TooLarge) as error:
            # It comes from the workflow or from an agent's output: the run's error says it.
            logger.info("%s cannot go on: %s", what, error.message)
            await self._give_up(ns, node, error.message)
        except Exception as error:
            logger.exception("%s could not be looked after", what)
            known = error if isinstance(error, PerdureError) else PerdureError()
            await self._give_up(ns, node, known.public)

    async def _give_up(self, ns: int, node: DueNode | None, reason: str) -> None:
        """Fail a node that cannot go on; a run is looked at again."""
        if node is not None:
            key = NodeKey(node.node, node.item)
            await self.storage.run(due.give_up, node.run_id, key, reason, self.phases, ns=ns)

    # --- runs ---------------------------------------------------------------------------------------------

    async def tend(self, run: DueRun) -> None:
        """Do what is due for a run."""
        if run.status == QUEUED or run.due_at == run.deadline_at:
            await self.storage.run(due.expire, run.id, self.phases, ns=run.ns)
            return
        while True:
            left = await self.storage.run(due.stop_strays, run.id, self.phases, ns=run.ns)
            for child in left.children:
                await self._cancel_child(run.ns, child)
            if not left.more:
                break
        await self.storage.run(due.tell_parent, run.id, self.phases, ns=run.ns)
        await self.storage.run(due.tended, run.id, run.due_at, ns=run.ns)

    async def _cancel_child(self, ns: int, run_id: str) -> None:
        try:
            await self.storage.run(
                lifecycle.cancel, run_id, "the run that started it has ended", self.phases, ns=ns
            )
        except Conflict:
            logger.debug("workflow run %s had ended by itself", run_id)

    # --- nodes --------------------------------------------------------------------------------------------

    async def _tend_node(self, found: DueNode) -> None:
        """Do what is due for a node: what it needs is read and rendered outside of the transaction."""
        key = NodeKey(found.node, found.item)
        look = await self.storage.read(look_at, found.run_id, key, ns=found.ns)
        if look is None:
            return
        phase, arguments = look.planned.phase, (found.run_id, key)
        if decode_state(look.node).answer is not None:
            resume = encode_json(look.answer or "")
            await self.storage.run(due.enter_answer, *arguments, resume, self.phases, ns=found.ns)
        elif phase.type == "wait":
            await self.storage.run(due.end_wait, *arguments, self.phases, ns=found.ns)
        elif phase.type == "map" and not key.item:
            await self.storage.run(due.expand, *arguments, self._items(look), self.phases, ns=found.ns)
        else:
            await self.storage.run(due.start_child, *arguments, self._context(look), self.phases, ns=found.ns)

    def _new_id(self) -> str:
        return uuid(0, self.storage.ids)

    def _items(self, look: Look) -> list[MapItem]:
        """The items of a map phase."""
        values = resolve_items(look.planned.phase.items, look.scope)
        items: list[MapItem] = []
        for value in values:
            body = encode_json(value, what="an item")
            if len(body) <= MAX_INLINE:
                items.append(MapItem(value))
            else:
                items.append(MapItem(None, self._new_id(), body))
        return items

    def _context(self, look: Look) -> Stored:
        """The context of a workflow that a phase starts: its own values over those of its run."""
        own = filled(look.planned.phase.context, look.scope)
        more = {"item": look.scope["item"]} if "item" in look.scope else {}
        return stored({**look.context, **more, **own}, "context", self._new_id)


def resolve_items(given: Any, scope: Mapping[str, Any]) -> list[Any]:
    """The list of a map phase: as it is written, or from a template that leads to a list or renders one."""
    if isinstance(given, str):
        template = parse_template(given)
        path = template.only_path
        found = template.render(scope) if path is None else find(path, scope)
        if isinstance(found, str):
            found = _listed(found)
    else:
        found = filled(given, scope)
    if not isinstance(found, list):
        raise InvalidInput(f"the items of a map must be a list, not {type(found).__name__}")
    if len(found) > MAX_ITEMS:
        raise InvalidInput(f"a map has at most {MAX_ITEMS} items, not {len(found)}")
    return found


def _listed(text: str) -> Any:
    """A list in a text: as JSON, or a line for each item."""
    stripped = text.strip()
    if stripped.startswith("["):
        return decode_json(stripped)
    return [line.strip() for line in stripped.splitlines() if line.strip()]


async def look_at(tx: Tx, run_id: str, key: NodeKey) -> Look | None:
    """A node whose time has come, with what its templates read."""
    runs = await tx.all(sql.GET_RUNS, ids=[run_id])
    if not runs:
        return None
    (run,) = runs
    plan = (await load_plans(tx, runs))[run.id]
    reading = Reading(tx, run, plan)
    node = await reading.node(key)
    if node is None or node.due_at is None:
        return None
    planned = plan[key.node]
    texts = [*strings_in(planned.phase.items), *strings_in(planned.phase.context)]
    paths = {path for text in texts for path in parse_template(text).paths()}
    more = {"item": await reading.item(node), "itemNumber": key.item} if key.item else {}
    scope = await reading.values.scope(paths, **more)
    approval = decode_state(node).answer
    answers = await tx.all(sql.ANSWERS, ids=[approval]) if approval is not None else []
    answer = next((row.response for row in answers), None)
    return Look(run, planned, node, scope, await reading.values.whole_context(), answer)
