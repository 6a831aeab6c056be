"""What attempts write to the sessions of their runs, on its way from the queue into the event log."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.eventlog.port import EventLog, LogName, check_name, check_session_id
from perdure.eventlog.writing import append_lines
from perdure.kernel.codec import check_json
from perdure.kernel.errors import PerdureError
from perdure.kernel.signals.port import Signals
from perdure.threads.encoding import check_lease
from perdure.threads.work import SessionLines, UsageReport


def check_session_lines(logs: Sequence[SessionLines]) -> Sequence[SessionLines]:
    """Refuse lines that are no JSON, and names that lead out of the log: a worker need not be trusted."""
    for each in logs:
        check_lease(each.held)
        check_name(LogName(each.project, each.session_id))
        for number, line in enumerate(each.lines, each.first):
            check_json(line, f"line {number}")
    return logs


def check_usage(reports: Sequence[UsageReport]) -> Sequence[UsageReport]:
    """Refuse the usage of an attempt or a session that there cannot be."""
    for each in reports:
        check_lease(each.held)
        check_session_id(each.session_id)
    return reports


async def write_lines(
    log: EventLog, signals: Signals, ns: int, call: SessionLines, refused: PerdureError | None
) -> int | PerdureError:
    """Write the lines of an attempt that was not refused; returns the place after them."""
    if refused is not None:
        return refused
    name, bodies = LogName(call.project, call.session_id), [line.encode() for line in call.lines]
    attempt_id = call.held.attempt_id
    try:
        return await append_lines(log, signals, ns, name, bodies, attempt_id=attempt_id, first=call.first)
    except PerdureError as error:
        return error
