"""Rules of assistants. This module is pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID, uuid5

import msgspec

from perdure.agents.records import AgentDescription, AgentSpec
from perdure.assistants.records import Assistant, IfExists
from perdure.kernel.checks import check_name, check_object, check_text
from perdure.kernel.clock import to_seconds
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.cursors import Place
from perdure.kernel.errors import InvalidInput
from perdure.kernel.storage.filters import SortOrder
from perdure.kernel.storage.labels import encode_labels, encode_metadata

MAX_DESCRIPTION = 8192
MAX_AGENT_DESCRIPTION = 1 << 20
"""Limit of characters of an agent's schemas and drawings as JSON."""
SYSTEM_METADATA: Mapping[str, Any] = {"created_by": "system"}

_SYSTEM = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")


@lru_cache(maxsize=4096)
def system_id(agent: str) -> str:
    """Return the id of an agent's system assistant, computed as on LangGraph's server."""
    return str(uuid5(_SYSTEM, agent))


class AssistantBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an assistant in one version; the last three fields are JSON."""

    agent: str
    name: str
    description: str | None
    config: str
    context: str
    metadata: str

    def columns(self) -> dict[str, Any]:
        return {**msgspec.structs.asdict(self), "folded": self.name.casefold()}


class Version(NamedTuple):
    """A version: its body, the body as JSON, and the encoded metadata for filters."""

    body: AssistantBody
    text: str
    labels: Mapping[str, str]


def encode_version(body: AssistantBody) -> Version:
    """Encode a body."""
    return Version(body, encode_json(body), encode_labels(_decode_object(body.metadata)))


def stored_version(text: str) -> Version:
    """Decode a stored body."""
    body = msgspec.convert(decode_json(text), AssistantBody)
    return Version(body, text, encode_labels(_decode_object(body.metadata)))


class NewAssistant(msgspec.Struct, frozen=True, kw_only=True):
    """A checked assistant to be created."""

    assistant_id: str | None
    version: Version
    if_exists: IfExists


class AssistantRegistration(NamedTuple):
    """An agent, and the first version of its system assistant."""

    spec: AgentSpec
    version: Version


def registrations(agents: Sequence[AgentSpec]) -> list[AssistantRegistration]:
    """Return agents with the first versions of their system assistants."""
    return [AssistantRegistration(spec, encode_version(system_body(spec))) for spec in agents]


class AssistantChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of an assistant; None leaves a field as it is. Metadata is merged."""

    agent: str | None = None
    name: str | None = None
    description: str | None = None
    config: str | None = None
    context: str | None = None
    metadata: Mapping[str, Any] | None = None


class AssistantFilter(NamedTuple):
    """Filter, order and page of a list of assistants."""

    agent: str | None
    name: str | None
    metadata: Mapping[str, Any]
    limit: int
    offset: int
    order: SortOrder
    place: Place | None


# --- what callers give ------------------------------------------------------------------------------------


def encode_object(value: object, what: str) -> str:
    return encode_json(check_object(value, what), what=what)


def check_description(value: object) -> str | None:
    return None if value is None else check_text(value, "description", max_length=MAX_DESCRIPTION)


# --- rows -------------------------------------------------------------------------------------------------


class AssistantRow(NamedTuple):
    """An assistant in its current version; the last three fields are JSON."""

    id: str
    agent: str
    name: str
    description: str | None
    version: int
    created: int
    updated: int
    system: int
    config: str
    context: str
    metadata: str


class AssistantVersionRow(NamedTuple):
    """A version: its number, time of creation, and body as JSON."""

    version: int
    time: int
    body: str


class NewVersionRow(NamedTuple):
    """A version to be inserted."""

    id: str
    version: int
    time: int
    body: str


def row_to_assistant(row: AssistantRow) -> Assistant:
    """Convert a row to an assistant."""
    return Assistant(
        assistant_id=row.id,
        agent=row.agent,
        name=row.name,
        description=row.description,
        config=_decode_object(row.config),
        context=_decode_object(row.context),
        metadata=_decode_object(row.metadata),
        version=row.version,
        created_at=to_seconds(row.created),
        updated_at=to_seconds(row.updated),
        system=bool(row.system),
    )


def _decode_object(text: str) -> dict[str, Any]:
    # Most texts are empty, and every new run decodes them.
    return {} if text == "{}" else decode_json(text)


def decode_assistant_body(row: AssistantRow) -> AssistantBody:
    """Return the body of an assistant's current version."""
    return AssistantBody(
        agent=row.agent,
        name=row.name,
        description=row.description,
        config=row.config,
        context=row.context,
        metadata=row.metadata,
    )


def restore_version(row: AssistantRow, version: AssistantVersionRow, body: AssistantBody) -> AssistantRow:
    """Return the row of an assistant with the body of a version."""
    return row._replace(
        agent=body.agent,
        name=body.name,
        description=body.description,
        version=version.version,
        updated=version.time,
        config=body.config,
        context=body.context,
        metadata=body.metadata,
    )


def changed(body: AssistantBody, change: AssistantChange) -> AssistantBody:
    """Return a body after a change."""
    given = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not None}
    if change.metadata is not None:
        given["metadata"] = encode_metadata(
            {**decode_json(body.metadata), **change.metadata}, known=body.metadata
        )
    return msgspec.structs.replace(body, **given)


def system_body(spec: AgentSpec) -> AssistantBody:
    """Return the first body of an agent's system assistant."""
    return AssistantBody(
        agent=spec.name,
        name=spec.name,
        description=spec.description,
        config="{}",
        context="{}",
        metadata=encode_json(SYSTEM_METADATA),
    )


def is_outdated(row: AssistantRow | None, spec: AgentSpec) -> bool:
    """Return whether an agent has no system assistant, or one with an outdated description.

    A system assistant that a caller has changed stays as it is.
    """
    if row is None or not row.system:
        return True
    return row.version == 1 and spec.description is not None and row.description != spec.description


# --- descriptions of agents -------------------------------------------------------------------------------


class DescriptionRow(NamedTuple):
    """The description of an agent as JSON, if there is one. The digest shows whether it has changed."""

    agent: str
    kind: str
    digest: str | None
    updated: int
    body: str | None


class KindRow(NamedTuple):
    """The kind of an agent, and the digest of its description."""

    agent: str
    kind: str
    digest: str | None


def description_rows(descriptions: Sequence[AgentDescription]) -> list[DescriptionRow]:
    """Convert descriptions to rows; the last one of an agent counts."""
    rows = [_build_description_row(description) for description in descriptions]
    return list({row.agent: row for row in rows}.values())


def _build_description_row(description: AgentDescription) -> DescriptionRow:
    agent = check_name(description.agent, "agent")
    body = encode_json(description, what=f"the description of agent {agent!r}")
    if len(body) > MAX_AGENT_DESCRIPTION:
        raise InvalidInput(
            f"the description of agent {agent!r} has {len(body):,} characters;"
            f" at most {MAX_AGENT_DESCRIPTION:,} are allowed"
        )
    kind = check_name(description.kind, "kind")
    return DescriptionRow(agent, kind, sha256(body.encode()).hexdigest(), 0, body)


def decode_description(body: str) -> AgentDescription:
    """Decode the stored description of an agent."""
    return msgspec.convert(decode_json(body), AgentDescription)
