"""Stored form of what an agent is run with. Default values are left out."""

from __future__ import annotations

from typing import Final, NamedTuple

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


class RunReferences(NamedTuple):
    """References of a run to states."""

    checkpoint_id: str | None = None
    """State to start from."""
    resumes: bool = False
    """True if the run answers an interrupted state."""


NO_REFERENCES: Final = RunReferences()


class _References(msgspec.Struct):
    """The part of a run's input that refers to states. The rest is not decoded."""

    checkpoint_id: str | None = None
    command: dict[str, msgspec.Raw] | None = None


_references = msgspec.json.Decoder(_References)


def decode_references(text: str) -> RunReferences:
    """Return the references in a run's input. An input that names no state is not decoded."""
    if '"checkpoint_id":' not in text and '"resume":' not in text:
        return NO_REFERENCES
    references = _references.decode(text)
    return RunReferences(references.checkpoint_id, "resume" in (references.command or {}))
