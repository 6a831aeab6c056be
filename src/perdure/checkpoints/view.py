"""Plain data and JSON texts of graph values: nothing is imported or revived to show them.

LangGraph writes MessagePack in which an object is the data for its constructor, under the name of its class.
This data is shown: a message as its fields, a set as a list, an ID as a text.

The worker of a run and the readers of its stream build the JSON text of a state with the same functions, so
that a worker knows whether a checkpoint yields exactly the text of an event.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from perdure.checkpoints.records import GraphTuple, GraphValue, Typed
from perdure.kernel.errors import InvalidInput, NotSupported

# LangGraph's codes for objects: one argument, arguments, keyword arguments, argument of a method, fields of a
# pydantic model (v1, v2), array of numbers, snapshot of a channel that is stored as changes.
_ONE, _MANY, _NAMED, _METHOD, _FIELDS_V1, _FIELDS, _ARRAY, _SNAPSHOT = range(8)

FRAMES = "msgpack-arrow"
"""Form of values that contain DataFrames."""
FRAME = 32
"""Code of a DataFrame: its column names, number of rows, and bytes."""

_UUID = ["uuid", "UUID"]
_TIMEDELTA = ["datetime", "timedelta"]

_ROOT, _END = "__root__", "__end__"
"""Channels whose value is the whole state of a graph without other channels."""


def view(typed: Typed) -> Any:
    """Decode a serialized value to plain data. NotSupported if it is encrypted or of an unknown form."""
    form, body = typed
    if form == "null":
        return None
    if form in ("bytes", "bytearray"):
        return _plain(bytes(body))
    if form == "json":
        return _decoded(msgspec.json.decode, body)
    if form in ("msgpack", FRAMES):
        return _plain(_decoded(_unpack, body))
    raise NotSupported(f"a value of the form {form!r} cannot be shown")


def view_value(value: GraphValue) -> Any:
    """Decode the value of a channel to plain data."""
    if value.parts is None:
        return None if value.value is None else view(value.value)
    return [item for part in value.parts for item in view(part.items)[part.start : part.stop]]


def view_values(checkpoint: GraphTuple) -> dict[str, Any]:
    """Decode the values of all channels of a checkpoint to plain data."""
    return {value.channel: view_value(value) for value in checkpoint.values}


def state_values(checkpoint: GraphTuple) -> Any:
    """Return the state of a checkpoint as plain data: the channels of the graph, without LangGraph's own."""
    channels = {value.channel: value for value in checkpoint.values}
    for whole in (_ROOT, _END):
        if whole in channels:
            return view_value(channels[whole])
    return {name: view_value(channels[name]) for name in channels if not _is_internal(name)}


def _is_internal(channel: str) -> bool:
    return channel.startswith("__") or ":" in channel


def _unpack(body: bytes) -> Any:
    return _decoder.decode(body)


def _decoded(decode: Any, body: bytes) -> Any:
    try:
        return decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError) as error:
        raise InvalidInput(f"the value cannot be read: {error}") from error


def _object(code: int, data: memoryview) -> Any:
    """Return the plain data of an object."""
    content = _unpack(bytes(data))
    if code == _SNAPSHOT:
        return content
    if not isinstance(content, list) or len(content) < 3:
        return content
    if code == FRAME:
        return {"columns": content[0], "rows": content[1]}
    if code == _ARRAY:
        return {"dtype": content[0], "shape": content[1]}
    if code == _ONE and content[:2] == _UUID:
        return _uuid(content[2])
    if code == _MANY and content[:2] == _TIMEDELTA:
        return _seconds(content[2])
    return content[2]


def _uuid(digits: Any) -> Any:
    if not isinstance(digits, str) or len(digits) != 32:
        return digits
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _seconds(parts: Any) -> Any:
    """Convert a timedelta, stored as days, seconds and microseconds, to seconds."""
    if not isinstance(parts, list) or len(parts) != 3 or not all(type(part) is int for part in parts):
        return parts
    days, seconds, microseconds = parts
    # The formula of `timedelta.total_seconds`, so that both give the same text.
    return ((days * 86400 + seconds) * 10**6 + microseconds) / 10**6


def _plain(value: Any) -> Any:
    """Replace what JSON cannot represent: keys become texts, bytes base64."""
    if isinstance(value, dict):
        return _plain_dict(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value if isinstance(value, str | int | float | None) else str(value)


def _plain_dict(value: Mapping[Any, Any]) -> dict[str, Any]:
    return {key if isinstance(key, str) else str(key): _plain(item) for key, item in value.items()}


_decoder = msgspec.msgpack.Decoder(ext_hook=_object)


# --- JSON texts -------------------------------------------------------------------------------------------


_encoder = msgspec.json.Encoder()
_keys: msgspec.json.Decoder[list[str] | str] = msgspec.json.Decoder(list[str] | str)


def encode_typed(typed: Typed) -> str:
    """Encode a serialized value as JSON. NotSupported or InvalidInput if it cannot be shown."""
    return _encoder.encode(view(typed)).decode()


def item_texts(typed: Typed) -> list[str]:
    """Encode the items of a serialized list as JSON texts."""
    items = view(typed)
    if not isinstance(items, list):
        raise InvalidInput("the items of a list must be a list")
    return [_encoder.encode(item).decode() for item in items]


def list_text(items: Sequence[str]) -> str:
    """Join the JSON texts of items to a list."""
    return "[" + ",".join(items) + "]"


def value_text(value: GraphValue, cache: dict[Typed, list[str]]) -> str | None:
    """Encode a channel's value as JSON. `cache` keeps the texts of items that several values share."""
    if value.parts is None:
        return None if value.value is None else encode_typed(value.value)
    items: list[str] = []
    for part in value.parts:
        texts = cache.get(part.items)
        if texts is None:
            texts = cache[part.items] = item_texts(part.items)
        items += texts[part.start : part.stop]
    return list_text(items)


def decode_keys(keys: str) -> list[str] | str:
    """Decode which part of a state is shown: some channels, or the one whose value is the state."""
    try:
        return _keys.decode(keys)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"invalid keys of a state: {error}") from None


def encode_keys(keys: Sequence[str] | str) -> str:
    return _encoder.encode(keys).decode()


def key_text(key: str) -> str:
    """Encode a key of a JSON object, with its colon."""
    return _encoder.encode(key).decode() + ":"


def state_text(keys: Sequence[str] | str, texts: Mapping[str, str]) -> str | None:
    """Build the JSON text of a state from the texts of its channels; None if one is missing."""
    if isinstance(keys, str):
        return texts.get(keys)
    if any(key not in texts for key in keys):
        return None
    return "{" + ",".join([key_text(key) + texts[key] for key in keys]) + "}"
