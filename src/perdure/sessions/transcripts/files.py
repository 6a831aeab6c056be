"""Transcripts in files of other tools: which session they are of, and their lines."""

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
"""Length of a record that is too long for a request beside its translation."""
FIRST_LINES = 50
"""How many lines are read to find out the session and its directory."""
UNREADABLE = "unreadable"
_NOT_IN_ID = re.compile(r"[^A-Za-z0-9_-]+")
_SUB_AGENT = re.compile(r"agent-[A-Za-z0-9_-]+")


def find_name(file: Path, *, project: str | None = None, session_id: str | None = None) -> LogName:
    """The log of a transcript: by what its first lines say, else by the name of the file."""
    with file.open("rb") as lines:
        first = [
            message
            for line in islice(lines, FIRST_LINES)
            for message in parse_messages(line.strip() or b"{}")
        ]
    told = next((message.session_id for message in first if message.session_id), None)
    cwd = next((message.cwd for message in first if message.cwd), None)
    found_project = project or (CHAT_PROJECT if cwd is None else build_project_name(cwd))
    row_to_match = session_id or told or _NOT_IN_ID.sub("-", file.stem)
    if _SUB_AGENT.fullmatch(file.stem) and session_id is None and told is not None:
        return check_name(LogName(found_project, told, "subagents/" + file.stem))
    return check_name(LogName(found_project, row_to_match[:128]))


def read_lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines of a session that a file becomes, each with about its length.

    A record that is too long to be sent beside its translation is left as it is.
    """
    translator = TranscriptTranslator()
    for length, record in read_objects(file):
        lines = translator.translate_named(record)
        if not lines or length > LONG_LINE:
            yield length, record
        else:
            yield from ((len(encode_line(line)), line) for line in lines)


def read_objects(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON objects of a file, each with the length of its line. A line that is none is kept as text."""
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
