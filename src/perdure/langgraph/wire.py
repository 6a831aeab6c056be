"""JSON of graph values: messages, interrupts, snapshots, DataFrames, and all values that nodes write.

A value that contains pandas DataFrames, in dictionaries or lists, has its own form with their data in Arrow's
format, which needs `perdure[dataframes]`. This form also has the names of the columns and the number of rows,
because only these are shown.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Any
from uuid import UUID

import msgspec
import ormsgpack
from langgraph.types import Interrupt, Send, StateSnapshot

from perdure.checkpoints.view import FRAME, FRAMES
from perdure.kernel.codec import decode_json, encode_json

# --- DataFrames -------------------------------------------------------------------------------------------


INSTALL = "pip install 'perdure[dataframes]'"


def is_frame(value: Any) -> bool:
    """Return whether a value is a pandas DataFrame, without importing pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, getattr(pandas, "DataFrame", ()))


def shown(frame: Any) -> dict[str, Any]:
    """Return the part of a DataFrame that is shown."""
    return {"columns": [str(column) for column in frame.columns], "rows": len(frame)}


def dump(value: Any) -> tuple[str, bytes]:
    """Serialize a value that contains DataFrames."""
    from langgraph.checkpoint.serde.jsonplus import _msgpack_default, _option

    reasons: list[Exception] = []

    def default(part: Any) -> Any:
        try:
            return ormsgpack.Ext(FRAME, _packed(part)) if is_frame(part) else _msgpack_default(part)
        except (TypeError, ValueError) as error:
            # ormsgpack raises its own error, which names only the type.
            reasons.append(error)
            raise

    try:
        return FRAMES, ormsgpack.packb(value, default=default, option=_option)
    except TypeError as error:
        raise (reasons[0] if reasons else error) from None


def load(body: bytes, revive: Callable[[int, bytes], Any]) -> Any:
    """Deserialize a value; `revive` creates objects other than DataFrames."""

    def hook(code: int, data: bytes) -> Any:
        return _unpacked(data) if code == FRAME else revive(code, data)

    return ormsgpack.unpackb(body, ext_hook=hook, option=ormsgpack.OPT_NON_STR_KEYS)


def _packed(frame: Any) -> bytes:
    pyarrow = _pyarrow()
    try:
        table = pyarrow.Table.from_pandas(frame)
    except pyarrow.ArrowException as error:
        raise TypeError(f"a DataFrame has a column that Arrow cannot hold: {error}") from error
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    summary = shown(frame)
    return ormsgpack.packb([summary["columns"], summary["rows"], sink.getvalue().to_pybytes()])


def _unpacked(data: bytes) -> Any:
    _, _, body = ormsgpack.unpackb(data)
    return _pyarrow().ipc.open_stream(body).read_all().to_pandas()


def _pyarrow() -> Any:
    try:
        import pandas  # noqa: F401 - Arrow needs it to create a DataFrame
        import pyarrow
    except ModuleNotFoundError as error:
        raise TypeError(f"a DataFrame in a state needs pandas and pyarrow: {INSTALL}") from error
    return pyarrow


# --- JSON -------------------------------------------------------------------------------------------------


CHECKPOINT_KEYS = ("thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map")
"""Keys of a config that name a checkpoint."""


_CONTAINERS = frozenset({list, tuple, dict, set, frozenset})


