"""Sending of session lines in order, in batches, each line once; and the usage that they contain."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, Final, NamedTuple

from perdure.eventlog.port import (
    CHAT_PROJECT,
    LogName,
    build_project_name,
    check_session_id,
    default_session_id,
)
from perdure.executions.model import FATAL, QUOTA, SUCCESS, TOOL, TRUNCATED, UNKNOWN
from perdure.kernel.clock import boottime
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import Fenced, InvalidInput, PerdureError
from perdure.kernel.retry import retry_until
from perdure.runs.queue import RunQueue
from perdure.sessions import envelopes
from perdure.sessions.envelopes import Envelope, without_content
from perdure.sessions.records import Message, SessionTotals
from perdure.sessions.transcripts.lines import error_line
from perdure.sessions.transcripts.reading import DELTAS, TranscriptTranslator, find_format, messages_of_record
from perdure.sessions.transcripts.values import is_number
from perdure.threads.work import Assignment, Lease, SessionLines, UsageReport
from perdure.worker.emitter import Waiters
from perdure.worker.options import WorkerOptions

# --- usage ------------------------------------------------------------------------------------------------


_REASONS: Final[Mapping[str, tuple[str, ...]]] = {
    SUCCESS: (SUCCESS, "end_turn", "stop", "stop_sequence", "completed", "tool_use", "condition_met"),
    TRUNCATED: (TRUNCATED, "max_tokens", "length", "error_max_turns", "max_turns", "pause_turn"),
    QUOTA: (QUOTA, "error_max_budget_usd", "rate_limit", "insufficient_quota", "overloaded_error"),
    FATAL: (FATAL, "error_during_execution", "error", "refusal", "aborted"),
    TOOL: (TOOL,),
    UNKNOWN: (UNKNOWN,),
}
_MEANINGS: Final = {stated: reason for reason, names in _REASONS.items() for stated in names}
_EXIT = re.compile(r"error_exit_[0-9]{1,3}")


def parse_stop_reason(stated: str | None) -> str | None:
    """Convert the stop reason of an agent, a model or a tool; None if it is unknown."""
    if stated is None:
        return None
    return stated if _EXIT.fullmatch(stated) else _MEANINGS.get(stated)


class UsageMeter:
    """Sums over the lines of one attempt: the tokens, once per message, and the last stated totals."""

    def __init__(self) -> None:
        self._totals = SessionTotals()
        self._turns: int | None = None
        self.api_duration_ms: int | None = None
        self.stop_reason: str | None = None
        """Why the agent reports that it stopped, if it does."""
        self.text = ""
        """The last text of the assistant."""
        self.counts_turns = True
        """Count messages of the assistant as turns; a command has none."""

    def read(self, record: Mapping[str, Any]) -> None:
        """Count a line of the session."""
        for message in messages_of_record(record):
            # All lines belong to one attempt, even if the tool names no attempt.
            message.run_id = message.attempt = None
            self._totals.add(message)
            if message.role == "assistant" and message.text:
                self.text = message.text
        if record.get("type") == "result":
            self._turns = _count(record.get("num_turns"), self._turns)
            self.api_duration_ms = _count(record.get("duration_api_ms"), self.api_duration_ms)
            self._conclude(record)

    def _conclude(self, record: Mapping[str, Any]) -> None:
        """Read why the agent stopped; the last such line wins. An error takes precedence over a reason."""
        subtype, reason = record.get("subtype"), record.get("stop_reason")
        stated = subtype if record.get("is_error") or subtype not in (None, SUCCESS) else reason
        known_reason = parse_stop_reason(stated if isinstance(stated, str) else None)
        if record.get("is_error") and known_reason in (None, SUCCESS):
            known_reason = FATAL
        self.stop_reason = known_reason or self.stop_reason

    @property
    def turns(self) -> int | None:
        """Number of turns: as stated by the agent, otherwise of the assistant's messages."""
        spoken = self._totals.turns if self.counts_turns else 0
        return self._turns if self._turns is not None else spoken or None

    def totals(self) -> dict[str, Any]:
        """Return the totals so far, in the form of a session's last line."""
        usage = self._totals.usage
        figures = {
            "num_turns": self.turns,
            "total_cost_usd": usage.cost_usd,
            "total_input_tokens": usage.input_tokens,
            "total_output_tokens": usage.output_tokens,
            "total_cache_read_input_tokens": usage.cache_read_input_tokens,
            "total_cache_creation_input_tokens": usage.cache_creation_input_tokens,
            "duration_api_ms": self.api_duration_ms,
        }
        return {name: value for name, value in figures.items() if value}

    def report(self, held: Lease, session_id: str) -> UsageReport:
        """Build the usage report."""
        usage = self._totals.usage
        return UsageReport(
            held=held,
            session_id=session_id,
            cost_usd=usage.cost_usd,
            input_tokens=usage.input_tokens or None,
            output_tokens=usage.output_tokens or None,
            cache_read_input_tokens=usage.cache_read_input_tokens or None,
            cache_creation_input_tokens=usage.cache_creation_input_tokens or None,
            turns=self.turns,
            api_duration_ms=self.api_duration_ms,
        )


