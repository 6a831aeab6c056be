"""Gates are opened by runs that pause, and withdrawn by runs that are cancelled."""

from __future__ import annotations

from tests.approvals.support import ApprovalWorld, Run

from perdure.approvals.model import APPROVAL, MAX_SUMMARY, PENDING


async def test_a_gate_is_a_pending_approval_that_others_are_told_of(approvals: ApprovalWorld) -> None:
    approval_id = await approvals.open(
        Run("run-1"), kind="reply", assignees=("ann", "bob"), expires_after=60_000_000, artifact="the plan"
    )
    (row,) = await approvals.rows()
    assert (row.id, row.workflow_run_id, row.gate, row.status, row.kind, row.open) == (
        approval_id,
        "run-1",
        "post_plan",
        PENDING,
        "reply",
        1,
    )
    assert row.assigned == ["ann", "bob"]
    assert row.due_at == row.expires_at == row.created_at + 60_000_000
    assert (row.responded_by, row.responded_at, row.response) == (None, None, None)
    assert await approvals.events() == ["approval.requested"]


async def test_what_an_agent_wrote_is_cut_and_stored_as_text(approvals: ApprovalWorld) -> None:
    await approvals.open(Run("run-1"), summary="a\0b\ud800" + "x" * 2 * MAX_SUMMARY)
    (row,) = await approvals.rows()
    assert len(row.summary) == MAX_SUMMARY
    assert row.summary.startswith("a\ufffdb?x")
    assert row.summary.endswith("…")


async def test_cancelling_withdraws_the_open_gates_of_those_runs_alone(approvals: ApprovalWorld) -> None:
    first, other = Run("run-1"), Run("run-2")
    for node in ("plan", "build"):
        await approvals.open(first, node, remind_every=5)
    await approvals.open(other)
    assert await approvals.withdraw(first) == 2
    assert await approvals.withdraw(first) == 0
    rows = await approvals.rows()
    assert [row.status for row in rows] == ["withdrawn", "withdrawn", PENDING]
    assert [(row.open, row.due_at, row.responded_by) for row in rows][:2] == [(0, None, "ann")] * 2
    assert list(await approvals.events()).count("approval.resolved") == 2


def test_a_resolved_approval_stays_as_it_is() -> None:
    for status in APPROVAL.final:
        assert not any(APPROVAL.moves(status, event) for event in APPROVAL.events)
