"""Operations on assistants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.agents.records import AgentSpec
from perdure.assistants import model, sql
from perdure.assistants.model import (
    AssistantBody,
    AssistantFilter,
    AssistantRegistration,
    AssistantRow,
    AssistantVersionRow,
    DescriptionRow,
    KindRow,
    NewAssistant,
    NewVersionRow,
    Version,
    system_id,
)
from perdure.kernel import changes, ids
from perdure.kernel.errors import Conflict, NotFound, PerdureError
from perdure.kernel.storage.filters import Clause, given, where
from perdure.kernel.storage.labels import drop_labels, labelled, set_labels
from perdure.kernel.storage.port import Tx
from perdure.service.audit import audit
from perdure.service.idempotency import keyed_as

KIND = "assistant"
CHANNEL = "assistants"
"""Channel with one key: assistants of any namespace have changed."""


# --- creating and changing ---------------------------------------------------------------------------------


@keyed_as("create_assistant", answer=AssistantRow)
async def create(tx: Tx, requests: Sequence[NewAssistant]) -> list[AssistantRow | PerdureError]:
    """Create assistants; return a row or an error for each."""
    wanted = [request.assistant_id or ids.uuid(tx.now, tx.ids) for request in requests]
    registered = await known_agents(tx, [*wanted, *(request.version.body.agent for request in requests)])
    answers: dict[int, AssistantRow | PerdureError] = {}
    created: list[str] = []
    # The order of ids prevents deadlocks between batches.
    for place in sorted(range(len(requests)), key=wanted.__getitem__):
        request, assistant_id = requests[place], wanted[place]
        refusal = _find_refusal(assistant_id, request.version.body.agent, registered)
        answers[place] = refusal or await _create(tx, assistant_id, request, created)
    await _publish(tx, "create_assistant", created, "added")
    return [answers[place] for place in range(len(requests))]


def _find_refusal(assistant_id: str, agent: str, registered: set[str]) -> PerdureError | None:
    if agent not in registered:
        return NotFound(f"Agent {agent} not found: no worker has registered it")
    if assistant_id in registered:
        return Conflict(f"{assistant_id} is the name of an agent, and cannot be the id of an assistant")
    return None


async def _create(
    tx: Tx, assistant_id: str, request: NewAssistant, created: list[str]
) -> AssistantRow | PerdureError:
    if await _insert(tx, assistant_id, request.version, system=False):
        created.append(assistant_id)
    elif request.if_exists == "raise":
        return Conflict(f"Assistant {assistant_id} already exists")
    row = await tx.one(sql.LOCK, id=assistant_id)
    return row or Conflict(f"Assistant {assistant_id} was just deleted")


async def known_agents(tx: Tx, agents: Sequence[str]) -> set[str]:
    """Return the registered agents among the names."""
    registered = await tx.all(sql.KNOWN_AGENTS, ids=sorted({system_id(agent) for agent in agents}))
    return set(registered).intersection(agents)


async def known_anywhere(tx: Tx, names: Sequence[str]) -> set[str]:
    """Return the names that are assistants or registered agents in any namespace."""
    by_id = {key: name for name in names for key in (name, system_id(name))}
    return {by_id[key] for key in await tx.all(sql.KNOWN_ANYWHERE, ids=sorted(by_id))}


async def update(tx: Tx, assistant_id: str, expected: AssistantBody, version: Version) -> AssistantRow | None:
    """Add the next version of an assistant, which becomes the current one.

    Return None and change nothing if the current body differs from `expected`.
    """
    row = await _lock(tx, assistant_id)
    if model.decode_assistant_body(row) != expected:
        return None
    agent = version.body.agent
    if agent != row.agent:
        _check_not_system(row)
        if not await known_agents(tx, [agent]):
            raise NotFound(f"Agent {agent} not found: no worker has registered it")
    after = await _next_version(tx, row, version, system=bool(row.system))
    await _publish(tx, "update_assistant", [assistant_id], "updated")
    return after


def _check_not_system(row: AssistantRow) -> None:
    if row.system:
        raise Conflict(f"Assistant {row.id} is the system assistant of {row.agent}; its agent cannot change")


async def get_version(tx: Tx, assistant_id: str, number: int) -> AssistantVersionRow:
    """Get a version of an assistant; NotFound if there is none."""
    await get(tx, assistant_id)
    row = await tx.one(sql.GET_VERSION, id=assistant_id, version=number)
    if row is None:
        raise NotFound(f"Assistant {assistant_id} has no version {number}")
    return row


async def set_latest(tx: Tx, assistant_id: str, number: int, version: Version) -> AssistantRow | None:
    """Make a version the current one. Return None if the version has changed since it was read."""
    row = await _lock(tx, assistant_id)
    if (await get_version(tx, assistant_id, number)).body != version.text:
        return None
    if version.body.agent != row.agent:
        _check_not_system(row)
    after = await _save(tx, row, version, number, system=bool(row.system))
    await _publish(tx, "set_latest_assistant", [assistant_id], "updated")
    return after


async def delete(tx: Tx, assistant_id: str) -> None:
    """Delete an assistant with its versions."""
    row = await _lock(tx, assistant_id)
    if row.system:
        raise Conflict(
            f"Assistant {assistant_id} is the system assistant of agent {row.agent}; it cannot be deleted"
        )
    await _drop(tx, assistant_id)
    await _publish(tx, "delete_assistant", [assistant_id], "deleted")


async def _drop(tx: Tx, assistant_id: str) -> None:
    await tx.execute(sql.DROP, id=assistant_id)
    await tx.execute(sql.DROP_VERSIONS, id=assistant_id)
    await drop_labels(tx, KIND, [assistant_id])


# --- system assistants -------------------------------------------------------------------------------------


async def outdated(tx: Tx, specs: Sequence[AgentSpec]) -> bool:
    """Return whether `register` would change anything."""
    rows = {row.id: row for row in await tx.all(sql.GET, ids=[system_id(spec.name) for spec in specs])}
    kinds = await _get_kinds(tx, [spec.name for spec in specs])
    return any(
        model.is_outdated(rows.get(system_id(spec.name)), spec)
        or spec.name not in kinds
        or kinds[spec.name].kind != spec.kind
        for spec in specs
    )


async def register(tx: Tx, agents: Sequence[AssistantRegistration]) -> None:
    """Create or update the system assistants of agents, and store their kinds."""
    by_id = {system_id(agent.spec.name): agent for agent in agents}
    rows = {row.id: row for row in await tx.all(sql.LOCK_MANY, ids=sorted(by_id))}
    changed = []
    for assistant_id in sorted(by_id):
        if model.is_outdated(rows.get(assistant_id), by_id[assistant_id].spec):
            await _register(tx, assistant_id, rows.get(assistant_id), by_id[assistant_id])
            changed.append(assistant_id)
    kinds = [DescriptionRow(agent.spec.name, agent.spec.kind, None, tx.now, None) for agent in by_id.values()]
    await tx.write(sql.SAVE_KINDS.of(sorted(kinds)))
    await _publish(tx, "register_agent", changed, "updated")


async def _register(
    tx: Tx, assistant_id: str, row: AssistantRow | None, agent: AssistantRegistration
) -> None:
    if row is None:
        # If another worker has inserted the row first, that row is equivalent.
        await _insert(tx, assistant_id, agent.version, system=True)
    elif not row.system:
        # A caller took the id before the agent was registered.
        await _next_version(tx, row, agent.version, system=True)
    else:
        # The first version of a system assistant can only differ in its description.
        await tx.execute(sql.DESCRIBE, id=assistant_id, description=agent.spec.description)
        await tx.execute(sql.REDESCRIBE, id=assistant_id, version=row.version, body=agent.version.text)


async def unregister(tx: Tx, agents: Sequence[str]) -> None:
    """Delete the system assistants of agents, and their descriptions.

    A system assistant that was changed stays, because its content is not in the code.
    """
    rows = await tx.all(sql.LOCK_MANY, ids=sorted(map(system_id, agents)))
    gone = [row for row in rows if row.system and await tx.one(sql.LAST_VERSION, id=row.id) == 1]
    for row in gone:
        await _drop(tx, row.id)
        await tx.execute(sql.DROP_DESCRIPTION, agent=row.agent)
    await _publish(tx, "unregister_agent", [row.id for row in gone], "deleted")


# --- descriptions of agents -------------------------------------------------------------------------------


async def is_described(tx: Tx, rows: Sequence[DescriptionRow]) -> bool:
    """Return whether `describe` would change nothing."""
    return not await _list_changed(tx, rows)


async def _list_changed(tx: Tx, rows: Sequence[DescriptionRow]) -> list[DescriptionRow]:
    kinds = await _get_kinds(tx, [row.agent for row in rows])
    return [row for row in rows if row.agent not in kinds or kinds[row.agent].digest != row.digest]


async def _get_kinds(tx: Tx, agents: Sequence[str]) -> dict[str, KindRow]:
    return {row.agent: row for row in await tx.all(sql.GET_KINDS, agents=list(agents))}


async def describe(tx: Tx, rows: Sequence[DescriptionRow]) -> None:
    """Store the descriptions of agents; the last one of an agent counts."""
    registered = await known_agents(tx, [row.agent for row in rows])
    for row in rows:
        if row.agent not in registered:
            raise NotFound(f"Agent {row.agent} not found: no worker has registered it")
    changed = [row._replace(updated=tx.now) for row in await _list_changed(tx, rows)]
    await tx.write(sql.SAVE_DESCRIPTIONS.of(sorted(changed)))
    await audit(tx, "describe_agent", [system_id(row.agent) for row in changed])


async def get_description(tx: Tx, agent: str) -> str | None:
    """Return the description of an agent as JSON; None if no worker has registered it."""
    return await tx.one(sql.GET_DESCRIPTION, agent=agent)


async def get_kind(tx: Tx, agent: str) -> str | None:
    """Return the kind of an agent; None if no worker has registered it."""
    kind = (await _get_kinds(tx, [agent])).get(agent)
    return None if kind is None else kind.kind


# --- rows -------------------------------------------------------------------------------------------------


async def _lock(tx: Tx, assistant_id: str) -> AssistantRow:
    row = await tx.one(sql.LOCK, id=assistant_id)
    if row is None:
        raise NotFound(f"Assistant {assistant_id} not found")
    return row


async def _insert(tx: Tx, assistant_id: str, version: Version, *, system: bool) -> bool:
    if not await tx.execute(sql.CREATE, id=assistant_id, system=int(system), **version.body.columns()):
        return False
    await tx.write(sql.ADD_VERSIONS.of([NewVersionRow(assistant_id, 1, tx.now, version.text)]))
    await set_labels(tx, KIND, {assistant_id: version.labels})
    return True


async def _next_version(tx: Tx, row: AssistantRow, version: Version, *, system: bool) -> AssistantRow:
    number = (await tx.one(sql.LAST_VERSION, id=row.id) or row.version) + 1
    await tx.write(sql.ADD_VERSIONS.of([NewVersionRow(row.id, number, tx.now, version.text)]))
    return await _save(tx, row, version, number, system=system)


async def _save(tx: Tx, row: AssistantRow, version: Version, number: int, *, system: bool) -> AssistantRow:
    await tx.execute(sql.SAVE, id=row.id, version=number, system=int(system), **version.body.columns())
    await set_labels(tx, KIND, {row.id: version.labels})
    saved = model.restore_version(row, AssistantVersionRow(number, tx.now, version.text), version.body)
    return saved._replace(system=int(system))


async def _publish(tx: Tx, action: str, ids: Sequence[str], status: str) -> None:
    """Publish what was changed, and write the audit entry last."""
    changes.tell(tx, KIND, [(assistant_id, status) for assistant_id in ids])
    if ids:
        tx.hint(CHANNEL, "")
    await audit(tx, action, ids)


# --- reading ----------------------------------------------------------------------------------------------


async def get(tx: Tx, assistant_id: str) -> AssistantRow:
    """Get an assistant; NotFound if there is none."""
    row = await tx.one(sql.GET, ids=[assistant_id])
    if row is None:
        raise NotFound(f"Assistant {assistant_id} not found")
    return row


async def resolve(tx: Tx, names: Sequence[str]) -> dict[str, AssistantRow]:
    """Return assistants by id, or by the name of an agent for its system assistant.

    Unknown names are left out.
    """
    wanted = {*names, *map(system_id, names)}
    rows = {row.id: row for row in await tx.all(sql.GET, ids=sorted(wanted))}
    resolved = {name: rows.get(name) or _take_own(rows.get(system_id(name)), name) for name in names}
    return {name: row for name, row in resolved.items() if row is not None}


def _take_own(row: AssistantRow | None, agent: str) -> AssistantRow | None:
    return row if row is not None and row.system and row.agent == agent else None


async def search(tx: Tx, query: AssistantFilter) -> tuple[list[AssistantRow], int]:
    """Return a page of assistants, and the total number."""
    clause = _build_clause(query.agent, query.name, query.metadata)
    page, values = sql.LIST.page(clause, query.order, query.limit, query.offset, query.place)
    rows = await tx.all(page, **values)
    total = await tx.one(sql.LIST.count(clause), **clause.values)
    return rows, total or 0


async def count(tx: Tx, agent: str | None, name: str | None, metadata: Mapping[str, Any]) -> int:
    clause = _build_clause(agent, name, metadata)
    total = await tx.one(sql.LIST.count(clause), **clause.values)
    return total or 0


def _build_clause(agent: str | None, name: str | None, metadata: Mapping[str, Any]) -> Clause:
    folded = None if name is None else name.casefold()
    clause = where(sql.FIELDS, given(("agent", "exact", agent), ("folded", "contains", folded)), "and")
    if not metadata:
        return clause
    labels = labelled(KIND, metadata)
    return Clause(clause.sql + " AND " + labels.sql, {**clause.values, **labels.values})


async def versions(
    tx: Tx, assistant_id: str, before: int, limit: int, offset: int
) -> tuple[AssistantRow, list[AssistantVersionRow]]:
    """Return an assistant, and a page of its versions before a number, newest first."""
    row = await get(tx, assistant_id)
    return row, await tx.all(sql.LIST_VERSIONS, id=assistant_id, before=before, limit=limit, offset=offset)