def _count(value: Any, known: int | None) -> int | None:
    return int(value) if is_number(value) and value >= 0 else known


# --- sending ----------------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

MAX_LINES = 1000
MAX_BYTES = 1 << 20
MAX_LINE = 16 << 20
"""Largest number of characters of a line; a longer line is refused."""
LINGER_SECONDS = 0.02
"""Delay of a first line, to send more lines together."""
MAX_RESULT = 65_536
"""Largest part of a phase's output in its session."""
PATIENCE_SECONDS = 30.0
"""How long a write is retried. An agent never fails because of its log."""


class _Pending(NamedTuple):
    log: LogName
    body: str


class SessionWriter:
    """Lines of one attempt. Any thread adds lines; the worker's loop sends them."""

    def __init__(
        self,
        queue: RunQueue,
        assignment: Assignment,
        options: WorkerOptions,
        still_owned: Callable[[], bool],
    ) -> None:
        run = assignment.run
        self._queue = queue
        self._lease = assignment.held
        self._still_owned = still_owned
        self._enabled = options.session_log
        self._content = options.session_content
        self._own: Envelope = {"runId": run.run_id}
        if assignment.attempt > 1:
            self._own["attempt"] = assignment.attempt
        # A phase that continues in its thread continues in its session.
        default = run.run_id if run.temporary and assignment.phase is None else run.thread_id
        self._log = LogName(CHAT_PROJECT, default_session_id(default))
        self._cwd: str | None = None
        self.meter = None if assignment.phase is None else UsageMeter()
        """Usage of the attempt of a phase so far."""
        self._reported: UsageReport | None = None
        """Last reported usage."""
        self._opening: Envelope | None = None
        """Line to write before the attempt's first line."""
        self._began = boottime()
        self._named = False
        """True if the agent has named its session."""
        self._transcribes = False
        """True if a known tool has written lines."""
        self._translator = TranscriptTranslator()
        self._concluded = False
        """True if the tool has stated its totals."""
        self._failed = False
        """True if the tool has reported a failure."""
        self._control = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiters = Waiters()
        self._sending = asyncio.Lock()
        self._pending: list[_Pending] = []
        self._bytes = 0
        self._next = 1
        self._scheduled = False
        self._stopped = False
        self._task: asyncio.Task[None] | None = None

    @property
    def session_id(self) -> str:
        """Session that the attempt writes to."""
        return self._log.session_id

    @property
    def full(self) -> bool:
        return not self._stopped and (len(self._pending) >= MAX_LINES or self._bytes >= MAX_BYTES)

    def open(self, id: str | None = None, cwd: str | None = None) -> str:
        """Switch to another session, or to the session of a working directory; return the session's ID."""
        session_id = self.session_id if id is None else check_session_id(id)
        self._log = LogName(self._log.project if cwd is None else build_project_name(cwd), session_id)
        self._cwd = self._cwd if cwd is None else cwd
        self._named = True
        return session_id

    def work_in(self, directory: str) -> None:
        """Assign the session to a working directory, unless the agent names another."""
        self._log, self._cwd = self._log._replace(project=build_project_name(directory)), directory

    def open_with(self, prompt: str) -> None:
        """Start the session with a prompt, unless a tool writes its own session with it."""
        self._opening = envelopes.message("user", prompt)

    def conclude(self, stop_reason: str, output: str, error: str | None, *, answer: str = "") -> None:
        """Add the end of a phase's attempt, except lines that a tool has already written."""
        if self._transcribes:
            self._conclude_transcript(stop_reason, output, error)
            return
        if error is None:
            self._add_answer(answer)
        # The meter must not read its own totals again.
        totals = {} if self.meter is None else self.meter.totals()
        meter, self.meter = self.meter, None
        if error is not None:
            self.put(error_line(error))
        taken = round((boottime() - self._began) * 1000)
        result: Envelope = {"type": "result", "subtype": stop_reason, "result": output[:MAX_RESULT]}
        self.put({**result, **totals, "duration_ms": taken, "is_error": error is not None})
        self.meter = meter

    def _conclude_transcript(self, stop_reason: str, output: str, error: str | None) -> None:
        """Add the lines that a tool did not write because it ended early: the error and the totals.

        The lines have the same form as the tool's lines, so that totals are not counted twice.
        """
        if error is not None and not self._failed:
            self._put_line(error_line(error))
        if not self._concluded:
            totals = {} if self.meter is None else self.meter.totals()
            result: Envelope = {"type": "result", "subtype": stop_reason, "result": output[:MAX_RESULT]}
            self._put_line({**result, **totals, "is_error": error is not None})

    def _add_answer(self, answer: str) -> None:
        """Add the answer that an agent returned, unless it equals the assistant's last text."""
        if answer and (self.meter is None or self.meter.text != answer):
            self.put(envelopes.message("assistant", answer))

    def put(self, line: Envelope | None) -> None:
        """Add a line of the agent, from any thread."""
        opening, self._opening = self._opening, None
        if opening is not None and opening != line:
            self.put(opening)
        if line is None:
            return
        if self.meter is not None:
            self.meter.read({**line, **self._own})
            self._begin_soon()
        if not self._enabled:
            return
        shown = line if self._content else without_content(line)
        place = {} if self._cwd is None else {"cwd": self._cwd}
        self._put({**shown, "timestamp": _now(), "sessionId": self.session_id, **place, **self._own})

    def put_transcript(self, record: Mapping[str, Any]) -> bool:
        """Add a line of a known tool, translated; return False for a line of no known tool.

        The session is the tool's own, unless the agent named a session. Lines of unknown types between known
        lines are added too.
        """
        self._transcribes = self._transcribes or find_format(record) is not None
        if not self._transcribes:
            return False
        if record.get("type") in DELTAS:
            return True
        named = self._translator.translate_named(record)
        lines = named or [dict(record)]
        for line in lines:
            self._concluded = self._concluded or line.get("type") == "result"
            self._failed = self._failed or bool(line.get("isApiErrorMessage"))
            if self.meter is not None:
                self.meter.read(line)
                self._begin_soon()
        if not self._enabled or not self._content:
            return True
        for line in lines:
            messages = messages_of_record(line)
            for message in () if self._named else messages:
                self._follow(message.session_id, message.cwd)
            self._open_before(messages)
            if named:
                self._put_line(line)
            else:
                self._put(line)
        return True

    def _open_before(self, messages: Sequence[Message]) -> None:
        """Write the prompt before the first message, unless that message is the prompt."""
        first = next((message for message in messages if message.role != "event"), None)
        if first is None or self._opening is None:
            return
        opening, self._opening = self._opening, None
        if (first.role, first.text.strip()) != ("user", opening["message"]["content"].strip()):
            self._put_line(opening)

    def _put_line(self, line: Envelope) -> None:
        """Add a line to the tool's session, with the current time if the line has none."""
        if not self._enabled or not self._content:
            return
        self._put({**line, "timestamp": line.get("timestamp") or _now(), "sessionId": self.session_id})

    def _follow(self, session_id: str | None, cwd: str | None) -> None:
        """Continue in the session that a tool names, if its ID is valid."""
        if session_id is not None:
            self._log = self._log._replace(session_id=default_session_id(session_id))
        if cwd is not None:
            self._log = self._log._replace(project=build_project_name(cwd))

    def _put(self, record: Mapping[str, Any]) -> None:
        body = encode_json(record, what="a line of the session")
        if len(body) > MAX_LINE:
            raise InvalidInput(f"a line of the session has {len(body)} characters; it may have {MAX_LINE}")
        with self._lock:
            if self._stopped:
                return
            self._pending.append(_Pending(self._log, body))
            self._bytes += len(body)
        self._begin_soon()

    def _begin_soon(self) -> None:
        """Send pending lines after a short delay."""
        with self._lock:
            if self._scheduled or self._stopped:
                return
            self._scheduled = True
        self._control.call_soon_threadsafe(self._schedule)

    async def wait_for_space(self) -> None:
        """Wait, in any loop, while too much is pending."""
        await self._waiters.wait_while(lambda: self.full)

    async def drain(self) -> None:
        """Send everything that is pending. The attempt ends after that."""
        async with self._sending:
            while batch := self._take():
                await self._send(batch)
            await self._report()

    def close(self) -> None:
        """Drop pending lines, and accept no more."""
        with self._lock:
            self._stopped = True
            self._pending, self._bytes = [], 0
        if self._task is not None:
            self._task.cancel()
        self._waiters.wake()

    # --- sending

    def _schedule(self) -> None:
        if not self._stopped:
            self._control.call_later(LINGER_SECONDS, self._begin)

    def _begin(self) -> None:
        with self._lock:
            self._scheduled = False
        if not self._stopped:
            self._task = self._control.create_task(self.drain())

    def _take(self) -> SessionLines | None:
        """Take the next lines of one session, up to the limit of a request."""
        with self._lock:
            if not self._pending:
                return None
            log, size = self._pending[0].log, 0

            def fits(line: _Pending) -> bool:
                nonlocal size
                first, size = not size, size + len(line.body)
                return line.log == log and (first or size <= MAX_BYTES)

            taken = [*takewhile(fits, self._pending[:MAX_LINES])]
            del self._pending[: len(taken)]
            self._bytes -= sum(len(line.body) for line in taken)
            first, self._next = self._next, self._next + len(taken)
        self._waiters.wake()
        bodies = [line.body for line in taken]
        return SessionLines(self._lease, log.session_id, log.project, bodies, first)

    async def _report(self) -> None:
        """Report the usage of a phase's attempt, if it has changed."""
        if self.meter is None:
            return
        report = self.meter.report(self._lease, self.session_id)
        if report != self._reported:
            await self._insist(lambda: self._queue.report_usage([report]), "its usage is lost")
            self._reported = report

    async def _send(self, batch: SessionLines) -> None:
        lost = f"{len(batch.lines)} lines of session {batch.session_id} are lost"
        await self._insist(lambda: self._queue.log_all([batch]), lost)

    async def _insist(
        self, action: Callable[[], Awaitable[list[int | PerdureError]]], what_if_not: str
    ) -> None:
        """Retry a write for PATIENCE_SECONDS. An agent never fails because its log was not written."""
        until = boottime() + PATIENCE_SECONDS

        async def send() -> None:
            for answer in await action():
                if isinstance(answer, PerdureError):
                    raise answer

        try:
            await retry_until(
                send,
                what=f"session of run {self._lease.run_id}",
                still_owned=lambda: self._still_owned() and boottime() < until,
                idempotent=True,
            )
        except Fenced:
            self.close()
        except PerdureError as error:
            message = "run %s: %s: %s: %s"
            logger.error(message, self._lease.run_id, what_if_not, error.code, error.message)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
