"""Traces of attempts: their own span, their steps, their graph's nodes, and calls of models and tools."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.worker import traced_agents
from tests.worker.traced_agents import SECRET

from perdure import PromptTemplate, Span
from perdure.agents.commands import Command, isolated
from perdure.embedding.perdure import Perdure
from perdure.spans.recording import parse_traceparent
from perdure.threads.records import RunCommand, RunEnd, RunRequest
from perdure.worker.tracing import is_sampled

ROOT = Path(__file__).resolve().parent.parent.parent
PARENT = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
QUESTION = {"messages": [{"role": "user", "content": "How is Rome?"}]}

COMMAND = """
import json, sys, time
start = json.loads(sys.stdin.readline())
def send(**line):
    print(json.dumps(line), flush=True)
send(type="step", name="thinking", result=1, start_time=time.time() - 5)
sys.stdin.readline()
send(type="span", span={"name": "search", "start_time": 1.0, "end_time": 2.5, "attributes": {"hits": 3}})
send(type="resources")
found = json.loads(sys.stdin.readline())["resources"]
send(type="result", values={"template": found["p"]["template"], "traceparent": start["traceparent"]})
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/runs.db"
    return str(request.getfixturevalue("database_url"))


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


class Traced:
    """Perdure with agents whose traces are read after its worker has stopped."""

    def __init__(self, url: str, **options: Any) -> None:
        self.agents = traced_agents.agents()
        self.url, self.options = url, options
        self.ends: list[RunEnd] = []

    async def run(self, agent: str, input: Any = None, **more: Any) -> RunEnd:
        async with self.opened() as perdure:
            return await self.ended(perdure, agent, input, **more)

    def opened(self) -> Perdure:
        return Perdure(self.url, agents=self.agents, **self.options)

    async def ended(self, perdure: Perdure, agent: str, input: Any = None, **more: Any) -> RunEnd:
        request = RunRequest(assistant_id=agent, input=input, if_not_exists="create", **more)
        run = await perdure.threads.create_run(request)
        self.ends.append(await perdure.threads.join_run(run.run_id, 30))
        return self.ends[-1]

    async def spans(self, run_id: str) -> list[Span]:
        async with Perdure(self.url) as perdure:
            return list(await perdure.store.query_spans(run_id))


def named(spans: list[Span], name: str) -> Span:
    (found,) = [span for span in spans if span.name == name]
    return found


def tree(spans: list[Span]) -> Any:
    """Return the names of spans, each with its children, in the order of their start."""
    ids = {span.span_id for span in spans}

    def below(parent: str | None) -> list[Any]:
        mine = [each for each in spans if (each.parent_id if each.parent_id in ids else None) == parent]
        ordered = sorted(mine, key=lambda span: (span.start_time or 0, span.sequence_id))
        return [(each.name, below(each.span_id)) if below(each.span_id) else each.name for each in ordered]

    return below(None)


async def test_a_graph_is_a_tree_of_nodes_models_and_tools(url: str) -> None:
    traced = Traced(url)
    end = await traced.run("react", QUESTION, thread_id="one")
    assert end.run.status == "success", end.run.error
    spans = await traced.spans(end.run.run_id)
    assert tree(spans) == [
        (
            "invoke_agent react",
            [
                ("node think", ["chat scripted-1"]),
                ("node tools", ["execute_tool weather"]),
                ("node think", ["chat scripted-1"]),
            ],
        )
    ]
    attempt = named(spans, "invoke_agent react")
    assert attempt.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "react",
        "gen_ai.agent.id": end.run.assistant_id,
        "gen_ai.conversation.id": "one",
        "perdure.attempt": 1,
        "perdure.result": "success",
    }
    assert attempt.resource.attributes["service.name"] == "perdure"
    first, second = [span for span in spans if span.name == "chat scripted-1"]
    assert first.attributes["gen_ai.operation.name"] == "chat"
    assert first.attributes["gen_ai.request.model"] == "scripted-1"
    assert first.attributes["gen_ai.response.model"] == "scripted-1-0711"
    assert first.attributes["gen_ai.conversation.id"] == "one"
    assert first.attributes["gen_ai.provider.name"] == "scriptedmodel"
    assert first.attributes["gen_ai.usage.input_tokens"] == 11
    assert second.attributes["gen_ai.usage.output_tokens"] == 5
    assert second.attributes["gen_ai.response.id"] == "answer-1"
    told = json.loads(str(second.attributes["gen_ai.input.messages"]))
    assert [message["role"] for message in told] == ["user", "assistant", "tool"]
    assert told[0]["parts"] == [{"type": "text", "content": "How is Rome?"}]
    assert told[1]["parts"] == [
        {"type": "tool_call", "id": "call-1", "name": "weather", "arguments": {"city": "Rome"}}
    ]
    assert told[2]["parts"] == [{"type": "tool_call_response", "id": "call-1", "response": "sunny in Rome"}]
    (said,) = json.loads(str(second.attributes["gen_ai.output.messages"]))
    assert (said["role"], said["finish_reason"]) == ("assistant", "stop")
    called = named(spans, "execute_tool weather").attributes
    assert called["gen_ai.tool.call.id"] == "call-1"
    assert called["gen_ai.tool.call.arguments"] == '{"city":"Rome"}'
    assert called["gen_ai.tool.call.result"] == "sunny in Rome"


