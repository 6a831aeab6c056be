"""Assistants in the database: made, changed, searched, and one of each agent's own."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid5

import pytest
from tests.assistants.conftest import AGENTS

from perdure.access.service import Access
from perdure.agents.records import AgentSpec
from perdure.assistants import operations
from perdure.assistants.model import system_id
from perdure.assistants.records import Assistant
from perdure.assistants.service import Assistants
from perdure.kernel import changes
from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.kernel.storage.port import Storage
from perdure.service.callers import Caller

RESEARCH = str(uuid5(UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8"), "research"))


async def test_an_agent_has_an_assistant_of_its_own(assistants: Assistants) -> None:
    own = await assistants.get(RESEARCH)
    assert own.system
    assert (own.agent, own.name, own.description) == ("research", "research", "Looks things up.")
    assert (own.version, own.metadata, own.config) == (1, {"created_by": "system"}, {})
    assert own.created_at == own.updated_at > 0


async def test_what_is_made_comes_back_as_it_was_given(assistants: Assistants) -> None:
    given: dict[str, Any] = {
        "name": "Anna's",
        "description": "for Anna",
        "config": {"recursion_limit": 7, "configurable": {"model": "small"}},
        "context": {"user": "anna", "nested": [1, None, {"ä": "\0"}]},
        "metadata": {"team": "blue", "level": 3},
    }
    made = await assistants.create("research", **given)
    assert UUID(made.assistant_id).version == 7
    assert made == await assistants.get(made.assistant_id)
    assert {name: getattr(made, name) for name in given} == given
    assert (made.agent, made.version, made.system) == ("research", 1, False)


async def test_an_id_that_is_taken(assistants: Assistants) -> None:
    made = await assistants.create("research", assistant_id="mine", config={"a": 1})
    with pytest.raises(Conflict, match="mine already exists"):
        await assistants.create("write", assistant_id="mine")
    assert await assistants.create("write", assistant_id="mine", if_exists="do_nothing") == made
    assert await assistants.get("mine") == made


async def test_of_many_at_once_one_makes_it(assistants: Assistants) -> None:
    answers = await asyncio.gather(
        *(assistants.create("research", assistant_id="mine") for _ in range(8)), return_exceptions=True
    )
    assert sorted(type(answer).__name__ for answer in answers) == ["Assistant"] + ["Conflict"] * 7


async def test_bad_input_makes_nothing(assistants: Assistants) -> None:
    before = (await assistants.search()).total
    bad: list[dict[str, Any]] = [
        {"agent": ""},
        {"agent": "research", "name": " "},
        {"agent": "research", "assistant_id": "x" * 256},
        {"agent": "research", "assistant_id": "nul\0"},
        {"agent": "research", "config": [1]},
        {"agent": "research", "context": {"x": float("nan")}},
        {"agent": "research", "metadata": {1: 2}},
        {"agent": "research", "metadata": {"x": object()}},
        {"agent": "research", "if_exists": "overwrite"},
        {"agent": "research", "description": 5},
    ]
    for arguments in bad:
        with pytest.raises(InvalidInput):
            await assistants.create(**arguments)
    with pytest.raises(NotFound, match="Agent nobody"):
        await assistants.create("nobody")
    with pytest.raises(Conflict, match="name of an agent"):
        await assistants.create("research", assistant_id="write")
    assert (await assistants.search()).total == before


async def test_each_change_is_a_version(assistants: Assistants) -> None:
    made = await assistants.create("research", name="one", config={"a": 1}, metadata={"x": 1, "y": 1})
    second = await assistants.update(made.assistant_id, name="two", metadata={"y": 2, "z": 3})
    assert (second.version, second.name, second.config) == (2, "two", {"a": 1})
    assert second.metadata == {"x": 1, "y": 2, "z": 3}
    assert second.created_at == made.created_at < second.updated_at
    third = await assistants.update(made.assistant_id, agent="write", config={}, context={"c": 1})
    assert (third.version, third.agent, third.config, third.context) == (3, "write", {}, {"c": 1})
    assert third == await assistants.get(made.assistant_id)
    assert (await assistants.versions(made.assistant_id)).items == [third, second, made]
    assert (await assistants.versions(made.assistant_id, limit=1, offset=1)).items == [second]


async def test_an_older_version_can_be_taken_again(assistants: Assistants) -> None:
    made = await assistants.create("research", name="one", metadata={"n": 1})
    await assistants.update(made.assistant_id, name="two", metadata={"n": 2})
    again = await assistants.set_latest(made.assistant_id, 1)
    assert (again.version, again.name, again.metadata) == (1, "one", {"n": 1})
    assert [each.assistant_id for each in await assistants.search(metadata={"n": 1})] == [made.assistant_id]
    assert (await assistants.search(metadata={"n": 2})).total == 0
    # The next version has a number of its own.
    assert (await assistants.update(made.assistant_id, name="three")).version == 3
    for version in (4, 0, -1, True, "1"):
        with pytest.raises((NotFound, InvalidInput)):
            await assistants.set_latest(made.assistant_id, version)  # type: ignore[arg-type]


async def test_changes_at_once_are_versions_one_after_the_other(assistants: Assistants) -> None:
    made = await assistants.create("research")
    changed = await asyncio.gather(
        *(assistants.update(made.assistant_id, metadata={str(n): n}) for n in range(10))
    )
    assert sorted(each.version for each in changed) == list(range(2, 12))
    assert (await assistants.get(made.assistant_id)).metadata == {str(n): n for n in range(10)}


async def test_what_is_deleted_is_gone(assistants: Assistants) -> None:
    made = await assistants.create("research", metadata={"x": 1})
    await assistants.delete(made.assistant_id)
    for gone in (
        assistants.get(made.assistant_id),
        assistants.delete(made.assistant_id),
        assistants.update(made.assistant_id, name="x"),
        assistants.versions(made.assistant_id),
        assistants.set_latest(made.assistant_id, 1),
    ):
        with pytest.raises(NotFound, match=made.assistant_id):
            await gone
    assert (await assistants.search(metadata={"x": 1})).total == 0
    assert (await assistants.create("write", assistant_id=made.assistant_id)).version == 1


async def test_what_is_an_agents_own_stays(assistants: Assistants) -> None:
    with pytest.raises(Conflict, match="cannot be deleted"):
        await assistants.delete(RESEARCH)
    with pytest.raises(Conflict, match="its agent cannot change"):
        await assistants.update(RESEARCH, agent="write")
    changed = await assistants.update(RESEARCH, config={"a": 1}, description="mine")
    await assistants.register([AgentSpec(name="research", description="other words")])
    assert await assistants.get(RESEARCH) == changed


async def test_registering_again_changes_nothing(assistants: Assistants, storage: Storage) -> None:
    before = await assistants.search(sort_by="name")
    await assistants.register(AGENTS)
    await assistants.register([])
    assert await assistants.search(sort_by="name") == before
    ns = await assistants.ns("write")
    assert not await storage.read(operations.outdated, AGENTS, ns=ns)


async def test_an_agent_may_come_with_new_words(assistants: Assistants) -> None:
    await assistants.register([AgentSpec(name="research", description="Finds out.")])
    own = await assistants.get(RESEARCH)
    assert (own.description, own.version) == ("Finds out.", 1)
    assert (await assistants.versions(RESEARCH)).items == [own]


async def test_an_agent_takes_its_id_from_whoever_has_it(assistants: Assistants) -> None:
    squatter = await assistants.create("write", assistant_id=system_id("late"), name="mine")
    assert await assistants.resolve(["late"]) == {}
    await assistants.register([AgentSpec(name="late")])
    own = (await assistants.resolve(["late"]))["late"]
    assert (own.agent, own.system, own.version) == ("late", True, 2)
    older = (await assistants.versions(own.assistant_id))[-1]
    assert (older.agent, older.name) == ("write", squatter.name)
    with pytest.raises(Conflict):
        await assistants.set_latest(own.assistant_id, 1)


async def test_many_workers_register_at_once(storage: Storage) -> None:
    specs = [AgentSpec(name=f"agent {n}") for n in range(20)]
    workers = [Assistants(storage) for _ in range(4)]
    await asyncio.gather(
        *(worker.register(specs if n % 2 else specs[::-1]) for n, worker in enumerate(workers))
    )
    found = await workers[0].search(limit=1000)
    assert sorted(each.agent for each in found) == sorted(spec.name for spec in specs)
    assert {each.version for each in found} == {1}


async def test_callers_name_an_assistant_or_an_agent(assistants: Assistants) -> None:
    made = await assistants.create("write", assistant_id="mine")
    found = await assistants.resolve(["mine", "research", RESEARCH, "nobody", "mine"])
    assert set(found) == {"mine", "research", RESEARCH}
    assert found["mine"] == made
    assert found["research"] == found[RESEARCH] == await assistants.get(RESEARCH)
    assert await assistants.resolve([]) == {}


async def test_search(assistants: Assistants) -> None:
    made: list[Assistant] = [
        await assistants.create(
            "write" if n % 2 else "research", name=f"Größe {n}", metadata={"n": n, "deep": {"even": n % 2}}
        )
        for n in range(6)
    ]
    names = [each.name for each in await assistants.search(name="GRÖSSE")]
    assert names == [each.name for each in reversed(made)]
    assert (await assistants.search(name="%")).total == 0
    assert [each.name for each in await assistants.search(agent="write", name="größe", sort_order="asc")] == [
        "Größe 1",
        "Größe 3",
        "Größe 5",
    ]
    assert (await assistants.search(metadata={"n": 3, "deep": {"even": 1}}))[0] == made[3]
    assert (await assistants.search(metadata={"n": 3, "deep": {"even": 0}})).total == 0
    assert (await assistants.search(metadata={"n": "3"})).total == 0
    page = await assistants.search(metadata={"deep": {"even": 0}}, sort_by="name", limit=2, offset=1)
    assert ([each.name for each in page], page.total, page.limit, page.offset) == (
        ["Größe 2", "Größe 0"],
        3,
        2,
        1,
    )
    everything = await assistants.search(limit=1000, sort_by="assistant_id", sort_order="asc")
    ids = [each.assistant_id for each in everything]
    assert len(ids) == 8
    assert ids == sorted(ids)


async def test_bad_searches(assistants: Assistants) -> None:
    bad: list[dict[str, Any]] = [
        {"sort_by": "folded"},
        {"sort_by": "ns; DROP TABLE assistants"},
        {"sort_order": "up"},
        {"limit": -2},
        {"offset": -1},
        {"metadata": {"x": float("nan")}},
        {"metadata": ["x"]},
    ]
    for arguments in bad:
        with pytest.raises(InvalidInput):
            await assistants.search(**arguments)
    with pytest.raises(InvalidInput):
        await assistants.versions(RESEARCH, limit=-5)
    assert (await assistants.search(metadata={"' OR 1=1 --": "x"})).total == 0


async def test_namespaces_are_worlds_apart(assistants: Assistants) -> None:
    made = await assistants.create("research")
    other = assistants.in_namespace("other")
    with pytest.raises(NotFound):
        await other.get(made.assistant_id)
    with pytest.raises(NotFound, match="Agent research"):
        await other.create("research")
    assert (await other.search()).total == 0
    assert await other.resolve(["research", made.assistant_id]) == {}


async def test_who_did_it(assistants: Assistants, storage: Storage) -> None:
    anna = assistants.acting_as(Caller.trusted("anna"))
    made = await anna.create("research", assistant_id="mine")
    await anna.create("research", assistant_id="mine", if_exists="do_nothing")
    with pytest.raises(Conflict):
        await anna.create("research", assistant_id="mine")
    await anna.update("mine", name="x")
    await anna.set_latest("mine", 1)
    await anna.delete(made.assistant_id)
    await anna.register([*AGENTS, AgentSpec(name="third")])
    entries = (await Access(storage).query_audit()).items
    assert [(entry.actor, entry.action, entry.object) for entry in reversed(entries)] == [
        ("anna", "create_assistant", "mine"),
        ("anna", "update_assistant", "mine"),
        ("anna", "set_latest_assistant", "mine"),
        ("anna", "delete_assistant", "mine"),
        ("anna", "register_agent", system_id("third")),
    ]


async def test_a_key_makes_one(assistants: Assistants) -> None:
    first, second = [await assistants.create("research", idempotency_key="k") for _ in range(2)]
    assert first == second
    with pytest.raises(NotFound):
        await assistants.create("nobody", idempotency_key="other")
    assert (await assistants.create("research", idempotency_key="other")).agent == "research"


async def test_the_feed_tells_of_changes(assistants: Assistants, storage: Storage) -> None:
    stream = changes.follow(storage.signals, [await assistants.ns("write")], 100)
    try:
        await assistants.create("research", assistant_id="mine")
        told: list[changes.ObjectChange] = []
        async with asyncio.timeout(20):
            while not told:
                told = changes.changes_from(await stream.next(1.0) or ())
        assert told == [changes.ObjectChange("assistant", "mine", "added")]
    finally:
        stream.close()


async def test_concurrent_updates_merge_all_their_metadata(assistants: Assistants) -> None:
    made = await assistants.create("research")
    changes = [assistants.update(made.assistant_id, metadata={f"m{n}": n}) for n in range(8)]
    await asyncio.gather(*changes)
    found = await assistants.get(made.assistant_id)
    assert found.metadata == {f"m{n}": n for n in range(8)}
    assert len(await assistants.versions(made.assistant_id)) == 9


async def test_an_agent_that_is_gone_takes_its_assistant_along(assistants: Assistants) -> None:
    own = await assistants.create("research", name="mine")
    await assistants.unregister([AgentSpec(name="research"), AgentSpec(name="nobody")])
    with pytest.raises(NotFound):
        await assistants.get(RESEARCH)
    assert await assistants.kind("research") is None
    # What somebody made of it stays, and works again when the agent is back.
    assert await assistants.get(own.assistant_id) == own
    await assistants.register(AGENTS)
    assert (await assistants.get(RESEARCH)).version == 1


async def test_an_assistant_that_somebody_has_changed_stays(assistants: Assistants) -> None:
    await assistants.update(RESEARCH, config={"recursion_limit": 7})
    await assistants.set_latest(RESEARCH, 1)
    await assistants.unregister(AGENTS)
    assert len(await assistants.versions(RESEARCH)) == 2
