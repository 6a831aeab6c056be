"""Copies of messages from a graph's state to the session of its run."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from perdure.agents.context import Context
from perdure.kernel.errors import InvalidInput

logger = logging.getLogger(__name__)

TOOL_BLOCKS = frozenset({"tool_use", "tool_call", "input_json_delta"})
"""Content blocks that repeat the tool calls of the message."""


class SessionMessages:
    """Writes new messages of the state to the session, and remembers those of earlier runs."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._known: set[tuple[str, Any]] = set()

    def remember(self, values: Mapping[str, Any]) -> None:
        """Mark the messages of a state as messages of earlier runs and attempts."""
        self._known.update(key for key, _ in _messages(values, values))

    def new(self, values: Mapping[str, Any], changed: Iterable[str]) -> Iterator[BaseMessage]:
        """Return the new messages of the changed channels."""
        for key, message in _messages(values, changed):
            if key not in self._known:
                self._known.add(key)
                yield message

    async def log(self, message: BaseMessage) -> None:
        """Write a message to the session."""
        try:
            await self._write(message)
        except InvalidInput as error:
            logger.warning("run %s: a message is not in its session: %s", self._ctx.run_id, error.message)

    async def _write(self, message: BaseMessage) -> None:
        ctx = self._ctx
        if isinstance(message, AIMessage):
            details = message.response_metadata
            model = details.get("model_name") or details.get("model")
            model = model if isinstance(model, str) else None
            await ctx.message("assistant", _build_content(message), model, _usage(message))
        elif isinstance(message, ToolMessage):
            await ctx.tool_result(message.tool_call_id, _content(message), message.status == "error")
        elif isinstance(message, HumanMessage):
            await ctx.message("user", _content(message))
        elif isinstance(message, SystemMessage):
            await ctx.message("system", message.text)


def _messages(values: Mapping[str, Any], channels: Iterable[str]) -> Iterator[tuple[tuple[str, Any], Any]]:
    """Return the messages in lists of a state, each with its key: its ID, or its position."""
    for channel in channels:
        value = values.get(channel)
        for place, message in enumerate(value if isinstance(value, list) else ()):
            if isinstance(message, BaseMessage):
                yield (channel, message.id or place), message


def _content(message: BaseMessage) -> str | list[dict[str, Any]]:
    return message.content if isinstance(message.content, str) else [*_blocks(message.content)]


def _blocks(content: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for block in content:
        if isinstance(block, str):
            yield {"type": "text", "text": block}
        elif isinstance(block, dict) and isinstance(block.get("type"), str):
            yield block


def _build_content(message: AIMessage) -> list[dict[str, Any]]:
    content = [message.content] if isinstance(message.content, str) else message.content
    blocks = [block for block in _blocks(content) if block["type"] not in TOOL_BLOCKS]
    calls = [
        {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["args"]}
        for call in message.tool_calls
    ]
    return blocks + calls


def _usage(message: AIMessage) -> dict[str, int] | None:
    """Return the usage of a message. Cached tokens are not part of the input tokens."""
    metadata = message.usage_metadata
    if metadata is None:
        return None
    details = metadata.get("input_token_details") or {}
    read, created = details.get("cache_read") or 0, details.get("cache_creation") or 0
    usage = {
        "input_tokens": max(0, metadata["input_tokens"] - read - created),
        "output_tokens": metadata["output_tokens"],
    }
    if read or created:
        usage |= {"cache_read_input_tokens": read, "cache_creation_input_tokens": created}
    return usage
