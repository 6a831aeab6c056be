"""`perdure trace` and `perdure span`: lists, searches and details of a live server, at 80 columns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from perdure import Span, TraceStatus
from perdure.client.lightning import LightningStoreClient
from perdure.client.native import PerdureClient
from perdure.spans.records import Event, OtelResource

from .command import Server, Terminal

PATIENCE = 30.0
FRONT = OtelResource(attributes={"service.name": "front"}, schema_url="")


class World:
    """A server with two rollouts and two traces, one of which has failed."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.ids: list[str] = []
        self.traces = ["a1" * 16, "b2" * 16]

    async def fill(self) -> None:
        now = time.time()
        async with LightningStoreClient(self.server.url) as store, PerdureClient(self.server.url) as client:
            for number, trace_id in enumerate(self.traces):
                rollout = await store.start_rollout({"question": number})
                self.ids.append(rollout.rollout_id)
                spans = _spans(rollout, trace_id, now - 60 + number, failed=bool(number))
                await store.add_many_spans(spans)
            async with asyncio.timeout(PATIENCE):
                while True:
                    page = await client.traces.list()
                    if [trace.spans for trace in page.items] == [4, 4]:
                        return
                    await asyncio.sleep(0.02)


def _spans(rollout: Any, trace_id: str, start: float, *, failed: bool) -> list[Span]:
    def span(number: int, name: str, attributes: Any = None, **more: Any) -> Span:
        return Span.from_attributes(
            rollout_id=rollout.rollout_id,
            attempt_id=rollout.attempt.attempt_id,
            sequence_id=number,
            trace_id=trace_id,
            span_id=f"{trace_id[:2]}{number:014x}",
            parent_id=None if number == 1 else f"{trace_id[:2]}{1:014x}",
            name=name,
            attributes=attributes or {},
            start_time=start + number / 10,
            end_time=start + number / 10 + (2.5 if number == 1 else 0.05),
            resource=FRONT if failed else None,
            **more,
        )

    usage = {"gen_ai.usage.input_tokens": 812, "gen_ai.usage.output_tokens": 96, "user.id": "ann"}
    tool = span(
        3,
        "execute_tool weather",
        status=TraceStatus(status_code="ERROR" if failed else "OK", description="no such city"),
    )
    stack = {
        "exception.type": "LookupError",
        "exception.message": "no such city",
        "exception.stacktrace": "File x",
    }
    tool.events = [Event(name="exception", attributes=stack, timestamp=start + 0.32)] if failed else []
    reward = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 0.75}
    return [
        span(1, "invoke_agent travel agency"),
        span(2, "chat some-model-with-a-long-name", usage),
        tool,
        span(4, "agentlightning.annotation", reward),
    ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Server(tmp_path_factory.mktemp("traces")) as server:
        made = World(server)
        asyncio.run(made.fill())
        yield made


def on_terminal(world: World, *arguments: str) -> str:
    """Return the output of a command on a terminal of 80 columns, and check that no line is longer."""
    terminal = Terminal(world.server.folder, *arguments, more={"PERDURE_URL": world.server.url}, columns=80)
    assert terminal.end() == 0, terminal.output
    text = terminal.text
    assert max(map(len, text.splitlines())) <= 80, text
    return text


def test_traces_are_listed_and_searched(world: World) -> None:
    listed = on_terminal(world, "trace", "ls")
    assert "a1a1a1a1" in listed
    assert "invoke_agent" in listed
    for wanted, expected in (
        (("--name", "execute_tool weather"), ["b2", "a1"]),
        (("--name", "TOOL"), ["b2", "a1"]),
        (("--name", "nothing"), []),
        (("--service", "front"), ["b2"]),
        (("--error",), ["b2"]),
        (("--since", "1h"), ["b2", "a1"]),
        (("--until", "1h"), []),
        (("--attribute", "user.id=ann", "--error"), ["b2"]),
        (("--attribute", "user.id=bob"), []),
        (("--name", "chat some-model-with-a-long-name", "--limit", "1"), ["b2"]),
    ):
        found = world.server.json("trace", "search", *wanted)
        assert [trace["trace_id"][:2] for trace in found["items"]] == expected, wanted
    searched = world.server.run("trace", "search", "--attribute", "user.id=bob").stdout
    assert "No traces match." in searched
    assert "Looked through the attributes of 2 traces." in searched
    refused = world.server.run("trace", "search", "--attribute", "user.id")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "an attribute must be key=value" in refused.stderr


def test_a_trace_is_shown_with_what_it_counts(world: World) -> None:
    shown = on_terminal(world, "trace", "show", "b2b2")
    for words in ("812 in, 96 out", "4, 1 failed", "reward 0.75", "no such city", "front", world.ids[1]):
        assert words in shown, shown
    assert "chat some-model-with-a-long-name" in shown
    document = world.server.json("trace", "show", world.traces[0])
    assert document["trace"]["reward"] == 0.75
    assert len(document["spans"]) == 4
    missing = world.server.run("trace", "show", "ffff")
    assert (missing.returncode, missing.stderr) == (4, "perdure: not_found: Trace ffff not found\n")


def test_a_span_is_shown_with_its_exception(world: World) -> None:
    for place, span in ((world.ids[1], "b20000"), (world.traces[1], f"b2{3:014x}")):
        if span == "b20000":
            refused = world.server.run("span", "show", place, span)
            assert "'b20000' is the beginning of several ids: b200000000000004, b2" in refused.stderr
            span = f"b2{3:014x}"
        shown = on_terminal(world, "span", "show", place, span)
        for words in ("ERROR: no such city", "exception after 20 ms: LookupError: no such city", "File x"):
            assert words in shown, shown
    model = world.server.run("span", "show", world.traces[0], f"a1{2:014x}").stdout
    assert "user.id" in model
    assert "812 in, 96 out" in model
    assert "no span has the ID" in world.server.run("span", "show", world.ids[0], "dddd").stderr


def test_rewards_and_tokens_of_rollouts(world: World) -> None:
    listed = world.server.run("rollout", "list").stdout
    header, *rows = listed.splitlines()
    assert "reward" in header
    assert [row[header.index("reward") :].split()[0] for row in rows] == ["0.75", "0.75"]
    assert {each["reward"] for each in world.server.json("rollout", "list")["items"]} == {0.75}
    shown = on_terminal(world, "rollout", "show", world.ids[0])
    assert "812 in, 96 out" in shown
    assert "0.75" in shown
    tree = world.server.run("span", "list", world.ids[0]).stdout
    assert "agentlightning.annotation  50 ms  reward 0.75" in tree
    assert "chat some-model-with-a-long-name  50 ms  812 in, 96 out" in tree
