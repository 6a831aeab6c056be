"""Messages of models and answers of tools, from the attributes and events of spans.

| dialect | messages | answers of tools |
|---|---|---|
| OpenTelemetry | `gen_ai.input.messages`, `gen_ai.output.messages`, `gen_ai.system_instructions` | `gen_ai.tool.call.result` |
| earlier OpenTelemetry | events `gen_ai.user.message`, `gen_ai.choice`, … | event `gen_ai.tool.message` |
| OpenLLMetry | `gen_ai.prompt.N.…`, `gen_ai.completion.N.…` | `traceloop.entity.output` |
| OpenInference | `llm.input_messages.N.message.…`, with `contents.N.message_content.…` | `output.value` |

Lists are numbered from 0 or from 1, and may have gaps.
"""  # noqa: E501 - a row of a table is one line

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec import field

from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import InvalidInput
from perdure.kernel.record import Record
from perdure.spans.figures import LLM, TOOL, count_figures
from perdure.spans.records import Span

MAX_MESSAGES = 500
"""Maximum number of messages of a span, and of calls and parts of each."""
MAX_TEXT = 100_000
"""Maximum length of a message, in characters."""
ROLES: Mapping[str, str] = {
    "human": "user",
    "ai": "assistant",
    "model": "assistant",
    "tool-call": "assistant",
    "tool-response": "tool",
    "function": "tool",
    "developer": "system",
}
_WHOLE = ("gen_ai.system_instructions", "gen_ai.input.messages", "gen_ai.output.messages")
_NUMBERED = (
    ("llm.input_messages.", "message."),
    ("llm.output_messages.", "message."),
    ("gen_ai.prompt.", ""),
    ("gen_ai.completion.", ""),
)
_EVENTS: Mapping[str, str] = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
    "gen_ai.choice": "assistant",
}
_INPUTS = ("input.value", "traceloop.entity.input")
_OUTPUTS = ("output.value", "traceloop.entity.output")
_RESULTS = ("gen_ai.tool.call.result", *_OUTPUTS)
_CALL_IDS = ("gen_ai.tool.call.id", "tool_call.id")
_TOOL_NAMES = ("gen_ai.tool.name", "tool.name", "traceloop.entity.name")
_NUMBER = re.compile(r"(\d{1,6})\.")


class MessageCall(Record, kw_only=True):
    """A tool call that a model requested."""

    id: str | None = None
    name: str
    arguments: Any = None


class SpanMessage(Record, kw_only=True):
    """A message of a model call, or the answer of a tool."""

    span_id: str
    role: str
    text: str = ""
    calls: list[MessageCall] = field(default_factory=list)
    answers: str | None = None
    """The id of the call that a tool answers."""
    name: str | None = None
    failed: bool = False
    reasoning: str = ""


class SpanMessages(Record, kw_only=True):
    """The messages in some spans of a trace, each once; `total` is the number of the trace's spans."""

    items: list[SpanMessage]
    total: int


def messages_of_span(span: Span, *, loosely: bool = True) -> list[SpanMessage]:
    """Return the messages of a span in their order; none if it is neither a model call nor a tool.

    With `loosely`, a model call without messages shows its input and output as messages.
    """
    attributes = span.attributes
    kind = count_figures(span.name, attributes).step.kind
    if kind == TOOL:
        return _answer_of_tool(span)
    messages = [
        *(message for key in _WHOLE for message in _listed(attributes.get(key))),
        *(message for prefix, inner in _NUMBERED for message in _numbered(attributes, prefix, inner)),
        *_list_events(span),
    ]
    if not messages and loosely and kind == LLM:
        messages += _listed(_first(attributes, _INPUTS), "user")
        messages += _listed(_first(attributes, _OUTPUTS), "assistant")
    if kind not in ("", LLM):
        # Agents and chains repeat the messages of the model calls below them.
        return []
    return [_build_message(span.span_id, message) for message in messages[:MAX_MESSAGES]]


def build_conversation(spans: Sequence[Span]) -> list[SpanMessage]:
    """Return the messages of spans, each once, because a model call repeats the messages before it."""
    conversation: list[SpanMessage] = []
    seen: set[tuple[Any, ...]] = set()
    answered: set[str] = set()
    groups = [messages_of_span(span, loosely=False) for span in spans]
    if not any(message.role != "tool" for group in groups for message in group):
        groups = [messages_of_span(span) for span in spans]
    for group in groups:
        for message in group:
            key = _build_key(message)
            if message.role == "tool":
                # The span of a tool and the next model call both have its answer.
                if _is_repeated(message, answered):
                    continue
                answered.update(name for name in (message.answers, message.text.strip()) if name)
            if key not in seen:
                seen.add(key)
                conversation.append(message)
    return conversation


