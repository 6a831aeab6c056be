"""The native routes of schedules."""

from __future__ import annotations

from perdure.client import native_wire as wire
from perdure.client import schedule_wire
from perdure.kernel.errors import BadQuery, NotFound, NotSupported
from perdure.kernel.pages import Page
from perdure.schedules.records import Firing, Schedule
from perdure.server.native import schedule_handlers as handlers
from perdure.server.native.declare import declaring

_schedules = declaring("schedules")

SCHEDULE_ROUTES = (
    _schedules(
        "GET",
        "/schedules",
        handlers.list_schedules,
        "read",
        "List schedules, the newest first",
        query=schedule_wire.ScheduleQuery,
        answer=Page[Schedule],
        errors=(BadQuery, NotSupported),
    ),
    _schedules(
        "POST",
        "/schedules",
        handlers.create_schedule,
        "write",
        "Make a schedule that starts runs",
        body=schedule_wire.NewSchedule,
        answer=Schedule,
        status=201,
        errors=(NotFound, NotSupported),
    ),
    _schedules(
        "GET",
        "/schedules/{schedule_id}",
        handlers.get_schedule,
        "read",
        "A schedule",
        answer=Schedule,
        errors=(NotFound, NotSupported),
    ),
    _schedules(
        "PATCH",
        "/schedules/{schedule_id}",
        handlers.update_schedule,
        "write",
        "Change a schedule, pause it or let it go on",
        body=schedule_wire.SchedulePatch,
        answer=Schedule,
        errors=(NotFound, NotSupported),
    ),
    _schedules(
        "DELETE",
        "/schedules/{schedule_id}",
        handlers.delete_schedule,
        "write",
        "Remove a schedule; what it has started stays",
        status=204,
        errors=(NotFound, NotSupported),
    ),
    _schedules(
        "GET",
        "/schedules/{schedule_id}/firings",
        handlers.list_firings,
        "read",
        "What came of a schedule's latest times, the newest first",
        query=wire.PageQuery,
        answer=wire.Items[Firing],
        errors=(NotFound, NotSupported),
    ),
)
