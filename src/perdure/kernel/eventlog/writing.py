"""What agents say on its way into a log: long results of tools are cut, their whole content is kept aside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from perdure.kernel import changes
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.eventlog.port import CHANNEL, EventLog, LogName, encode_line, hint_key
from perdure.kernel.signals.port import Signals

KIND: Final = "session"
MAX_SHOWN: Final = 65_536
"""How many characters of a tool's result a line shows."""


async def append_lines(
    log: EventLog,
    signals: Signals,
    ns: int,
    name: LogName,
    bodies: Sequence[bytes],
    *,
    attempt_id: str = "",
    first: int = 1,
) -> int:
    """Append lines with their tool results cut, and wake the readers of the log."""
    stored = [await with_cut_results(log, ns, body) for body in bodies]
    after = await log.append(ns, name, stored, attempt_id=attempt_id, first=first)
    wake_readers(signals, ns, name)
    return after


def wake_readers(signals: Signals, ns: int, name: LogName) -> None:
    """Wake the readers of a log that has grown, and the followers of changes."""
    signals.publish([(CHANNEL, hint_key(ns, name))])
    changes.publish(signals, ns, KIND, name.session_id, "appended")


async def with_cut_results(log: EventLog, ns: int, body: bytes) -> bytes:
    """The line whose tool results are short enough to be shown. Each that was not names its blob."""
    if len(body) <= MAX_SHOWN:
        return body
    line = decode_json(body)
    cut = False
    for block in _tool_results(line):
        content = block.get("content")
        text = content if isinstance(content, str) else _text_of(content)
        whole = content if isinstance(content, str) else encode_json(content)
        if len(whole) > MAX_SHOWN:
            block["content"] = cut_text(text)
            block["blob"] = await log.put_blob(ns, whole.encode())
            cut = True
    return encode_line(line) if cut else body


def cut_text(text: str) -> str:
    """The beginning of a text, and how many characters were left out."""
    left_out = len(text) - MAX_SHOWN
    return text if left_out <= 0 else f"{text[:MAX_SHOWN]}\n…[truncated {left_out} chars]"


def _tool_results(line: Any) -> list[dict[str, Any]]:
    message = line.get("message") if isinstance(line, dict) else None
    content = message.get("content") if isinstance(message, dict) else None
    blocks = content if isinstance(content, list) else []
    return [each for each in blocks if isinstance(each, dict) and each.get("type") == "tool_result"]


def _text_of(content: Any) -> str:
    """The texts of blocks; of anything else, its JSON."""
    if isinstance(content, list) and all(isinstance(each, dict) for each in content):
        return "\n".join(text for each in content if isinstance(text := each.get("text"), str))
    return encode_json(content)