async def test_a_tool_that_fails_is_an_error_up_to_the_attempt(sqlite_url: str) -> None:
    traced = Traced(sqlite_url)
    end = await traced.run("sunk", QUESTION)
    assert end.run.status == "error"
    spans = await traced.spans(end.run.run_id)
    failed = {span.name for span in spans if span.status.status_code == "ERROR"}
    assert failed == {"invoke_agent sunk", "node tools", "execute_tool weather"}
    (event,) = named(spans, "execute_tool weather").events
    assert event.name == "exception"
    assert event.attributes["exception.type"] == "LookupError"
    assert "no such city" in str(event.attributes["exception.stacktrace"])
    assert named(spans, "execute_tool weather").attributes["error.type"] == "LookupError"


async def test_an_interrupt_is_no_error(sqlite_url: str) -> None:
    traced = Traced(sqlite_url)
    async with traced.opened() as perdure:
        asked = await traced.ended(perdure, "asking", QUESTION, thread_id="one")
        resumed = await traced.ended(perdure, "asking", thread_id="one", command=RunCommand(resume="fine"))
    assert resumed.run.status == "success"
    spans = await traced.spans(asked.run.run_id)
    assert {span.status.status_code for span in spans} == {"UNSET"}
    assert named(spans, "node asks").attributes["perdure.stopped"] == "GraphInterrupt"


async def test_steps_and_the_agents_own_spans_form_one_tree(url: str) -> None:
    traced = Traced(url)
    async with traced.opened() as perdure:
        end = await traced.ended(perdure, "steps", traceparent=PARENT)
        # Spans of the agent's own tracer are stored before its run ends.
        assert "own, inside" in {span.name for span in await perdure.store.query_spans(end.run.run_id)}
    spans = await traced.spans(end.run.run_id)
    assert tree(spans) == [
        (
            "invoke_agent steps",
            [("own, outside", [("step outer", [("step inner", ["own, inside"])]), "step after"])],
        )
    ]
    attempt = named(spans, "invoke_agent steps")
    assert {span.trace_id for span in spans} == {"ab" * 16}
    assert attempt.parent_id == "cd" * 8
    assert {span.resource.attributes["service.name"] for span in spans} == {"perdure"}


async def test_a_model_without_a_graph_is_traced_too(sqlite_url: str) -> None:
    traced = Traced(sqlite_url)
    end = await traced.run("calls_model")
    assert tree(await traced.spans(end.run.run_id)) == [
        ("invoke_agent calls_model", [("step model", ["chat scripted-1"]), "chat scripted-1", "step after"])
    ]


async def test_each_attempt_is_a_span_and_a_replayed_step_says_so(url: str) -> None:
    traced = Traced(url)

    @traced.agents.agent("again")
    async def again(ctx: Any, input: Any) -> None:
        await ctx.step("once", lambda: ctx.attempt)
        if ctx.attempt == 1:
            raise ConnectionError("once more")

    end = await traced.run("again")
    spans = await traced.spans(end.run.run_id)
    first, second = [span for span in spans if span.name == "invoke_agent again"]
    assert (first.status.status_code, first.status.description) == ("ERROR", "once more")
    assert (first.attributes["perdure.result"], second.attributes["perdure.result"]) == (
        "retriable",
        "success",
    )
    assert first.attempt_id != second.attempt_id
    replays = [span.attributes.get("perdure.replayed") for span in spans if span.name == "step once"]
    assert replays == [None, True]
    assert [span.sequence_id for span in spans] == sorted(span.sequence_id for span in spans)


