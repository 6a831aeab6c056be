"""Checks and writes of session lines that attempts send to the event log."""

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
    """Refuse lines that are not JSON, and names that point outside the log. Workers are not trusted."""
    for log in logs:
        check_lease(log.held)
        check_name(LogName(log.project, log.session_id))
        for number, line in enumerate(log.lines, log.first):
            check_json(line, f"line {number}")
    return logs


def check_usage(reports: Sequence[UsageReport]) -> Sequence[UsageReport]:
    """Refuse usage with invalid ids of an attempt or a session."""
    for report in reports:
        check_lease(report.held)
        check_session_id(report.session_id)
    return reports


async def write_lines(
    log: EventLog, signals: Signals, ns: int, call: SessionLines, refused: PerdureError | None
) -> int | PerdureError:
    """Write the lines of an attempt, unless it was refused; return the position after them."""
    if refused is not None:
        return refused
    name, bodies = LogName(call.project, call.session_id), [line.encode() for line in call.lines]
    attempt_id = call.held.attempt_id
    try:
        return await append_lines(log, signals, ns, name, bodies, attempt_id=attempt_id, first=call.first)
    except PerdureError as error:
        return error
