"""Stored form of what an agent is run with. Default values are left out."""

from __future__ import annotations

import msgspec

from perdure.kernel.codec import decode_json, encode_json, encode_wire
from perdure.threads.records import RunKwargs

_defaults = msgspec.structs.asdict(RunKwargs())
_raw_defaults = {name: msgspec.Raw(encode_wire(value)) for name, value in _defaults.items()}
_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_kwargs(text: str) -> RunKwargs:
    """Decode stored kwargs."""
    return msgspec.convert(decode_json(text), RunKwargs)


def kwargs_text(kwargs: RunKwargs) -> str:
    """Encode kwargs for storage, without defaults."""
    fields = msgspec.structs.asdict(kwargs)
    changed = {
        name: value
        for name, value in fields.items()
        if value is not None and (name == "input" or value != _defaults[name])
    }
    return encode_json(changed, what="the run's input")


def whole_kwargs(text: str) -> dict[str, msgspec.Raw]:
    """Return stored kwargs with all fields, each still encoded."""
    return {**_raw_defaults, **_raw_fields.decode(text)}
