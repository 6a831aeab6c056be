"""Timer of workflow runs: ends waits, admits runs, stops stray phases.

Each action is an operation that checks under the lock of the run whether it is still due, so that any number
of processes may look at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.executions.model import PhaseStarter
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.due_loop import POLL_SECONDS, DueLoop, Settle
from perdure.kernel.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    PerdureError,
    StorageError,
    TooLarge,
)
from perdure.kernel.ids import uuid
from perdure.kernel.storage.port import Storage, Tx
from perdure.workflows import sql
from perdure.workflows.hints import CHANNEL, DUE
from perdure.workflows.inputs import Reading, render_value, strings_in
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

logger = logging.getLogger(__name__)


class Look(NamedTuple):
    """A due node, with the values that its templates read."""

    run: WorkflowRunRow
    planned: PlannedPhase
    node: WorkflowNodeRow
    scope: Mapping[str, Any]
    context: Mapping[str, Any]
    answer: str | None


class WorkflowTimer:
    """Background component that does due work for the runs of every namespace, from `start` to `stop`."""

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
        self._loop = DueLoop(storage.signals, CHANNEL, DUE, self.settle, work="workflow runs", poll=poll)

    async def start(self) -> None:
        """Begin to look, in the running event loop; a second call does nothing."""
        self._loop.start()

    async def stop(self) -> None:
        """Stop looking, and wait until the current action has ended."""
        await self._loop.stop()

    async def settle(self) -> float | None:
        """Do due work in every namespace. Return the seconds until the next due time."""
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
        """Read the work that is due now. Work that becomes due meanwhile is left for the next read."""
        rows: Sequence[Any] = await self.storage.read(operation)
        return rows

    async def _guarded(self, ns: int, doing: Awaitable[None], what: str, node: DueNode | None = None) -> None:
        """Do one action. If it fails, the other actions are not delayed."""
        try:
            await doing
        except (StorageError, asyncio.CancelledError):
            raise
        except Conflict as error:
            logger.info("%s changed meanwhile: %s", what, error)
        except (InvalidInput, NotFound, TooLarge) as error:
            # The cause is the workflow or the output of an agent, so it becomes the error of the run.
            logger.info("%s cannot continue: %s", what, error.message)
            await self._give_up(ns, node, error.message)
        except Exception as error:
            logger.exception("the due work of %s failed", what)
            public = (error if isinstance(error, PerdureError) else PerdureError()).public
            await self._give_up(ns, node, public)

    async def _give_up(self, ns: int, node: DueNode | None, reason: str) -> None:
        """Fail a node that cannot continue. A run is tried again at the next look."""
        if node is not None:
            key = NodeKey(node.node, node.item)
            await self.storage.run(due.give_up, node.run_id, key, reason, self.phases, ns=ns)

    # --- runs ---------------------------------------------------------------------------------------------

    async def tend(self, run: DueRun) -> None:
        """Do the due work of a run."""
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
        await self.storage.run(due.clear_due, run.id, run.due_at, ns=run.ns)

    async def _cancel_child(self, ns: int, run_id: str) -> None:
        try:
            await self.storage.run(
                lifecycle.cancel, run_id, "the run that started it has ended", self.phases, ns=ns
            )
        except Conflict:
            logger.debug("workflow run %s had already ended", run_id)

    # --- nodes --------------------------------------------------------------------------------------------

    async def _tend_node(self, due_node: DueNode) -> None:
        """Do the due work of a node. Read and render its values outside of the transaction."""
        key = NodeKey(due_node.node, due_node.item)
        look = await self.storage.read(look_at, due_node.run_id, key, ns=due_node.ns)
        if look is None:
            return
        phase, arguments = look.planned.phase, (due_node.run_id, key)
        if decode_state(look.node).answer is not None:
            resume = encode_json(look.answer or "")
            await self.storage.run(due.enter_answer, *arguments, resume, self.phases, ns=due_node.ns)
        elif phase.type == "wait":
            await self.storage.run(due.end_wait, *arguments, self.phases, ns=due_node.ns)
        elif phase.type == "map" and not key.item:
            await self.storage.run(due.expand, *arguments, self._items(look), self.phases, ns=due_node.ns)
        else:
            await self.storage.run(
                due.start_child, *arguments, self._context(look), self.phases, ns=due_node.ns
            )

    def _new_id(self) -> str:
        return uuid(0, self.storage.ids)

    def _items(self, look: Look) -> list[MapItem]:
        """Build the items of a map phase."""
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
        """Build the context of a workflow that a phase starts: its run's values, overlaid with its own."""
        own = render_value(look.planned.phase.context, look.scope)
        more = {"item": look.scope["item"]} if "item" in look.scope else {}
        return stored({**look.context, **more, **own}, "context", self._new_id)


def resolve_items(given: Any, scope: Mapping[str, Any]) -> list[Any]:
    """Return the list of a map phase: as written, or from a template that names or renders a list."""
    if isinstance(given, str):
        template = parse_template(given)
        path = template.only_path
        items = template.render(scope) if path is None else find(path, scope)
        if isinstance(items, str):
            items = _listed(items)
    else:
        items = render_value(given, scope)
    if not isinstance(items, list):
        raise InvalidInput(f"the items of a map must be a list, not {type(items).__name__}")
    if len(items) > MAX_ITEMS:
        raise InvalidInput(f"a map has at most {MAX_ITEMS} items, not {len(items)}")
    return items


def _listed(text: str) -> Any:
    """Parse a list in a text: JSON, or a line for each item."""
    stripped = text.strip()
    if stripped.startswith("["):
        return decode_json(stripped)
    return [line.strip() for line in stripped.splitlines() if line.strip()]


async def look_at(tx: Tx, run_id: str, key: NodeKey) -> Look | None:
    """Read a due node and the values of its templates. Return None if nothing is due any more."""
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
