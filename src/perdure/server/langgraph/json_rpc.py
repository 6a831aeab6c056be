"""JSON-RPC 2.0 for the MCP and A2A protocols: one request, one response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from perdure.kernel.errors import Forbidden, PerdureError, Unauthorized
from perdure.server.http.long_responses import DelayedJson
from perdure.server.langgraph.protocol import PROTOCOL, RequestBody

INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603

Record = dict[str, Any]


class RpcMessage(RequestBody, kw_only=True):
    """A request. A request without an id is a notification and gets no response."""

    jsonrpc: str | None = None
    id: str | int | float | UnsetType | None = UNSET
    method: str | None = None
    params: Any = None

    @property
    def parameters(self) -> Record:
        return self.params if isinstance(self.params, dict) else {}


class RpcError(Exception):
    """Raised for a request that cannot be answered, with JSON-RPC's code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class RpcResult(DelayedJson):
    """The response to a request that may take long; blank lines before it keep the connection alive."""

    protocol = PROTOCOL


def build_result(message: RpcMessage, result: Any) -> Record:
    return {"jsonrpc": "2.0", "id": _get_id(message), "result": result}


def build_error(message: RpcMessage, code: int, text: str) -> Record:
    return {"jsonrpc": "2.0", "id": _get_id(message), "error": {"code": code, "message": text}}


def _get_id(message: RpcMessage) -> Any:
    return None if message.id is UNSET else message.id


async def answered(message: RpcMessage, answering: Callable[[], Awaitable[Any]]) -> Record:
    """Build the response to a request. Bad input is part of it; other errors are raised."""
    try:
        return build_result(message, await answering())
    except RpcError as error:
        return build_error(message, error.code, str(error))
    except PerdureError as error:
        if isinstance(error, Forbidden | Unauthorized) or error.http_status >= 500:
            raise
        code = INVALID_PARAMS if error.http_status < 500 else INTERNAL_ERROR
        return build_error(message, code, error.message)


def converted(params: Record, kind: type[Any]) -> Any:
    """Convert the parameters of a request to their type."""
    try:
        return msgspec.convert(params, kind)
    except msgspec.ValidationError as error:
        raise RpcError(INVALID_PARAMS, f"params: {error}") from None


def extract_text(content: Any) -> str:
    """Return the text of a message's content."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = [part if isinstance(part, str) else str(part.get("text") or "") for part in parts if part]
    return "".join(texts)


def last_answer(values: Any) -> str | None:
    """Return the text of the last message in the values of a run, if any."""
    messages = values.get("messages") if isinstance(values, dict) else None
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
        return None
    return extract_text(messages[-1].get("content"))
