"""Full-text search: what matches, what comes first, and what hostile queries do."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.memory.conftest import World, ms

from perdure.errors import InvalidInput
from perdure.kernel.storage.fulltext import Term, parse_query
from perdure.kernel.words import split_words
from perdure.memory.operations import search as index
from perdure.memory.search import excerpt, fused

TEXTS = {
    "deploy": "We deployed the billing service to production after the tests passed",
    "retry": "The retry policy of the billing service doubles its wait each time",
    "vienna": "Booked a train from Vienna to Prague for the conference",
    "path": "The bug is in src/perdure/items/vectors.py, function get_user_name",
}


async def filled(world: World, **fields: Any) -> None:
    await world.ingest(*(world.event(text, **fields) for text in TEXTS.values()))


async def test_words_are_found_in_any_form(world: World) -> None:
    await filled(world)
    assert await world.found("deploying") == [TEXTS["deploy"]]
    assert set(await world.found("BILLING services")) == {TEXTS["deploy"], TEXTS["retry"]}
    assert await world.found("vectors.py") == [TEXTS["path"]]
    assert await world.found("user name") == [TEXTS["path"]]
    assert await world.found("nothing of this kind") == []


async def test_what_has_all_words_is_enough_else_any_of_them_counts(world: World) -> None:
    await filled(world)
    assert await world.found("billing retry", limit=1) == [TEXTS["retry"]]
    assert set(await world.found("prague billing")) == {TEXTS["vienna"], TEXTS["deploy"], TEXTS["retry"]}
    assert await world.found("what did the agents do about Prague") == [TEXTS["vienna"]]


async def test_phrases_prefixes_and_exclusions(world: World) -> None:
    await filled(world)
    assert await world.found('"service to production"') == [TEXTS["deploy"]]
    assert await world.found('"production to service"') == []
    assert await world.found("confer*") == [TEXTS["vienna"]]
    assert await world.found("billing -retry") == [TEXTS["deploy"]]
    assert await world.found('service -"retry policy"') == [TEXTS["deploy"]]


async def test_of_many_matches_postgres_ranks_the_newest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "ALL_RANKED", 3)
    monkeypatch.setattr(index, "NEWEST", 2)
    texts = ["dog dog", "dog one", "dog two", "cat cat", "cat one", "cat two", "cat three"]
    for text in texts:
        await world.ingest(world.event(text))
    # Of few matches all are ranked, the oldest too.
    assert (await world.found("dog"))[0] == "dog dog"
    assert len(await world.found("dog")) == 3
    on_postgres = world.storage.engine != "sqlite"
    assert set(await world.found("cat")) == set(texts[5:] if on_postgres else texts[3:])


async def test_each_hit_cites_its_event(world: World) -> None:
    (id,) = await world.ingest(
        world.event("a unique sentence", "2024-01-15 10:00", session_id="talk", agent="pi")
    )
    found = await world.memory.search("unique")
    (hit,) = found.items
    assert (hit.kind, hit.id, hit.agent, hit.timestamp_ms) == ("event", id, "pi", ms("2024-01-15 10:00"))
    assert [(each.event_id, each.session_id) for each in hit.events] == [(id, "talk")]
    assert hit.score > 0
    assert (found.mode_used, found.documents) == ("text", 1)


async def test_filters(world: World) -> None:
    await world.ingest(
        world.event("the same words", "2024-01-15 10:00", agent="claude"),
        world.event("the same words", "2024-01-16 10:00", agent="opencode"),
        world.event("the same words", "2024-01-17 10:00"),
    )

    async def times(**terms: Any) -> list[int]:
        return sorted(hit.timestamp_ms for hit in (await world.memory.search("same words", **terms)).items)

    days = [ms(f"2024-01-{day} 10:00") for day in (15, 16, 17)]
    assert await times() == days
    assert await times(agent="Claude") == days[:1]
    assert await times(agent="clau") == []
    assert await times(since_ms=days[1]) == days[1:]
    assert await times(since_ms=days[1], until_ms=days[1], agent="opencode") == days[1:2]
    assert await times(kind="event") == days
    assert await times(kind="node") == []
    for wrong in ({"kind": "cat"}, {"mode": "magic"}, {"limit": 101}, {"since_ms": -1}):
        with pytest.raises(InvalidInput):
            await times(**wrong)


async def test_another_namespace_is_not_searched(world: World) -> None:
    other = world.memory.in_namespace(world.memory.namespace + " other")
    await other.ingest(world.event("a secret of others"))
    await world.ingest(world.event("a secret of mine"))
    await world.services.storage.read(_nothing)
    assert await world.found("secret") == ["a secret of mine"]
    assert (await other.search("secret")).items == []


async def _nothing(tx: Any) -> None:
    return None


async def test_tags_are_no_words(world: World) -> None:
    await world.ingest(world.event("plain", agent="claude"))
    assert await world.found("event") == []
    assert await world.found("agent*") == []


HOSTILE = [
    "",
    "   ",
    "!!!",
    '"',
    '""',
    '"unclosed',
    "c++",
    "foo-bar",
    "it's",
    "a:b",
    "a AND",
    "NOT",
    "NEAR(a b, 2)",
    "text : a",
    "{tags} : event",
    "* *",
    "a* -",
    "-",
    "--x",
    "(((",
    "a | & ! <-> b",
    "'; DROP TABLE memory_texts; --",
    "x" * 4000,
    "the and of",
    "\u202e\u0000",
    "😀 👨‍👩‍👧",
    " ".join(f"w{n}" for n in range(500)),
    "^a",
    "a\\b",
    "%_",
]


async def test_hostile_queries_find_something_or_nothing(world: World) -> None:
    await filled(world)
    for query in HOSTILE:
        if "\0" not in query:
            assert isinstance((await world.memory.search(query)).items, list)
    with pytest.raises(InvalidInput, match="NUL"):
        await world.memory.search("\0")
    with pytest.raises(InvalidInput, match="at most"):
        await world.memory.search("x" * 20_000)
    # Words that say nothing are searched for if there is nothing else.
    assert parse_query("the and of").terms


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=st.text(st.sampled_from(string.printable + "äß漢😀\u200d"), max_size=30))
async def test_no_text_is_an_error_of_syntax(world: World, query: str) -> None:
    await world.memory.search(query, kind="event", agent="x")


async def test_what_is_not_indexed_yet_is_indexed_once(world: World) -> None:
    await world.memory.ingest_many([world.event(f"word{number} common") for number in range(20)])
    assert await world.found("common") == []
    assert await world.index() == 20
    assert await world.index() == 0
    assert len(await world.found("common", limit=100)) == 20
    assert (await world.memory.search("common")).documents == 20


def test_queries() -> None:
    assert parse_query("Hello, wörld").terms == (Term(("hello",)), Term(("wörld",)))
    assert parse_query('"a b" c* -d -"e f"') == (
        (Term(("a", "b")), Term(("c",), prefix=True)),
        (Term(("d",)), Term(("e", "f"))),
    )
    assert parse_query("foo_bar.baz").terms == (Term(("foo",)), Term(("bar",)), Term(("baz",)))
    assert not parse_query(" ... ")


def test_excerpts() -> None:
    assert excerpt("  a\n b ") == "a b"
    long = "start " + "filler " * 100 + "needle " + "filler " * 100
    shown = excerpt(long, ["needle"])
    assert 190 <= len(shown) <= 200
    assert set(shown.strip("…").split()) == {"filler", "needle"}
    assert shown[0] == shown[-1] == "…"
    part = "ระบบจะพยายามเรียกบริการซ้ำและเพิ่มเวลารอเป็นสองเท่า" * 20
    thai = part + "ฐานข้อมูล" + part
    shown = excerpt(thai, ["ฐานข้อมูล"])
    assert "ฐานข้อมูล" in shown
    assert 150 <= len(shown) <= 200
    assert shown.startswith("…")
    assert set(split_words(shown)) <= set(split_words(thai))
    assert excerpt("👨‍👩‍👧" * 100, ["x"]).endswith("…")


def test_fusion_is_by_rank() -> None:
    scores = fused([(0.5, ["a", "b"]), (0.5, ["b", "c"])])
    assert sorted(scores, key=lambda id: -scores[id]) == ["b", "a", "c"]
