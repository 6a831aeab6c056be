"""The only JSON encoder and decoder of stored values."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from math import isfinite
from sys import float_info
from typing import Annotated, Any, Literal

import msgspec

from perdure.kernel.errors import InvalidInput

__all__ = [
    "MAX_DEPTH",
    "EncodedByFields",
    "check_json",
    "decode_json",
    "encode_decoded",
    "encode_json",
    "encode_scalar_values",
    "encode_scalars",
    "encode_wire",
]

MAX_DEPTH = 500
"""Maximum nesting of objects and arrays."""

MAX_FLOAT = float_info.max

_BYTES = (bytes, bytearray, memoryview)
_BINARY = frozenset(_BYTES)
_SCALARS = frozenset({str, int, float, bool, type(None)})
_Finite = Annotated[float, msgspec.Meta(ge=-MAX_FLOAT, le=MAX_FLOAT)]
_CONTAINERS = frozenset({dict, list, tuple, set, frozenset})
_NON_FINITE_MARK = re.compile(rb"\xcb[\x7f\xff]")


class _Scalars(msgspec.Struct, gc=False):
    """Input of `encode_scalars`: a Struct, whose checks msgspec prepares once."""

    by_name: dict[str, str | int | _Finite | bool | list[str | int | _Finite | bool]]


class _ScalarValues(msgspec.Struct, gc=False):
    """Input of `encode_scalar_values`."""

    values: list[str | int | _Finite | bool | list[str | int | _Finite | bool]]


class EncodedByFields:
    """Base class of objects that are encoded as their instance dictionary."""


def encode_json(value: Any, *, what: str = "value", nan: Literal["reject", "keep"] = "reject") -> str:
    """Encode `value` as JSON text for storage, or raise InvalidInput naming `what`.

    Lone surrogates become U+FFFD. NaN and Infinity are refused, or kept as literals that `decode_json` reads.
    """
    try:
        return _encode(value, nan)
    except RecursionError:
        raise InvalidInput(f"{what} is nested deeper than {MAX_DEPTH} levels or contains itself") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"{what} cannot be stored as JSON: {error}") from error


def encode_decoded(value: Any, *, what: str = "value") -> str:
    """Encode a value that was decoded from JSON, like `encode_json` but faster: only its depth is checked."""
    data = _encoder.encode(value)
    return encode_json(value, what=what) if _may_be_deep(data) else data.decode()


def encode_scalars(value: Any, scalars: Mapping[str, Any]) -> bytes | None:
    """Encode quickly a small record whose only free part is `scalars`; None if it needs `encode_json`.

    Strings, finite numbers and booleans, or lists of them, contain no bytes, NaN or deep nesting.
    """
    try:
        msgspec.convert({"by_name": scalars}, _Scalars)
        return _encoder.encode(value)
    except (msgspec.ValidationError, UnicodeEncodeError, OverflowError, ValueError, TypeError):
        return None


def encode_scalar_values(values: list[Any]) -> bytes | None:
    """Encode a list of scalars quickly; None if it needs `encode_json`."""
    try:
        msgspec.convert({"values": values}, _ScalarValues)
        return _encoder.encode(values)
    except (msgspec.ValidationError, UnicodeEncodeError, OverflowError, ValueError, TypeError):
        return None


def decode_json(text: str | bytes | None) -> Any:
    """Decode JSON text of `encode_json`; None stays None."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return _decode_with_literals(text)
    except RecursionError:
        raise InvalidInput("the JSON text is nested too deeply") from None


def check_json(text: str, what: str) -> str:
    """Return `text` if it is JSON, otherwise raise InvalidInput naming `what`; no objects are built."""
    try:
        _raw.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        try:
            _decode_with_literals(text)
        except InvalidInput as error:
            raise InvalidInput(f"{what} is not JSON: {error.message}") from None
    except RecursionError:
        raise InvalidInput(f"{what} is nested too deeply") from None
    return text


