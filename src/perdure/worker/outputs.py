"""Output of a phase: the text form of its agent's return value. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from perdure.kernel.codec import encode_json
from perdure.kernel.errors import InvalidInput
from perdure.sessions.transcripts.values import blocks, joined
from perdure.threads.work import MAX_OUTPUT

MARK: Final = 64
"""Room for the truncation mark."""
_ASSISTANTS: Final = frozenset({"assistant", "ai", "AIMessage", "AIMessageChunk"})


def format_output(values: Any) -> str:
    """Convert the return value of an agent to a text.

    A text is the output. For an object with messages it is the last text of the assistant, for an object with
    `output` that value. Other values become JSON.
    """
    if values is None:
        return ""
    if isinstance(values, str):
        return values
    if isinstance(values, Mapping):
        text = _find_last_text(values.get("messages"))
        if text is not None:
            return text
        if "output" in values:
            return format_output(values["output"])
    return encode_json(values, what="the output", nan="keep")


def _find_last_text(messages: Any) -> str | None:
    """Return the last text of the assistant in a list of messages of any library."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return None
    for message in reversed(messages):
        role = _field(message, "role") or _field(message, "type") or type(message).__name__
        if role in _ASSISTANTS:
            text = _text(_field(message, "content"))
            if text:
                return text
    return None


def _field(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)


def _text(content: Any) -> str:
    return joined(block.get("text") for block in blocks(content) if block.get("type") in (None, "text"))


def format_question(interrupts: Sequence[Any]) -> str:
    """Return the first question of a phase that is not empty."""
    for interrupt in interrupts:
        value = _field(interrupt, "value")
        if isinstance(value, Mapping) and isinstance(value.get("question"), str):
            return str(value["question"])
        if value not in (None, ""):
            return format_output(value)
    return ""


def bounded(text: str) -> str:
    """Cut a text to 1 MiB, and replace what databases refuse. A cut text ends with the missing length."""
    clean = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    data = clean.encode("utf-8", "replace")
    if len(data) <= MAX_OUTPUT:
        return data.decode()
    kept = data[: MAX_OUTPUT - MARK].decode("utf-8", "ignore")
    return f"{kept}\n…[truncated {len(clean) - len(kept)} chars]"


def safe_output(values: Any) -> str:
    """Convert the return value of an agent to a bounded text; use `repr` for a value without JSON."""
    try:
        return bounded(format_output(values))
    except InvalidInput:
        return bounded(repr(values))