def _is_repeated(message: SpanMessage, answered: Collection[str]) -> bool:
    """Return whether a tool's answer is a repetition: by its call, or by the end of its text."""
    text = message.text.strip()
    if message.answers in answered or text in answered:
        return True
    return message.answers is None and any(text.endswith(answer) for answer in answered)


def _build_key(message: SpanMessage) -> tuple[Any, ...]:
    calls = tuple((call.name, _extract_text(call.arguments)) for call in message.calls)
    return message.role, message.text.strip(), calls, message.answers


# --- dialects ---------------------------------------------------------------------------------------------


def _answer_of_tool(span: Span) -> list[SpanMessage]:
    attributes = span.attributes
    result = _first(attributes, _RESULTS)
    if result is None:
        return []
    text, call_id = _text_of_result(result)
    return [
        SpanMessage(
            span_id=span.span_id,
            role="tool",
            text=text[:MAX_TEXT],
            answers=_string(_first(attributes, _CALL_IDS)) or call_id,
            name=_string(_first(attributes, _TOOL_NAMES)),
            failed=span.status.status_code == "ERROR",
        )
    ]


def _text_of_result(result: Any) -> tuple[str, str | None]:
    """Return the text of a tool's answer, and the id of the call if the answer is a message."""
    value = _parsed(result)
    if isinstance(value, Mapping):
        inner = value.get("data", value)
        if isinstance(inner, Mapping) and "content" in inner:
            parts = _Parts(inner["content"])
            return parts.text, _string(inner.get("tool_call_id"))
        blocks = value.get("blocks")
        if isinstance(blocks, list):
            return _Parts(blocks).text, None
    return _extract_text(result), None


def _listed(attribute: Any, role: str | None = None) -> Iterator[Mapping[str, Any]]:
    """Yield the messages of an attribute that contains a list of them."""
    if attribute is None:
        return
    value = _parsed(attribute)
    items = value.get("messages") if isinstance(value, Mapping) else value
    if isinstance(items, list) and items and all(_is_message(item) for item in items):
        yield from items
    elif (
        isinstance(value, list)
        and value
        and all(isinstance(item, Mapping) for item in value)
        and any("content" in item or "text" in item for item in value)
    ):
        yield {"role": role or "system", "content": value}
    elif role is not None:
        yield {"role": role, "content": value if isinstance(value, str) else _extract_text(value)}


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and ("role" in value or "type" in value)
        and not {"content", "parts", "tool_calls"}.isdisjoint(value)
    )


def _numbered(attributes: Mapping[str, Any], prefix: str, inner: str) -> Iterator[Mapping[str, Any]]:
    """Yield messages whose fields are attributes: `PREFIX0.role`, `PREFIX0.content` and so on."""
    for at in _places(attributes, prefix):
        place = at + inner
        content = attributes.get(place + "content")
        parts = [
            {
                "type": attributes.get(part + "message_content.type"),
                "text": attributes.get(part + "message_content.text"),
            }
            for part in _places(attributes, place + "contents.")
        ]
        step = "tool_call." if inner else ""
        calls = [
            {
                "id": attributes.get(call + step + "id"),
                "name": attributes.get(call + step + "function.name", attributes.get(call + step + "name")),
                "arguments": attributes.get(
                    call + step + "function.arguments", attributes.get(call + step + "arguments")
                ),
            }
            for call in _places(attributes, place + "tool_calls.")
        ]
        role = attributes.get(place + "role")
        if content is None and not parts and not calls:
            continue
        value = _parsed(content)
        yield {
            "role": role or "assistant",
            "content": [*([value] if isinstance(value, str) else value or []), *parts]
            if isinstance(value, str | list) or value is None
            else [content, *parts],
            "tool_calls": calls,
            "tool_call_id": attributes.get(place + "tool_call_id"),
            "name": attributes.get(place + "name"),
        }