def _encode(value: Any, nan: str) -> str:
    try:
        data = _encoder.encode(value)
    except UnicodeEncodeError:
        return _encode(_replace_all_surrogates(_to_plain(value)), nan)
    if not _is_suspect(value, data) or not _has_non_finite(value):
        return data.decode()
    if nan == "reject":
        raise ValueError("NaN and Infinity are not JSON")
    return json.dumps(_to_plain(value), ensure_ascii=False, separators=(",", ":"))


def _decode_with_literals(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise InvalidInput("the JSON text is nested too deeply") from None
    except ValueError as error:
        raise InvalidInput(f"the text is not JSON: {error}") from error


def _encode_other(value: Any) -> Any:
    """Convert a type unknown to msgspec to one that it encodes."""
    if isinstance(value, EncodedByFields):
        return vars(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, Mapping):
        return dict(value)
    if callable(getattr(value, "model_dump", None)):
        return value.model_dump()
    raise TypeError(f"objects of type {type(value).__name__} are not supported")


_encoder = msgspec.json.Encoder(enc_hook=_encode_other)
_raw = msgspec.json.Decoder(msgspec.Raw)

encode_wire = _encoder.encode
"""Encode as JSON bytes, without checks: for stored values and for answers."""

_packer = msgspec.msgpack.Encoder(enc_hook=_encode_other)


def _to_plain(value: Any) -> Any:
    return msgspec.to_builtins(value, builtin_types=_BYTES, str_keys=True, enc_hook=_encode_other)


def _is_suspect(value: Any, data: bytes) -> bool:
    """Return whether a value may be too deep, or contain bytes, NaN or Infinity.

    msgspec silently writes bytes as base64 and NaN as null. MessagePack marks both with bytes that are rare
    elsewhere, so encoding the value a second time is far cheaper than a walk, and rarely wrong.
    """
    if _may_be_deep(data):
        return True
    try:
        packed = _packer.encode(value)
    except (TypeError, ValueError, OverflowError):
        return True
    if 0xC4 in packed or 0xC5 in packed or 0xC6 in packed:
        return True
    return (0x7F in packed or 0xFF in packed) and _NON_FINITE_MARK.search(packed) is not None


def _may_be_deep(data: bytes) -> bool:
    return len(data) > 2 * MAX_DEPTH and data.count(b"[") + data.count(b"{") > MAX_DEPTH


def _has_non_finite(value: Any) -> bool:
    """Return whether a value contains NaN or Infinity; refuse bytes and deep nesting."""
    has_non_finite = False
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        kinds = set(map(type, level))
        if not kinds.isdisjoint(_BINARY):
            raise ValueError("bytes are not JSON: encode them as text first")
        if float in kinds:
            has_non_finite = has_non_finite or not all(
                isfinite(item) for item in level if type(item) is float
            )
        if kinds <= _SCALARS:
            return has_non_finite
        level = _next_level(level)
    raise RecursionError


def _next_level(level: list[Any]) -> list[Any]:
    below: list[Any] = []
    for item in [item for item in level if type(item) not in _SCALARS]:
        inside = item if type(item) in _CONTAINERS else _get_children(item)
        below += inside
        if type(inside) is dict:
            below += inside.values()
    return below


def _get_children(item: Any) -> Collection[Any]:
    if isinstance(item, EncodedByFields):
        return vars(item)
    if isinstance(item, msgspec.Struct):
        return msgspec.structs.astuple(item)
    plain = _to_plain(item)
    return plain if type(plain) in _CONTAINERS else (plain,)


def _replace_all_surrogates(plain: Any) -> Any:
    """Replace the lone surrogates in a tree built by `_plain`, in place."""
    root = [plain]
    pending: list[Any] = [root]
    while pending:
        item = pending.pop()
        if type(item) is dict:
            _rewrite_keys(item)
        for key, child in list(item.items() if type(item) is dict else enumerate(item)):
            if type(child) is str:
                item[key] = _replace_surrogates(child)
            elif type(child) in (dict, list):
                pending.append(child)
    return root[0]


def _rewrite_keys(item: dict[str, Any]) -> None:
    rewritten = {_replace_surrogates(key): child for key, child in item.items()}
    if len(rewritten) != len(item):
        raise ValueError("two keys differ only in lone surrogates")
    item.clear()
    item.update(rewritten)


def _replace_surrogates(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
