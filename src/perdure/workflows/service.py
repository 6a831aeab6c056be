"""Service of the workflows of one namespace and their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, to_builtins

from perdure.executions.model import PhaseStarter
from perdure.kernel.checks import (
    Id,
    Limit,
    check_choice,
    check_choices,
    check_id,
    check_name,
    check_number,
    check_page,
    check_text,
    optional_text,
)
from perdure.kernel.clock import from_iso, to_iso
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.kernel.ids import uuid
from perdure.kernel.pages import Part
from perdure.kernel.storage.port import Storage
from perdure.service.base import Service
from perdure.service.callers import Caller
from perdure.service.endpoints import GET, PATCH, POST, Acknowledged, call
from perdure.workflows import views
from perdure.workflows.model import (
    DEFAULT_CAP,
    DEFINITION_CHOICES,
    LIVE,
    RUN_STATUSES,
    TRIGGER_TYPES,
    DefinitionChoice,
    RunStatus,
    TriggerType,
)
from perdure.workflows.operations import dispatch, lifecycle, queries, retrying, scratch
from perdure.workflows.operations.dispatch import Dispatched, NewWorkflowRun
from perdure.workflows.operations.overrides import disabled
from perdure.workflows.operations.queries import LogQuery, WholeRun, WorkflowRunFilter
from perdure.workflows.records import (
    Dispatch,
    HistoryEntry,
    LogMatch,
    RunDefinition,
    RunDiff,
    WorkflowDetail,
    WorkflowInfo,
    WorkflowRun,
    WorkflowRunPage,
    WorkflowRunSummary,
    WorkflowStatusCounts,
)
from perdure.workflows.registry import WorkflowRegistry
from perdure.workflows.rows import DueRun, ExecutionLogRow
from perdure.workflows.timer import WorkflowTimer
from perdure.workflows.values import Config, stored

MAX_NAME = 128
MAX_TRIGGER = 1024
MAX_SEARCH = 200
EXCERPT = 200
CONTROL_KEYS = frozenset({"models", "variants"})

WorkflowName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
TriggerId = Annotated[str, Meta(min_length=1, max_length=MAX_TRIGGER)]
Parallel = Annotated[int, Meta(ge=1, le=1000)]
LogScope = Literal["errors", "outputs", "all"]
Infos = list[WorkflowInfo]
Counts = list[WorkflowStatusCounts]
Entries = list[HistoryEntry]
Names = list[str]
Statuses = Annotated[Sequence[RunStatus], Meta(max_length=len(RUN_STATUSES))] | None


class Workflows(Service):
    """The workflows of one namespace, and their runs."""

    def __init__(
        self,
        storage: Storage,
        definitions: WorkflowRegistry,
        phases: PhaseStarter,
        *,
        config: Config | None = None,
        cap: int = DEFAULT_CAP,
        namespace: str = "default",
        caller: Caller | None = None,
    ) -> None:
        super().__init__(storage, namespace=namespace, caller=caller)
        self.definitions = definitions
        self.phases = phases
        self.config = config or Config()
        self.cap = cap
        self._config_text = encode_json(self.config)

    # --- definitions --------------------------------------------------------------------------------------

    @call(GET("/workflows"), scope="read")
    async def list(self) -> Infos:
        """List the workflows that can be run."""
        off = await self.read(disabled)
        return [
            views.build_info(entry.workflow, entry.file, enabled=entry.workflow.name not in off)
            for entry in self.definitions.list()
        ]

    @call(GET("/workflows/{name}"), scope="read", errors=(NotFound,))
    async def show(self, name: WorkflowName) -> WorkflowDetail:
        """Get a workflow with its definition."""
        entry = self.definitions.get(check_name(name, "name", max_length=MAX_NAME))
        off = await self.read(disabled)
        return views.build_detail(entry.workflow, entry.file, enabled=entry.workflow.name not in off)

    # --- runs ---------------------------------------------------------------------------------------------

    @call(POST("/workflows/{name}/runs"), scope="write", status=201, errors=(NotFound,))
    async def run(
        self,
        name: WorkflowName,
        *,
        context: Mapping[str, Any] | None = None,
        trigger_id: TriggerId | None = None,
        trigger_type: TriggerType = "api",
        repo: str | None = None,
        issue_number: int | None = None,
        max_parallel: Parallel | None = None,
        idempotency_key: str | None = None,
    ) -> Dispatch:
        """Run a workflow.

        While a run of the same workflow and `trigger_id` is live, the answer is that run. A workflow that is
        switched off answers without a run.
        """
        request = self.request(
            name,
            context=context,
            trigger_id=trigger_id,
            trigger_type=trigger_type,
            repo=repo,
            issue_number=issue_number,
            max_parallel=max_parallel,
        )
        answer = await self.write_once(
            idempotency_key, dispatch.dispatch, request, self.phases, size=len(request.context.text)
        )
        return _dispatch(Dispatched(*answer))

    def request(
        self,
        name: str,
        *,
        context: Mapping[str, Any] | None = None,
        trigger_id: str | None = None,
        trigger_type: TriggerType = "api",
        repo: str | None = None,
        issue_number: int | None = None,
        max_parallel: int | None = None,
        timeout: float | None = None,
    ) -> NewWorkflowRun:
        """Check and encode a run to be started. With a timeout, it fails after this many seconds."""
        snapshot = self.definitions.snapshot(check_name(name, "name", max_length=MAX_NAME))
        workflow = self.definitions.get(snapshot.name).workflow
        # Without a trigger, a run gets a unique one, so that it is never answered with another run.
        given = f"{trigger_type}:{self.storage.ids.hex(16)}" if trigger_id is None else trigger_id
        return NewWorkflowRun(
            snapshot=snapshot,
            trigger_id=check_name(given, "trigger_id", max_length=MAX_TRIGGER),
            trigger_type=check_choice(trigger_type, TRIGGER_TYPES, "trigger_type"),
            triggered_by=self.actor_name,
            repo=optional_text(repo, "repo"),
            issue_number=None if issue_number is None else check_number(issue_number, "issue_number"),
            context=stored(context or {}, "context", lambda: uuid(0, self.storage.ids)),
            config=self._config_text,
            max_parallel=workflow.max_parallel
            if max_parallel is None
            else check_number(max_parallel, "max_parallel", 1, 1000),
            cap=self.cap,
            timeout=timeout,
        )

    @call(GET("/workflow-runs"), scope="read")
    async def list_runs(
        self,
        *,
        workflow_name: WorkflowName | None = None,
        status: Statuses = None,
        repo: str | None = None,
        since: str | None = None,
        limit: Limit = 20,
        cursor: str | None = None,
        total: bool = False,
    ) -> WorkflowRunPage:
        """List runs: running ones first, then paused, queued and ended ones; the newest first within each.

        `since` is a time in ISO 8601. `next` of a page is the cursor of the next one. `total` counts the runs
        that match `repo` or `since`; without these filters, the number is always known.
        """
        request = views.RUNS.open_part(limit, cursor)
        query = WorkflowRunFilter(
            optional_text(workflow_name, "workflow_name", max_length=MAX_NAME),
            check_choices(status or (), RUN_STATUSES, "status"),
            optional_text(repo, "repo"),
            None if since is None else _time(since, "since"),
            request.place,
            request.rows,
        )
        counted, rows = await self.read(queries.page, query, total or not limit)
        if counted is None and cursor is None and len(rows) <= limit:
            counted = len(rows)
        shown, after = request.cut(rows)
        return WorkflowRunPage(items=[views.row_to_summary(row) for row in shown], next=after, total=counted)

    @call(GET("/workflow-names"), scope="read")
    async def names(self) -> Names:
        """List the names of workflows that have runs."""
        return sorted({row.workflow_name for row in await self.read(queries.counts)})

    @call(GET("/workflow-counts"), scope="read")
    async def counts(self) -> Counts:
        """Count the runs of each workflow by status."""
        totals: dict[str, dict[RunStatus, int]] = {}
        for row in await self.read(queries.counts):
            if row.total:
                totals.setdefault(row.workflow_name, {})[row.status] = int(row.total)  # type: ignore[index]
        return [WorkflowStatusCounts(workflow_name=name, counts=totals[name]) for name in sorted(totals)]

    @call(GET("/workflow-runs/{workflow_run_id}"), scope="read", errors=(NotFound, Conflict))
    async def get(self, workflow_run_id: Id) -> WorkflowRun:
        """Get a run with its phases, its history and its values.

        The first 4 or more digits of its id are enough if they match no other run.
        """
        whole = await self.read(queries.get_whole, check_id(workflow_run_id, "workflow_run_id"))
        return build_workflow_run(whole)

    @call(GET("/workflow-runs/{workflow_run_id}/definition"), scope="read", errors=(NotFound, Conflict))
    async def run_definition(self, workflow_run_id: Id) -> RunDefinition:
        """Get the definition that a run uses, as it was when the run began, with the lines of its phases."""
        run, plan = await self.read(queries.get_definition, check_id(workflow_run_id, "workflow_run_id"))
        now = self.definitions.workflows.get(run.workflow_name)
        return RunDefinition(
            workflow_run_id=run.id,
            workflow_name=run.workflow_name,
            digest=run.definition,
            current=None if now is None else now == plan.workflow,
            definition=to_builtins(plan.workflow),
            yaml=views.encode_yaml(plan.workflow),
        )

    async def get_by_trigger(self, trigger_id: str, *, live: bool = True) -> WorkflowRunSummary:
        """Get the newest run of a trigger: the newest that has not ended, or any."""
        statuses = LIVE if live else RUN_STATUSES
        row = await self.read(queries.by_trigger, check_text(trigger_id, "trigger_id"), statuses)
        return views.row_to_summary(row)

    async def active(self, *, limit: int = 1000) -> Sequence[WorkflowRunSummary]:
        """Return the runs that have not ended, in the order of lists."""
        return (await self.list_runs(status=list(LIVE), limit=limit)).items

    async def recent(self, limit: int = 20) -> Sequence[WorkflowRunSummary]:
        """Return the newest runs of any status."""
        return (await self.list_runs(limit=limit)).items

    @call(GET("/workflow-runs/{workflow_run_id}/history"), scope="read", errors=(NotFound, Conflict))
    async def history(self, workflow_run_id: Id, *, after: int = 0, limit: Limit = 100) -> Entries:
        """List the history of a run after the entry with a number, in order."""
        check_page(limit)
        checked = check_id(workflow_run_id, "workflow_run_id")
        rows = await self.read(queries.history, checked, check_number(after, "after"), limit)
        return [views.row_to_history_entry(row) for row in rows]

    @call(POST("/workflow-runs/{workflow_run_id}/cancel"), scope="write", errors=(NotFound, Conflict))
    async def cancel(self, workflow_run_id: Id, *, reason: str | None = None) -> WorkflowRunSummary:
        """Cancel a run. Its phases are stopped, and its approvals withdrawn."""
        run_id = await self._find_id(workflow_run_id)
        await self.write(lifecycle.cancel, run_id, optional_text(reason, "reason"), self.phases)
        await self._tend(run_id)
        return await self._summary(run_id)

    @call(POST("/workflow-runs/{workflow_run_id}/retry"), scope="write", errors=(NotFound, Conflict))
    async def retry(
        self,
        workflow_run_id: Id,
        *,
        from_phase: str | None = None,
        definition: DefinitionChoice = "original",
    ) -> WorkflowRunSummary:
        """Retry a run that failed or was cancelled: it continues at the first phase that is not done.

        With `from_phase`, this phase and its dependents start again, even if they are done. With the
        definition `current`, the run continues with the current content of the workflow's file: phases that
        have changed and are not done start again.
        """
        row = await self.read(queries.find, check_id(workflow_run_id, "workflow_run_id"))
        choice = check_choice(definition, DEFINITION_CHOICES, "definition")
        current = self.definitions.snapshot(row.workflow_name) if choice == "current" else None
        await self.write(
            retrying.retry, row.id, self.phases, optional_text(from_phase, "from_phase"), current
        )
        return await self._summary(row.id)

    @call(POST("/workflow-runs/{workflow_run_id}/pause"), scope="write", errors=(NotFound, Conflict))
    async def pause(self, workflow_run_id: Id) -> WorkflowRunSummary:
        """Pause a run: no more phases are started. Phases that are being executed continue to their end."""
        run_id = await self._find_id(workflow_run_id)
        await self.write(lifecycle.pause, run_id, self.phases)
        return await self._summary(run_id)

    @call(POST("/workflow-runs/{workflow_run_id}/resume"), scope="write", errors=(NotFound, Conflict))
    async def resume(self, workflow_run_id: Id) -> WorkflowRunSummary:
        """Resume a paused run."""
        run_id = await self._find_id(workflow_run_id)
        await self.write(lifecycle.resume, run_id, self.phases)
        return await self._summary(run_id)

    @call(
        PATCH("/workflow-runs/{workflow_run_id}/scratch"), scope="write", errors=(NotFound,), repeatable=True
    )
    async def update_scratch(self, workflow_run_id: Id, *, values: Mapping[str, Any]) -> Acknowledged:
        """Set values of a run's scratch by key; other keys do not change."""
        run_id = await self._find_id(workflow_run_id)
        patch = stored(values, "values", lambda: uuid(0, self.storage.ids))
        await self.write(scratch.update, run_id, patch)

    @call(GET("/workflow-runs/{workflow_run_id}/diff/{other_run_id}"), scope="read", errors=(NotFound,))
    async def diff(self, workflow_run_id: Id, other_run_id: Id) -> RunDiff:
        """Compare two runs: their contexts, their scratch, and how their phases ended."""
        left, right = await self.get(workflow_run_id), await self.get(other_run_id)
        return RunDiff(
            left=left.workflow_run_id,
            right=right.workflow_run_id,
            same_definition=left.definition == right.definition,
            differences=views.differences(_compared(left), _compared(right)),
        )

    @call(GET("/workflow-logs"), scope="read")
    async def search_logs(
        self,
        q: Annotated[str, Meta(min_length=1, max_length=MAX_TRIGGER)],
        *,
        scope: LogScope = "all",
        limit: Annotated[int, Meta(ge=1, le=MAX_SEARCH)] = 50,
        cursor: str | None = None,
    ) -> Part[LogMatch]:
        """Search the errors and outputs of executions for a text, the newest first.

        Each call searches up to 5,000 executions; `next` is the cursor of earlier ones.
        """
        text = check_name(q, "q", max_length=MAX_TRIGGER)
        place = views.LOGS.read(cursor)
        query = LogQuery(
            text,
            check_choice(scope, get_args(LogScope), "scope"),
            place.started_at,
            place.id,
            check_number(limit, "limit", 1, MAX_SEARCH),
        )
        matches = await self.read(queries.search_logs, query)
        after = None if matches.last is None else views.LOGS.write(matches.last)
        return Part(items=[_match(row, text) for row in matches.rows], next=after)

    # --- helpers ------------------------------------------------------------------------------------------

    async def _find_id(self, workflow_run_id: object) -> str:
        """Return the id of a run from its first digits."""
        return (await self.read(queries.find, check_id(workflow_run_id, "workflow_run_id"))).id

    async def _summary(self, run_id: str) -> WorkflowRunSummary:
        return views.row_to_summary(await self.read(queries.find, run_id))

    async def _tend(self, run_id: str) -> None:
        """Stop the phases of a run now instead of at the timer's next look."""
        row = await self.read(queries.find, run_id)
        if row.due_at is not None:
            timer = WorkflowTimer(self.storage, self.phases, cap=self.cap)
            await timer.tend(DueRun(await self.ns(), row.id, row.status, row.due_at, row.deadline_at))


