"""Unit of work on a run: its locked row, its loaded nodes, and the pending writes.

Every change of a run goes through this class: `apply` takes a step of one of its phases, and `go_on` applies
the consequences to other nodes until nothing more changes. Nodes are read and written only under the lock of
their run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, cast

import msgspec

from perdure.approvals.gates import open_gate, withdraw_gates
from perdure.approvals.model import Decision, NewGate
from perdure.executions.model import NewPhase, PhaseStarter
from perdure.executions.operations import mark_failed, skip
from perdure.kernel import changes
from perdure.kernel.clock import from_iso, to_micros
from perdure.kernel.errors import Conflict, NotFound, PerdureError
from perdure.kernel.storage.dialect import Write
from perdure.kernel.storage.port import Tx
from perdure.workflows import sql, steps
from perdure.workflows.hints import CHANNEL, DUE, KIND, RUNS_CHANNEL, run_key
from perdure.workflows.model import (
    LIVE,
    MAX_JUMPS,
    MAX_LIVE,
    NODE_ENDED,
    PAUSED,
    PENDING,
    READY,
    RUN,
    RUNNING,
    SUCCEEDED,
    WAITING,
    WAITING_APPROVAL,
    Label,
    NodeKey,
    PhaseEnd,
    Role,
    error_text,
    parse_label,
)
from perdure.workflows.operations.history import RunHistory
from perdure.workflows.operations.orders import build_seed, new_phase
from perdure.workflows.operations.reading import RunValues
from perdure.workflows.planner import PlannedPhase, RunNodes, WorkflowPlan
from perdure.workflows.rows import WorkflowNodeRow, WorkflowRunRow
from perdure.workflows.steps import Execute, Fail, GateStep, Step, Succeed, Wait, decode_state, remember

RULE: Final = "skipped: trigger rule not satisfied"
ALL: Final = 100_000


class RunWork:
    """A run that a transaction works on."""

    def __init__(self, tx: Tx, run: WorkflowRunRow, plan: WorkflowPlan, phases: PhaseStarter) -> None:
        self.tx = tx
        self.run = run
        self.plan = plan
        self.board = RunNodes(plan, run)
        self.values = RunValues(tx, run, plan, self.phase)
        self._phases = phases
        self.history = RunHistory(run, plan, self.values, tx.now)
        self._new: list[WorkflowNodeRow] = []
        self._executing: list[tuple[WorkflowNodeRow, Execute]] = []
        self._skipped: list[WorkflowNodeRow] = []
        self._marked: list[tuple[str, str]] = []
        self._all_loaded = False

    @property
    def is_live(self) -> bool:
        return self.run.status in LIVE

    # --- nodes --------------------------------------------------------------------------------------------

    async def phase(self, name: str) -> WorkflowNodeRow | None:
        """Return a phase of the run."""
        return await self.node(NodeKey(name))

    async def node(self, key: NodeKey) -> WorkflowNodeRow | None:
        """Return a node of the run."""
        if key not in self.board.nodes and not (self._all_loaded and not key.item):
            row = await self.tx.one(sql.GET_NODE, run_id=self.run.id, node=key.node, item=key.item)
            if row is not None:
                self.board.add([row])
        return self.board.nodes.get(key)

    async def _load(self, names: Iterable[str]) -> None:
        wanted = sorted(names)
        if wanted:
            self.board.add(await self.tx.all(sql.GET_NODES, run_ids=[self.run.id], names=wanted))

    async def load_all(self) -> None:
        """Read all phases, without the items of maps."""
        if not self._all_loaded:
            self.board.add(await self.tx.all(sql.GET_PHASES, run_id=self.run.id))
            self._all_loaded = True

    async def _load_in(self, status: str, limit: int) -> None:
        self.board.add(await self.tx.all(sql.GET_IN_STATUS, run_id=self.run.id, status=status, n=limit))

    async def begin(self, nodes: Sequence[WorkflowNodeRow]) -> None:
        """Start a run that was just created with these nodes, or was admitted."""
        self.board.add(nodes)
        self._all_loaded = True
        for node in self.board.begin():
            await self._became_ready(node)
        await self.go_on()

    async def forget(self, names: Collection[str]) -> None:
        """Reset ended phases that start again, with their loops, items and started workflows."""
        for name in names:
            steps.forget(self.board.nodes[NodeKey(name)])
        self.board.drop_items(names)
        await self.tx.execute(sql.DROP_ITEMS, run_id=self.run.id, names=sorted(names))

    def take_nodes(self, nodes: Sequence[WorkflowNodeRow], new: Sequence[WorkflowNodeRow]) -> None:
        """Add all phases of a run that got another definition, and the phases that are new in it."""
        self.board.add([*nodes, *new])
        self._new += new
        self._all_loaded = True

    async def retry(self, anew: Collection[str] = ()) -> None:
        """Continue with the phases that are not done, and start these phases again."""
        await self.load_all()
        again = self.board.unfinished().union(anew)
        if anew:
            await self.forget(anew)
        for name in self.plan.phases:
            if name not in again:
                await self.history.say_done(self.board.nodes[NodeKey(name)])
        for name in again:
            node = self.board.nodes[NodeKey(name)]
            state = decode_state(node)
            state.soft = 0
            remember(node, state)
        for node in self.board.reset(again):
            if self.plan[node.node].runs_after(node.succeeded_before, node.failed_before):
                self.board.move(node, "dependencies ended")
                await self._became_ready(node)
            else:
                self.board.end(node, "skipped")
                self._skip(node, RULE)
        await self.go_on()

    # --- steps --------------------------------------------------------------------------------------------

    async def phase_ended(self, node: WorkflowNodeRow, end: PhaseEnd) -> None:
        """Apply the end of an execution."""
        planned = self.plan[node.node]
        node.rollout_id, node.dirty = None, True
        after = steps.after(planned, node, end, await self.values.view(planned, node))
        for note in after.notes:
            await self.history.say(node, note)
        await self._keep_slot(planned, node, after.step)
        await self.apply(node, after.step)

    async def _keep_slot(self, planned: PlannedPhase, node: WorkflowNodeRow, step: Step) -> None:
        """Store the progress of a loop in the scratch: its iteration and the execution of its output."""
        loop = planned.phase.generic_loop
        if loop is None or node.execution_id is None:
            return
        done = node.iteration - (isinstance(step, Execute) and step.label.kind == "iter")
        change: dict[str, Any] = {"iteration": done, "lastOutputExecutionId": node.execution_id}
        if decode_state(node).completed:
            change["ready"] = True
        await self.values.set_slot(loop.scratch_key or planned.name, change)

    async def apply(self, node: WorkflowNodeRow, step: Step) -> None:
        """Apply a step of a node."""
        if isinstance(step, Execute):
            self._execute(node, step)
        elif isinstance(step, Succeed):
            await self.succeed(node, step)
        elif isinstance(step, Fail):
            error = step.error
            if step.message is not None:
                (rendered,) = await self.history.rendered(node, step.message)
                error = rendered or error
            if step.marks:
                self.reject(node.execution_id, error)
            await self.fail(node, error)
        elif isinstance(step, GateStep):
            await self._open(node, step)
        elif isinstance(step, Wait):
            await self._wait(node)
        else:
            await self._prepare(node)

    def reject(self, execution_id: str | None, error: str) -> None:
        """Count an execution that succeeded as failed."""
        if execution_id is not None:
            self._marked.append((execution_id, error))

    def _execute(self, node: WorkflowNodeRow, step: Execute) -> None:
        """Execute a part of a phase. A running node keeps its slot; other nodes wait for a slot."""
        node.role, node.label, node.dirty = step.role, str(step.label), True
        if node.status == RUNNING and not self.run.held:
            self._executing.append((node, step))
        elif node.status != READY:
            self.board.move(node, "queued again")

    async def succeed(self, node: WorkflowNodeRow, step: Succeed) -> None:
        """End a node as succeeded."""
        node.execution_id, node.ended_at = step.output or node.execution_id, self.tx.now
        message = self.plan[node.node].phase.messages.on_success if not node.item else None
        summary = step.summary
        if step.summary is not None or message is not None:
            (summary,) = await self.history.rendered(node, step.summary or message)
        self.history.enter(self._name(node), True, summary)
        self.board.end(node, "succeeded")
        if node.item:
            await self._item_ended(node)

    async def fail(self, node: WorkflowNodeRow, error: str, *, run_error: str | None = None) -> None:
        """End a node as failed, or go to the phase that its failure leads to."""
        planned = self.plan[node.node]
        node.ended_at, node.error = self.tx.now, error_text(error)
        summary = node.error
        message = planned.phase.messages.on_failure if not node.item else None
        if message is not None:
            (rendered,) = await self.history.rendered(node, message, error=error)
            summary = rendered or summary
        self.history.enter(self._name(node), False, summary)
        if node.item:
            self.board.end(node, "failed")
            await self._item_ended(node)
            return
        goes_to = planned.phase.on_failure
        if goes_to is not None and goes_to.action == "goto" and await self._jump(node, goes_to.phase or ""):
            return
        fails_run = planned.fails_run or (goes_to is not None and goes_to.action == "goto")
        if fails_run and self.run.error is None:
            self.run.error = run_error or error_text(f"phase {self._name(node)} failed: {error}")
        self.board.end(node, "failed", fails_run=fails_run)

    def _name(self, node: WorkflowNodeRow) -> str:
        return str(Label(node.node, "item", node.item)) if node.item else node.node

    async def _jump(self, node: WorkflowNodeRow, target: str) -> bool:
        """Go to another phase after a failure: it and its dependents start again."""
        state = decode_state(node)
        if target not in self.plan.phases or state.jumps >= MAX_JUMPS:
            return False
        await self.load_all()
        again = {target, *self.plan.after(target)}
        others = [self.board.nodes[NodeKey(name)] for name in again if NodeKey(name) in self.board.nodes]
        if any(other.status == WAITING for other in others):
            return False
        state.jumps += 1
        remember(node, state)
        if any(other.rollout_id is not None for other in others):
            self.tend()
        if node.node not in again:
            self.board.end(node, "failed")
        self.board.reset(again)
        await self.forget([other.node for other in others])
        forced = self.board.nodes[NodeKey(target)]
        self.board.move(forced, "dependencies ended")
        await self._became_ready(forced)
        return True

    # --- waiting ------------------------------------------------------------------------------------------

    async def _open(self, node: WorkflowNodeRow, step: GateStep) -> None:
        """Wait for a person."""
        phase = self.plan[node.node].phase
        if step.reason == "approval":
            await self.history.say_start(node)
        output = None if node.execution_id is None else "${" + node.node + ".output}"
        asked = step.message or step.question or (output if step.kind == "reply" else None)
        texts = [None if step.question is not None and step.message is None else asked, step.artifact]
        message, artifact = await self.history.rendered(node, *texts)
        state = decode_state(node)
        state.gate = step.reason
        remember(node, state)
        gate = NewGate(
            gate=step.name,
            label=step.label,
            summary=message or step.question or f"{self.run.workflow_name}: {phase.label or step.label}",
            kind=step.kind,
            artifact=artifact,
            requested_by=self.run.triggered_by,
            assignees=phase.assignees,
            expires_after=None if phase.expires_after is None else to_micros(phase.expires_after),
            on_expiry=phase.on_expiry,
            remind_every=None if phase.remind_every is None else to_micros(phase.remind_every),
            answer_by=phase.answer_by,
        )
        node.started_at = node.started_at or self.tx.now
        self.board.move(node, "waits")
        self.run.gates += 1
        node.approval_id = await open_gate(self.tx, self.run, str(node.key), gate)
        what = "reply" if step.kind == "reply" else "approval"
        self.history.enter(WAITING_APPROVAL, True, f"Waiting for {what}: {step.name} ({node.approval_id})")

    async def resumed(self, node: WorkflowNodeRow, decision: Decision) -> None:
        """Apply the answer of a person."""
        planned, state = self.plan[node.node], decode_state(node)
        self.run.gates -= 1
        node.approval_id, node.dirty = None, True
        self.run.current_phase = self._name(node)
        if not decision.proceeds:
            await self.fail(node, decision.error, run_error=decision.error)
            return
        if state.gate == "interrupt":
            # The timer continues the graph, because the line of its thread must be locked before the run.
            state.gate, state.answer = None, decision.approval_id
            remember(node, state)
            node.due_at = self.tx.now
            self.tx.hint(CHANNEL, DUE)
            return
        loop = planned.phase.generic_loop
        if state.gate == "loop" and loop is not None and decision.kind == "reply":
            await self.values.keep_answer(loop.scratch_key or planned.name, node, decision)
        await self.apply(node, steps.resumed(planned, node, await self.values.view(planned, node)))

    async def _wait(self, node: WorkflowNodeRow) -> None:
        """Wait for a time."""
        phase = self.plan[node.node].phase
        due_at = self.tx.now + to_micros(phase.seconds or 0.0)
        if phase.until_time is not None:
            (text,) = await self.history.rendered(node, phase.until_time)
            try:
                due_at = self.tx.now + from_iso((text or "").strip()) - self.tx.wall
            except ValueError:
                await self.fail(node, f"until_time is {text!r}; it must be a time in ISO 8601")
                return
        await self.history.say_start(node)
        node.started_at = node.started_at or self.tx.now
        self.board.move(node, "waits")
        node.due_at = due_at
        self.tx.hint(CHANNEL, DUE)

    async def _prepare(self, node: WorkflowNodeRow) -> None:
        """Let the timer prepare a workflow or the items of a map outside of this transaction."""
        await self.history.say_start(node)
        node.started_at = node.started_at or self.tx.now
        self.board.move(node, "waits")
        node.due_at = self.tx.now
        self.tx.hint(CHANNEL, DUE)

    def tend(self) -> None:
        """Let the timer do work for the run in a separate transaction."""
        self.run.due_at = self.tx.now
        self.tx.hint(CHANNEL, DUE)

    async def answer_order(self, node: WorkflowNodeRow, resume: str) -> NewPhase:
        """Build the phase that continues in the thread of a graph that asked; `resume` is JSON."""
        step = Execute(cast(Role, node.role or "work"), parse_label(node.label or node.node))
        order = await self._order(node, step)
        if isinstance(order, str):
            raise Conflict(order)
        return msgspec.structs.replace(order, thread_id=decode_state(node).thread_id, resume=resume)

    def answered(self, node: WorkflowNodeRow, rollout_id: str) -> None:
        """Mark a node as running: its graph continues with an answer."""
        state = decode_state(node)
        state.answer = state.thread_id = None
        remember(node, state)
        self.board.move(node, "started")
        node.rollout_id = rollout_id

    # --- items of a map -----------------------------------------------------------------------------------

    async def expand(self, node: WorkflowNodeRow, items: Sequence[tuple[Any, str | None]]) -> None:
        """Start the items of a map phase, each given as a value or as the row of a large value."""
        if not items:
            node.due_at = None
            await self.succeed(node, Succeed("no items"))
            return
        new = [steps.new_item(node, number) for number in range(1, len(items) + 1)]
        for item, (value, output) in zip(new, items, strict=True):
            remember(item, steps.NodeState(value=value, output=output))
        self.board.add(new)
        self._new += new
        await self._begin_items(node, new)

    async def expand_again(self, node: WorkflowNodeRow) -> None:
        """Retry the items of a map phase that have not succeeded."""
        items = await self.tx.all(sql.ALL_ITEMS, run_id=self.run.id, node=node.node)
        self.board.add(items)
        for item in items:
            if item.status != SUCCEEDED:
                self.board.move(item, "reset")
                item.error = item.ended_at = item.rollout_id = None
        await self._begin_items(node, items)

    async def _begin_items(self, node: WorkflowNodeRow, items: Sequence[WorkflowNodeRow]) -> None:
        node.due_at = None
        left = [item for item in items if item.status == PENDING]
        state = decode_state(node)
        state.total, state.done, state.lost = len(items), len(items) - len(left), 0
        remember(node, state)
        for item in left[: self.plan[node.node].phase.max_parallel or MAX_LIVE]:
            self.board.move(item, "dependencies ended")
            await self._became_ready(item)

    async def _item_ended(self, item: WorkflowNodeRow) -> None:
        """Count an ended item. The next item takes its slot; the last item ends the phase."""
        node = await self.phase(item.node)
        if node is None or node.status != WAITING:
            return
        state = decode_state(node)
        state.done += 1
        state.lost += item.status != SUCCEEDED
        remember(node, state)
        if state.done < state.total:
            await self._next_item(node)
        elif state.lost:
            await self.fail(node, f"{state.lost} of {state.total} items failed")
        else:
            await self.succeed(node, Succeed(f"{state.total} items"))

    async def _next_item(self, node: WorkflowNodeRow) -> None:
        """Start the next item of a map phase."""
        if not self._pending_items(node):
            # Items started in this transaction are still pending in the database.
            started = sum(key.node == node.node for key in self.board.nodes)
            items = await self.tx.all(
                sql.GET_ITEMS, run_id=self.run.id, status=PENDING, position=node.position, n=started + 1
            )
            self.board.add(items)
        following = min(self._pending_items(node), key=lambda item: item.item, default=None)
        if following is not None:
            self.board.move(following, "dependencies ended")
            await self._became_ready(following)

    def _pending_items(self, node: WorkflowNodeRow) -> list[WorkflowNodeRow]:
        """Return the loaded items of a map phase that have not started, including items not stored yet."""
        items = (item for key, item in self.board.nodes.items() if key.item and key.node == node.node)
        return [item for item in items if item.status == PENDING]

    # --- progress -----------------------------------------------------------------------------------------

    async def go_on(self) -> None:
        """Apply the consequences of ended nodes until nothing more changes; then update the run's status."""
        while True:
            while not self.board.is_settled:
                await self._load(self.board.needs())
                settled = self.board.settle()
                for node in settled.skipped:
                    self._skip(node, RULE)
                for node in settled.ready:
                    await self._became_ready(node)
            await self._take_places()
            if not await self._start():
                break
        self._conclude()

    def _skip(self, node: WorkflowNodeRow, reason: str) -> None:
        node.ended_at, node.error = self.tx.now, reason
        self.run.skipped += 1
        self._skipped.append(node)

    async def _became_ready(self, node: WorkflowNodeRow) -> None:
        """Skip a phase on its own conditions, or begin it. A phase for a worker waits for a slot."""
        planned = self.plan[node.node]
        reason = None if node.item else await self._skip_reason(planned)
        if reason is not None:
            # `started_at` marks that its conditions were checked, so that a retry does not start it again.
            node.started_at = self.tx.now
            self.board.end(node, "skipped")
            self._skip(node, f"skipped: {reason}")
            await self.history.say_done(node)
            return
        step = steps.begin(planned, node)
        if not isinstance(step, Execute):
            await self.apply(node, step)

    async def _skip_reason(self, planned: PlannedPhase) -> str | None:
        """Return why a phase is skipped on its own conditions, or None."""
        missing = steps.find_missing_sandbox(planned.phase, self.values.config)
        if missing is not None or not planned.skip_conditions:
            return missing
        conditions = planned.skip_conditions
        scope = await self.values.scope({path for condition in conditions for path in condition.paths()})
        return next((condition.text for condition in conditions if condition.holds(scope)), None)

    async def _take_places(self) -> None:
        """Start ready nodes, in order, up to the limit of running nodes."""
        run = self.run
        free = min(run.max_parallel or MAX_LIVE, MAX_LIVE) - run.running_nodes
        if run.held or free <= 0 or not run.ready_nodes or run.status not in (RUNNING, PAUSED):
            return
        if sum(node.status == READY for node in self.board.nodes.values()) < run.ready_nodes:
            await self._load_in(READY, free)
        ready = [node for node in self.board.nodes.values() if node.status == READY]
        for node in sorted(ready, key=lambda node: (node.position, node.item))[:free]:
            step = steps.begin(self.plan[node.node], node)
            self.board.move(node, "started")
            if isinstance(step, Execute):
                self._execute(node, step)
            else:
                await self.apply(node, step)

    async def _start(self) -> bool:
        """Enqueue the pending executions. Return True if that ended a node."""
        starting, self._executing = self._executing, []
        orders: list[NewPhase] = []
        nodes: list[WorkflowNodeRow] = []
        for node, step in starting:
            order = await self._order(node, step)
            if isinstance(order, str):
                await self.fail(node, order)
            else:
                nodes.append(node)
                orders.append(order)
        answers = await self._phases.create(self.tx, orders) if orders else []
        for node, answer in zip(nodes, answers, strict=True):
            if isinstance(answer, NotFound):
                await self.fail(node, answer.message)
            else:
                node.rollout_id = answer
                await self.history.say_start(node)
                node.started_at = node.started_at or self.tx.now
        # A failed node frees its place for another.
        return any(node.status != RUNNING for node, _ in starting) or bool(self._executing)

    async def _order(self, node: WorkflowNodeRow, step: Execute) -> NewPhase | str:
        """Build the phase that a worker executes, or return the reason why it cannot be executed."""
        planned = self.plan[node.node]
        try:
            (assistant,) = await self.values.render(planned, [planned.phase.assistant_of(step.role)])
        except PerdureError as error:
            return error.message
        context = await self.values.context() if steps.reads_context(planned.phase) else {}
        return new_phase(self.run, planned.phase, node, step, assistant, self.values.config, context)

    def _conclude(self) -> None:
        """Update the run's status from its nodes."""
        run = self.run
        if run.status not in (RUNNING, PAUSED):
            return
        if not run.open_nodes:
            self.finish("failed" if run.failed_nodes else "succeeded")
            return
        waits = run.gates > 0 and not run.running_nodes and not run.ready_nodes
        paused = bool(run.held) or (waits and run.waiting_nodes == run.gates)
        run.status = RUN.step(run.status, "paused" if paused else "resumed")
        if run.status == PAUSED and run.gates:
            run.current_phase = WAITING_APPROVAL

    def finish(self, event: str, error: str | None = None) -> None:
        """End the run."""
        run = self.run
        if not RUN.moves(run.status, event):
            return
        run.status = RUN.step(run.status, event)
        run.finished_at, run.active, run.held, run.queued_at = self.tx.now, None, None, None
        run.due_at = run.deadline_at = None
        if error is not None:
            run.error = error_text(error)
        marker = self.plan.success_marker if run.status == SUCCEEDED else None
        if marker is not None:
            self.history.enter(marker, True, None)
        if run.parent_run_id is not None:
            self.tend()
        self.tx.hint(CHANNEL, DUE)

    async def stop(self, event: str, error: str | None) -> None:
        """End the run early: its nodes and gates end with it, and its phases are stopped later."""
        await self.load_all()
        for status in (READY, RUNNING, WAITING, PENDING):
            await self._load_in(status, ALL)
        self.board.cancel()
        for node in self.board.nodes.values():
            if node.status in NODE_ENDED and node.ended_at is None:
                node.ended_at, node.dirty = self.tx.now, True
        if self.run.gates:
            await withdraw_gates(self.tx, [self.run.id])
        self.run.gates, self._executing = 0, []
        self.finish(event, error)
        self.tend()

    # --- writing ------------------------------------------------------------------------------------------

    async def save(self) -> list[Write]:
        """Write to the tables of other domains. Return the writes to the run's own tables."""
        run = self.run
        for reason in sorted({node.error or "" for node in self._skipped}):
            nodes = [node for node in self._skipped if node.error == reason]
            await skip(self.tx, [build_seed(run, self._name(node)) for node in nodes], reason)
        for execution_id, error in self._marked:
            await mark_failed(self.tx, [execution_id], error)
            run.succeeded, run.failed = run.succeeded - 1, run.failed + 1
        run.updated_at = self.tx.now
        self.tx.hint(RUNS_CHANNEL, run_key(self.tx.ns, run.id))
        changes.tell(self.tx, KIND, [(run.id, run.status)])
        new = {node.key for node in self._new}
        moved = [node for node in self.board.nodes.values() if node.dirty and node.key not in new]
        return [
            sql.MOVE_NODES.of(moved),
            sql.ADD_NODES.of(self._new),
            sql.ADD_HISTORY.of(self.history.rows),
        ]
