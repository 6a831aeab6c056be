"""What a graph tells and holds, as JSON: messages, interrupts, snapshots and whatever its nodes make."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Mapping
from datetime import timedelta, tzinfo
from math import isfinite
from re import Pattern
from typing import Any

import msgspec
from langgraph.types import Interrupt, Send, StateSnapshot

from perdure.kernel.codec import decode_json, encode_json

PLACE = ("thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map")
"""What tells where a checkpoint is."""


_CONTAINERS = frozenset({list, tuple, dict, set, frozenset})


def _other(value: Any) -> Any:
    """Turn what msgspec does not know into what it does; what nobody knows is shown as Python shows it."""
    if type(value) in _CONTAINERS:
        raise TypeError("a list cannot be a key")
    if isinstance(value, Send):
        return {"node": value.node, "args": value.arg}
    if isinstance(value, type):
        return value.__qualname__
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
    if isinstance(value, Pattern):
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


def body_of(value: Any) -> str:
    """The JSON text of something that a graph tells. NaN and Infinity are null, bytes are base64."""
    try:
        return _encoder.encode(value).decode()
    except (TypeError, ValueError, UnicodeError, OverflowError):
        return encode_json(_tamed(value), what="what a graph told")


def _tamed(value: Any) -> Any:
    """A value whose keys are texts, level by level, where msgspec would refuse it."""
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): _tamed(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_tamed(each) for each in value]
    if isinstance(value, bytes | bytearray):
        return b64encode(value).decode()
    if isinstance(value, float) and not isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float):
        return value
    shown = _other(value)
    return shown if isinstance(shown, str) else _tamed(shown)


def plain(value: Any) -> Any:
    """The same as data."""
    return decode_json(body_of(value))


# --- states -----------------------------------------------------------------------------------------------


def interrupt_of(interrupt: Interrupt) -> dict[str, Any]:
    return {"id": interrupt.id, "value": interrupt.value}


def place_of(config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The checkpoint that a config names, if it names one."""
    told = (config or {}).get("configurable") or {}
    if not told.get("thread_id") or not told.get("checkpoint_id"):
        return None
    return {"checkpoint_ns": "", **{key: told[key] for key in PLACE if told.get(key) is not None}}


def state_of(snapshot: StateSnapshot) -> dict[str, Any]:
    """A snapshot in the shape of a thread's state, still with the objects of its graph."""
    place, parent = place_of(snapshot.config), place_of(snapshot.parent_config)
    return {
        "values": snapshot.values,
        "next": list(snapshot.next),
        "tasks": [_task(each) for each in snapshot.tasks],
        "metadata": snapshot.metadata,
        "created_at": snapshot.created_at,
        "checkpoint": place,
        "parent_checkpoint": parent,
        "interrupts": [interrupt_of(each) for each in snapshot.interrupts],
        "checkpoint_id": place and place["checkpoint_id"],
        "parent_checkpoint_id": parent and parent["checkpoint_id"],
    }


def _task(task: Any) -> dict[str, Any]:
    inner = task.state
    nested = isinstance(inner, StateSnapshot)
    return {
        "id": task.id,
        "name": task.name,
        "path": list(task.path),
        "error": None if task.error is None else _words(task.error),
        "interrupts": [interrupt_of(each) for each in task.interrupts],
        "checkpoint": inner["configurable"] if inner is not None and not nested else None,
        "state": state_of(inner) if nested else None,
        "result": task.result,
    }


def _words(error: Any) -> str:
    return repr(error) if isinstance(error, BaseException) else str(error)


def debugged(payload: dict[str, Any]) -> dict[str, Any]:
    """What the `debug` stream says of a checkpoint, with the places of it, its parent and its subgraphs."""
    return {
        **payload,
        "checkpoint": place_of(payload["config"]),
        "parent_checkpoint": place_of(payload.get("parent_config")),
        "tasks": [_debugged(task) for task in payload["tasks"]],
    }


def _debugged(task: dict[str, Any]) -> dict[str, Any]:
    inner = (task.get("state") or {}).get("configurable")
    if not inner:
        return task
    return {**{key: task[key] for key in task if key != "state"}, "checkpoint": inner}