def _places(attributes: Mapping[str, Any], prefix: str) -> list[str]:
    """Return the numbered prefixes of attributes, in the order of the numbers."""
    numbers: set[int] = set()
    for key in attributes:
        if key.startswith(prefix) and (number := _NUMBER.match(key, len(prefix))) is not None:
            numbers.add(int(number[1]))
    return [f"{prefix}{number}." for number in sorted(numbers)[:MAX_MESSAGES]]


def _list_events(span: Span) -> Iterator[Mapping[str, Any]]:
    for event in span.events:
        role = _EVENTS.get(event.name)
        if role is None:
            continue
        fields = dict(event.attributes or {})
        message = _parsed(fields.get("message"))
        if isinstance(message, Mapping):
            fields = {**fields, **message}
        elif message is not None:
            fields["content"] = message
        yield {
            **fields,
            "role": fields.get("role") or role,
            "content": _parsed(fields.get("content")),
            "tool_calls": _parsed(fields.get("tool_calls")),
            "tool_call_id": fields.get("tool_call_id") or (fields.get("id") if role == "tool" else None),
        }


# --- messages ---------------------------------------------------------------------------------------------


class _Parts:
    """The content of a message by type: texts, calls, the answer to a call, and reasoning."""

    def __init__(self, content: Any) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[MessageCall] = []
        self.answers: str | None = None
        self.name: str | None = None
        parts = content if isinstance(content, list) else [] if content is None else [content]
        for part in parts[:MAX_MESSAGES]:
            self._add(part)

    @property
    def text(self) -> str:
        return "\n".join(text for text in self.texts if text)[:MAX_TEXT]

    def _add(self, part: Any) -> None:
        if not isinstance(part, Mapping):
            self.texts.append(_extract_text(part))
            return
        kind = part.get("type")
        if kind in ("tool_use", "tool_call"):
            self.calls.append(_build_call(part))
        elif kind in ("tool_result", "tool_call_response"):
            self.answers = _string(part.get("tool_use_id")) or _string(part.get("id"))
            self.name = _string(part.get("name"))
            inner = next((part[key] for key in ("content", "response", "result") if key in part), None)
            self.texts.append(_Parts(inner).text)
        elif kind in ("thinking", "reasoning"):
            texts = (_string(part.get(key)) for key in ("thinking", "text", "content"))
            self.thoughts.append(next((text for text in texts if text), ""))
        else:
            text = next((part[key] for key in ("text", "content") if part.get(key) is not None), None)
            self.texts.append(f"[{kind or _extract_text(part)}]" if text is None else _extract_text(text))


def _build_message(span_id: str, fields: Mapping[str, Any]) -> SpanMessage:
    role = _string(fields.get("role")) or _string(fields.get("type")) or ""
    parts = _Parts(fields.get("content") if fields.get("content") is not None else fields.get("parts"))
    listed = fields.get("tool_calls")
    calls = list(parts.calls)
    for call in listed[:MAX_MESSAGES] if isinstance(listed, list) else ():
        if isinstance(call, Mapping):
            calls.append(_build_call(call))
    ids = [call.id for call in calls]
    answers = _string(fields.get("tool_call_id")) or parts.answers
    return SpanMessage(
        span_id=span_id,
        role="tool" if answers is not None else ROLES.get(role, role),
        text=parts.text,
        calls=[call for place, call in enumerate(calls) if call.id is None or ids.index(call.id) == place],
        answers=answers,
        name=_string(fields.get("name")) or parts.name,
        failed=fields.get("status") == "error" or fields.get("is_error") is True,
        reasoning="\n".join(parts.thoughts)[:MAX_TEXT],
    )


def _build_call(fields: Mapping[str, Any]) -> MessageCall:
    inner = fields.get("function")
    inner = inner if isinstance(inner, Mapping) else fields
    arguments = next((inner[key] for key in ("arguments", "args", "input") if key in inner), None)
    return MessageCall(
        id=_string(fields.get("id")), name=_string(inner.get("name")) or "tool", arguments=_parsed(arguments)
    )


def _first(attributes: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((attributes[name] for name in names if attributes.get(name) is not None), None)


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _parsed(value: Any) -> Any:
    """Return the value of a JSON text; return other values unchanged."""
    if not isinstance(value, str) or value[:1] not in ("{", "["):
        return value
    try:
        return decode_json(value)
    except InvalidInput:
        return value


def _extract_text(value: Any) -> str:
    return value if isinstance(value, str) else encode_json(value, nan="keep")
