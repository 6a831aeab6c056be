"""Operations on assistants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from perdure.access.operations import audit
from perdure.agents.records import AgentSpec
from perdure.assistants import model, sql
from perdure.assistants.model import Body, Change, NewAssistant, Search, system_id
from perdure.assistants.records import Assistant
from perdure.kernel import changes, ids
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import Conflict, NotFound, PerdureError
from perdure.kernel.match import has
from perdure.kernel.storage.filters import Clause, given, order_by, where
from perdure.kernel.storage.labels import drop_labels, labelled, set_labels
from perdure.kernel.storage.port import Row, Tx

KIND = "assistant"
MAX_VERSIONS = 1000


# --- making and changing ----------------------------------------------------------------------------------


async def create(tx: Tx, requests: Sequence[NewAssistant]) -> list[tuple[object, ...] | PerdureError]:
    """Make assistants; answers each with its row, or with why it could not be made."""
    wanted = [request.assistant_id or ids.uuid(tx.now, tx.ids) for request in requests]
    known = await _known_agents(tx, [*wanted, *(request.body.agent for request in requests)])
    answers: dict[int, tuple[object, ...] | PerdureError] = {}
    made: list[str] = []
    # In the order of their ids, so that two batches never wait for each other.
    for place in sorted(range(len(requests)), key=wanted.__getitem__):
        request, assistant_id = requests[place], wanted[place]
        refusal = _refusal(assistant_id, request.body.agent, known)
        answers[place] = refusal or await _create(tx, assistant_id, request, made)
    await _written(tx, "create_assistant", made, "added")
    return [answers[place] for place in range(len(requests))]


def _refusal(assistant_id: str, agent: str, known: set[str]) -> PerdureError | None:
    if agent not in known:
        return NotFound(f"Agent {agent} not found: no worker has registered it")
    if assistant_id in known:
        return Conflict(f"{assistant_id} is the name of an agent, and cannot be the id of an assistant")
    return None


async def _create(
    tx: Tx, assistant_id: str, request: NewAssistant, made: list[str]
) -> tuple[object, ...] | PerdureError:
    if await _insert(tx, assistant_id, request.body, system=False):
        made.append(assistant_id)
    elif request.if_exists == "raise":
        return Conflict(f"Assistant {assistant_id} exists already")
    row = await tx.one(sql.LOCK, id=assistant_id)
    return tuple(row) if row else Conflict(f"Assistant {assistant_id} was just deleted")


async def _known_agents(tx: Tx, agents: Sequence[str]) -> set[str]:
    rows = await tx.all(sql.KNOWN_AGENTS, ids=sorted({system_id(agent) for agent in agents}))
    return {row[0] for row in rows}.intersection(agents)


async def update(tx: Tx, assistant_id: str, change: Change) -> Row:
    """Make the next version of an assistant, which becomes the current one."""
    row = await _locked(tx, assistant_id)
    if change.agent is not None and change.agent != row[1]:
        if row[7]:
            raise Conflict(f"Assistant {assistant_id} is the agent {row[1]}'s own, and stays so")
        if not await _known_agents(tx, [change.agent]):
            raise NotFound(f"Agent {change.agent} not found: no worker has registered it")
    after = await _next_version(tx, row, model.changed(model.body_of(row), change), system=bool(row[7]))
    await _written(tx, "update_assistant", [assistant_id], "updated")
    return after


async def set_latest(tx: Tx, assistant_id: str, version: int) -> Row:
    """Make an assistant what it was in one of its versions."""
    row = await _locked(tx, assistant_id)
    found = await tx.one(sql.GET_VERSION, id=assistant_id, version=version)
    if found is None:
        raise NotFound(f"Assistant {assistant_id} has no version {version}")
    body = msgspec.convert(decode_json(found[2]), Body)
    if row[7] and body.agent != row[1]:
        raise Conflict(f"Assistant {assistant_id} is the agent {row[1]}'s own, and stays so")
    after = await _save(tx, row, body, version, system=bool(row[7]))
    await _written(tx, "set_latest_assistant", [assistant_id], "updated")
    return after


async def delete(tx: Tx, assistant_id: str) -> None:
    """Remove an assistant with its versions."""
    row = await _locked(tx, assistant_id)
    if row[7]:
        raise Conflict(f"Assistant {assistant_id} is the agent {row[1]}'s own, and cannot be deleted")
    await tx.execute(sql.DROP, id=assistant_id)
    await tx.execute(sql.DROP_VERSIONS, id=assistant_id)
    await drop_labels(tx, KIND, [assistant_id])
    await _written(tx, "delete_assistant", [assistant_id], "deleted")


# --- the system's own -------------------------------------------------------------------------------------


async def outdated(tx: Tx, specs: Sequence[AgentSpec]) -> bool:
    """Whether `register` would change anything."""
    rows = {row[0]: row for row in await tx.all(sql.GET, ids=[system_id(spec.name) for spec in specs])}
    return any(model.is_outdated(rows.get(system_id(spec.name)), spec) for spec in specs)


async def register(tx: Tx, specs: Sequence[AgentSpec]) -> None:
    """See to it that each agent has its system assistant."""
    by_id = {system_id(spec.name): spec for spec in specs}
    rows = {row[0]: row for row in await tx.all(sql.LOCK_MANY, ids=sorted(by_id))}
    changed = []
    for assistant_id in sorted(by_id):
        if model.is_outdated(rows.get(assistant_id), by_id[assistant_id]):
            await _register(tx, assistant_id, rows.get(assistant_id), by_id[assistant_id])
            changed.append(assistant_id)
    await _written(tx, "register_agent", changed, "updated")


async def _register(tx: Tx, assistant_id: str, row: Row | None, spec: AgentSpec) -> None:
    body = model.system_body(spec)
    if row is None:
        # Another worker may have been quicker: then its row is as good.
        await _insert(tx, assistant_id, body, system=True)
    elif not row[7]:
        # Somebody took the id before the agent was known.
        await _next_version(tx, row, body, system=True)
    else:
        described = msgspec.structs.replace(model.body_of(row), description=spec.description)
        await tx.execute(sql.DESCRIBE, id=assistant_id, description=spec.description)
        await tx.execute(sql.REDESCRIBE, id=assistant_id, version=row[4], body=encode_json(described))


# --- rows -------------------------------------------------------------------------------------------------


async def _locked(tx: Tx, assistant_id: str) -> Row:
    row = await tx.one(sql.LOCK, id=assistant_id)
    if row is None:
        raise NotFound(f"Assistant {assistant_id} not found")
    return row


async def _insert(tx: Tx, assistant_id: str, body: Body, *, system: bool) -> bool:
    if not await tx.execute(sql.CREATE, id=assistant_id, system=int(system), **body.columns()):
        return False
    await tx.write((sql.ADD_VERSIONS, [(tx.ns, assistant_id, 1, tx.now, encode_json(body))]))
    await set_labels(tx, KIND, {assistant_id: decode_json(body.metadata)})
    return True


async def _next_version(tx: Tx, row: Row, body: Body, *, system: bool) -> Row:
    last = await tx.one(sql.LAST_VERSION, id=row[0])
    version = (last[0] if last and last[0] else row[4]) + 1
    await tx.write((sql.ADD_VERSIONS, [(tx.ns, row[0], version, tx.now, encode_json(body))]))
    return await _save(tx, row, body, version, system=system)


async def _save(tx: Tx, row: Row, body: Body, version: int, *, system: bool) -> Row:
    await tx.execute(sql.SAVE, id=row[0], version=version, system=int(system), **body.columns())
    await set_labels(tx, KIND, {row[0]: decode_json(body.metadata)})
    texts = (body.config, body.context, body.metadata)
    return (row[0], body.agent, body.name, body.description, version, row[5], tx.now, int(system), *texts)


async def _written(tx: Tx, action: str, ids: Sequence[str], status: str) -> None:
    """Tell of what was changed, and write down who did it, as the last thing."""
    changes.tell(tx, KIND, [(assistant_id, status) for assistant_id in ids])
    await audit(tx, action, ids)


# --- reading ----------------------------------------------------------------------------------------------


async def get(tx: Tx, assistant_id: str) -> Row | None:
    rows = await tx.all(sql.GET, ids=[assistant_id])
    return rows[0] if rows else None


async def resolve(tx: Tx, names: Sequence[str]) -> dict[str, Assistant]:
    """The assistants by what callers call them: an id, or the name of an agent for its system assistant.

    What is not known is not in the answer.
    """
    wanted = {*names, *map(system_id, names)}
    rows = {row[0]: row for row in await tx.all(sql.GET, ids=sorted(wanted))}
    found = {name: rows.get(name) or _own(rows.get(system_id(name)), name) for name in names}
    return {name: model.assistant_of(row) for name, row in found.items() if row is not None}


def _own(row: Row | None, agent: str) -> Row | None:
    return row if row is not None and row[7] and row[1] == agent else None


async def search(tx: Tx, query: Search) -> tuple[Sequence[Row], int]:
    """A page of assistants, and how many there are in all."""
    clause = _matching(query.agent, query.name, query.metadata)
    ties = "created DESC, id" if query.sort_order == "desc" else "created, id"
    order = order_by(sql.FIELDS, query.sort_by, query.sort_order, ties)
    page, values = sql.LIST.page(clause, order, query.limit, query.offset)
    rows = await tx.all(page, **values)
    total = await tx.one(sql.LIST.count(clause), **clause.values)
    return rows, total or 0


async def count(tx: Tx, agent: str | None, name: str | None, metadata: Mapping[str, Any]) -> int:
    clause = _matching(agent, name, metadata)
    total = await tx.one(sql.LIST.count(clause), **clause.values)
    return total or 0


def _matching(agent: str | None, name: str | None, metadata: Mapping[str, Any]) -> Clause:
    folded = None if name is None else name.casefold()
    clause = where(sql.FIELDS, given(("agent", "exact", agent), ("folded", "contains", folded)), "and")
    if not metadata:
        return clause
    labels = labelled(KIND, metadata)
    return Clause(clause.sql + " AND " + labels.sql, {**clause.values, **labels.values})


async def versions(
    tx: Tx, assistant_id: str, metadata: Mapping[str, Any], limit: int, offset: int
) -> tuple[Row, Sequence[Row]]:
    """An assistant, and what it was in its versions, the newest first; those with at least this metadata."""
    row = await get(tx, assistant_id)
    if row is None:
        raise NotFound(f"Assistant {assistant_id} not found")
    if not metadata:
        return row, await tx.all(sql.LIST_VERSIONS, id=assistant_id, limit=limit, offset=offset)
    rows = await tx.all(sql.LIST_VERSIONS, id=assistant_id, limit=MAX_VERSIONS, offset=0)
    return row, [each for each in rows if _has(each[2], metadata)][offset : offset + limit]


def _has(text: str, wanted: Mapping[str, Any]) -> bool:
    """Whether the metadata of a version, which is in its body, has these values."""
    return has(decode_json(decode_json(text)["metadata"]), wanted)
