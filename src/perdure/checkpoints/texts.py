"""JSON texts of states, built from the values of channels without reviving them.

The worker of a run and the readers of its stream use the same functions, so that a worker knows whether a
checkpoint yields exactly the text of an event.
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
