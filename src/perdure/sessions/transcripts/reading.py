"""Lines of any known transcript as lines of a session, and as messages.

Each line is recognised by its own shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from perdure.eventlog.port import Line, compute_digest, encode_line
from perdure.eventlog.writing import MARK, ORIGINAL, PART
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import InvalidInput
from perdure.sessions.records import Message
from perdure.sessions.transcripts import claude, codex, openai_agents, pi
from perdure.sessions.transcripts.lines import SessionLine, TranscriptState, event_line, iso_time
from perdure.sessions.transcripts.values import parse_text

Recognises = Callable[[str, Mapping[str, Any]], bool]
Translates = Callable[[Mapping[str, Any], TranscriptState], list[SessionLine]]


class TranscriptFormat(NamedTuple):
    """A format of transcripts. Lines of the first one are those of a session already."""

    name: str
    recognises: Recognises
    lines: Translates | None


FORMATS: tuple[TranscriptFormat, ...] = (
    TranscriptFormat("codex", codex.recognises, codex.lines),
    TranscriptFormat("claude", claude.recognises, None),
    TranscriptFormat("pi", pi.recognises, pi.lines),
    TranscriptFormat("openai-agents", openai_agents.recognises, openai_agents.lines),
)
"""The most specific first; what OpenAI stores has few marks of its own."""

MAX_TORN = 200
DELTAS = frozenset({"stream_event", "message_update", "tool_execution_update", "item.updated"})
"""Lines that repeat a part of what a later line tells as a whole."""


def find_format(record: Mapping[str, Any]) -> str | None:
    """Return the name of the format that a line is in, or None."""
    known = _format(record)
    return None if known is None else known.name


def is_foreign(record: Mapping[str, Any]) -> bool:
    """Whether a line is in the format of another tool, and not yet one of a session."""
    known = _format(record)
    return known is not None and known.lines is not None


def _format(record: Mapping[str, Any]) -> TranscriptFormat | None:
    kind = parse_text(record.get("type")) or ""
    return next((each for each in FORMATS if each.recognises(kind, record)), None)


class TranscriptTranslator:
    """Translates the lines of one transcript, in their order, into lines of a session.

    Lines of Claude Code, and those of no known format, are left as they are.
    """

    def __init__(self, *, thinking: bool = False) -> None:
        self._transcript = TranscriptState(thinking=thinking)

    @property
    def session_id(self) -> str | None:
        """The session that the transcript names."""
        return self._transcript.session_id

    def translate(self, record: Mapping[str, Any]) -> list[SessionLine]:
        """Return the lines of a record: at least one, without its original."""
        known = _format(record)
        if known is None or known.lines is None:
            return [dict(record)]
        transcript = self._transcript
        lines = known.lines(record, transcript) or [event_line(parse_text(record.get("type")) or known.name)]
        message = record.get("message")
        times = (record.get("timestamp"), record.get("started_at"))
        inner = message.get("timestamp") if isinstance(message, Mapping) else None
        transcript.time = next(filter(None, map(iso_time, (*times, inner))), transcript.time)
        session_id = parse_text(record.get("sessionId")) or transcript.session_id
        common = {"timestamp": transcript.time, "sessionId": session_id}
        shared = {name: value for name, value in common.items() if value is not None}
        return [line | shared for line in lines]

    def translate_named(self, record: Mapping[str, Any]) -> list[SessionLine]:
        """Return the lines of a record, the first of which carries its original to the log.

        None for a line that is one of a session already, and for one too deep to stand within another.
        """
        if not is_foreign(record):
            return []
        lines = self.translate(record)
        try:
            digest = compute_digest(encode_line(record))
            first = lines[0] | {MARK: {ORIGINAL: record}}
            encode_line(first)
        except InvalidInput:
            return []
        others = enumerate(lines[1:], 2)
        return [first, *(line | {MARK: {ORIGINAL: digest, PART: part}} for part, line in others)]


def translated(records: Iterable[Mapping[str, Any]], *, numbered: bool = False) -> Iterator[SessionLine]:
    """Translate the lines of a transcript, each with its original.

    If the lines are `numbered` already, one that would become several is left as it is.
    """
    translator = TranscriptTranslator()
    for record in records:
        lines = translator.translate_named(record)
        yield from lines if lines and not (numbered and len(lines) > 1) else [dict(record)]


def parse_messages(body: bytes | str) -> list[Message]:
    """The messages of one line. What is not understood is an event, and nothing raises."""
    try:
        record = decode_json(body)
    except InvalidInput:
        text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
        return [Message(role="event", kind="unreadable", text=text[:MAX_TORN], is_error=True)]
    if not isinstance(record, Mapping):
        return [Message(role="event", kind="unknown")]
    return messages_of_record(record)


def messages_of_record(record: Mapping[str, Any]) -> list[Message]:
    """The messages of a line that is decoded already; one of another tool is translated first."""
    known = _format(record)
    if known is None:
        kind = parse_text(record.get("type")) or ""
        return [Message(role="event", kind=kind[:MAX_TORN] or "unknown")]
    if known.lines is None:
        return claude.messages(record)
    lines = TranscriptTranslator(thinking=True).translate(record)
    return [message for line in lines for message in claude.messages(line)]


def messages_in(lines: Iterable[Line]) -> Iterator[Message]:
    """The messages of lines, each with the place of its line."""
    for line in lines:
        for message in parse_messages(line.body):
            message.position, message.after = line.position, line.after
            yield message
