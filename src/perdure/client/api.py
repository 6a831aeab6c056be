"""Single requests of the native client: from arguments to bodies, from answers to records."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

import msgspec

from perdure.access.endpoints import PREFIX
from perdure.client.native_wire import Items
from perdure.client.session import Effect, HttpSession, in_header
from perdure.kernel.checks import check_query_page
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import Unreachable
from perdure.kernel.ids import RandomIds, uuid
from perdure.kernel.pages import Page, PaginatedResult

T = TypeVar("T")


class Api:
    """Asks a server in the words of the native door."""

    def __init__(self, session: HttpSession) -> None:
        self.session = session

    async def get(self, kind: type[T], path: str, **query: Any) -> T:
        answer = await self.session.request("GET", PREFIX + path, query=query_of(query))
        return decoded(kind, answer.body)

    async def page(
        self, kind: type[T], path: str, limit: int, offset: int, **query: Any
    ) -> PaginatedResult[T]:
        check_query_page(limit, offset)
        # The door knows no empty page, so its total comes with an item that is left out.
        asked = {**query, "limit": limit or 1, "offset": offset}
        found: Page[T] = await self.get(Page[kind], path, **asked)  # type: ignore[valid-type]
        items = found.items if limit else []
        return PaginatedResult(items=items, limit=limit, offset=offset, total=found.total)

    async def items(self, kind: type[T], path: str, **query: Any) -> list[T]:
        found: Items[T] = await self.get(Items[kind], path, **query)  # type: ignore[valid-type]
        return found.items

    async def send(
        self,
        kind: type[T],
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = None,
        effect: Effect = "repeatable",
        query: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        long_poll: bool = False,
    ) -> T:
        """Send a write; the server answers a second one with the same `key` as it did the first."""
        answer = await self.session.request(
            method,
            PREFIX + path,
            body=None if body is None else encoded(body),
            headers=keyed(key),
            query=query_of(query or {}),
            effect=effect,
            timeout=timeout,
            long_poll=long_poll,
        )
        return decoded(kind, answer.body)

    async def tell(self, method: str, path: str, body: Any = None, **query: Any) -> None:
        """Send a write that is answered with nothing, and that may be sent again."""
        data = None if body is None else encoded(body)
        await self.session.request(method, PREFIX + path, body=data, query=query_of(query))

    async def delete(self, path: str) -> None:
        await self.session.request("DELETE", PREFIX + path, effect="once")


def keyed(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Idempotency-Key": in_header(key, "idempotency_key")}


def encoded(body: Any) -> bytes:
    return encode_json(body, what="the request").encode()


def decoded(kind: type[T], body: bytes) -> T:
    """An answer as its type."""
    try:
        found: T = _decoder(cast(Any, kind)).decode(body)
        return found
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unreachable(f"the answer is not from a perdure server: {error}") from error


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def query_of(terms: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The terms of a query string; what is None is left out, and a list comes item by item."""
    found: list[tuple[str, str]] = []
    for name, value in terms.items():
        if isinstance(value, Sequence) and not isinstance(value, str):
            found += [(name, str(item)) for item in value]
        elif value is not None:
            found.append((name, _parameter(value)))
    return found


def _parameter(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return encode_json(value, what="the query") if isinstance(value, Mapping) else str(value)


def new_id() -> str:
    """An id from here: a request that is repeated is about the same thing."""
    return uuid(time.time_ns() // 1000, RandomIds())
