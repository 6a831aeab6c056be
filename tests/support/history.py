"""The calls that callers of a store made, to compare them with the database afterwards.

Every call is recorded before it is made and again when it is answered: `ok`, `fail` (it certainly had no
effect) or `info` (unknown: the answer was lost, or the waiting process was killed). A pipe writes each line
whole, because lines are small; a killed caller leaves its last call open. An action outside the store, an
effect, has its own line.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import msgspec

from perdure.kernel.errors import OutcomeUnknown, PerdureError, Unreachable

T = TypeVar("T")

Outcome = Literal["ok", "fail", "info"]
UNKNOWN = (OutcomeUnknown, Unreachable)
"""Errors of calls that may have had an effect, because their answers were lost."""
UNTYPED = "untyped"
"""The code of an answer that is not an error of a store."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[Any]).decode


class Call(msgspec.Struct):
    """A call: its arguments, its times, and its end. Times are nanoseconds of the monotonic clock."""

    process: str
    number: int
    function: str
    given: dict[str, Any]
    started: int
    ended: int | None = None
    outcome: Outcome = "info"
    got: dict[str, Any] = {}
    code: str = ""
    message: str = ""

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    @property
    def open(self) -> bool:
        """Return whether it is unknown if the call had an effect."""
        return self.outcome == "info"

    def before(self, other: Call) -> bool:
        """Return whether this call was answered before the other was made."""
        return self.ended is not None and self.ended < other.started

    def __str__(self) -> str:
        return f"{self.process}#{self.number} {self.function}"


class Effect(msgspec.Struct, frozen=True):
    """An action outside the store: its process, its time, and its subject."""

    process: str
    at: int
    what: str
    about: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The end of a recorded call, with its value if it is ok."""

    outcome: Outcome
    value: T | None = None

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"


class Recorder:
    """Records the calls of one process. `write` gets one whole line at a time."""

    def __init__(self, process: str, write: Callable[[bytes], object]) -> None:
        self.process = process
        self._write = write
        self._number = 0

    def mark(self, what: str) -> None:
        """Record a mark, which is not a call."""
        self._line("mark", 0, what)

    def did(self, what: str, **about: Any) -> None:
        """Record an effect. Safe from any thread, if `write` is."""
        self._line("did", 0, what, about)

    async def call(
        self,
        function: str,
        given: Mapping[str, Any],
        action: Awaitable[T],
        got: Callable[[T], Mapping[str, Any]],
    ) -> Answer[T]:
        """Await `action`, which must not have started, and record the call and its answer."""
        self._number += 1
        number = self._number
        self._line("invoke", number, function, given)
        try:
            value = await action
        except asyncio.CancelledError:
            self._line("info", number, "cancelled", "")
            raise
        except PerdureError as error:
            outcome: Outcome = "info" if isinstance(error, UNKNOWN) else "fail"
            self._line(outcome, number, error.code, error.message)
            return Answer(outcome)
        except Exception as error:  # noqa: BLE001 - recorded as a violation
            self._line("info", number, UNTYPED, repr(error)[:500])
            return Answer("info")
        self._line("ok", number, got(value))
        return Answer("ok", value)

    def _line(self, what: str, number: int, *rest: Any) -> None:
        self._write(_encode([what, self.process, number, time.monotonic_ns(), *rest]) + b"\n")


@dataclass
class History:
    """The calls of any number of processes."""

    calls: dict[tuple[str, int], Call] = field(default_factory=dict)
    marks: list[tuple[str, str]] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)

    def read(self, lines: Iterable[bytes]) -> None:
        """Add the lines of recorders; each line must be whole."""
        for line in lines:
            what, process, number, at, *rest = _decode(line)
            if what == "mark":
                self.marks.append((process, rest[0]))
            elif what == "did":
                self.effects.append(Effect(process, at, rest[0], rest[1]))
            elif what == "invoke":
                self.calls[process, number] = Call(process, number, rest[0], rest[1], at)
            else:
                self._answer(self.calls[process, number], what, at, rest)

    @staticmethod
    def _answer(call: Call, outcome: Outcome, at: int, rest: list[Any]) -> None:
        call.outcome, call.ended = outcome, at
        if outcome == "ok":
            call.got = rest[0]
        else:
            call.code, call.message = rest

    def __iter__(self) -> Iterator[Call]:
        return iter(self.calls.values())

    def __len__(self) -> int:
        return len(self.calls)

    def as_of(self, began: int, ended: int) -> list[Call]:
        """Return the calls as seen by a reader of the database between these two moments.

        A call answered later is open; a call made later has not happened.
        """
        return [
            call if call.ended is not None and call.ended < began else _opened(call)
            for call in self
            if call.started <= ended
        ]

    def outcomes(self) -> Counter[str]:
        """Count the calls by outcome; errors by their codes."""
        counts: Counter[str] = Counter(call.outcome for call in self)
        counts.update(f"{call.outcome}: {call.code}" for call in self if call.code)
        return counts


def _opened(call: Call) -> Call:
    return Call(call.process, call.number, call.function, call.given, call.started)


@dataclass
class Report:
    """The result of a check. Without violations the database agrees with everything that was seen."""

    calls: int = 0
    rollouts: int = 0
    attempts: int = 0
    spans: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.violations

    def __str__(self) -> str:
        counted = (
            f"{self.calls} calls, {self.rollouts} rollouts, {self.attempts} attempts, {self.spans} spans"
        )
        if self.ok:
            return f"none lost, none doubled: {counted}"
        listed = "\n".join(f"  - {violation}" for violation in self.violations[:50])
        return f"{len(self.violations)} violations in {counted}:\n{listed}"
