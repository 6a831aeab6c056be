"""The output of a phase: what its agent returned, as a text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from perdure.kernel.codec import encode_json
from perdure.kernel.errors import InvalidInput
from perdure.sessions.transcripts.values import blocks, joined
from perdure.threads.work import MAX_OUTPUT

MARK: Final = 64
"""Room for the mark of a text that is cut."""
_ASSISTANTS: Final = frozenset({"assistant", "ai", "AIMessage", "AIMessageChunk"})


def format_output(values: Any) -> str:
    """What an agent returned, as a text.

    A text is the output itself; of an object with messages it is the last text of the assistant, of one with
    an `output` it is that. Everything else is written as JSON.
    """
    if values is None:
        return ""
    if isinstance(values, str):
        return values
    if isinstance(values, Mapping):
        said = _last_said(values.get("messages"))
        if said is not None:
            return said
        if "output" in values:
            return format_output(values["output"])
    return encode_json(values, what="the output", nan="keep")


def _last_said(messages: Any) -> str | None:
    """The last text of the assistant in a list of messages, whichever library they are of."""
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
    return joined(each.get("text") for each in blocks(content) if each.get("type") in (None, "text"))


def format_question(interrupts: Sequence[Any]) -> str:
    """What a phase asks a person: the first of its questions that has something to say."""
    for each in interrupts:
        value = _field(each, "value")
        if isinstance(value, Mapping) and isinstance(value.get("question"), str):
            return str(value["question"])
        if value not in (None, ""):
            return format_output(value)
    return ""


def bounded(text: str) -> str:
    """A text that every database takes, of at most 1 MiB; what is longer ends with how much is missing."""
    clean = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    data = clean.encode("utf-8", "replace")
    if len(data) <= MAX_OUTPUT:
        return data.decode()
    kept = data[: MAX_OUTPUT - MARK].decode("utf-8", "ignore")
    return f"{kept}\n…[truncated {len(clean) - len(kept)} chars]"


def safe_output(values: Any) -> str:
    """`output_of`, within bounds; what cannot be written as JSON is shown as Python shows it."""
    try:
        return bounded(format_output(values))
    except InvalidInput:
        return bounded(repr(values))
