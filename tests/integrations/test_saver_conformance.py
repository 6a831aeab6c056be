"""LangGraph's own suite for checkpointers, whole, on both engines."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.conformance.initializer import RegisteredCheckpointer

from perdure.integrations.langgraph import PerdureSaver


def _registered(name: str, place: str) -> RegisteredCheckpointer:
    @checkpointer_test(name=name)
    async def made() -> AsyncGenerator[BaseCheckpointSaver[str], None]:
        async with PerdureSaver(place) as saver:
            yield saver

    return made


async def test_every_capability_is_there_and_passes(engine_url: str) -> None:
    report = await validate(_registered(f"perdure on {engine_url}", engine_url))
    found = {
        name: (each.detected, each.tests_passed > 0, each.failures) for name, each in report.results.items()
    }
    assert found == {each.value: (True, True, []) for each in Capability}
    assert report.conformance_level() == "FULL"
