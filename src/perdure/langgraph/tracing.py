"""Spans of graph nodes and of calls of models, tools and retrievers, recorded by LangChain's callbacks.

Attributes follow OpenTelemetry's conventions for generative AI.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.tracers.context import register_configure_hook
from langgraph.errors import GraphBubbleUp

from perdure.kernel.codec import encode_json
from perdure.kernel.errors import InvalidInput
from perdure.spans.recording import OpenSpan, SpanRecorder, SpanRef, current_span, enter_span

STEP_TAG = "graph:step:"
"""Prefix of the tag that LangGraph gives the run of a node."""
MAX_TEXT = 8_000
"""Largest number of stored characters of a text."""
MAX_CONTENT = 100_000
"""Largest number of characters of a span's messages. The first messages are left out if there are more."""
PROVIDERS = {
    "amazon_bedrock": "aws.bedrock",
    "azure": "azure.ai.openai",
    "google_genai": "gcp.gemini",
    "google_vertexai": "gcp.vertex_ai",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""Providers with another name in OpenTelemetry than in LangChain."""
ROLES = {"human": "user", "ai": "assistant"}
PARAMETERS = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
}

_handler: ContextVar[BaseCallbackHandler | None] = ContextVar("perdure_langchain", default=None)
register_configure_hook(_handler, inheritable=True)


def follow(recorder: SpanRecorder) -> None:
    """Record LangChain's runs in the current task and its child tasks."""
    _handler.set(SpanHandler(recorder))


class SpanHandler(BaseCallbackHandler):
    """Creates spans for LangChain's runs. The children of a run without a span get its parent's span."""

    run_inline = True
    """Call the handler in the task of the run, so that spans of what the run starts are below its span."""

    def __init__(self, recorder: SpanRecorder) -> None:
        self._recorder = recorder
        self._open: dict[UUID, OpenSpan] = {}
        self._above: dict[UUID, SpanRef | None] = {}
        """For each run without a span, the span above it."""

    # --- runs of any kind

    def _start(
        self, run_id: UUID, parent_run_id: UUID | None, name: str, attributes: dict[str, Any], **kind: Any
    ) -> OpenSpan:
        span = self._recorder.start(name, attributes, parent=self._span_above(parent_run_id), **kind)
        enter_span(span)
        self._open[run_id] = span
        return span

    def _span_above(self, parent_run_id: UUID | None) -> SpanRef | None:
        """Return the span of a run, or of its nearest ancestor with a span."""
        span = None if parent_run_id is None else self._open.get(parent_run_id)
        if span is not None:
            return span.ref
        above = None if parent_run_id is None else self._above.get(parent_run_id)
        return above or current_span()

    def _end(self, run_id: UUID, error: BaseException | None = None) -> None:
        self._above.pop(run_id, None)
        span = self._open.pop(run_id, None)
        if span is None:
            return
        if isinstance(error, GraphBubbleUp):
            span.attributes["perdure.stopped"] = type(error).__name__
            error = None
        span.end(error)

    def _on_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._end(run_id, error)

    on_chain_error = on_llm_error = on_tool_error = on_retriever_error = _on_error

    # --- nodes

    def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        node = (metadata or {}).get("langgraph_node")
        if node is None or not any(tag.startswith(STEP_TAG) for tag in tags or ()):
            self._above[run_id] = self._span_above(parent_run_id)
            return
        attributes = {
            "langgraph.node": str(node),
            "langgraph.step": (metadata or {}).get("langgraph_step", 0),
        }
        self._start(run_id, parent_run_id, f"node {node}", attributes)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        self._end(run_id)

    # --- models

    def on_chat_model_start(
        self,
        serialized: dict[str, Any] | None,
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        span = self._start_model("chat", run_id, parent_run_id, metadata or {}, more)
        if self._recorder.content and messages:
            _add_messages(span, "gen_ai.input.messages", [_message(message) for message in messages[0]])

    def on_llm_start(
        self,
        serialized: dict[str, Any] | None,
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        span = self._start_model("text_completion", run_id, parent_run_id, metadata or {}, more)
        if self._recorder.content:
            parts = [{"role": "user", "parts": [_text(prompt)]} for prompt in prompts]
            _add_messages(span, "gen_ai.input.messages", parts)

    def _start_model(
        self,
        operation: str,
        run_id: UUID,
        parent_run_id: UUID | None,
        metadata: Mapping[str, Any],
        more: Mapping[str, Any],
    ) -> OpenSpan:
        parameters = more.get("invocation_params") or {}
        provider = metadata.get("ls_provider")
        model = metadata.get("ls_model_name") or parameters.get("model") or parameters.get("model_name")
        attributes: dict[str, Any] = {"gen_ai.operation.name": operation}
        if provider:
            attributes["gen_ai.provider.name"] = PROVIDERS.get(str(provider), str(provider))
        if model:
            attributes["gen_ai.request.model"] = str(model)
        attributes.update(_request_parameters({**parameters, **_temperature(metadata)}))
        if metadata.get("thread_id"):
            attributes["gen_ai.conversation.id"] = str(metadata["thread_id"])
        name = f"{operation} {model}" if model else operation
        return self._start(run_id, parent_run_id, name, attributes, kind="CLIENT")

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        span = self._open.get(run_id)
        if span is not None:
            generations = [generation for group in response.generations for generation in group]
            messages = [one.message for one in generations if isinstance(one, ChatGeneration)]
            span.attributes.update(_response(messages, response.llm_output or {}))
            if self._recorder.content:
                shown = [_output(message) for message in messages] or [
                    {"role": "assistant", "parts": [_text(generation.text)]} for generation in generations
                ]
                _add_messages(span, "gen_ai.output.messages", shown)
        self._end(run_id)

    # --- tools and retrievers

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        inputs: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        name = str(more.get("name") or (serialized or {}).get("name") or "tool")
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
        }
        if (serialized or {}).get("description"):
            attributes["gen_ai.tool.description"] = str((serialized or {})["description"])[:MAX_TEXT]
        if more.get("tool_call_id"):
            attributes["gen_ai.tool.call.id"] = str(more["tool_call_id"])
        if self._recorder.content:
            attributes["gen_ai.tool.call.arguments"] = _shown(input_str if inputs is None else inputs)
        self._start(run_id, parent_run_id, f"execute_tool {name}", attributes)

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        span = self._open.get(run_id)
        if span is not None:
            call_id = getattr(output, "tool_call_id", None)
            if call_id:
                span.attributes.setdefault("gen_ai.tool.call.id", str(call_id))
            if self._recorder.content:
                span.attributes["gen_ai.tool.call.result"] = _shown(getattr(output, "content", output))
        self._end(run_id)

    def on_retriever_start(
        self,
        serialized: dict[str, Any] | None,
        query: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **more: Any,
    ) -> None:
        name = str(more.get("name") or "retriever")
        attributes: dict[str, Any] = {"gen_ai.operation.name": "retrieval"}
        if self._recorder.content:
            attributes["gen_ai.retrieval.query.text"] = query[:MAX_TEXT]
        self._start(run_id, parent_run_id, f"retrieval {name}", attributes)

    def on_retriever_end(self, documents: Sequence[Any], *, run_id: UUID, **_: Any) -> None:
        span = self._open.get(run_id)
        if span is not None:
            span.attributes["perdure.documents"] = len(documents)
        self._end(run_id)


# --- attributes -------------------------------------------------------------------------------------------


def _request_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        attribute: given[name]
        for name, attribute in PARAMETERS.items()
        if isinstance(given.get(name), int | float)
    }


def _temperature(metadata: Mapping[str, Any]) -> dict[str, Any]:
    limits = {"temperature": metadata.get("ls_temperature"), "max_tokens": metadata.get("ls_max_tokens")}
    return {name: value for name, value in limits.items() if value is not None}


def _response(messages: Sequence[BaseMessage], output: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model that answered, its finish reasons, and the numbers of its tokens."""
    about: dict[str, Any] = {}
    for message in messages:
        about = {**getattr(message, "response_metadata", {}), **about}
    model = about.get("model_name") or about.get("model") or output.get("model_name")
    attributes: dict[str, Any] = {}
    if model:
        attributes["gen_ai.response.model"] = str(model)
    identity = about.get("id") or next((message.id for message in messages if message.id), None)
    if identity:
        attributes["gen_ai.response.id"] = str(identity)
    reasons = [_finish_reason(message) for message in messages]
    if any(reasons):
        attributes["gen_ai.response.finish_reasons"] = [reason for reason in reasons if reason]
    return {**attributes, **_usage(messages, output)}


def _finish_reason(message: BaseMessage) -> str | None:
    about = getattr(message, "response_metadata", {})
    reason = about.get("finish_reason") or about.get("stop_reason") or about.get("done_reason")
    return str(reason) if reason else None


def _usage(messages: Sequence[BaseMessage], output: Mapping[str, Any]) -> dict[str, int]:
    metadata = (getattr(message, "usage_metadata", None) for message in messages)
    usages = [usage for usage in metadata if usage]
    if not usages:
        old = output.get("token_usage") or output.get("usage") or {}
        read = old.get("prompt_tokens", old.get("input_tokens"))
        wrote = old.get("completion_tokens", old.get("output_tokens"))
        stated = {"gen_ai.usage.input_tokens": read, "gen_ai.usage.output_tokens": wrote}
        return {name: count for name, count in stated.items() if isinstance(count, int)}
    counts = {
        "gen_ai.usage.input_tokens": sum(usage["input_tokens"] for usage in usages),
        "gen_ai.usage.output_tokens": sum(usage["output_tokens"] for usage in usages),
        "gen_ai.usage.cache_read.input_tokens": _details(usages, "input_token_details", "cache_read"),
        "gen_ai.usage.cache_creation.input_tokens": _details(usages, "input_token_details", "cache_creation"),
        "gen_ai.usage.reasoning.output_tokens": _details(usages, "output_token_details", "reasoning"),
    }
    always = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
    return {name: count for name, count in counts.items() if count or name in always}


def _details(usages: Sequence[Mapping[str, Any]], group: str, name: str) -> int:
    return sum((usage.get(group) or {}).get(name) or 0 for usage in usages)


# --- messages ---------------------------------------------------------------------------------------------


def _add_messages(span: OpenSpan, name: str, messages: Sequence[dict[str, Any]]) -> None:
    """Add messages as JSON. If they are too long, add only the last ones."""
    kept: list[str] = []
    size = 0
    for message in reversed(messages):
        text = _shown(message, MAX_CONTENT)
        size += len(text)
        if size > MAX_CONTENT:
            span.attributes["perdure.messages_left_out"] = len(messages) - len(kept)
            break
        kept.append(text)
    span.attributes[name] = "[" + ",".join(reversed(kept)) + "]"


def _message(message: BaseMessage) -> dict[str, Any]:
    """Convert a message to OpenTelemetry's conventions."""
    if message.type == "tool":
        answer = {"type": "tool_call_response", "id": getattr(message, "tool_call_id", None)}
        return {"role": "tool", "parts": [{**answer, "response": _cut(message.content)}]}
    parts = [_text(message.content)] if isinstance(message.content, str) else _parts(message.content)
    calls = [
        {"type": "tool_call", "id": call.get("id"), "name": call["name"], "arguments": _cut(call["args"])}
        for call in getattr(message, "tool_calls", None) or ()
    ]
    parts = [part for part in parts if part.get("content") != ""]
    return {"role": ROLES.get(message.type, message.type), "parts": [*parts, *calls]}


def _output(message: BaseMessage) -> dict[str, Any]:
    return {**_message(message), "finish_reason": _finish_reason(message) or "stop"}


def _parts(content: Sequence[Any]) -> list[dict[str, Any]]:
    parts = []
    for block in content:
        kind = block.get("type") if isinstance(block, Mapping) else "text"
        if kind == "text":
            parts.append(_text(block if isinstance(block, str) else str(block.get("text", ""))))
        elif kind not in ("tool_use", "tool_call", "function_call"):
            parts.append({"type": str(kind), "content": _cut(block)})
    return parts


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": _cut(text)}


def _cut(value: Any) -> Any:
    """Cut a value whose text is too long to the beginning of its text."""
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]}… ({len(value) - MAX_TEXT} more)"
    return value if len(shown := _shown(value, MAX_TEXT)) < MAX_TEXT else shown


def _shown(value: Any, length: int = MAX_TEXT) -> str:
    """Encode a value as JSON, or as its `repr` if it has no JSON."""
    if isinstance(value, str):
        return str(_cut(value))
    try:
        text = encode_json(value)
    except InvalidInput:
        text = repr(value)
    return text if len(text) <= length else f"{text[:length]}… ({len(text) - length} more)"
