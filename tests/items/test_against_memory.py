"""The same random operations on a `PerdureStore` and on LangGraph's own store in memory give the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from langgraph.store.base import GetOp, Item, ListNamespacesOp, MatchCondition, Op, PutOp, Result, SearchOp
from langgraph.store.memory import InMemoryStore

from perdure.integrations.langgraph import PerdureStore

LABELS = st.sampled_from(["a", "b", "a-", "ab", "ü", "\x01"])
KEYS = st.sampled_from(["k", "l", "", "k.l", "☃"])
NAMESPACES = st.lists(LABELS, min_size=1, max_size=3).map(tuple)
PATTERNS = st.lists(st.one_of(LABELS, st.just("*")), min_size=1, max_size=3).map(tuple)
NUMBERS = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, 1.0, -2.0]))
SCALARS = st.one_of(NUMBERS, st.booleans(), st.none(), st.sampled_from(["x", "y", 'a"b', "ü\n"]))
TREES = st.recursive(
    SCALARS,
    lambda inside: st.one_of(
        st.lists(inside, max_size=2), st.dictionaries(st.sampled_from("pq"), inside, max_size=2)
    ),
    max_leaves=4,
)
# Every value has a number, since the store in memory fails where it compares something else.
VALUES = st.builds(
    lambda tree, number, more: {"n": number, "t": tree, **more},
    TREES,
    NUMBERS,
    st.dictionaries(st.sampled_from(["u", "v"]), SCALARS, max_size=2),
)
COMPARED = st.dictionaries(st.sampled_from(["$gt", "$gte", "$lt", "$lte", "$eq", "$ne"]), NUMBERS, min_size=1)
FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "n": st.one_of(NUMBERS, COMPARED),
        "t": st.one_of(TREES, st.fixed_dictionaries({"$eq": TREES}), st.fixed_dictionaries({"$ne": TREES})),
        "u": SCALARS,
    },
)

PUTS = st.builds(lambda *parts: PutOp(*parts), NAMESPACES, KEYS, st.one_of(VALUES, VALUES, VALUES, st.none()))
GETS = st.builds(lambda *parts: GetOp(*parts), NAMESPACES, KEYS)
SEARCHES = st.builds(
    lambda prefix, filter: SearchOp(prefix, filter, limit=1000),
    st.lists(LABELS, max_size=2).map(tuple),
    st.one_of(st.none(), FILTERS),
)
MATCHES = st.builds(MatchCondition, st.sampled_from(["prefix", "suffix"]), PATTERNS)
LISTINGS = st.builds(
    ListNamespacesOp,
    st.lists(MATCHES, max_size=2).map(tuple),
    st.one_of(st.none(), st.integers(1, 3)),
    limit=st.integers(0, 5),
    offset=st.integers(0, 3),
)
OPS = st.lists(st.one_of(PUTS, PUTS, PUTS, GETS, SEARCHES, LISTINGS), min_size=1, max_size=6)
STORIES = st.lists(OPS, min_size=1, max_size=12)


class Memory(InMemoryStore):
    """LangGraph's store, without the namespaces in which nothing is left or was only looked for."""

    def batch(self, ops: Any) -> list[Result]:
        results = super().batch(ops)
        self._drop_empty()
        return results

    def _drop_empty(self) -> None:
        for namespace in [name for name, held in self._data.items() if not held]:
            del self._data[namespace]


def before_lookups(ops: list[Op]) -> list[list[Op]]:
    """The store in memory lists what its batch has just looked into; ours lists namespaces with items."""
    lookups = [op for op in ops if isinstance(op, GetOp)]
    return [[op for op in ops if not isinstance(op, GetOp)], [*lookups]]


def plain(result: Any) -> Any:
    if isinstance(result, Item):
        return (result.namespace, result.key, result.value)
    if isinstance(result, list):
        found = [plain(each) for each in result]
        return sorted(found, key=repr) if found and isinstance(result[0], Item) else found
    return result


def exact(value: Any) -> Any:
    """A value with its types, since 1 equals True."""
    return repr(value)


@pytest.fixture
def place(engine_url: str) -> str:
    return engine_url


def tell(ours: PerdureStore, theirs: Memory, story: list[list[Op]], run: Any) -> None:
    for ops in story:
        for part in before_lookups(ops):
            expected = theirs.batch(part)
            assert exact([plain(each) for each in run(part)]) == exact([plain(each) for each in expected])


def empty(store: PerdureStore) -> None:
    store.batch([PutOp(item.namespace, item.key, None) for item in store.search((), limit=10_000)])


PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""A story that fails is short as it is."""
SOME = settings(max_examples=25, phases=PHASES, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(story=STORIES)
@SOME
def test_the_same_as_in_memory(place: str, story: list[list[Op]], stores: dict[str, PerdureStore]) -> None:
    ours = stores.setdefault(place, stores.get(place) or PerdureStore(place))
    empty(ours)
    tell(ours, Memory(), story, ours.batch)


@given(story=STORIES)
@settings(SOME, max_examples=12)
def test_the_same_as_in_memory_without_waiting(
    place: str, story: list[list[Op]], stores: dict[str, PerdureStore]
) -> None:
    ours = stores.setdefault(place, stores.get(place) or PerdureStore(place))
    empty(ours)
    with asyncio.Runner() as runner:
        tell(ours, Memory(), story, lambda part: runner.run(ours.abatch(part)))


@pytest.fixture
def stores() -> Iterator[dict[str, PerdureStore]]:
    opened: dict[str, PerdureStore] = {}
    yield opened
    for store in opened.values():
        store.close()
