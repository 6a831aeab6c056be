"""Usage of an attempt so far, read from its session lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from perdure.executions.model import FATAL, QUOTA, SUCCESS, TOOL, TRUNCATED, UNKNOWN
from perdure.sessions.records import SessionTotals
from perdure.sessions.transcripts.reading import messages_of_record
from perdure.sessions.transcripts.values import is_number
from perdure.threads.work import Lease, UsageReport

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
    """Sums over the lines of one attempt: tokens once per message, and the last stated totals."""

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
            # All lines belong to one attempt, even if the tool names none.
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
