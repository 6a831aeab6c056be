"""Runs that wait for people: approved, replied to, rejected, expired, over a restart, and by the timer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.support import soon

from perdure import Agents, Perdure
from perdure.approvals.model import Approval
from perdure.kernel.errors import Conflict
from perdure.workflows.definition import Workflow
from perdure.workflows.loading import load_text

GATED = """
name: gated
phases:
  - name: plan
    assistant: writer
    prompt: Make a plan.
    approval_gate: post_plan
    approval_gate_message: Go on?
  - name: release
    type: approval
    approval_gate_message: Release it?
    {more}
  - name: work
    assistant: writer
    prompt: Do it.
"""
agents = Agents()


@agents.agent("writer")
async def writer(ctx: Any, input: Any) -> str:
    return "the plan"


def opened(url: str) -> Perdure:
    return Perdure(url, agents=agents, workflow_gates=("post_plan",))


async def started(perdure: Perdure, more: str = "") -> str:
    definition = load_text(GATED.format(more=more)).definition
    assert isinstance(definition, Workflow)
    perdure.services.definitions.add(definition)
    dispatched = await perdure.services.workflows.run("gated", trigger_id="t#1")
    assert dispatched.workflow_run_id is not None
    return dispatched.workflow_run_id


async def asked(perdure: Perdure, gate: str) -> Approval:
    """Return the approval of a gate when the run waits for it."""

    async def look() -> Approval:
        while True:
            page = await perdure.services.approvals.list(status="pending")
            for each in page.items:
                if each.gate == gate or each.label == gate:
                    return each
            await asyncio.sleep(0.02)

    return await soon(look())


async def ended(perdure: Perdure, run_id: str) -> Any:
    async def look() -> Any:
        while True:
            run = await perdure.services.workflows.get(run_id)
            if run.status in ("succeeded", "failed", "cancelled"):
                return run
            await asyncio.sleep(0.02)

    return await soon(look())


async def test_a_run_waits_over_a_restart_and_goes_on_when_it_is_approved(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/perdure.db"
    async with opened(url) as perdure:
        run_id = await started(perdure)
        first = await asked(perdure, "post_plan")
        assert (first.summary, first.workflow_run_id) == ("Go on?", run_id)
    async with opened(url) as perdure:
        await perdure.services.approvals.approve(first.approval_id)
        second = await asked(perdure, "release")
        await perdure.services.approvals.approve(second.approval_id)
        run = await ended(perdure, run_id)
        assert run.status == "succeeded"
        # The waiting time of a gate is shown too.
        assert all(node.started_at < node.ended_at for node in run.nodes)
        with pytest.raises(Conflict):
            await perdure.services.approvals.reject(second.approval_id)


async def test_a_rejected_run_fails_with_the_reason() -> None:
    async with opened("memory:") as perdure:
        run_id = await started(perdure)
        first = await asked(perdure, "post_plan")
        await perdure.services.approvals.reject(first.approval_id, reason="too risky")
        run = await ended(perdure, run_id)
        assert (run.status, run.error) == ("failed", "Rejected: too risky")


async def test_a_gate_that_nobody_answers_expires(tmp_path: Path) -> None:
    async with opened("memory:") as perdure:
        run_id = await started(perdure, "expires_after: 0.05")
        first = await asked(perdure, "post_plan")
        await perdure.services.approvals.approve(first.approval_id)
        run = await ended(perdure, run_id)
        assert run.status == "failed"
        assert "Expired" in run.error


async def test_a_gate_reminds_until_it_is_answered() -> None:
    async with opened("memory:") as perdure:
        await started(perdure, "remind_every: 0.05")
        approvals = perdure.services.approvals
        await approvals.approve((await asked(perdure, "post_plan")).approval_id)
        second = await asked(perdure, "release")

        async def reminded() -> None:
            while True:
                if (await approvals.get(second.approval_id)).reminders:
                    return
                await asyncio.sleep(0.02)

        await soon(reminded())


async def test_cancelling_withdraws_what_waits() -> None:
    async with opened("memory:") as perdure:
        run_id = await started(perdure)
        first = await asked(perdure, "post_plan")
        await perdure.services.workflows.cancel(run_id)
        assert (await perdure.services.approvals.get(first.approval_id)).status == "withdrawn"
        with pytest.raises(Conflict, match="was withdrawn"):
            await perdure.services.approvals.approve(first.approval_id)
