"""Messages of sessions in one form, independent of the tool that wrote them."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

Role = Literal["user", "assistant", "tool", "system", "result", "event"]


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens and cost. An unknown value is 0, or None for the cost."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cost_usd: float | None = None

    def __bool__(self) -> bool:
        return self != NO_USAGE

    def __add__(self, other: Usage) -> Usage:
        costs = [usage.cost_usd for usage in (self, other) if usage.cost_usd is not None]
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_input_tokens + other.cache_read_input_tokens,
            self.cache_creation_input_tokens + other.cache_creation_input_tokens,
            sum(costs) if costs else None,
        )


NO_USAGE = Usage()
USAGE_FIELDS: Final = Usage.__struct_fields__
TURNS: Final = "turns"


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call of the assistant. `input` is an object, or a text that is not JSON."""

    id: str
    name: str
    input: Any = None


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message of a session. A line that is no message has the role `event`.

    `time` is in epoch seconds. `usage` is that of this message, or with `cumulative` that of the session so
    far or of the attempt that states it. Lines with the same `message_id` are parts of one message.
    """

    role: Role
    text: str = ""
    time: float | None = None
    reasoning: list[str] = []
    tool_calls: list[ToolCall] = []
    tool_call_id: str | None = None
    is_error: bool = False
    model: str | None = None
    usage: Usage | None = None
    cumulative: bool = False
    totals: dict[str, float] = {}
    """Totals that a `result` states, by the names of the fields of `usage`, and `turns`."""
    message_id: str | None = None
    parent_id: str | None = None
    agent_id: str | None = None
    session_id: str | None = None
    cwd: str | None = None
    run_id: str | None = None
    attempt: int | None = None
    """Run and attempt (from the second on) that wrote it."""
    blob: str | None = None
    """Digest of the full content of a tool result that is cut here."""
    kind: str | None = None
    """Type of a line that is no message, such as `summary`."""
    position: int = 0
    after: int = 0
    """Position of its line in the log, and position at which to continue reading."""


class _Source:
    """Usage of one source of a session: a tool, or an attempt that states its own."""

    def __init__(self) -> None:
        self.turns = 0
        self.unnamed = NO_USAGE
        self.stated: dict[str, float] = {}
        self.last = NO_USAGE

    def usage(self, named: Usage) -> Usage:
        """Return the usage, field by field: the last stated total, otherwise the sum of the messages.

        `last` has the figures of a line that states no totals of the session. They are used where messages
        have none.
        """
        summed = self.unnamed + named
        if not (summed.input_tokens or summed.output_tokens):
            summed = self.last if summed.cost_usd is None else replace(self.last, cost_usd=summed.cost_usd)
        return replace(summed, **{name: self.stated[name] for name in USAGE_FIELDS if name in self.stated})


class SessionTotals:
    """Sums over the messages of a session: tokens once per message, and the last stated totals."""

    def __init__(self) -> None:
        self.tool_calls = 0
        self.messages = 0
        self.model: str | None = None
        self._by_message: dict[str, tuple[str, Usage]] = {}
        self._sources: dict[str, _Source] = {}

    def add(self, message: Message) -> None:
        if message.role != "event":
            self.messages += 1
        self.tool_calls += len(message.tool_calls)
        self.model = message.model or self.model
        # An attempt states its own usage; a tool states the usage of its session.
        key = "/".join((message.agent_id or "", message.run_id or "", str(message.attempt or 1)))
        source = self._sources.get(key) or self._sources.setdefault(key, _Source())
        usage = message.usage
        if message.cumulative:
            source.stated |= message.totals
            source.last = usage or source.last
        elif usage is None:
            source.turns += message.role == "assistant" and message.message_id is None
        elif message.message_id is not None:
            source.turns += message.message_id not in self._by_message
            self._by_message[message.message_id] = key, usage
        else:
            source.unnamed += usage
            source.turns += message.role == "assistant"

    @property
    def turns(self) -> int:
        """Number of turns: as stated, otherwise the number of the assistant's messages."""
        return sum(int(source.stated.get(TURNS, source.turns)) for source in self._sources.values())

    @property
    def usage(self) -> Usage:
        """Usage of the session: the sum over its sources."""
        named: dict[str, Usage] = {}
        for key, usage in self._by_message.values():
            named[key] = named.get(key, NO_USAGE) + usage
        parts = (source.usage(named.get(key, NO_USAGE)) for key, source in self._sources.items())
        return sum(parts, NO_USAGE)
