"""A model behind an OpenAI-compatible URL: it calls the given tool, and then returns the tool's result."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FINAL = "final_answer"
"""The tool with which smolagents ends a run."""
OBSERVATION = "Observation:"
"""Prefix of tool results in smolagents."""
USAGE = {"prompt_tokens": 40, "completion_tokens": 9, "total_tokens": 49}


class _Handler(BaseHTTPRequestHandler):
    server: ChatModel

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        if self.path != "/v1/chat/completions" or not self.headers["Authorization"]:
            self._answer(404, "application/json", b'{"error": {"message": "no such route"}}')
            return
        message = _message(body)
        reason = "tool_calls" if "tool_calls" in message else "stop"
        common = {
            "id": f"chatcmpl-{len(self.server.requests)}",
            "created": 1,
            "model": body["model"],
            "usage": USAGE,
        }
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            whole = {**common, "object": "chat.completion", "choices": [choice]}
            self._answer(200, "application/json", json.dumps(whole).encode())
            return
        for place, call in enumerate(message.get("tool_calls", ())):
            call["index"] = place
        parts = [{"index": 0, "delta": message, "finish_reason": None}]
        parts.append({"index": 0, "delta": {}, "finish_reason": reason})
        chunks = [{**common, "object": "chat.completion.chunk", "choices": [part]} for part in parts]
        lines = [f"data: {text}\n\n" for text in (*map(json.dumps, chunks), "[DONE]")]
        self._answer(200, "text/event-stream", "".join(lines).encode())

    def _answer(self, status: int, form: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", form)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Do nothing, because the requests are recorded."""


def _message(body: dict[str, Any]) -> dict[str, Any]:
    """Build the next message: a call of the first tool, or an answer after a tool has answered."""
    last = body["messages"][-1]
    text = _text(last["content"])
    tools = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or ()}
    if last["role"] == "tool" or text.startswith(OBSERVATION) or not tools:
        answer = f"I looked it up: {text.removeprefix(OBSERVATION).strip()}"
        if FINAL not in tools:
            return {"role": "assistant", "content": answer}
        return _call(body, FINAL, {"answer": answer})
    function = next(iter(tools.values()))
    (name,) = function["parameters"]["properties"]
    return _call(body, function["name"], {name: text.rstrip("?").split()[-1]})


def _call(body: dict[str, Any], name: str, arguments: dict[str, str]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": f"call-{len(body['messages'])}", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _text(content: Any) -> str:
    """Return the text of a content, which may be a list of parts."""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content or ())


class ChatModel(ThreadingHTTPServer):
    """The server, and the requests that it got."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@contextmanager
def serving_model() -> Iterator[ChatModel]:
    """Serve the model while the block lasts."""
    with ChatModel() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
