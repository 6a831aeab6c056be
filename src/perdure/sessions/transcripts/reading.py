"""Convert lines of any known transcript to lines of a session, and to messages.

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
    """A format of transcripts. `lines` is None if its lines are session lines already."""

    name: str
    recognises: Recognises
    lines: Translates | None


FORMATS: tuple[TranscriptFormat, ...] = (
    TranscriptFormat("codex", codex.recognises, codex.lines),
    TranscriptFormat("claude", claude.recognises, None),
    TranscriptFormat("pi", pi.recognises, pi.lines),
    TranscriptFormat("openai-agents", openai_agents.recognises, openai_agents.lines),
)
"""The most specific format comes first; items of the OpenAI SDK have few characteristic fields."""

MAX_TORN = 200
DELTAS = frozenset({"stream_event", "message_update", "tool_execution_update", "item.updated"})
"""Types of lines that repeat a part of a later line."""


def find_format(record: Mapping[str, Any]) -> str | None:
    """Return the name of the format that a line is in, or None."""
    format_ = _format(record)
    return None if format_ is None else format_.name


def is_foreign(record: Mapping[str, Any]) -> bool:
    """Return whether a line is in the format of another tool and not yet a session line."""
    format_ = _format(record)
    return format_ is not None and format_.lines is not None


def _format(record: Mapping[str, Any]) -> TranscriptFormat | None:
    kind = parse_text(record.get("type")) or ""
    return next((format_ for format_ in FORMATS if format_.recognises(kind, record)), None)


class TranscriptTranslator:
    """Translator of the lines of one transcript, in order, to session lines.

    Lines of Claude Code, and lines of unknown formats, stay unchanged.
    """

    def __init__(self, *, thinking: bool = False) -> None:
        self._transcript = TranscriptState(thinking=thinking)

    @property
    def session_id(self) -> str | None:
        """Return the session that the transcript names."""
        return self._transcript.session_id

    def translate(self, record: Mapping[str, Any]) -> list[SessionLine]:
        """Return the lines of a record: at least one line, without the original record."""
        format_ = _format(record)
        if format_ is None or format_.lines is None:
            return [dict(record)]
        transcript = self._transcript
        lines = format_.lines(record, transcript) or [
            event_line(parse_text(record.get("type")) or format_.name)
        ]
        message = record.get("message")
        times = (record.get("timestamp"), record.get("started_at"))
        inner = message.get("timestamp") if isinstance(message, Mapping) else None
        transcript.time = next(filter(None, map(iso_time, (*times, inner))), transcript.time)
        session_id = parse_text(record.get("sessionId")) or transcript.session_id
        common = {"timestamp": transcript.time, "sessionId": session_id}
        shared = {name: value for name, value in common.items() if value is not None}
        return [line | shared for line in lines]

    def translate_named(self, record: Mapping[str, Any]) -> list[SessionLine]:
        """Return the lines of a record; the first line carries the original record to the log.

        Return no lines for a record that is a session line already, or is nested too deep to be embedded.
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

    With `numbered`, a line that would become several stays unchanged.
    """
    translator = TranscriptTranslator()
    for record in records:
        lines = translator.translate_named(record)
        yield from lines if lines and not (numbered and len(lines) > 1) else [dict(record)]


def parse_messages(body: bytes | str) -> list[Message]:
    """Parse the messages of one line. Unknown content becomes an event; no error is raised."""
    try:
        record = decode_json(body)
    except InvalidInput:
        text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
        return [Message(role="event", kind="unreadable", text=text[:MAX_TORN], is_error=True)]
    if not isinstance(record, Mapping):
        return [Message(role="event", kind="unknown")]
    return messages_of_record(record)


def messages_of_record(record: Mapping[str, Any]) -> list[Message]:
    """Return the messages of a decoded line; a line of another tool is translated first."""
    format_ = _format(record)
    if format_ is None:
        kind = parse_text(record.get("type")) or ""
        return [Message(role="event", kind=kind[:MAX_TORN] or "unknown")]
    if format_.lines is None:
        return claude.messages(record)
    lines = TranscriptTranslator(thinking=True).translate(record)
    return [message for line in lines for message in claude.messages(line)]


def messages_in(lines: Iterable[Line]) -> Iterator[Message]:
    """Yield the messages of lines, each with the position of its line."""
    for line in lines:
        for message in parse_messages(line.body):
            message.position, message.after = line.position, line.after
            yield message
