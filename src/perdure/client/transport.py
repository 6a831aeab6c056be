"""Calls of services over HTTP: from arguments to a request, from the response to a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any
from uuid import uuid4

import msgspec

from perdure.client.session import Answer, Effect, HttpSession, in_header, path_segment
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import InvalidInput, Unreachable
from perdure.kernel.pages import PaginatedResult, Part
from perdure.kernel.record import open_record
from perdure.service.endpoints import KEY, PREFIX, Endpoint, encode_arguments

Sender = Callable[["HttpTransport", Endpoint, dict[str, Any]], Any]
"""Sends the calls of a method with handwritten sender and handler; its result is awaited or iterated."""


class HttpTransport:
    """Sends the calls of services to one server, in one session.

    `senders` has a sender for each method that streams, waits or claims.
    """

    def __init__(
        self, session: HttpSession, senders: Mapping[Callable[..., Any], Sender] | None = None
    ) -> None:
        self.session = session
        self.senders = dict(senders or {})

    def send(self, endpoint: Endpoint, arguments: dict[str, Any]) -> Any:
        """Send a call."""
        sender = self.senders.get(endpoint.function)
        return self.request(endpoint, arguments) if sender is None else sender(self, endpoint, arguments)

    async def request(
        self,
        endpoint: Endpoint,
        arguments: dict[str, Any],
        *,
        timeout: float | None = None,
        long_poll: bool = False,
    ) -> Any:
        """Send one request and decode its response. Without an idempotency key it gets a new one."""
        answer = await self.exchange(endpoint, arguments, timeout=timeout, long_poll=long_poll)
        return self.decode(endpoint, answer.body)

    async def exchange(
        self,
        endpoint: Endpoint,
        arguments: dict[str, Any],
        *,
        timeout: float | None = None,
        long_poll: bool = False,
        effect: Effect | None = None,
    ) -> Answer:
        """Send one request, and return the response without decoding it."""
        shape = endpoint.shape
        body: bytes | None = None
        query: list[tuple[str, str]] = []
        if endpoint.address.in_query:
            query = build_query(encode_arguments(shape, arguments))
        elif shape.parameters:
            body = self.encode_call(endpoint, arguments)
        return await self.session.request(
            endpoint.address.method,
            build_path(endpoint, arguments),
            body=body,
            query=query,
            headers=key_header(arguments) if shape.keyed else None,
            effect=effect or endpoint.effect,
            timeout=timeout,
            long_poll=long_poll,
        )

    def encode_call(self, endpoint: Endpoint, arguments: dict[str, Any]) -> bytes:
        """Encode the body of a request."""
        shape = endpoint.shape
        whole = shape.whole_body
        return encode_body(encode_arguments(shape, arguments) if whole is None else arguments[whole])

    def decode(self, endpoint: Endpoint, body: bytes) -> Any:
        """Decode the response of a method to its result."""
        shape = endpoint.shape
        if shape.answer is None:
            return None
        answer = decode_answer(shape.answer, body)
        read = shape.answer_form.from_wire if shape.answer_form is not None else None
        if not shape.paged and not shape.listed and not shape.parted:
            return answer if read is None else read(answer)
        items = answer.items if read is None else [read(item) for item in answer.items]
        if shape.listed:
            return items
        if shape.parted:
            return Part(items=items, next=answer.next)
        return PaginatedResult(
            items=items, limit=answer.limit, offset=answer.offset, total=answer.total, next=answer.next
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session.base_url!r})"


def build_path(endpoint: Endpoint, arguments: Mapping[str, Any]) -> str:
    """Build the path of a call with its parameters."""
    steps = {name: path_segment(_path_text(arguments[name]), name) for name in endpoint.shape.path}
    return PREFIX + endpoint.address.path.format_map(steps)


def _path_text(value: Any) -> Any:
    """Format a number for a path. Other values are returned unchanged, to be checked."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def key_header(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the header with the idempotency key of a call, by default a new key."""
    key = arguments.get(KEY)
    return {"Idempotency-Key": in_header(uuid4().hex if key is None else key, KEY)}


def encode_body(body: Any) -> bytes:
    """Encode a body as JSON."""
    return encode_json(body, what="the request").encode()


def decode_answer(kind: Any, body: bytes) -> Any:
    """Decode a response as its type."""
    try:
        return _decoder(kind).decode(body)
    except (msgspec.MsgspecError, InvalidInput, UnicodeDecodeError) as error:
        raise Unreachable(f"the answer is not from a perdure server: {error}") from error


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=open_record)


def build_query(terms: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Build the terms of a query string. None is left out, and a list becomes one term per item."""
    query: list[tuple[str, str]] = []
    for name, value in terms.items():
        if isinstance(value, Sequence) and not isinstance(value, str):
            query += [(name, _term(item)) for item in value]
        elif value is not None:
            query.append((name, _term(value)))
    return query


def _term(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return encode_json(value, what="the query") if isinstance(value, Mapping) else str(value)
