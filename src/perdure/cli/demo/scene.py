"""The part of `perdure dev --demo` beyond rollouts, so that every screen shows data."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from perdure.cli.demo.assistant import FORECAST, GUIDE, WRITER
from perdure.threads.records import RunRequest
from perdure.worker import execution
from perdure.workflows.definition import Workflow
from perdure.workflows.loading import load_text

if TYPE_CHECKING:
    from perdure.runtime.services import Services

WORKFLOW = "demo-release"
SCHEDULE = "demo-morning"
SECONDS = 10.0
"""Maximum seconds for the runs of the demo's assistant."""
_LOOK_SECONDS = 0.05
_DEFINITION = f"""
name: {WORKFLOW}
description: Writes the notes of a release, and asks before it goes out
phases:
  - name: notes
    assistant: {WRITER}
    prompt: Write the notes of {{{{title}}}}.
    output_var: notes
  - name: release
    type: approval
    approval_gate_message: "Release {{{{title}}}}? {{{{notes}}}}"
    assignees: [you]
  - name: announce
    assistant: {WRITER}
    prompt: "Announce: {{{{notes}}}}"
final_message: "{{{{title}}}} is out."
"""
TALKS = (
    ("How does a retry work?", "And what about memory?"),
    ("Plan a trip to the sea.",),
)
"""Messages of a person to the guide; the last question stays open."""


def load_workflow(services: Services) -> None:
    """Add the demo's workflow to the server."""
    definition = load_text(_DEFINITION, WORKFLOW).definition
    assert isinstance(definition, Workflow)
    services.definitions.add(definition)


async def play_scene(services: Services) -> list[str]:
    """Talk to the guide, fail a run, and let a workflow wait for a person. Return commands to try next."""
    load_workflow(services)
    with _quietly():
        for talk in TALKS:
            thread = await services.threads.create_thread()
            for text in talk:
                message = {"role": "user", "content": text}
                await _run(services, GUIDE, thread.thread_id, {"messages": [message]})
        thread = await services.threads.create_thread()
        failed = await _run(services, FORECAST, thread.thread_id, {"place": "Atlantis"})
        started = await services.workflows.run(WORKFLOW, context={"title": "1.2"}, trigger_id="demo")
        await _schedule(services)
        await _until_it_waits(services, started.workflow_run_id or "")
    return [
        f"perdure chat {GUIDE}",
        f"perdure why {failed}",
        f"perdure workflow show {started.workflow_run_id}",
    ]


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence the log of runs, because one of them fails on purpose and would disturb the report."""
    log = logging.getLogger(execution.__name__)
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


async def _run(services: Services, agent: str, thread_id: str, input: object) -> str:
    request = RunRequest(assistant_id=agent, thread_id=thread_id, input=input)
    run_id = (await services.threads.create_run(request)).run_id
    await services.rollouts.wait([run_id], timeout=SECONDS)
    return run_id


async def _schedule(services: Services) -> None:
    """Create the schedule unless an earlier demo on the database did."""
    if not any(schedule.name == SCHEDULE for schedule in (await services.schedules.search(limit=1000)).items):
        payload = {"input": {"messages": [{"role": "user", "content": "What about memory?"}]}}
        await services.schedules.create(
            "0 7 * * 1-5", name=SCHEDULE, assistant_id=GUIDE, timezone="Europe/Vienna", payload=payload
        )


async def _until_it_waits(services: Services, workflow_run_id: str) -> None:
    """Wait for the approval; give up after a while, because a demo is not a test."""
    for _ in range(round(SECONDS / _LOOK_SECONDS)):
        if (await services.workflows.get(workflow_run_id)).waiting_approvals:
            return
        await asyncio.sleep(_LOOK_SECONDS)