async def test_content_is_left_out_if_the_setting_says_so(sqlite_url: str) -> None:
    traced = Traced(sqlite_url, trace_content=False)
    async with traced.opened() as perdure:
        await traced.ended(perdure, "react", QUESTION)
        failed = await traced.ended(perdure, "steps", "fail")
    assert failed.run.status == "error"
    for end in traced.ends:
        spans = await traced.spans(end.run.run_id)
        text = "".join(span.model_dump_json() for span in spans)
        assert len(spans) > 4
        assert SECRET not in text
        assert "Rome" not in text
    assert named(spans, "step failing").attributes["error.type"] == "ValueError"


@pytest.mark.parametrize("isolate", [False, True])
async def test_nothing_is_recorded_if_it_is_off(sqlite_url: str, isolate: bool) -> None:
    traced = Traced(sqlite_url, trace_sample=0)
    if isolate:
        path = "tests.worker.traced_agents:steps"
        traced.agents.register("steps2", isolated(path, directory=ROOT))
    end = await traced.run("steps2" if isolate else "steps", traceparent=PARENT)
    assert end.run.status == "success", end.run.error
    spans = await traced.spans(end.run.run_id)
    assert {span.name for span in spans} == {"own, outside", "own, inside"}
    assert named(spans, "own, outside").parent_id == "cd" * 8


def test_a_share_is_sampled_by_the_trace_and_a_caller_decides_for_its_own() -> None:
    ids = [f"{number:016x}{number * 0x9E3779B97F4A7C15 % 2**64:016x}" for number in range(1, 2001)]
    share = [each for each in ids if is_sampled(each, 0.25, None)]
    assert 400 < len(share) < 600
    assert share == [each for each in ids if is_sampled(each, 0.25, None)]
    assert is_sampled(ids[0], 0.0001, True)
    assert not is_sampled(ids[0], 1.0, False)
    assert not is_sampled(ids[0], 0.0, True)
    for text in (
        None,
        "",
        "00-zz",
        "ff-" + "ab" * 16 + "-" + "cd" * 8 + "-01",
        "00-" + "0" * 32 + "-" + "c" * 16,
    ):
        assert parse_traceparent(text) is None
    assert parse_traceparent(PARENT) == (("ab" * 16, "cd" * 8), True)


async def with_resources(perdure: Perdure) -> str:
    template = PromptTemplate(template="Say {x}", engine="f-string")
    return (await perdure.store.add_resources({"p": template})).resources_id


async def test_an_isolated_process_records_and_reads_resources(url: str) -> None:
    traced = Traced(url)
    for name, path in (("isolated", "steps"), ("isolated_graph", "in_rome")):
        traced.agents.register(name, isolated(f"tests.worker.traced_agents:{path}", directory=ROOT))
    async with traced.opened() as perdure:
        await with_resources(perdure)
        end = await traced.ended(perdure, "isolated", traceparent=PARENT)
        assert end.values == {"found": 2, "resources": True}
        graph = await traced.ended(perdure, "isolated_graph", QUESTION)
    assert tree(await traced.spans(end.run.run_id)) == [
        (
            "invoke_agent isolated",
            [("own, outside", [("step outer", [("step inner", ["own, inside"])]), "step after"])],
        )
    ]
    assert graph.run.status == "success", graph.run.error
    spans = await traced.spans(graph.run.run_id)
    assert [span.name for span in spans].count("chat scripted-1") == 2
    assert named(spans, "execute_tool weather").attributes["gen_ai.tool.call.result"] == "sunny in Rome"


async def test_a_command_records_and_reads_resources(sqlite_url: str) -> None:
    traced = Traced(sqlite_url)
    traced.agents.register("command", Command([sys.executable, "-c", COMMAND]))
    async with traced.opened() as perdure:
        await with_resources(perdure)
        end = await traced.ended(perdure, "command")
    assert end.values["template"] == "Say {x}"
    spans = await traced.spans(end.run.run_id)
    attempt, step, search = (
        named(spans, name) for name in ("invoke_agent command", "step thinking", "search")
    )
    assert end.values["traceparent"] == f"00-{attempt.trace_id}-{attempt.span_id}-01"
    assert search.attributes == {"hits": 3}
    assert search.parent_id == step.parent_id == attempt.span_id
    assert step.start_time is not None
    assert step.end_time is not None
    assert step.end_time - step.start_time > 4


async def test_it_works_without_opentelemetry(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    traced = Traced(sqlite_url)
    for name in list(sys.modules):
        if name.split(".")[0] == "opentelemetry" or name.startswith("perdure.spans.ot"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    end = await traced.run("steps", traceparent=PARENT)
    assert end.run.status == "success", end.run.error
    spans = await traced.spans(end.run.run_id)
    assert tree(spans) == [("invoke_agent steps", [("step outer", ["step inner"]), "step after"])]
    assert {span.trace_id for span in spans} == {"ab" * 16}
