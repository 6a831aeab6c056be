"""Whatever becomes of a list, from whichever checkpoint on, each checkpoint gives back what it was given."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import Checkpoint
from tests.integrations.support import check_nothing_is_left_over, config_for, new_thread, put

from perdure.integrations.langgraph import PerdureSaver

ATOMS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=20)
)
HELD = st.dictionaries(st.text(max_size=5), ATOMS | st.lists(ATOMS, max_size=2), max_size=3)
ITEMS = (
    ATOMS
    | HELD
    | st.lists(ATOMS | HELD, max_size=3)
    | st.builds(HumanMessage, content=st.text())
    | st.builds(AIMessage, content=st.text(), additional_kwargs=HELD)
)
EDITS = st.sampled_from(
    [
        "append",
        "extend",
        "insert",
        "replace",
        "remove",
        "first",
        "last",
        "mutate",
        "copy",
        "reverse",
        "new",
        "other",
    ]
)


STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "parent": st.integers(0, 40),
            "edit": EDITS,
            "at": st.integers(0, 30),
            "items": st.lists(ITEMS, min_size=1, max_size=4),
            "from": st.sampled_from(["database", "memory", "copy"]),
            "fresh": st.integers(0, 9).map(lambda n: n == 0),
            "remove": st.integers(0, 14),
        }
    ),
    min_size=1,
    max_size=25,
)


def _edited(value: Any, step: dict[str, Any]) -> Any:
    """The next value of a list; some edits change it, or what it holds, in place."""
    items, edit = step["items"], step["edit"]
    if not isinstance(value, list):
        return [{"first": step["at"]}, HumanMessage("hi"), 0.0, True, *items]
    at = step["at"] % len(value) if value else 0
    if edit == "append":
        return [*value, items[0]]
    if edit == "extend":
        value.extend(items)
        return value
    if edit == "insert":
        return [*value[:at], *items, *value[at:]]
    if edit == "replace":
        return [*value[:at], items[0], *value[at + 1 :]]
    if edit == "remove":
        return [*value[:at], *value[at + 1 :]]
    if edit == "first":
        return [*value[1:], items[0]]
    if edit == "last":
        return value[:-1]
    if edit == "mutate":
        for item in value:
            if isinstance(item, dict):
                item["changed"] = step["at"]
            elif isinstance(item, HumanMessage | AIMessage):
                item.content = f"changed {step['at']}"
                item.additional_kwargs["changed"] = step["at"]
        # Equal, and yet not the same.
        value[2:4] = [-0.0, 1] if step["at"] % 2 else [0.0, True]
        return value
    if edit == "copy":
        return copy.deepcopy(value)
    if edit == "reverse":
        return value[::-1]
    return list(items) if edit == "new" else {"not": "a list"}


class _Story:
    """A thread with its checkpoints, and what each of them must give back."""

    def __init__(self, saver: PerdureSaver) -> None:
        self.saver = saver
        self.thread_id = new_thread()
        self.known: dict[str, tuple[Checkpoint, Any, str]] = {}

    def step(self, number: int, step: dict[str, Any]) -> None:
        if step["fresh"]:
            self.saver._codec.forget()
        before = self._parent(step)
        value = before["channel_values"]["list"] if before else None
        value = _edited(copy.deepcopy(value) if step["from"] == "copy" else value, step)
        run_id = f"run {number % 5}"
        made = put(self.saver, self.thread_id, before, {"list": value, "step": number}, run_id=run_id)
        self.known[made["id"]] = (made, self._dumped(value), run_id)
        self._remove(number, step)

    def _parent(self, step: dict[str, Any]) -> Checkpoint | None:
        if not self.known:
            return None
        ids = sorted(self.known)
        # Mostly the newest is followed, sometimes an older one.
        chosen = ids[-1 - step["parent"] % len(ids)] if step["parent"] < 15 else ids[-1]
        if step["from"] != "database":
            return self.known[chosen][0]
        found = self.saver.get_tuple(config_for(self.thread_id, chosen))
        assert found is not None
        return found.checkpoint

    def _remove(self, number: int, step: dict[str, Any]) -> None:
        if step["remove"] == 0:
            run_id = f"run {step['at'] % 5}"
            self.saver.delete_for_runs([run_id])
            self.known = {id: each for id, each in self.known.items() if each[2] != run_id}
        elif step["remove"] == 1:
            self.saver.prune([self.thread_id])
            self.known = {id: self.known[id] for id in sorted(self.known)[-1:]}
        elif step["remove"] == 2:
            target = new_thread()
            self.saver.copy_thread(self.thread_id, target)
            self.thread_id = target
            self.known = {id: (made, value, "") for id, (made, value, _) in self.known.items()}

    def _dumped(self, value: Any) -> Any:
        serde = self.saver.serde
        return serde.dumps_typed(serde.loads_typed(serde.dumps_typed(value)))

    def check(self) -> None:
        listed = {each.checkpoint["id"]: each for each in self.saver.list(config_for(self.thread_id))}
        assert sorted(listed) == sorted(self.known)
        for checkpoint_id, (_, value, _) in self.known.items():
            found = self.saver.get_tuple(config_for(self.thread_id, checkpoint_id))
            assert found is not None
            assert self.saver.serde.dumps_typed(found.checkpoint["channel_values"]["list"]) == value
            assert (
                listed[checkpoint_id].checkpoint["channel_values"]["step"]
                == found.checkpoint["channel_values"]["step"]
            )
        check_nothing_is_left_over(self.saver, self.thread_id)


@pytest.fixture(scope="module")
def on_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PerdureSaver]:
    path: Path = tmp_path_factory.mktemp("lists") / "agents.db"
    with PerdureSaver(path) as saver:
        yield saver


@given(steps=STEPS)
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_story_on_sqlite(on_sqlite: PerdureSaver, steps: list[dict[str, Any]]) -> None:
    _tell(on_sqlite, steps)


def test_some_stories_on_postgres(database_url: str) -> None:
    with PerdureSaver(database_url) as saver:

        @given(steps=STEPS)
        @settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
        def stories(steps: list[dict[str, Any]]) -> None:
            _tell(saver, steps)

        stories()


def _tell(saver: PerdureSaver, steps: list[dict[str, Any]]) -> None:
    story = _Story(saver)
    for number, step in enumerate(steps):
        story.step(number, step)
    story.check()
