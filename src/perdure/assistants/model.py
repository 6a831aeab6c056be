"""The rules of assistants. Everything here is pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID, uuid5

import msgspec

from perdure.agents.records import AgentSpec
from perdure.assistants.records import Assistant, IfExists
from perdure.kernel.checks import check_object, check_text
from perdure.kernel.clock import to_seconds
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.storage.labels import check_keys
from perdure.kernel.storage.port import Row

MAX_DESCRIPTION = 8192
SYSTEM_METADATA: Mapping[str, Any] = {"created_by": "system"}

_SYSTEM = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")


def system_id(agent: str) -> str:
    """The id of an agent's system assistant: the same everywhere, and as LangGraph's server makes it."""
    return str(uuid5(_SYSTEM, agent))


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """What an assistant is in one of its versions, as it is stored; the last three are JSON."""

    agent: str
    name: str
    description: str | None
    config: str
    context: str
    metadata: str

    def columns(self) -> dict[str, Any]:
        return {**msgspec.structs.asdict(self), "folded": self.name.casefold()}


class NewAssistant(msgspec.Struct, frozen=True, kw_only=True):
    """An assistant that is to be made, checked."""

    assistant_id: str | None
    body: Body
    if_exists: IfExists


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What is to change of an assistant; None leaves it as it is. Metadata is merged."""

    agent: str | None = None
    name: str | None = None
    description: str | None = None
    config: str | None = None
    context: str | None = None
    metadata: Mapping[str, Any] | None = None


class Search(NamedTuple):
    """Which assistants, in which order, and which page of them."""

    agent: str | None
    name: str | None
    metadata: Mapping[str, Any]
    sort_by: str
    sort_order: str
    limit: int
    offset: int


# --- what callers give ------------------------------------------------------------------------------------


def encode_object(value: object, what: str) -> str:
    return encode_json(check_object(value, what), what=what)


def encode_metadata(value: object) -> str:
    metadata = check_object(value, "metadata")
    check_keys(metadata)
    return encode_json(metadata, what="metadata")


def check_description(value: object) -> str | None:
    return None if value is None else check_text(value, "description", max_length=MAX_DESCRIPTION)


# --- rows -------------------------------------------------------------------------------------------------


def assistant_of(row: Row) -> Assistant:
    """An assistant out of a row as `sql.VIEW` shows it."""
    assistant_id, agent, name, description, version, created, updated, system, *objects = row
    config, context, metadata = map(_object, objects)
    return Assistant(
        assistant_id=assistant_id,
        agent=agent,
        name=name,
        description=description,
        config=config,
        context=context,
        metadata=metadata,
        version=version,
        created_at=to_seconds(created),
        updated_at=to_seconds(updated),
        system=bool(system),
    )


def _object(text: str) -> dict[str, Any]:
    # Most are empty, and this is read with every run that is made.
    return {} if text == "{}" else decode_json(text)


def body_of(row: Row) -> Body:
    _, agent, name, description, _, _, _, _, config, context, metadata = row
    return Body(
        agent=agent, name=name, description=description, config=config, context=context, metadata=metadata
    )


def changed(body: Body, change: Change) -> Body:
    """A version as it is after a change."""
    given = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not None}
    if change.metadata is not None:
        given["metadata"] = encode_metadata({**decode_json(body.metadata), **change.metadata})
    return msgspec.structs.replace(body, **given)


def system_body(spec: AgentSpec) -> Body:
    """What the system assistant of an agent is at first."""
    return Body(
        agent=spec.name,
        name=spec.name,
        description=spec.description,
        config="{}",
        context="{}",
        metadata=encode_json(SYSTEM_METADATA),
    )


def is_outdated(row: Row | None, spec: AgentSpec) -> bool:
    """Whether the system assistant of an agent is not there, or not yet as the agent says it is.

    What somebody has changed since stays as they want it.
    """
    if row is None or not row[7]:
        return True
    return row[4] == 1 and spec.description is not None and row[3] != spec.description
