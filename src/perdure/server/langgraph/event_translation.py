"""Translation of a thread's events to the protocol of `client.threads.stream`.

A stored event becomes zero or more protocol events. Their numbers derive from the stored event's number, so
all readers see the same numbers, and a reader that reconnects misses and repeats no event. The state of
growing messages belongs to one run, so translation may start with any run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.kernel.codec import decode_json
from perdure.kernel.errors import PerdureError
from perdure.streams.model import StreamEvent

SPREAD: Final = 4096
"""Maximum protocol events for one stored event."""
MODES: Final = ("values", "updates", "messages-tuple", "custom")
"""Stream modes of a run with translated events."""
INTERRUPTS: Final = "__interrupt__"
ROLES: Final = {"ai": "ai", "AIMessageChunk": "ai", "human": "human", "system": "system"}
SCALARS: Final = (str, int, float, bool)
CANCELLED: Final = "the run was cancelled"
Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Translated:
    """An event of the protocol without its number."""

    method: str
    namespace: tuple[str, ...]
    data: Data | Any

    @property
    def channel(self) -> str:
        """The channel of the event in a subscription."""
        if self.method == "input.requested":
            return "input"
        name = self.data.get("name") if self.method == "custom" else None
        return f"custom:{name}" if name else self.method


@dataclass(slots=True)
class _Message:
    """A growing message: its blocks by key, in order of their start."""

    namespace: tuple[str, ...]
    message_id: str
    blocks: dict[str, Data] = field(default_factory=dict)
    usage: Data | None = None


class EventTranslator:
    """Translates the stored events of a thread in order."""

    def __init__(self) -> None:
        self._run: str | None = None
        self._start(None)

    def _start(self, graph: str | None) -> None:
        self._graph = graph
        self._error: str | None = None
        self._questions: dict[str, Translated] = {}
        self._children: dict[tuple[str, ...], bool] = {}
        self._growing: dict[str, _Message] = {}
        self._complete: set[str] = set()
        self._tools: set[str] = set()

    def translate(self, event: StreamEvent, graph: str | None = None) -> Iterator[tuple[int, Translated]]:
        """Yield the numbered protocol events of a stored event."""
        for index, translated in enumerate(self._translate(event, graph)):
            if index == SPREAD:
                return
            yield event.seq * SPREAD + index, translated

    def is_new(self, event: StreamEvent) -> bool:
        """Return whether an event is the first of its run."""
        return event.event == "metadata" and event.source != self._run

    def _translate(self, event: StreamEvent, graph: str | None) -> Iterator[Translated]:
        mode, *path = event.event.split("|")
        namespace = tuple(path)
        if mode == "metadata":
            yield from self._begin(event, graph)
        elif mode == "end":
            yield from self._end(decode_json(event.body))
        elif mode == "error":
            self._error = str((decode_json(event.body) or {}).get("message") or "the run failed")
        elif mode in ("values", "updates", "messages", "custom"):
            yield from self._discover(namespace)
            yield from getattr(self, f"_{mode}")(namespace, decode_json(event.body))

    # --- runs and subgraphs -----------------------------------------------------------------------------

    def _begin(self, event: StreamEvent, graph: str | None) -> Iterator[Translated]:
        if event.source == self._run:
            # Another attempt repeats an unfinished message from its start.
            self._growing.clear()
            return
        self._run = event.source
        self._start(graph)
        yield self._lifecycle((), "running")

    def _lifecycle(self, namespace: tuple[str, ...], phase: str, /, **more: Any) -> Translated:
        name = namespace[-1].partition(":")[0] if namespace else self._graph
        return Translated("lifecycle", namespace, {"event": phase, "graph_name": name, **more})

    def _discover(self, namespace: tuple[str, ...]) -> Iterator[Translated]:
        for depth in range(1, len(namespace) + 1):
            path = namespace[:depth]
            if path not in self._children:
                self._children[path] = True
                task_id = path[-1].partition(":")[2] or None
                yield self._lifecycle(path, "started", namespace=list(path), trigger_call_id=task_id)

    def _finish_children(self, parent: tuple[str, ...], node: str | None, phase: str) -> Iterator[Translated]:
        """End the subgraphs below a namespace, or the subgraphs of one node in the namespace."""
        for path, active in list(self._children.items()):
            own = path[: len(parent)] == parent and len(path) > len(parent)
            if active and own and (node is None or path[len(parent)].partition(":")[0] == node):
                self._children[path] = False
                yield self._lifecycle(path, phase)

    def _end(self, data: Any) -> Iterator[Translated]:
        status = data.get("status") if isinstance(data, Mapping) else None
        yield from self._finish_messages(())
        if status in ("error", "timeout") or self._error is not None:
            yield from self._finish_children((), None, "failed")
            yield self._lifecycle((), "failed", error=self._error or f"the run ended with {status}")
        elif status in ("interrupted", "rollback"):
            yield from self._finish_children((), None, "failed")
            yield self._lifecycle((), "failed", error=CANCELLED)
        else:
            # Interrupts can be answered only now.
            yield from self._questions.values()
            phase = "interrupted" if self._questions else "completed"
            yield from self._finish_children((), None, phase)
            yield self._lifecycle((), phase)

    # --- states -----------------------------------------------------------------------------------------

    def _values(self, namespace: tuple[str, ...], data: Any) -> Iterator[Translated]:
        yield from self._finish_messages(namespace)
        if isinstance(data, dict) and INTERRUPTS in data:
            self._note(namespace, data.pop(INTERRUPTS))
            if not data:
                return
        yield Translated("values", namespace, data)

    def _updates(self, namespace: tuple[str, ...], data: Any) -> Iterator[Translated]:
        yield from self._finish_messages(namespace)
        for node, values in data.items() if isinstance(data, dict) else ():
            if node == INTERRUPTS:
                self._note(namespace, values)
            else:
                yield from self._finish_children(namespace, node, "completed")
                yield Translated("updates", namespace, {"node": node, "values": values})

    def _note(self, namespace: tuple[str, ...], interrupts: Any) -> None:
        """Collect the questions of a run until its end."""
        for interrupt in interrupts if isinstance(interrupts, list) else ():
            if isinstance(interrupt, dict) and isinstance(interrupt.get("id"), str):
                value = interrupt.get("value")
                data = {"interrupt_id": interrupt["id"], "payload": value, "value": value}
                self._questions.setdefault(interrupt["id"], Translated("input.requested", namespace, data))

    def _custom(self, namespace: tuple[str, ...], data: Any) -> Iterator[Translated]:
        named = isinstance(data, dict) and isinstance(data.get("name"), str)
        if named and "payload" in data:
            yield Translated("custom", namespace, data)
        else:
            name = {"name": data["name"]} if named else {}
            yield Translated("custom", namespace, {**name, "payload": data})

    # --- messages ---------------------------------------------------------------------------------------

    def _messages(self, namespace: tuple[str, ...], data: Any) -> Iterator[Translated]:
        if not isinstance(data, list) or len(data) != 2 or not isinstance(data[0], dict):
            return
        message, metadata = data[0], data[1] if isinstance(data[1], dict) else {}
        if message.get("type") in ("tool", "ToolMessageChunk"):
            yield from self._tool_result(namespace, message)
        role, message_id = ROLES.get(str(message.get("type"))), message.get("id")
        if role is None or not isinstance(message_id, str) or message_id in self._complete:
            return
        if message_id not in self._growing:
            self._growing[message_id] = _Message(namespace, message_id)
            start = {"event": "message-start", "role": role, "id": message_id}
            yield Translated("messages", namespace, {**start, "metadata": _scalars(metadata)})
        growing = self._growing[message_id]
        # A whole message after its chunks adds nothing.
        if message.get("type") == "AIMessageChunk" or not growing.blocks:
            for key, block in _blocks(message):
                yield from self._grow(growing, key, block)
        growing.usage = message.get("usage_metadata") or growing.usage
        if message.get("type") != "AIMessageChunk" or message.get("chunk_position") == "last":
            yield from self._finish(growing)

    def _grow(self, message: _Message, key: str, block: Data) -> Iterator[Translated]:
        growing = message.blocks.get(key)
        if growing is None:
            growing = message.blocks[key] = _empty(block)
            index = len(message.blocks) - 1
            yield self._of(message, "content-block-start", index=index, content=dict(growing))
        index = list(message.blocks).index(key)
        delta = _merge(growing, block)
        if delta is not None:
            yield self._of(message, "content-block-delta", index=index, delta=delta)

    def _of(self, message: _Message, event: str, **data: Any) -> Translated:
        return Translated(
            "messages", message.namespace, {"event": event, "message_id": message.message_id, **data}
        )

    def _finish(self, message: _Message) -> Iterator[Translated]:
        self._growing.pop(message.message_id, None)
        self._complete.add(message.message_id)
        blocks = [_finished(block) for block in message.blocks.values()]
        for index, content in enumerate(blocks):
            yield self._of(message, "content-block-finish", index=index, content=content)
        usage = {} if message.usage is None else {"usage": message.usage}
        yield self._of(message, "message-finish", **usage)
        for call in blocks:
            if call["type"] == "tool_call" and call.get("id") not in self._tools:
                self._tools.add(str(call.get("id")))
                named = {"tool_call_id": call.get("id"), "tool_name": call.get("name")}
                started = {"event": "tool-started", **named, "input": call.get("args")}
                yield Translated("tools", message.namespace, started)

    def _finish_messages(self, namespace: tuple[str, ...]) -> Iterator[Translated]:
        """Finish the messages below a namespace, because its step is over."""
        for message in list(self._growing.values()):
            if message.namespace[: len(namespace)] == namespace:
                yield from self._finish(message)

    def _tool_result(self, namespace: tuple[str, ...], message: Data) -> Iterator[Translated]:
        call_id = message.get("tool_call_id")
        if message.get("status") == "error":
            failed = {"event": "tool-error", "tool_call_id": call_id, "message": str(message.get("content"))}
            yield Translated("tools", namespace, failed)
        else:
            output = {"event": "tool-finished", "tool_call_id": call_id, "output": message.get("content")}
            yield Translated("tools", namespace, output)


def _scalars(metadata: Mapping[str, Any]) -> Data:
    """Return the plain values of a message's metadata, without the server's values."""
    return {
        key: value
        for key, value in metadata.items()
        if isinstance(value, SCALARS) and not key.startswith(("__", "langgraph_auth", "checkpoint_"))
    }


# --- blocks of a message ----------------------------------------------------------------------------------


def _blocks(message: Mapping[str, Any]) -> Iterator[tuple[str, Data]]:
    """Yield the blocks of a message or chunk, each with a key that it shares with its other chunks."""
    content = message.get("content")
    if isinstance(content, str) and content:
        yield "text", {"type": "text", "text": content}
    for place, block in enumerate(content if isinstance(content, list) else ()):
        if isinstance(block, str):
            yield f"text {place}", {"type": "text", "text": block}
        elif isinstance(block, dict) and block.get("type") not in (
            "tool_use",
            "tool_call_chunk",
            "tool_call",
        ):
            yield f"{block.get('type')} {block.get('index', place)}", block
    pieces: Sequence[Any] = message.get("tool_call_chunks") or ()
    for place, piece in enumerate(pieces or message.get("tool_calls") or ()):
        if isinstance(piece, dict):
            number = piece.get("index") if piece.get("index") is not None else place
            yield f"tool {number}", {**piece, "type": "tool_call_chunk" if pieces else "tool_call"}


def _empty(block: Mapping[str, Any]) -> Data:
    """Build a block before its first chunk."""
    if block.get("type") == "text":
        return {"type": "text", "text": ""}
    if block.get("type") == "reasoning":
        return {"type": "reasoning", "reasoning": ""}
    if block.get("type") == "tool_call_chunk":
        return {"type": "tool_call_chunk", "id": block.get("id"), "name": block.get("name"), "args": ""}
    return {key: value for key, value in block.items() if key != "index"}


def _merge(target: Data, block: Mapping[str, Any]) -> Data | None:
    """Append a chunk to a block. Return the delta, or None if there is none."""
    for name, delta in (("text", "text-delta"), ("reasoning", "reasoning-delta")):
        if target["type"] == name:
            piece = block.get(name) or ""
            target[name] += piece
            return {"type": delta, name: piece} if piece else None
    if target["type"] == "tool_call_chunk":
        piece = block.get("args") or ""
        target["args"] += piece
        target["id"], target["name"] = target["id"] or block.get("id"), target["name"] or block.get("name")
        return {"type": "tool-call-delta", "args": piece} if piece else None
    return None


def _finished(block: Data) -> Data:
    """Return a block at its end; the chunks of a tool call become the call."""
    if block["type"] != "tool_call_chunk":
        return block
    try:
        args = decode_json(block["args"] or "{}")
    except PerdureError:
        return {**block, "type": "invalid_tool_call", "error": "its arguments are no JSON"}
    return {"type": "tool_call", "id": block["id"], "name": block["name"], "args": args}