def _dispatch(answer: Dispatched) -> Dispatch:
    return Dispatch(
        workflow_run_id=answer.run_id,
        status=answer.status,  # type: ignore[arg-type]
        reused=answer.reused,
        enabled=answer.run_id is not None,
    )


def _time(value: object, what: str) -> int:
    try:
        return from_iso(check_text(value, what))
    except ValueError:
        raise InvalidInput(f"{what} is {value!r}; it must be a time in ISO 8601") from None


def build_workflow_run(whole: WholeRun) -> WorkflowRun:
    """Build the record of a run with all that belongs to it."""
    phases = [node for node in whole.nodes if not node.item]
    return WorkflowRun(
        **views.summary_fields(whole.run),
        definition=whole.run.definition,
        max_parallel=whole.run.max_parallel,
        context=dict(whole.context),
        scratch=dict(whole.scratch),
        node_statuses={node.node: node.status for node in phases},  # type: ignore[misc]
        nodes=[
            views.row_to_node_info(node, whole.plan[node.node].depends_on, whole.tries.get(node.label or ""))
            for node in whole.nodes
        ],
        phase_history=[views.row_to_history_entry(row) for row in whole.history],
        final_message=whole.final_message,
        checklist=views.build_checklist(whole.plan.workflow, whole.nodes, whole.history),
    )


def _compared(run: WorkflowRun) -> dict[str, Any]:
    """Return the fields of a run that `diff` compares."""
    return {
        "workflow_name": run.workflow_name,
        "status": run.status,
        "error": run.error,
        "context": run.context,
        "scratch": run.scratch,
        "nodes": {
            node.node: {"status": node.status, "iteration": node.iteration, "error": node.error}
            for node in run.nodes
            if not node.item
        },
        "total_cost_usd": run.total_cost_usd,
        "total_tokens": run.total_tokens,
        "turns": run.turns,
    }


def _match(row: ExecutionLogRow, text: str) -> LogMatch:
    in_error = row.error is not None and text in row.error
    searched = (row.error if in_error else row.output_text) or ""
    at = max(searched.find(text), 0)
    return LogMatch(
        execution_id=row.id,
        workflow_run_id=row.workflow_run_id,
        skill=row.skill,
        started_at=to_iso(row.started_at),
        where="error" if in_error else "output",
        excerpt=searched[max(at - EXCERPT, 0) : at + len(text) + EXCERPT],
    )
