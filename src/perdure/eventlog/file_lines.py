"""Lines of a log in a file: complete lines between two positions, and the stamps at their ends."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

from perdure.eventlog.port import MAX_BATCH, MAX_READ, Line, Lines

CHUNK: Final = 256 << 10
LOOK_BACK: Final = MAX_BATCH + (1 << 20)
"""Bytes searched backwards for the last line of an attempt: more than a torn batch can have."""
MAX_STAMP: Final = 640
"""Upper bound of the bytes of a stamp, with the mark around it."""
_NUMBERED: Final = rb'\["([^"\\]*)",(\d+)\]'
_STAMP: Final = re.compile(rb',"_perdure":' + _NUMBERED + rb"\}\Z")
"""End of a line that is numbered within an attempt. Readers do not see it."""
_ORIGINAL: Final = rb',"_perdure":\{"original":"[0-9a-f]{64}"(?:,"part":\d{1,9})?'
_MARKED: Final = re.compile(_ORIGINAL + rb"\}\}\Z")
"""End of a line that names its original."""
_MARKED_STAMP: Final = re.compile(_ORIGINAL + rb'(,"line":' + _NUMBERED + rb")\}\}\Z")
"""The stamp within such a mark."""
_STAMP_START: Final = b',"_perdure":'
_NO_ATTEMPT: Final = b',"_perdure":["",0]}\n'


def read_bytes(descriptor: int, begin: int, end: int) -> bytes:
    """Return the bytes between two positions, or up to the end of the file."""
    parts: list[bytes] = []
    while begin < end:
        part = os.pread(descriptor, min(end - begin, CHUNK), begin)
        if not part:
            break
        parts.append(part)
        begin += len(part)
    return b"".join(parts)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes at the end of a file, in as many writes as needed."""
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, data[written:])


def _complete_lines(descriptor: int, begin: int, end: int) -> Iterator[Line]:
    """Yield lines that end before `end`; of a line longer than `MAX_READ`, only the beginning."""
    buffer, start, dropped = b"", begin, 0
    position = begin
    while position < end:
        chunk = os.pread(descriptor, min(CHUNK, end - position), position)
        if not chunk:
            return
        position += len(chunk)
        *complete, rest = chunk.split(b"\n")
        for part in complete:
            body = buffer + part
            after = start + len(body) + dropped + 1
            yield Line(start, after, body[:MAX_READ])
            buffer, start, dropped = b"", after, 0
        buffer += rest
        if len(buffer) > MAX_READ:
            dropped += len(buffer) - MAX_READ
            buffer = buffer[:MAX_READ]


def read_page(descriptor: int, begin: int, end: int, limit: int, max_bytes: int) -> Lines:
    lines: list[Line] = []
    reached, size = begin, 0
    for line in _complete_lines(descriptor, begin, end):
        reached = line.after
        if line.body:
            body = unstamped(line.body)[0]
            lines.append(line if body is line.body else Line(line.position, line.after, body))
            size += len(line.body)
        if len(lines) >= limit or size >= max_bytes:
            break
    return Lines(lines, reached, end)


def stamped(body: bytes, attempt_id: bytes, number: int) -> bytes:
    """Add a stamp to a line: the attempt that wrote it, and its number in the attempt."""
    numbered = b'["' + attempt_id + b'",' + str(number).encode() + b"]"
    at = body.rfind(_STAMP_START) if body.endswith(b"}}") else -1
    if at >= 0 and _MARKED.match(body, at) is not None:
        return body[:-2] + b',"line":' + numbered + b"}}\n"
    return body[:-1] + _STAMP_START + numbered + b"}\n"


def unstamped(line: bytes) -> tuple[bytes, str | None, int | None]:
    """Remove the stamp of a line; return the line, the attempt and the number.

    Only the end of the line is searched, because lists have many lines.
    """
    if not line.endswith((b"]}", b"]}}")):
        return line, None, None
    at = line.rfind(_STAMP_START)
    if at < 0:
        return line, None, None
    stamp = _STAMP.match(line, at)
    if stamp is not None:
        attempt_id, number = stamp[1].decode(), int(stamp[2])
        return line[:at] + b"}", attempt_id or None, number if attempt_id else None
    stamp = _MARKED_STAMP.match(line, at)
    if stamp is not None:
        return line[: stamp.start(1)] + b"}}", stamp[2].decode(), int(stamp[3])
    return line, None, None


def plain_line(body: bytes) -> bytes:
    """Build a line of no attempt. An end that looks like a stamp gets an empty stamp."""
    return body + b"\n" if unstamped(body)[0] is body else body[:-1] + _NO_ATTEMPT


def next_line(descriptor: int, begin: int, end: int) -> int:
    """Return the start of the next line at or after a position."""
    position = begin - 1
    while position < end:
        chunk = read_bytes(descriptor, position, min(position + CHUNK, end))
        at = chunk.find(b"\n")
        if at >= 0:
            return position + at + 1
        position += len(chunk) or CHUNK
    return end


def last_number(descriptor: int, attempt_id: bytes) -> int:
    """Return the number of the last line of an attempt near the end of a file; 0 without one."""
    end = os.fstat(descriptor).st_size
    floor, rest = max(0, end - LOOK_BACK), b""
    while end > floor:
        begin = max(floor, end - CHUNK)
        first, *lines = (read_bytes(descriptor, begin, end) + rest).split(b"\n")
        for line in reversed(lines if begin > floor else [first, *lines]):
            _, attempt, number = unstamped(line[-MAX_STAMP:])
            if attempt is not None and number is not None and attempt.encode() == attempt_id:
                return number
        # A line that began before this chunk has its stamp at its end.
        end, rest = begin, first[-MAX_STAMP:]
    return 0
