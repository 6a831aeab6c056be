"""What an agent is run with, as it is stored: without what nobody asked for."""

from __future__ import annotations

import msgspec

from perdure.kernel.codec import decode_json, encode_json, encode_wire
from perdure.threads.records import RunKwargs

_unsaid = msgspec.structs.asdict(RunKwargs())
_unsaid_raw = {name: msgspec.Raw(encode_wire(value)) for name, value in _unsaid.items()}
_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_kwargs(text: str) -> RunKwargs:
    """What was stored."""
    return msgspec.convert(decode_json(text), RunKwargs)


def kwargs_text(kwargs: RunKwargs) -> str:
    """What is stored."""
    given = msgspec.structs.asdict(kwargs)
    said = {
        name: value
        for name, value in given.items()
        if value is not None and (name == "input" or value != _unsaid[name])
    }
    return encode_json(said, what="the run's input")


def whole_kwargs(text: str) -> dict[str, msgspec.Raw]:
    """What was stored with all fields, none of which is decoded."""
    return {**_unsaid_raw, **_raw_fields.decode(text)}
