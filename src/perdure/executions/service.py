"""Service of the executions of one namespace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from perdure.eventlog.port import check_session_id
from perdure.executions import operations, queries, sql, views
from perdure.executions.model import ExecutionSeed
from perdure.executions.operations import DAY, HOUR, SKILL_DAYS, WORKFLOW_DAYS, ExecutionFinish, Readiness
from perdure.executions.records import (
    Bucket,
    ChatThread,
    Execution,
    ExecutionDetail,
    ExecutionFigures,
    ExecutionStats,
)
from perdure.executions.rows import WholeExecution
from perdure.kernel.checks import (
    Id,
    Limit,
    check_id,
    check_text,
    optional_id,
    optional_text,
)
from perdure.kernel.errors import InvalidInput, NotFound
from perdure.kernel.pages import Part
from perdure.service.base import Service
from perdure.service.endpoints import GET, call, under

MAX_OUTPUT = 1 << 20
"""Maximum size of an output, in bytes."""
MAX_DAYS = 90
MAX_HOURS = 168
RECENT = 10

Days = Annotated[int, Meta(ge=1, le=MAX_DAYS)]
Buckets = list[Bucket]
Hours = Annotated[int, Meta(ge=1, le=MAX_HOURS)]


class Executions(Service):
    """The executions of one namespace. Executions of phases are opened and ended with their attempts."""

    # --- reading ----------------------------------------------------------------------------------------

    @call(GET("/executions"), scope="read")
    async def list(
        self,
        *,
        workflow_run_id: Id | None = None,
        trigger_id: str | None = None,
        skill: str | None = None,
        running: bool = False,
        limit: Limit = 100,
        cursor: str | None = None,
    ) -> Part[Execution]:
        """List executions, the newest first: all, running ones, or those of a run, trigger or skill.

        `next` of a page is the cursor of the next one.
        """
        request = views.EXECUTIONS.open_part(limit, cursor)
        filters = {
            sql.LIST_RUN.name: (sql.LIST_RUN, optional_id(workflow_run_id, "workflow_run_id")),
            sql.LIST_TRIGGER.name: (sql.LIST_TRIGGER, optional_id(trigger_id, "trigger_id")),
            sql.LIST_SKILL.name: (sql.LIST_SKILL, optional_text(skill, "skill")),
        }
        given = [(listing, value) for listing, value in filters.values() if value is not None]
        if len(given) + running > 1:
            raise InvalidInput("filter by one of workflow_run_id, trigger_id, skill and running")
        listing, value = next(iter(given), (sql.LIST_OPEN if running else sql.LIST, None))
        rows = await self.read(queries.page, listing, value, request.place, request.rows)
        return request.build_part(rows, views.row_to_execution)

    @call(GET("/executions/{execution_id}"), scope="read", errors=(NotFound,))
    async def get(self, execution_id: Id) -> ExecutionDetail:
        """Get an execution with its output."""
        return views.row_to_execution_detail(
            await self.read(queries.get, check_id(execution_id, "execution_id"))
        )

    async def get_output(self, execution_id: str) -> str | None:
        """Return the output of an execution; None while there is none."""
        return (await self.read(queries.get, check_id(execution_id, "execution_id"))).output_text

    async def recent(self, skill: str, limit: int = RECENT) -> Sequence[Execution]:
        """Return the newest executions of a skill."""
        return (await self.list(skill=skill, limit=limit)).items

    async def running(self, limit: int = 100) -> Sequence[Execution]:
        """Return the newest executions that have not ended."""
        return (await self.list(running=True, limit=limit)).items

    @call(GET("/workflow-runs/{workflow_run_id}/executions"), scope="read")
    async def of_workflow_run(
        self,
        workflow_run_id: Id,
        *,
        trigger_id: str | None = None,
        workflow: str | None = None,
        limit: Limit = 100,
        cursor: str | None = None,
    ) -> Part[Execution]:
        """List the executions of a workflow run in the order of their start.

        A `trigger_id` adds executions of that trigger that name no workflow run; a `workflow` limits these to
        its phases.
        """
        request = views.OF_WORKFLOW_RUN.open_part(limit, cursor)
        rows = await self.read(
            queries.of_workflow_run,
            check_id(workflow_run_id, "workflow_run_id"),
            optional_id(trigger_id, "trigger_id"),
            optional_text(workflow, "workflow") or "",
            request.place,
            request.rows,
        )
        return request.build_part(rows, views.row_to_execution)

    async def readiness(self, skill: str, trigger_id: str, workflow_run_id: str | None = None) -> Readiness:
        """Return whether a skill must run for a trigger or in a workflow run: run, running or done."""
        return await self.read(
            operations.readiness,
            check_text(skill, "skill"),
            check_id(trigger_id, "trigger_id"),
            optional_id(workflow_run_id, "workflow_run_id"),
        )

    async def is_running(self, skill: str, trigger_id: str) -> bool:
        """Return whether an execution of a skill is open for a trigger."""
        return await self.readiness(skill, trigger_id) == "running"

    async def is_completed(self, skill: str, trigger_id: str) -> bool:
        """Return whether a skill has succeeded for a trigger and is not running now."""
        return await self.readiness(skill, trigger_id) == "done"

    async def consecutive_failures(self, skill: str) -> int:
        """Count the newest executions of a skill that failed in a row, up to 10."""
        return await self.read(queries.consecutive_failures, check_text(skill, "skill"))

    # --- statistics -------------------------------------------------------------------------------------

    async def add_past(self, rows: Sequence[WholeExecution]) -> int:
        """Add ended executions of another system, except those that exist. Return the number added."""
        added: int = await self.write(operations.add_past, rows)
        return added

    async def find_known(self, execution_ids: Sequence[str]) -> set[str]:
        """Return the ids of existing executions."""
        return {*await self.read(queries.find_by_ids, execution_ids)}

    @call(GET("/executions/stats"), scope="read")
    async def stats(self) -> ExecutionStats:
        """Get the figures of all executions and of today, by skill and by type of trigger."""
        sums = await self.read(queries.stats)
        running = sum(count.total for count in sums.running)
        today = sums.now - sums.now % DAY
        running_today = sum(count.total for count in sums.running if count.hour * HOUR >= today)
        return ExecutionStats(
            all=views.sum_figures(sums.by_trigger, running),
            today=views.sum_figures(sums.today, running_today),
            running=running,
            by_skill=views.by_name(sums.by_skill),
            by_trigger=views.by_name(sums.by_trigger),
        )

    @call(GET("/executions/stats/daily"), scope="read")
    async def daily_stats(self, *, days: Days = 30, workflow: str | None = None) -> Buckets:
        """Get the figures of each of the last days (UTC), including today, the oldest first.

        The figures cover all executions, or one workflow.
        """
        return await self._buckets(_bounded(days, MAX_DAYS, "days"), DAY, workflow)

    @call(GET("/executions/stats/hourly"), scope="read")
    async def hourly_stats(self, *, hours: Hours = 24, workflow: str | None = None) -> Buckets:
        """Get the figures of each of the last hours (UTC), including the current one, the oldest first.

        The figures cover all executions, or one workflow.
        """
        return await self._buckets(_bounded(hours, MAX_HOURS, "hours"), HOUR, workflow)

    async def _buckets(self, count: int, size: int, workflow: str | None) -> Buckets:
        name = optional_text(workflow, "workflow")
        last, rows, running = await self.read(queries.since, count, size, name)
        return views.buckets(rows, running, first=last - (count - 1) * size, last=last, size=size)

    @call(GET("/executions/stats/skills"), scope="read")
    async def stats_by_skill(
        self, *, days: Days = 30
    ) -> Annotated[dict[str, ExecutionFigures], under("skills", dict[str, ExecutionFigures], "SkillStats")]:
        """Get the figures of each skill over the last days (UTC), including today."""
        rows = await self.read(queries.sums_by_name, SKILL_DAYS, _bounded(days, MAX_DAYS, "days"))
        return views.by_name(rows)

    @call(GET("/executions/stats/workflows"), scope="read")
    async def stats_by_workflow(
        self, *, days: Days = 30
    ) -> Annotated[
        dict[str, ExecutionFigures], under("workflows", dict[str, ExecutionFigures], "WorkflowStats")
    ]:
        """Get the figures of each workflow over the last days (UTC), including today; chats are `chat`."""
        rows = await self.read(queries.sums_by_name, WORKFLOW_DAYS, _bounded(days, MAX_DAYS, "days"))
        return views.by_name(rows)

    # --- chats ------------------------------------------------------------------------------------------

    @call(GET("/executions/chats"), scope="read")
    async def list_chat_threads(self, *, limit: Limit = 100, cursor: str | None = None) -> Part[ChatThread]:
        """List chats, the last active first, with the usage of their turns and the assistant's last text."""
        request = views.CHATS.open_part(limit, cursor)
        rows, texts = await self.read(queries.chats, request.place, request.rows)
        return request.build_part(rows, lambda row: views.row_to_chat(row, texts))

    @call(GET("/executions/chats/{trigger_id}"), scope="read", errors=(NotFound,))
    async def get_chat_thread(self, trigger_id: Id) -> ChatThread:
        """Get a chat by its trigger."""
        return views.row_to_chat(*await self.read(queries.chat, check_id(trigger_id, "trigger_id")))

    # --- writing, in this process -----------------------------------------------------------------------

    async def record_start(self, seed: ExecutionSeed) -> str:
        """Open an execution that belongs to no phase. Return its id."""
        check_text(seed.skill, "skill")
        check_id(seed.trigger_id, "trigger_id")
        (execution_id,) = await self.write(operations.start, [seed])
        return execution_id

    async def record_skip(self, seed: ExecutionSeed, error: str = "skipped") -> str:
        """Add an execution of a skipped phase. Return its id."""
        (execution_id,) = await self.write(operations.skip, [seed], check_text(error, "error"))
        return execution_id

    async def record_session_id(self, execution_id: str, session_id: str) -> None:
        """Record the session of an execution."""
        wanted = check_id(execution_id, "execution_id")
        await self.write(operations.record_session, wanted, check_session_id(session_id))

    async def record_output_text(self, execution_id: str, text: str) -> None:
        """Store the output of an execution."""
        output = check_text(text, "output_text", max_length=MAX_OUTPUT)
        await self.write(operations.set_outputs, {check_id(execution_id, "execution_id"): output})

    async def record_finish(self, execution_id: str, ending: ExecutionFinish) -> None:
        """End an execution. Costs, tokens and a session that the ending leaves out do not change."""
        optional_text(ending.output, "output_text", max_length=MAX_OUTPUT)
        await self.write(operations.finish, check_id(execution_id, "execution_id"), ending)

    async def mark_stale_failed(self, skill: str, trigger_id: str, error: str) -> int:
        """End the open executions of a skill for a trigger as failed. Return the number ended."""
        wanted = check_id(trigger_id, "trigger_id")
        return await self.write(operations.mark_stale_failed, wanted, error, check_text(skill, "skill"), None)

    async def mark_all_stale_failed(
        self, trigger_id: str, reason: str, workflow_run_id: str | None = None
    ) -> int:
        """End all open executions of a trigger, or of one of its workflow runs, as failed."""
        wanted, run = check_id(trigger_id, "trigger_id"), optional_id(workflow_run_id, "workflow_run_id")
        return await self.write(operations.mark_stale_failed, wanted, reason, None, run)

    async def mark_latest_failed(
        self, skill: str, trigger_id: str, error: str, workflow_run_id: str | None = None
    ) -> int:
        """Mark the newest execution of a skill as failed, so that it is executed again. Return the number."""
        run = optional_id(workflow_run_id, "workflow_run_id")
        return await self.write(
            operations.mark_latest_failed,
            check_text(skill, "skill"),
            check_id(trigger_id, "trigger_id"),
            error,
            run,
        )


def _bounded(value: int, most: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidInput(f"{what} is {value!r}; it must be 1 to {most}")
    return value
