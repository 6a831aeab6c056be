"""Workflows, traces, schedules in a real browser: screens open, and their actions change the data."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from functools import partial
from typing import NamedTuple

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect
from tests.approvals.support import Run
from tests.kernel.support import until_true
from tests.outbox.support import Recorder
from tests.server.native.support import AGENT
from tests.web.world import HOSTILE, TIMEOUT, World, opened, shows_well
from tests.workflows.support import workflow

from perdure import TraceStatus
from perdure.approvals.gates import open_gate
from perdure.approvals.model import NewGate
from perdure.outbox.delivery import Deliveries
from perdure.outbox.model import Effect, Undeliverable
from perdure.outbox.operations import NewEffect, put
from perdure.outbox.service import Outbox
from perdure.runtime.services import Services
from perdure.testing.contract.support import make_span

pytestmark = pytest.mark.asyncio(loop_scope="package")
GATED = """
name: release
description: Asks, then builds and tests beside one another, then tells
phases:
  - {name: agree, type: approval, approval_gate_message: "Release {{title}}?"}
  - {name: build, type: command, command: "true", depends_on: [agree]}
  - {name: test, type: command, command: "true", depends_on: [agree]}
  - {name: tell, type: command, command: "true", depends_on: [build, test]}
"""
FANNED = """
name: fanned
phases:
  - {name: each, type: map, items: [x, y], command: "true"}
  - {name: last, prompt: l}
