"""Writing of agents' lines to a log: long tool results are cut, and stored completely in blobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from perdure.eventlog.port import CHANNEL, EventLog, LogName, compute_digest, encode_line, hint_key, is_digest
from perdure.kernel import changes
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.signals.port import Signals

KIND: Final = "session"
MAX_SHOWN: Final = 65_536
"""Maximum number of characters of a tool result in a line."""
MARK: Final = "_perdure"
"""Field of a line for perdure. Its `original` names the blob of the line as a tool wrote it."""
ORIGINAL: Final = "original"
PART: Final = "part"
"""Number of a line among the lines built from one original, from the second on."""
_MARK: Final = b'"_perdure"'


async def append_lines(
    log: EventLog,
    signals: Signals,
    ns: int,
    name: LogName,
    bodies: Sequence[bytes],
    *,
    attempt_id: str = "",
    first: int = 1,
    whole: bool = False,
) -> int:
    """Append lines, with long tool results and originals in blobs, and wake the readers of the log.

    With `whole`, a cut line is also stored in a blob, unchanged.
    """
    blobs: dict[str, bytes] = {}
    stored = [stored_line(body, blobs, whole=whole) for body in bodies]
    if blobs:
        # A line is written after the blobs that it names.
        await log.put_blobs(ns, [*blobs.values()])
    after = await log.append(ns, name, stored, attempt_id=attempt_id, first=first)
    wake_readers(signals, ns, name)
    return after


def wake_readers(signals: Signals, ns: int, name: LogName) -> None:
    """Wake the readers of a log that has grown, and the followers of changes."""
    signals.publish([(CHANNEL, hint_key(ns, name))])
    changes.publish(signals, ns, KIND, name.session_id, "appended")


def stored_line(body: bytes, blobs: dict[str, bytes], *, whole: bool = False) -> bytes:
    """Return a line in its stored form, and add its blobs to `blobs`, by digest."""
    if len(body) <= MAX_SHOWN and _MARK not in body:
        return body
    line = decode_json(body)
    if not isinstance(line, dict):
        return body
    changed = _cut_results(line, blobs)
    mark = line.get(MARK)
    if isinstance(mark, dict) and isinstance(mark.get(ORIGINAL), dict):
        line[MARK] = mark | {ORIGINAL: _keep(blobs, encode_line(mark[ORIGINAL]))}
    elif changed and whole and mark is None:
        line[MARK] = {ORIGINAL: _keep(blobs, body)}
    elif not changed and (mark is None or next(reversed(line)) == MARK):
        return body
    if MARK in line:
        # The log can only extend a mark in the last field; behind another it would write a second one.
        line[MARK] = line.pop(MARK)
    return encode_line(line)


def read_original(body: bytes) -> tuple[str | None, int]:
    """Return the digest of a line's original, or None, and the line's number in it."""
    if _MARK not in body:
        return None, 1
    line = decode_json(body)
    mark = line.get(MARK) if isinstance(line, dict) else None
    digest, part = (mark.get(ORIGINAL), mark.get(PART, 1)) if isinstance(mark, dict) else (None, 1)
    return (digest, part) if is_digest(digest) and isinstance(part, int) else (None, 1)


def _keep(blobs: dict[str, bytes], content: bytes) -> str:
    digest = compute_digest(content)
    blobs[digest] = content
    return digest


def _cut_results(line: dict[str, Any], blobs: dict[str, bytes]) -> bool:
    """Cut long tool results; each cut result names its blob."""
    cut = False
    for block in _find_tool_results(line):
        content = block.get("content")
        text = content if isinstance(content, str) else _extract_text(content)
        whole = content if isinstance(content, str) else encode_json(content)
        if len(whole) > MAX_SHOWN:
            block["content"] = cut_text(text)
            block["blob"] = _keep(blobs, whole.encode())
            cut = True
    return cut


def cut_text(text: str) -> str:
    """Return the beginning of a text, with the number of characters left out."""
    left_out = len(text) - MAX_SHOWN
    return text if left_out <= 0 else f"{text[:MAX_SHOWN]}\n…[truncated {left_out} chars]"


def _find_tool_results(line: Any) -> list[dict[str, Any]]:
    message = line.get("message") if isinstance(line, dict) else None
    content = message.get("content") if isinstance(message, dict) else None
    blocks = content if isinstance(content, list) else []
    return [block for block in blocks if isinstance(block, dict) and block.get("type") == "tool_result"]


def _extract_text(content: Any) -> str:
    """Return the texts of blocks; for other values, their JSON."""
    if isinstance(content, list) and all(isinstance(block, dict) for block in content):
        return "\n".join(text for block in content if isinstance(text := block.get("text"), str))
    return encode_json(content)
