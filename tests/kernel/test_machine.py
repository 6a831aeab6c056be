"""Transition tables: total, without contradictions, and drawn correctly."""

from __future__ import annotations

import itertools

import pytest

from perdure.kernel.machine import Machine


def door() -> Machine:
    machine = Machine(
        "door", ("open", "shut", "locked", "gone"), start={"built": "shut", "found": "open"}, final=("gone",)
    )
    machine.on("pull", ("shut",), "open")
    machine.on("push", ("open",), "shut")
    machine.on("turn key", ("shut",), "locked")
    machine.on("burn", ("open", "shut", "locked"), "gone")
    return machine.always("replace", "shut")


STEPS = {
    ("shut", "pull"): "open",
    ("open", "push"): "shut",
    ("shut", "turn key"): "locked",
    ("open", "burn"): "gone",
    ("shut", "burn"): "gone",
    ("locked", "burn"): "gone",
    ("open", "replace"): "shut",
    ("shut", "replace"): "shut",
    ("locked", "replace"): "shut",
    ("gone", "replace"): "shut",
}


def test_every_status_and_event_has_an_answer() -> None:
    machine = door()
    for status, event in itertools.product(machine.statuses, (*machine.events, "unheard of")):
        assert machine.step(status, event) == STEPS.get((status, event), status)
        assert machine.moves(status, event) == ((status, event) in STEPS)


def test_the_statuses_that_an_event_moves_in_the_order_of_the_declaration() -> None:
    assert door().sources("burn") == ("open", "shut", "locked")
    assert door().sources("unheard of") == ()


def test_events_and_transitions_in_the_order_of_the_declaration() -> None:
    machine = door()
    assert machine.events == ("pull", "push", "turn key", "burn", "replace")
    assert [(transition.event, transition.target, transition.always) for transition in machine] == [
        ("pull", "open", False),
        ("push", "shut", False),
        ("turn key", "locked", False),
        ("burn", "gone", False),
        ("replace", "shut", True),
    ]


def test_one_event_may_lead_from_different_statuses_to_different_ones() -> None:
    machine = Machine("lamp", ("on", "off"), start={}, final=())
    machine.on("press", ("on",), "off").on("press", ("off",), "on")
    assert (machine.step("on", "press"), machine.step("off", "press")) == ("off", "on")
    assert machine.events == ("press",)


def test_a_pair_cannot_have_two_targets() -> None:
    with pytest.raises(AssertionError, match="pull from shut is declared twice"):
        door().on("pull", ("shut",), "locked")


@pytest.mark.parametrize("statuses", [("open", "nowhere"), ("nowhere", "open")])
def test_a_transition_names_known_statuses_only(statuses: tuple[str, str]) -> None:
    with pytest.raises(AssertionError, match="nowhere"):
        door().on("walk", (statuses[0],), statuses[1])


@pytest.mark.parametrize(("start", "final"), [({"built": "nowhere"}, ()), ({}, ("nowhere",))])
def test_start_and_end_are_known_statuses(start: dict[str, str], final: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError, match="nowhere"):
        Machine("door", ("open",), start=start, final=final)


def test_the_chart_is_the_table() -> None:
    assert door().chart() == (
        "stateDiagram-v2\n"
        "    direction LR\n"
        "    [*] --> shut: built\n"
        "    [*] --> open: found\n"
        "    shut --> open: pull\n"
        "    open --> shut: push\n"
        "    shut --> locked: turn key\n"
        "    open --> gone: burn\n"
        "    shut --> gone: burn\n"
        "    locked --> gone: burn\n"
        "    gone --> [*]\n"
        '    state "any status" as any\n'
        "    any --> shut: replace\n"
    )


def test_events_between_the_same_statuses_share_an_arrow() -> None:
    machine = Machine("lamp", ("on", "off"), start={}, final=())
    machine.on("press", ("on",), "off").on("pull plug", ("on",), "off").on("look", ("on",), "on")
    assert machine.chart() == "stateDiagram-v2\n    direction LR\n    on --> off: press or pull plug\n"
