"""Sessions and lines of transcripts in files of other tools."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from perdure.eventlog.port import CHAT_PROJECT, LogName, build_project_name, check_name, encode_line
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import InvalidInput
from perdure.sessions.transcripts.reading import TranscriptTranslator, parse_messages

LONG_LINE = 3 << 19
"""From this length on, a record and its translation do not fit into one request."""
FIRST_LINES = 50
"""Number of lines that are read to find the session and its directory."""
UNREADABLE = "unreadable"
_NOT_IN_ID = re.compile(r"[^A-Za-z0-9_-]+")
_SUB_AGENT = re.compile(r"agent-[A-Za-z0-9_-]+")


def find_name(file: Path, *, project: str | None = None, session_id: str | None = None) -> LogName:
    """Return the log of a transcript, from its first lines or else from the name of the file."""
    with file.open("rb") as lines:
        first = [
            message
            for line in islice(lines, FIRST_LINES)
            for message in parse_messages(line.strip() or b"{}")
        ]
    named = next((message.session_id for message in first if message.session_id), None)
    cwd = next((message.cwd for message in first if message.cwd), None)
    log_project = project or (CHAT_PROJECT if cwd is None else build_project_name(cwd))
    log_id = session_id or named or _NOT_IN_ID.sub("-", file.stem)
    if _SUB_AGENT.fullmatch(file.stem) and session_id is None and named is not None:
        return check_name(LogName(log_project, named, "subagents/" + file.stem))
    return check_name(LogName(log_project, log_id[:128]))


def read_lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the session lines of a file, each with its approximate length.

    A record that does not fit into a request together with its translation stays unchanged.
    """
    translator = TranscriptTranslator()
    for length, record in read_objects(file):
        lines = translator.translate_named(record)
        if not lines or length > LONG_LINE:
            yield length, record
        else:
            yield from ((len(encode_line(line)), line) for line in lines)


def read_objects(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the JSON objects of a file, each with the length of its line. Other lines are kept as text."""
    with file.open("rb") as lines:
        for line in lines:
            text = line.strip()
            if not text:
                continue
            try:
                record = decode_json(text)
            except InvalidInput:
                record = None
            if not isinstance(record, dict) or not record:
                record = {"type": UNREADABLE, "text": text.decode("utf-8", "replace")}
            yield len(text), record
