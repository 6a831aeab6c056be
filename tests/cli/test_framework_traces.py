"""The traces of frameworks, as the command shows them, and the table of them in the documentation."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rollouts.test_frameworks import ANSWER, FRAMEWORKS, QUESTION, RESULT, recorded

from .command import ROOT, Server

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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with Server(folder, more={"PERDURE_KEEP_TRACES": "1"}) as server:
        for framework in FRAMEWORKS:
            request = urllib.request.Request(
                server.url + "/v1/traces",
                json.dumps(recorded(framework)).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request) as answer:
                assert json.load(answer) == {}
        yield server


def trace_of(server: Server, framework: str) -> dict[str, Any]:
    """The trace with the question, by the trace id of a model call."""
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


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_trace_of_a_framework_is_shown_with_its_messages(server: Server, framework: str) -> None:
    document = trace_of(server, framework)
    trace_id = document["trace"]["trace_id"]
    shown = server.run("trace", "show", trace_id)
    assert shown.returncode == 0, shown.stderr
    for words in (QUESTION, "weather(", RESULT, ANSWER, "31 in, 8 out"):
        assert words in shown.stdout, shown.stdout
    (answer, *_) = [each for each in document["messages"] if each["role"] == "tool"]
    span = server.run("span", "show", trace_id, answer["span_id"])
    assert RESULT in span.stdout, span.stdout
    assert "tool" in span.stdout


def test_the_documentation_has_the_table_of_frameworks(server: Server) -> None:
    table = HEAD + "".join(row_of(framework, trace_of(server, framework)) for framework in FRAMEWORKS)
    assert table in (Path(ROOT) / "docs" / "traces.md").read_text(), table
