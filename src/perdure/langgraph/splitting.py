"""Splitting of whole checkpoints without reviving their objects, which stay bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import ormsgpack

from perdure.checkpoints.records import Typed
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import InvalidInput

NULL: Final[Typed] = ("null", b"")
_OPTIONS: Final = ormsgpack.OPT_NON_STR_KEYS
_APART: Final = frozenset({"channel_values", "channel_versions"})


class SplitCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Checkpoint with each of its values in separate bytes."""

    rest: Typed
    versions: dict[str, Any]
    values: dict[str, Typed]
    format: int


def split_checkpoint(form: str, body: bytes) -> SplitCheckpoint:
    """Split a serialized checkpoint. InvalidInput if its form cannot be split."""
    if form == "msgpack":
        try:
            whole = ormsgpack.unpackb(body, ext_hook=ormsgpack.Ext, option=_OPTIONS)
        except ValueError as error:
            raise InvalidInput(f"a checkpoint is not MessagePack: {error}") from None
    elif form == "json":
        whole = decode_json(body)
    else:
        raise InvalidInput(f"a checkpoint in the form {form!r} cannot be split without being executed")
    if not isinstance(whole, dict) or not isinstance(whole.get("channel_values", {}), dict):
        raise InvalidInput("a checkpoint must be an object with channel_values")
    return split_parts(whole, whole.get("channel_values") or {})


def split_parts(checkpoint: Mapping[str, Any], values: Mapping[str, Any]) -> SplitCheckpoint:
    """Split a checkpoint of plain data; `values` are its values."""
    versions = checkpoint.get("channel_versions")
    format = checkpoint.get("v")
    return SplitCheckpoint(
        rest=pack_value({name: part for name, part in checkpoint.items() if name not in _APART}),
        versions=dict(versions) if isinstance(versions, Mapping) else {},
        values={channel: pack_value(value) for channel, value in values.items()},
        format=format if isinstance(format, int) else 1,
    )


def pack_value(value: Any) -> Typed:
    """Encode plain data in the form of LangGraph's serializer."""
    if value is None:
        return NULL
    if isinstance(value, bytes):
        return "bytes", value
    try:
        return "msgpack", ormsgpack.packb(value, option=_OPTIONS)
    except TypeError as error:
        raise InvalidInput(f"a value of a checkpoint cannot be packed again: {error}") from None
