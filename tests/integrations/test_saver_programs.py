"""LangGraph programs do with this saver what they do with LangGraph's own, sync and async."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from tests.integrations import programs
from tests.integrations.support import check_nothing_is_left_over, config_for, new_thread, rows_of

from perdure.integrations.langgraph import PerdureSaver
from perdure.kernel.errors import Conflict


@pytest.fixture
def saver(engine_url: str) -> Iterator[PerdureSaver]:
    with PerdureSaver(engine_url) as opened:
        yield opened


def _shown(snapshot: Any) -> dict[str, Any]:
    """What of a state is the same in every run of a program."""
    return {
        "values": snapshot.values,
        "next": snapshot.next,
        "step": (snapshot.metadata or {}).get("step"),
        "source": (snapshot.metadata or {}).get("source"),
        "interrupts": [each.value for each in snapshot.interrupts],
        "tasks": [(task.name, task.error, task.result) for task in snapshot.tasks],
        "parent": snapshot.parent_config is not None,
    }


def _both(saver: PerdureSaver, story: Any) -> tuple[Any, Any]:
    return story(saver), story(InMemorySaver())


def _chat(checkpointer: BaseCheckpointSaver[Any]) -> Any:
    # Its nodes change what they are given: what is kept must be kept before the next one begins.
    graph = programs.talk().compile(checkpointer=checkpointer)
    config = config_for(new_thread())
    for number in range(6):
        graph.invoke(programs.hello(number), config, durability="sync")
    return [_shown(each) for each in graph.get_state_history(config)]


def test_a_chat_with_edits_and_removals(saver: PerdureSaver) -> None:
    ours, theirs = _both(saver, _chat)
    assert ours == theirs


def _asked(checkpointer: BaseCheckpointSaver[Any]) -> Any:
    graph = programs.ask().compile(checkpointer=checkpointer)
    config = config_for(new_thread())
    seen = [graph.invoke({"log": []}, config)["__interrupt__"][0].value]
    seen.append(graph.invoke(Command(resume="Ada"), config)["__interrupt__"][0].value)
    seen.append(graph.invoke(Command(resume=36), config)["log"])
    return seen, [_shown(each) for each in graph.get_state_history(config)]


def test_interrupts_and_fan_out(saver: PerdureSaver) -> None:
    ours, theirs = _both(saver, _asked)
    assert ours == theirs
    assert ours[0][-1][:2] == ["Ada", 36]


def _travelled(checkpointer: BaseCheckpointSaver[Any]) -> Any:
    graph = programs.talk().compile(checkpointer=checkpointer)
    config = config_for(new_thread())
    for number in range(4):
        graph.invoke(programs.hello(number), config, durability="sync")
    past = [each for each in graph.get_state_history(config) if each.next == ("tidy",)][2]
    again = graph.invoke(None, past.config, durability="sync")
    edited = graph.update_state(past.config, {"notes": ["edited"], "count": 40}, as_node="answer")
    forked = graph.invoke(None, edited, durability="sync")
    onward = graph.invoke(programs.hello(9), config, durability="sync")
    return again, forked, onward, [_shown(each) for each in graph.get_state_history(config)]


def test_time_travel_and_edits_of_the_past(saver: PerdureSaver) -> None:
    ours, theirs = _both(saver, _travelled)
    assert ours == theirs
    assert ours[1]["count"] == 40


def _nested(checkpointer: BaseCheckpointSaver[Any]) -> Any:
    graph = programs.nested().compile(checkpointer=checkpointer)
    config = config_for(new_thread())
    graph.invoke({"log": []}, config)
    state = graph.get_state(config, subgraphs=True)
    below: Any = state.tasks[0].state
    deepest = below.tasks[0].state
    seen = [_shown(state), _shown(below), _shown(deepest)]
    for each in seen:
        each.pop("tasks")
    return seen, graph.invoke(Command(resume="yes"), config), graph.get_state(config).values


def test_graphs_in_graphs(saver: PerdureSaver) -> None:
    ours, theirs = _both(saver, _nested)
    assert ours == theirs
    assert ours[2]["log"][-1] == "inner yes"


def _changes(checkpointer: BaseCheckpointSaver[Any]) -> Any:
    graph = programs.delta().compile(checkpointer=checkpointer)
    config = config_for(new_thread())
    graph.invoke({"log": ["begin"], "left": 13}, config)
    graph.invoke({"left": 2}, config)
    return [_shown(each)["values"] for each in graph.get_state_history(config)]


def test_channels_that_are_kept_as_changes(saver: PerdureSaver) -> None:
    ours, theirs = _both(saver, _changes)
    assert ours == theirs


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_async_programs(saver: PerdureSaver, durability: Any) -> None:
    graph = programs.ask().compile(checkpointer=saver)
    config = config_for(new_thread())
    await graph.ainvoke({"log": []}, config, durability=durability)
    await graph.ainvoke(Command(resume="Ada"), config, durability=durability)
    await graph.ainvoke(Command(resume=36), config, durability=durability)
    state = await graph.aget_state(config)
    assert state.values["log"] == ["Ada", 36, "part 0", "part 1", "part 2", "in all 5"]
    ours = [each.values async for each in graph.aget_state_history(config)]
    assert [each.values async for each in graph.aget_state_history(config, limit=1)] == ours[:1]


async def test_many_threads_at_once(saver: PerdureSaver) -> None:
    graph = programs.loop().compile(checkpointer=saver)
    configs = [config_for(new_thread()) for _ in range(20)]
    await asyncio.gather(*(graph.ainvoke({"left": 5}, config) for config in configs))
    for config in configs:
        state = await graph.aget_state(config)
        assert [each.id for each in state.values["messages"]] == ["m0", "m1", "m2", "m3", "m4"]


async def test_the_database_outlives_the_saver(tmp_path: Path) -> None:
    config = config_for(new_thread())
    for number in range(3):
        async with PerdureSaver(f"sqlite:///{tmp_path}/agents.db") as saver:
            graph = programs.talk().compile(checkpointer=saver)
            await graph.ainvoke(programs.hello(number), config)
            state = await graph.aget_state(config)
            assert state.values["count"] == number + 1
            assert len(state.values["messages"]) == 2 * (number + 1)


def test_pruning_keeps_what_the_newest_state_needs(saver: PerdureSaver) -> None:
    for make, start in ((programs.talk, programs.hello()), (programs.delta, {"log": ["begin"], "left": 7})):
        graph = make().compile(checkpointer=saver)
        config = config_for(new_thread())
        graph.invoke(start, config)
        before = graph.get_state(config)
        saver.prune([config["configurable"]["thread_id"]], strategy="keep_latest")
        assert _shown(graph.get_state(config)) | {"parent": True} == _shown(before)
        check_nothing_is_left_over(saver, config["configurable"]["thread_id"])
        graph.invoke(start, config)


def test_a_run_that_is_removed_leaves_later_ones_readable(saver: PerdureSaver) -> None:
    graph = programs.talk().compile(checkpointer=saver)
    thread_id = new_thread()
    for number in range(4):
        graph.invoke(
            programs.hello(number), {**config_for(thread_id), "metadata": {"run_id": f"run {number}"}}
        )
    before = graph.get_state(config_for(thread_id))
    saver.delete_for_runs(["run 0", "run 2"])
    check_nothing_is_left_over(saver, thread_id)
    assert graph.get_state(config_for(thread_id)).values == before.values
    left = {each.metadata["run_id"] for each in saver.list(config_for(thread_id))}
    assert left == {"run 1", "run 3"}
    graph.invoke(programs.hello(7), config_for(thread_id))
    assert graph.get_state(config_for(thread_id)).values["count"] == 5


def test_a_removed_thread_leaves_nothing(saver: PerdureSaver) -> None:
    graph = programs.nested().compile(checkpointer=saver)
    thread_id = new_thread()
    graph.invoke({"log": []}, config_for(thread_id))
    assert all(rows_of(saver, thread_id)[name] for name in ("checkpoints", "pieces", "writes"))
    saver.delete_thread(thread_id)
    assert not any(rows_of(saver, thread_id).values())


def test_a_list_whose_base_was_removed_is_written_whole(saver: PerdureSaver) -> None:
    graph = programs.talk().compile(checkpointer=saver)
    config = config_for(new_thread())
    for number in range(4):
        graph.invoke(programs.hello(number), config)
    # Somebody else removes the thread, and the saver still remembers what was in its lists.
    newest = saver.get_tuple(config)
    assert newest is not None
    saver.delete_thread(config["configurable"]["thread_id"])
    made = newest.checkpoint
    value = [*made["channel_values"]["messages"], *programs.hello(8)["messages"]]
    version = saver.get_next_version(str(made["channel_versions"]["messages"]), None)
    made["channel_values"]["messages"], made["channel_versions"]["messages"] = value, version
    saver.put(config, made, {}, {"messages": version})
    found = saver.get_tuple(config)
    assert found is not None
    assert found.checkpoint["channel_values"]["messages"] == value


def test_a_thread_is_copied_once(saver: PerdureSaver) -> None:
    graph = programs.talk().compile(checkpointer=saver)
    source, target = new_thread(), new_thread()
    for number in range(3):
        graph.invoke(programs.hello(number), config_for(source))
    saver.copy_thread(source, target)
    with pytest.raises(Conflict):
        saver.copy_thread(source, target)
    graph.invoke(programs.hello(5), config_for(target))
    assert graph.get_state(config_for(source)).values["count"] == 3
    assert graph.get_state(config_for(target)).values["count"] == 4
    saver.delete_thread(source)
    assert graph.get_state(config_for(target)).values["count"] == 4
