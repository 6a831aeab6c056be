"""Messages of sessions in one form, whichever tool wrote them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Role = Literal["user", "assistant", "tool", "system", "result", "event"]


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens and cost. What is not known is 0, or None for the cost."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cost_usd: float | None = None

    def __bool__(self) -> bool:
        return self != NO_USAGE

    def __add__(self, other: Usage) -> Usage:
        costs = [each.cost_usd for each in (self, other) if each.cost_usd is not None]
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_input_tokens + other.cache_read_input_tokens,
            self.cache_creation_input_tokens + other.cache_creation_input_tokens,
            sum(costs) if costs else None,
        )


NO_USAGE = Usage()


class ToolCall(msgspec.Struct, frozen=True):
    """A tool that the assistant calls. `input` is an object, or the text of one that is not JSON."""

    id: str
    name: str
    input: Any = None


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message of a session. `event` is the role of a line that is no message.

    `time` is in epoch seconds. `usage` is that of this message alone, unless `cumulative`: then it is that of
    the session so far, or of the attempt that tells it. Lines with the same `message_id` are parts of one
    message.
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
    message_id: str | None = None
    parent_id: str | None = None
    agent_id: str | None = None
    session_id: str | None = None
    cwd: str | None = None
    run_id: str | None = None
    attempt: int | None = None
    """The run that said it, and its attempt, from the second on."""
    blob: str | None = None
    """The digest of the whole content of a tool result that is cut here."""
    kind: str | None = None
    """The type of a line that is no message, such as `summary`."""
    position: int = 0
    after: int = 0
    """The place of its line in the log, and the place to read on from."""


class Totals:
    """Sums over the messages of a session: tokens once a message, a cumulative cost as it was told last."""

    def __init__(self) -> None:
        self.turns = 0
        self.tool_calls = 0
        self.messages = 0
        self.model: str | None = None
        self._by_message: dict[str, Usage] = {}
        self._unnamed = NO_USAGE
        self._cumulative: dict[tuple[str, str, int], Usage] = {}

    def add(self, message: Message) -> None:
        if message.role != "event":
            self.messages += 1
        self.tool_calls += len(message.tool_calls)
        self.model = message.model or self.model
        usage = message.usage
        if usage is None:
            new = message.role == "assistant" and message.message_id is None
        elif message.cumulative:
            # An attempt tells its own usage, a tool that of the session.
            source = message.agent_id or "", message.run_id or "", message.attempt or 1
            self._cumulative[source] = usage
            new = False
        elif message.message_id is not None:
            new = message.message_id not in self._by_message
            self._by_message[message.message_id] = usage
        else:
            self._unnamed += usage
            new = message.role == "assistant"
        self.turns += new

    @property
    def usage(self) -> Usage:
        """What the session took: the sum of its messages, and the cost that was told of all of it."""
        total = sum(self._by_message.values(), self._unnamed)
        told = sum(self._cumulative.values(), NO_USAGE)
        if not (total.input_tokens or total.output_tokens):
            return told
        return total if told.cost_usd is None else msgspec.structs.replace(total, cost_usd=told.cost_usd)
