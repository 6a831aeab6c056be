"""The traces of frameworks, as the command shows them, and the table of them in the documentation.

`python -m tests.cli.test_framework_traces` prints the table.
"""

from __future__ import annotations

import json
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.rollouts.test_frameworks import ANSWER, FRAMEWORKS, QUESTION, RESULT, recorded

from .command import ROOT, Server

PATIENCE = 60.0
TABLE = Path(ROOT) / "docs" / "traces.md"
HEAD = "| framework | spans by | spans | tokens | cost | messages |\n|---|---|---|---|---|---|\n"
NAMES = {
    "agno": ("Agno", "OpenInference"),
    "autogen": ("AutoGen", "its own spans, and OpenTelemetry's of `openai`"),
    "crewai": ("CrewAI", "OpenInference"),
    "langgraph": ("LangGraph", "OpenInference"),
    "llama_index": ("LlamaIndex", "OpenInference"),
    "openai_agents": ("OpenAI Agents SDK", "OpenInference"),
    "pydantic_ai": ("Pydantic AI", "its own spans"),
    "smolagents": ("smolagents", "OpenInference"),
}
AGENTS = """
from perdure import Agents

agents = Agents()


@agents.agent("echo")
async def echo(ctx, input):
    return input
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with filled_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@contextmanager
def filled_server(folder: Path) -> Iterator[Server]:
    """Serve a database with the recorded spans of all frameworks."""
    with Server(folder, more={"PERDURE_KEEP_TRACES": "1"}) as server:
        for framework in FRAMEWORKS:
            send(server, recorded(framework))
        yield server


def send(server: Server, spans: dict[str, Any]) -> None:
    """Export spans to a server, which accepts all."""
    request = urllib.request.Request(
        server.url + "/v1/traces", json.dumps(spans).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        assert json.load(answer) == {}


def trace_of(server: Server, framework: str) -> dict[str, Any]:
    """Return the trace with the question, by the trace id of a model call."""
    groups = recorded(framework)["resourceSpans"]
    spans = [span for group in groups for scope in group["scopeSpans"] for span in scope["spans"]]
    trace_ids = [span["traceId"] for span in spans]
    document: dict[str, Any] = server.json("trace", "show", max(trace_ids, key=trace_ids.count))
    return document


def row_of(framework: str, document: dict[str, Any]) -> str:
    trace = document["trace"]
    name, instrumentation = NAMES[framework]
    tokens = f"{trace['input_tokens']} in, {trace['output_tokens']} out"
    cells = (
        name,
        instrumentation,
        trace["spans"],
        tokens,
        f"${trace['cost']:.6f}",
        len(document["messages"]),
    )
    return "| " + " | ".join(map(str, cells)) + " |\n"


def build_table(server: Server) -> str:
    return HEAD + "".join(row_of(framework, trace_of(server, framework)) for framework in FRAMEWORKS)


def messages_in_table(framework: str) -> int:
    """The number of messages that the table of the documentation has for a framework."""
    name, instrumentation = NAMES[framework]
    lines = TABLE.read_text().splitlines()
    (row,) = [line for line in lines if line.startswith(f"| {name} | {instrumentation} |")]
    return int(row.split(" | ")[-1].removesuffix(" |"))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_trace_of_a_framework_is_shown_with_its_messages(server: Server, framework: str) -> None:
    document = trace_of(server, framework)
    trace_id = document["trace"]["trace_id"]
    shown = server.run("trace", "show", trace_id)
    assert shown.returncode == 0, shown.stderr
    for words in (QUESTION, "weather(", RESULT, ANSWER, "31 in, 8 out", "$0.0002"):
        assert words in shown.stdout, shown.stdout
    (answer, *_) = [each for each in document["messages"] if each["role"] == "tool"]
    span = server.run("span", "show", trace_id, answer["span_id"])
    assert RESULT in span.stdout, span.stdout
    assert "tool" in span.stdout


def test_the_documentation_has_the_table_of_frameworks(server: Server) -> None:
    table = build_table(server)
    assert table in TABLE.read_text(), table


def root_of(server: Server, run_id: str) -> dict[str, Any]:
    """Return the span of a run's attempt, which its worker stores a moment after the end."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        spans: list[dict[str, Any]] = server.json("span", "list", run_id)["items"]
        if spans:
            return spans[0]
    raise AssertionError(f"run {run_id} has no span")


def test_a_run_is_shown_with_the_spans_of_its_framework(tmp_path: Path) -> None:
    """The spans name no rollout: they belong to the run's trace, below its own span."""
    (tmp_path / "agents.py").write_text(AGENTS)
    with Server(tmp_path, "serve", "--agents", "./agents.py:agents") as server:
        run = server.json("run", "create", "echo", "{}", "--wait")["run"]["run_id"]
        root = root_of(server, run)
        request = recorded("crewai")
        for group in request["resourceSpans"]:
            for span in (span for scope in group["scopeSpans"] for span in scope["spans"]):
                span["traceId"] = root["trace_id"]
                span["parentSpanId"] = span.get("parentSpanId") or root["span_id"]
        send(server, request)
        shown = server.run("run", "show", run).stdout
        for words in ("31 in, 8 out", "$0.0002", f"perdure span list {run}", root["trace_id"]):
            assert words in shown, shown
        document = server.json("run", "show", run)
        assert (document["spans"], document["kept_trace"]) == (6, None)
        assert "ChatCompletion" in server.run("span", "list", run).stdout
        figures = document["figures"]
        assert (figures["input_tokens"], figures["output_tokens"]) == (31, 8)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place, filled_server(Path(place)) as filled:
        print(build_table(filled), end="")
