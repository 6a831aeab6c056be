"""The history of a run: its events, with the messages of its workflow where it has some."""

from __future__ import annotations

from typing import Any, Final

from perdure.kernel.errors import PerdureError
from perdure.workflows.model import error_text
from perdure.workflows.operations.reading import RunValues
from perdure.workflows.planner import WorkflowPlan
from perdure.workflows.rows import HistoryRow, WorkflowNodeRow, WorkflowRunRow
from perdure.workflows.steps import HistoryNote, start_message

MAX_SUMMARY: Final = 1000


class RunHistory:
    """The entries that a transaction adds to the history of a run."""

    def __init__(self, run: WorkflowRunRow, plan: WorkflowPlan, values: RunValues, now: int) -> None:
        self._run, self._plan, self._values, self._now = run, plan, values, now
        self.rows: list[HistoryRow] = []

    def enter(self, label: str, success: bool, summary: str | None) -> None:
        """Add an entry; it becomes the current phase of the run."""
        run = self._run
        run.history += 1
        cut = None if summary is None else error_text(summary)[:MAX_SUMMARY]
        self.rows.append(HistoryRow(run.id, run.history, label, self._now, int(success), cut))
        run.current_phase = label

    async def say(self, node: WorkflowNodeRow, note: HistoryNote) -> None:
        """Add an entry with the message that the workflow has for it."""
        summary = note.summary
        if note.message is not None:
            loop = self._plan[node.node].phase.loop
            cycles = {} if loop is None else {"cycle": note.cycle, "maxCycles": loop.max_cycles}
            (rendered,) = await self.rendered(node, note.message, iteration=node.iteration, **cycles)
            summary = rendered or summary
        self.enter(note.label, note.success, summary)

    async def say_start(self, node: WorkflowNodeRow) -> None:
        """Add the entry for the start of a phase or a part of its loop, if the workflow defines an entry."""
        note = start_message(self._plan[node.node].phase, node)
        if note is not None:
            await self.say(node, note)

    async def say_done(self, node: WorkflowNodeRow) -> None:
        """Add the entry of a phase that has nothing to do: it is skipped, or was done before."""
        message = self._plan[node.node].phase.messages.on_skipped_done
        if message is not None:
            await self.say(node, HistoryNote(node.node, None, message))

    async def rendered(self, node: WorkflowNodeRow, *texts: str | None, **more: Any) -> list[str | None]:
        """Render messages of a phase. If rendering fails, return the unrendered messages."""
        try:
            return await self._values.render(self._plan[node.node], texts, **more)
        except PerdureError:
            return list(texts)
