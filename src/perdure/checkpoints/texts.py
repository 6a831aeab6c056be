"""The JSON texts of states, made from the values of channels without reviving them.

A run's worker and the readers of its stream make them with the same functions: so a worker can tell whether a
checkpoint gives exactly the text of an event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from perdure.checkpoints.records import GraphValue, Typed
from perdure.checkpoints.view import view
from perdure.kernel.errors import InvalidInput

_encoder = msgspec.json.Encoder()
_keys: msgspec.json.Decoder[list[str] | str] = msgspec.json.Decoder(list[str] | str)


def encode_typed(typed: Typed) -> str:
    """The JSON text of a serialized value. NotSupported or InvalidInput if it cannot be shown."""
    return _encoder.encode(view(typed)).decode()


def item_texts(typed: Typed) -> list[str]:
    """The JSON texts of the items of a serialized list."""
    items = view(typed)
    if not isinstance(items, list):
        raise InvalidInput("the items of a list are no list")
    return [_encoder.encode(item).decode() for item in items]


def list_text(items: Sequence[str]) -> str:
    """The JSON text of a list."""
    return "[" + ",".join(items) + "]"


def value_text(value: GraphValue, known: dict[Typed, list[str]]) -> str | None:
    """The JSON text of a channel's value; the texts of items that many values share are kept in `known`."""
    if value.parts is None:
        return None if value.value is None else encode_typed(value.value)
    items: list[str] = []
    for part in value.parts:
        texts = known.get(part.items)
        if texts is None:
            texts = known[part.items] = item_texts(part.items)
        items += texts[part.start : part.stop]
    return list_text(items)


def decode_keys(keys: str) -> list[str] | str:
    """What of a state is shown: the channels of an object, or the one whose value is the state."""
    try:
        return _keys.decode(keys)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"the keys of a state cannot be read: {error}") from None


def encode_keys(keys: Sequence[str] | str) -> str:
    return _encoder.encode(keys).decode()


def key_text(key: str) -> str:
    """A key of an object as it stands before its value."""
    return _encoder.encode(key).decode() + ":"


def state_text(keys: Sequence[str] | str, texts: Mapping[str, str]) -> str | None:
    """The JSON text of a state, out of those of its channels; None if one is missing."""
    if isinstance(keys, str):
        return texts.get(keys)
    if any(key not in texts for key in keys):
        return None
    return "{" + ",".join([key_text(key) + texts[key] for key in keys]) + "}"
