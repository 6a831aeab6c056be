"""Requests to every route that writes schedules and jobs, and what the audit calls each."""

from __future__ import annotations

from typing import Any

from tests.security.runs import API, Line, silent_worker
from tests.server.native.support import AGENT
from tests.support.kinds import KINDS

from perdure.jobs.service import Jobs
from perdure.rollouts.store import DatabaseLightningStore
from perdure.schedules.model import FILE, ScheduleTargets
from perdure.schedules.run_target import RunTarget
from perdure.schedules.service import Schedules
from perdure.threads.policy import Policy
from perdure.threads.service import Threads

YEARLY = "0 0 1 1 *"
THREAD = "0192f0a1-7e5c-7b3a-9c1d-2e4f60718290"


async def cron_lines(store: DatabaseLightningStore) -> list[Line]:
    """With whole paths, of the native door and of LangGraph's."""
    await silent_worker(store).register()
    await Threads(store.storage, KINDS).create_thread(THREAD, if_exists="do_nothing")
    schedules = Schedules(store.storage, ScheduleTargets(RunTarget(KINDS, Policy())))
    one, other, third, last = [
        (await schedules.create(YEARLY, assistant_id=AGENT)).schedule_id for _ in range(4)
    ]
    job_id = await Jobs(store.storage, KINDS).enqueue("nothing")
    definition = schedules.definition("run", YEARLY, name="nightly", assistant_id=AGENT, origin=FILE)
    await schedules.sync(FILE, [definition])
    override = API + "/cron-overrides/{name}"
    native: dict[str, Any] = {"expression": YEARLY, "assistant_id": AGENT}
    cron: dict[str, Any] = {"schedule": YEARLY, "assistant_id": AGENT}
    single, theirs = API + "/schedules/{schedule_id}", "/runs/crons/{cron_id}"
    return [
        ("POST", API + "/schedules", "", native, "create_schedule"),
        ("PATCH", single, f"{API}/schedules/{one}", {"enabled": False}, "update_schedule"),
        ("DELETE", single, f"{API}/schedules/{other}", None, "delete_schedule"),
        ("POST", API + "/jobs/{job_id}/cancel", f"{API}/jobs/{job_id}/cancel", None, "cancel_job"),
        ("POST", single + "/trigger", f"{API}/schedules/{one}/trigger", None, "trigger_schedule"),
        ("PATCH", override, f"{API}/cron-overrides/nightly", {"enabled": False}, "override_schedule"),
        ("DELETE", override, f"{API}/cron-overrides/nightly", None, "clear_override"),
        ("POST", "/runs/crons", "", cron, "create_schedule"),
        ("POST", "/threads/{thread_id}/runs/crons", f"/threads/{THREAD}/runs/crons", cron, "create_schedule"),
        ("PATCH", theirs, f"/runs/crons/{third}", {"enabled": False}, "update_schedule"),
        ("DELETE", theirs, f"/runs/crons/{last}", None, "delete_schedule"),
    ]
