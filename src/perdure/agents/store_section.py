"""Section `store` of a `langgraph.json`: the TTL of items, and their search by meaning."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from perdure.agents.loading import graphs_file, import_target, prepare, read_graphs_file
from perdure.items.records import ItemPolicy
from perdure.items.vectors import ItemIndex
from perdure.kernel.errors import InvalidInput, PerdureError

KNOWN = ("ttl", "index")


@dataclass(frozen=True)
class ItemSetup:
    """Settings of items, and the errors in them."""

    policy: ItemPolicy = field(default_factory=ItemPolicy)
    index: ItemIndex | None = None
    failures: tuple[str, ...] = ()


class _Index(msgspec.Struct, kw_only=True):
    embed: str
    dims: int | None = None
    fields: list[str] | None = None


def load_items(place: str | os.PathLike[str] = ".") -> ItemSetup:
    """Load the settings of items in a directory's `langgraph.json`; wrong ones are reported and ignored."""
    path = graphs_file(place)
    section = _read_section(path)
    if not isinstance(section, Mapping):
        return ItemSetup(failures=(f"{path}: store must be an object",))
    failures = [f"{path}: store.{name} is not supported here" for name in section if name not in KNOWN]
    policy, index = ItemPolicy(), None
    try:
        policy = parse_item_policy(section.get("ttl") or {})
    except InvalidInput as error:
        failures.append(f"{path}: store.ttl: {error.message}")
    try:
        index = _index(section.get("index"), path)
    except InvalidInput as error:
        failures.append(f"{path}: store.index: {error.message}; nothing is searched by meaning")
    return ItemSetup(policy, index, tuple(failures))


def _read_section(path: Path) -> Any:
    try:
        content = read_graphs_file(path) if path.exists() else {}
    except InvalidInput:
        # The loading of graphs reports this error.
        return {}
    return (content.get("store") or {}) if isinstance(content, Mapping) else {}


def parse_item_policy(ttl: Mapping[str, Any]) -> ItemPolicy:
    """Parse a `ttl` section of LangGraph into a policy."""
    if not isinstance(ttl, Mapping):
        raise InvalidInput("it must be an object")
    settings = {name: ttl[name] for name in ItemPolicy.__struct_fields__ if ttl.get(name) is not None}
    try:
        policy = msgspec.convert(settings, ItemPolicy)
    except msgspec.ValidationError as error:
        raise InvalidInput(str(error)) from None
    for name in ("default_ttl", "sweep_interval_minutes"):
        if (minutes := getattr(policy, name)) is not None and not minutes > 0:
            raise InvalidInput(f"{name} is {minutes}; it must be a number of minutes above 0")
    return policy


def _index(given: Any, path: Path) -> ItemIndex | None:
    if not given:
        return None
    try:
        wanted = msgspec.convert(given, _Index)
    except msgspec.ValidationError as error:
        raise InvalidInput(str(error)) from None
    prepare(path)
    return ItemIndex(embed_named(wanted.embed, path.parent), dims=wanted.dims, fields=wanted.fields)


def embed_named(name: str, directory: Path) -> Any:
    """Load the function `module:name` or `./file.py:name`, or the model of this name in LangChain."""
    try:
        return import_target(name, directory)
    except PerdureError as error:
        reason = error.message
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything, and it is reported
        reason = f"{type(error).__name__}: {error}"
    if ".py:" in name:
        raise InvalidInput(f"embed {name!r} cannot be loaded: {reason}")
    return _load_by_langchain(name, reason)


def _load_by_langchain(name: str, reason: str) -> Any:
    try:
        embeddings = import_module("langchain.embeddings")
    except ImportError:
        raise InvalidInput(
            f"embed {name!r} cannot be loaded: {reason}; for the name of a model install langchain"
        ) from None
    try:
        return embeddings.init_embeddings(name)
    except Exception as error:
        raise InvalidInput(f"embed {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