"""
SPANS = 30_000
CALL = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "m-1",
    "gen_ai.usage.input_tokens": 900,
    "gen_ai.usage.output_tokens": 90,
    "gen_ai.input.messages": json.dumps(
        [{"role": "user", "parts": [{"type": "text", "content": f"Is it wet? {HOSTILE[1]}"}]}]
    ),
    "gen_ai.output.messages": json.dumps(
        [{"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "look", "arguments": {}}]}]
    ),
}
ASKING = GATED.replace("name: release", "name: asking")


class Work(NamedTuple):
    """The services of the server, and the ids of what is in them."""

    services: Services
    run: str
    approval: str
    schedule: str
    trace: str


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def work(world: World) -> AsyncIterator[Work]:
    services = world.visitor.app.services
    services.definitions.add(workflow(GATED))
    run = await services.workflows.run("release", context={"title": HOSTILE[1]})
    approval = (await services.approvals.list()).items[0]
    schedule = await services.schedules.create("0 9 * * *", assistant_id=AGENT, name="nightly")
    await services.outbox.write(put, [NewEffect("webhook", "run-1", "{}")])
    started = await world.store.start_rollout({"question": "Long?"})
    spans = [
        make_span(
            started,
            number + 1,
            trace_id="ab" * 16,
            span_id=f"{number + 1:016x}",
            parent_id=f"{number // 10 * 10 + 1:016x}" if number % 10 else None,
            name=HOSTILE[1] if number == 1 else f"step {number}",
            status=TraceStatus(status_code="ERROR" if number == 2 else "OK"),
            attributes=CALL if number == 2 else {},
            start_time=1_700_000_000.0 + number,
            end_time=1_700_000_005.0 + number,
        )
        for number in range(SPANS)
    ]
    for place in range(0, SPANS, 500):
        await world.store.add_many_spans(spans[place : place + 500])
    await until_true(partial(_has_trace, world, spans[0].trace_id))
    yield Work(
        services, run.workflow_run_id or "", approval.approval_id, schedule.schedule_id, spans[0].trace_id
    )


async def _has_trace(world: World, trace_id: str) -> bool:
    return (await world.visitor.get(f"/api/v1/traces/{trace_id}")).status == 200


async def test_screens_of_work_open_in_both_themes_and_on_a_phone(
    browser: Browser, world: World, work: Work
) -> None:
    screens = {
        "/approvals?status=any": "Approvals",
        f"/approvals/{work.approval}": "agree",
        "/workflow-runs": "Workflow runs",
        "/workflow-runs?workflow=release": "Workflow runs",
        f"/workflow-runs/{work.run}": "release",
        "/workflows": "Workflows",
        "/traces": "Traces",
        f"/traces/{work.trace}": "step 0",
        "/schedules": "Schedules",
        f"/schedules/{work.schedule}": "nightly",
        "/outbox": "Outbox",
    }
    await shows_well(browser, world, screens)


async def test_a_map_is_drawn_as_its_phase_and_listed_with_its_items(
    browser: Browser, world: World, work: Work
) -> None:
    work.services.definitions.add(workflow(FANNED))
    run = (await work.services.workflows.run("fanned")).workflow_run_id or ""
    await work.services.workflow_timer.settle()
    async with opened(browser, world.visitor.url) as screen:
        await screen.open(f"/workflow-runs/{run}")
        drawn = screen.page.locator("[data-node]")
        await expect(drawn).to_have_count(2, timeout=TIMEOUT)
        await expect(drawn.first).to_contain_text(re.compile("^each(?!_item)"))
        await screen.sees("each_item_2")
    await work.services.workflows.cancel(run)


async def test_a_run_is_paused_approved_resumed_and_cancelled(
    browser: Browser, world: World, work: Work
) -> None:
    async with opened(browser, world.visitor.url) as screen:
        await screen.open(f"/workflow-runs/{work.run}")
        await screen.press("Pause")
        await screen.page.get_by_role("button", name="Resume", exact=True).wait_for()
        assert (await work.services.workflows.get(work.run)).held
        await screen.press("Resume")
        await screen.sees("It goes on")
        assert not (await work.services.workflows.get(work.run)).held
        await expect(screen.page.locator("[data-node=agree][data-state=waiting]")).to_be_visible(
            timeout=TIMEOUT
        )
        await screen.page.locator("[data-feed=live]").wait_for()
        await screen.open(f"/approvals/{work.approval}")
        await screen.page.get_by_label("Comment").fill(HOSTILE[0])
        await screen.press("Approve")
        await expect(screen.page.locator(".head [data-status]")).to_have_text("approved", timeout=TIMEOUT)
        assert (await work.services.approvals.get(work.approval)).status == "approved"
        await screen.open(f"/workflow-runs/{work.run}")
        await expect(screen.page.locator("[data-node=agree][data-state=succeeded]")).to_be_visible(
            timeout=TIMEOUT
        )
        await screen.press("Cancel")
        await screen.press("Cancel it")
        await expect(screen.page.locator(".head [data-status]")).to_have_text("cancelled", timeout=TIMEOUT)
        assert (await work.services.workflows.get(work.run)).status == "cancelled"
        await screen.press("Retry")
        await screen.sees("It runs again")
        assert (await work.services.workflows.get(work.run)).status != "cancelled"


async def test_a_workflow_is_switched_off(browser: Browser, world: World, work: Work) -> None:
    async with opened(browser, world.visitor.url) as screen:
        await screen.open("/workflows")
        await screen.page.get_by_label("Enable release").click(force=True)
        await screen.sees("release is disabled")
        assert not (await work.services.workflow_overrides.get("release")).enabled


async def test_a_long_trace_has_few_rows_in_the_page_and_shows_a_span_on_demand(
    browser: Browser, world: World, work: Work
) -> None:
    async with opened(browser, world.visitor.url) as screen:
        await screen.open(f"/traces/{work.trace}")
        await expect(screen.page.get_by_text(f"Spans ({SPANS:,})")).to_be_visible(timeout=6 * TIMEOUT)
        rows = screen.page.locator("[data-span]")
        await screen.page.locator(".waterfall").evaluate("frame => frame.scrollTo(0, frame.scrollHeight)")
        await expect(rows.filter(has_text=f"step {SPANS - 1}")).to_contain_text("5.0 s", timeout=TIMEOUT)
        assert await rows.count() < 200
        await screen.press("errors first")
        await screen.page.locator(".waterfall").evaluate("frame => frame.scrollTo(0, 0)")
        await expect(rows.first).to_have_text(re.compile("^step 2"), timeout=TIMEOUT)
        await expect(rows.first.locator("[data-step=llm]")).to_have_text("llm990 tokens", timeout=TIMEOUT)
        await screen.press("errors first")
        await screen.press("errors")
        await expect(rows).to_have_count(1, timeout=TIMEOUT)
        await screen.press("step 2")
        await screen.sees('"ERROR"')
        await screen.press("errors")
        await screen.page.get_by_label("Search the spans").fill("onerror")
        await expect(rows).to_have_count(1, timeout=TIMEOUT)
        await screen.sees(HOSTILE[1])


async def test_a_trace_is_read_as_a_chat(browser: Browser, world: World, work: Work) -> None:
    async with opened(browser, world.visitor.url) as screen:
        await screen.open(f"/traces/{work.trace}?view=chat")
        await screen.sees(f"Is it wet? {HOSTILE[1]}")
        await expect(screen.page.get_by_role("button", name=re.compile("look"))).to_be_visible()
        assert await screen.page.locator("main img, main script").count() == 0


async def test_a_schedule_says_when_it_fires_is_triggered_and_switched(
    browser: Browser, world: World, work: Work
) -> None:
    schedules = work.services.schedules
    async with opened(browser, world.visitor.url) as screen:
        await screen.open(f"/schedules/{work.schedule}")
        await screen.sees("At 09:00 every day, in UTC")
        await expect(screen.page.locator(".times li")).to_have_count(5, timeout=TIMEOUT)
        await screen.press("Trigger now")
        await screen.sees("Triggered")
        (firing,) = await schedules.firings(work.schedule)
        assert (firing.source, firing.actor) == ("manual", "anonymous")
        await screen.sees("manual by anonymous")
        await screen.press("Disable")
        await expect(screen.page.locator(".head [data-status]")).to_have_text("disabled", timeout=TIMEOUT)
        assert not (await schedules.get(work.schedule)).enabled
        await screen.open("/schedules")
        await screen.page.get_by_label("Enable nightly").click(force=True)
        await expect(screen.page.get_by_label("Enable nightly")).to_be_checked(timeout=TIMEOUT)
        assert (await schedules.get(work.schedule)).enabled


async def test_approvals_are_rejected_and_replied_to(browser: Browser, world: World, work: Work) -> None:
    services = work.services
    services.definitions.add(workflow(ASKING))
    run = await services.workflows.run("asking", context={"title": "this"})
    other = await services.workflows.run("asking", context={"title": "that"})
    run_id = run.workflow_run_id or ""
    approval = (await services.approvals.list(workflow_run_id=run_id)).items[0].approval_id
    gate = NewGate(kind="reply", gate="asks", label="asks", summary="Which one?")
    ns = await services.approvals.ns()
    asks = await services.storage.run(
        open_gate, Run(other.workflow_run_id or "", "asking"), "tell", gate, ns=ns
    )
    async with opened(browser, world.visitor.url) as screen:
        await screen.open(f"/workflow-runs/{run_id}")
        marked = screen.page.locator("[data-phase=agree][data-state=waiting]").first
        await expect(marked).to_contain_text("- name: agree", timeout=TIMEOUT)
        await screen.open(f"/approvals/{approval}")
        await screen.page.get_by_label("Comment").fill("not today")
        await screen.press("Reject")
        await expect(screen.page.locator(".head [data-status]")).to_have_text("rejected", timeout=TIMEOUT)
        rejected = await services.approvals.get(approval)
        assert (rejected.status, rejected.response) == ("rejected", "not today")
        await screen.open(f"/approvals/{asks}")
        await screen.page.get_by_label("Reply").fill(HOSTILE[0])
        await screen.press("Reply")
        # The text itself stands in the form before it is sent.
        await expect(screen.page.locator(".head [data-status]")).to_have_text("approved", timeout=TIMEOUT)
        await screen.sees(HOSTILE[0])
        replied = await services.approvals.get(asks)
        assert (replied.status, replied.response) == ("approved", HOSTILE[0])


async def test_a_dead_letter_is_delivered_again(browser: Browser, world: World, work: Work) -> None:
    async def refuses(effect: Effect) -> None:
        raise Undeliverable("nobody lives there")

    outbox = work.services.outbox
    (effect_id,) = await outbox.write(put, [NewEffect("post", "letter-1", "{}")])
    deliveries = Deliveries(work.services.storage, [Recorder(refuses, name="post")])
    await deliveries.start()
    try:
        await until_true(partial(_is_dead, outbox, effect_id))
    finally:
        await deliveries.stop()
    async with opened(browser, world.visitor.url) as screen:
        await screen.open("/outbox?status=dead")
        await screen.sees("nobody lives there")
        await screen.page.get_by_label(f"Retry {effect_id}").click()
        await screen.sees("It is delivered again")
        assert (await outbox.get(effect_id)).status == "pending"


async def _is_dead(outbox: Outbox, effect_id: str) -> bool:
    return (await outbox.get(effect_id)).status == "dead"