def _other(value: Any) -> Any:
    """Convert a type that msgspec does not support; an unknown one becomes its `repr`."""
    if type(value) in _CONTAINERS:
        raise TypeError("a list cannot be a key")
    if isinstance(value, Send):
        return {"node": value.node, "args": value.arg}
    if isinstance(value, type):
        return value.__qualname__
    if is_frame(value):
        return shown(value)
    if callable(dump := getattr(value, "model_dump", None)):
        return dump()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, BaseException):
        return {"error": type(value).__name__, "message": str(value)}
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, tzinfo):
        return value.tzname(None)
    if isinstance(value, re.Pattern):
        return value.pattern
    if isinstance(value, os.PathLike) or type(value).__module__ == "ipaddress":
        return str(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else _listed(value)


def _listed(value: Any) -> Any:
    if callable(getattr(value, "__array__", None)) and callable(plain := getattr(value, "tolist", None)):
        return plain()
    try:
        return list(value) if hasattr(value, "__len__") else repr(value)
    except TypeError:
        return repr(value)


_encoder = msgspec.json.Encoder(enc_hook=_other, decimal_format="number")


_DURATION = re.compile(rb'"-?P(?:\d+D)?(?:T\d+(?:\.\d+)?S)?"')
"""Pattern of texts that may be a timedelta, which msgspec encodes in this form."""


_has_named_tuples = False
"""True if states may have named tuples. msgspec encodes them as lists, and looking for them takes time."""


def expect_named_tuples() -> None:
    """Encode named tuples as objects from now on, as they are stored."""
    global _has_named_tuples
    _has_named_tuples = True


def encode_value(value: Any) -> str:
    """Encode a graph's value as JSON.

    NaN and Infinity become null, bytes base64, timedeltas seconds, and named tuples objects.
    """
    try:
        body = _encoder.encode(_with_names(value) if _has_named_tuples else value)
        if (b'"P' in body or b'"-P' in body) and _DURATION.search(body):
            body = _encoder.encode(_in_seconds(_with_names(value)))
        return body.decode()
    except (TypeError, ValueError, UnicodeError, OverflowError):
        return encode_json(_sanitized(value), what="a value of the graph")


def _with_names(value: Any) -> Any:
    """Convert named tuples, in dictionaries, lists and sets, to dictionaries."""
    if type(value) is dict:
        return {key: _with_names(item) for key, item in value.items()}
    if type(value) in _CONTAINERS:
        return [_with_names(item) for item in value]
    if isinstance(value, tuple) and callable(named := getattr(value, "_asdict", None)):
        return {key: _with_names(item) for key, item in named().items()}
    return value


def _in_seconds(value: Any) -> Any:
    """Convert a value to plain data, with its timedeltas as numbers."""
    plain = msgspec.to_builtins(value, builtin_types=(timedelta, Decimal), str_keys=True, enc_hook=_other)
    return _with_seconds(plain)


def _with_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_seconds(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_seconds(item) for item in value]
    return value.total_seconds() if isinstance(value, timedelta) else value


def _sanitized(value: Any) -> Any:
    """Convert a value that msgspec refuses, with strings as keys on every level."""
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): _sanitized(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_sanitized(item) for item in value]
    if isinstance(value, bytes | bytearray):
        return b64encode(value).decode()
    if isinstance(value, float) and not isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Enum):
        return _sanitized(value.value)
    if isinstance(value, date | time | UUID | Decimal):
        return msgspec.to_builtins(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _sanitized(getattr(value, field.name)) for field in dataclasses.fields(value)}
    shown = _other(value)
    return shown if isinstance(shown, str) else _sanitized(shown)


def plain(value: Any) -> Any:
    """Convert a graph's value to plain data."""
    return decode_json(encode_value(value))


# --- states -----------------------------------------------------------------------------------------------


def build_interrupt(interrupt: Interrupt) -> dict[str, Any]:
    return {"id": interrupt.id, "value": interrupt.value}


def interrupts_in(asked: Any) -> list[dict[str, Any]]:
    """Return the interrupts that a task wrote."""
    items = asked if isinstance(asked, list | tuple) else [asked]
    return [build_interrupt(item) for item in items if isinstance(item, Interrupt)]


def get_checkpoint(config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the keys of the checkpoint that a config names, if any."""
    named = (config or {}).get("configurable") or {}
    if not named.get("thread_id") or not named.get("checkpoint_id"):
        return None
    return {"checkpoint_ns": "", **{key: named[key] for key in CHECKPOINT_KEYS if named.get(key) is not None}}


def build_state(snapshot: StateSnapshot) -> dict[str, Any]:
    """Convert a snapshot to the shape of a thread's state, with the objects of its graph."""
    checkpoint, parent = get_checkpoint(snapshot.config), get_checkpoint(snapshot.parent_config)
    return {
        "values": snapshot.values,
        "next": list(snapshot.next),
        "tasks": [_task(task) for task in snapshot.tasks],
        "metadata": snapshot.metadata,
        "created_at": snapshot.created_at,
        "checkpoint": checkpoint,
        "parent_checkpoint": parent,
        "interrupts": [build_interrupt(interrupt) for interrupt in snapshot.interrupts],
        "checkpoint_id": checkpoint and checkpoint["checkpoint_id"],
        "parent_checkpoint_id": parent and parent["checkpoint_id"],
    }


def _task(task: Any) -> dict[str, Any]:
    inner = task.state
    nested = isinstance(inner, StateSnapshot)
    return {
        "id": task.id,
        "name": task.name,
        "path": list(task.path),
        "error": None if task.error is None else _error_text(task.error),
        "interrupts": [build_interrupt(interrupt) for interrupt in task.interrupts],
        "checkpoint": inner["configurable"] if inner is not None and not nested else None,
        "state": build_state(inner) if nested else None,
        "result": task.result,
    }


def _error_text(error: Any) -> str:
    return repr(error) if isinstance(error, BaseException) else str(error)


def debug_payload(payload: dict[str, Any]) -> dict[str, Any]:
    """Add to a checkpoint of the `debug` stream its own keys, its parent's and those of its subgraphs."""
    return {
        **payload,
        "checkpoint": get_checkpoint(payload["config"]),
        "parent_checkpoint": get_checkpoint(payload.get("parent_config")),
        "tasks": [_debug_task(task) for task in payload["tasks"]],
    }


def _debug_task(task: dict[str, Any]) -> dict[str, Any]:
    inner = (task.get("state") or {}).get("configurable")
    if not inner:
        return task
    return {**{key: task[key] for key in task if key != "state"}, "checkpoint": inner}
