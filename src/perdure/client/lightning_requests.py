"""Requests of the Agent-lightning protocol: from arguments to bodies, from responses to records."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from msgspec import MsgspecError
from msgspec.json import Decoder

from perdure.client.lightning_wire import PREFIX
from perdure.client.session import Answer, Effect, HttpSession, in_header
from perdure.kernel.checks import check_query_page
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import InvalidInput, Unreachable
from perdure.rollouts.records import UNSET, Attempt, AttemptedRollout, PaginatedResult, Rollout, Worker
from perdure.rollouts.resources import ResourcesUpdate

T = TypeVar("T")

ATTEMPTED = Decoder(AttemptedRollout)
MANY_ATTEMPTED = Decoder(list[AttemptedRollout])
ROLLOUT = Decoder(Rollout)
MANY_ROLLOUTS: Decoder[list[Rollout]] = Decoder(list[Rollout])
CLAIMS: Decoder[list[list[AttemptedRollout]]] = Decoder(list[list[AttemptedRollout]])
ATTEMPT = Decoder(Attempt)
MANY_ATTEMPTS: Decoder[list[Attempt]] = Decoder(list[Attempt])
ATTEMPT_OR_NONE: Decoder[Attempt | None] = Decoder(Attempt | None)
WORKER = Decoder(Worker)
WORKER_OR_NONE: Decoder[Worker | None] = Decoder(Worker | None)
RESOURCES = Decoder(ResourcesUpdate)
RESOURCES_OR_NONE: Decoder[ResourcesUpdate | None] = Decoder(ResourcesUpdate | None)


def decoded(decoder: Decoder[T], answer: Answer) -> T:
    """Decode a response as its type."""
    try:
        return decoder.decode(answer.body)
    except (MsgspecError, UnicodeDecodeError) as error:
        raise Unreachable(f"the answer is not from a perdure server: {error}") from error


def rollout_from(record: Any) -> Rollout:
    """Convert a record to a rollout, with its attempt if it has one."""
    attempted = isinstance(record, dict) and record.get("attempt") is not None
    return AttemptedRollout.model_validate(record) if attempted else Rollout.model_validate(record)


class Exchange:
    """Sends single requests to a server."""

    def __init__(self, session: HttpSession) -> None:
        self._session = session

    async def get(self, path: str, query: Iterable[tuple[str, str]] = ()) -> Answer:
        return await self._session.request("GET", PREFIX + path, query=query)

    async def post(
        self, path: str, body: Any, *, key: str | None = None, effect: Effect = "repeatable"
    ) -> Answer:
        """Send a write. The server answers repeated requests with the same `key` like the first one."""
        headers = {} if key is None else {"Idempotency-Key": in_header(key, "idempotency_key")}
        data = encode(body)
        return await self._session.request("POST", PREFIX + path, body=data, headers=headers, effect=effect)

    async def post_keyed(self, path: str, body: Any, key: str | None) -> Answer:
        """Send a write with a key, by default a new one."""
        return await self.post(path, body, key=key or new_key())

    async def search(
        self, path: str, terms: Mapping[str, Any], record: Callable[[Any], T]
    ) -> PaginatedResult[T]:
        answer = await self.post(path, _asked(terms), effect="none")
        return _page(answer, record, terms)

    async def listing(
        self, path: str, terms: Mapping[str, Any], record: Callable[[Any], T]
    ) -> PaginatedResult[T]:
        """Search by terms in the query string."""
        query = [
            (name, _parameter(name, value)) for name, value in _asked(terms).items() if value is not None
        ]
        return _page(await self.get(path, query), record, terms)

    async def wait(self, rollout_ids: list[str], seconds: float) -> list[Rollout]:
        """Return the ended rollouts, as soon as all have ended or the time is over."""
        answer = await self._session.request(
            "POST",
            PREFIX + "/waits/rollouts",
            body=encode({"rollout_ids": rollout_ids, "timeout": seconds}),
            timeout=seconds + self._session.request_timeout,
            effect="none",
            long_poll=True,
        )
        return [rollout_from(record) for record in answer.json()]


def encode(value: Any, what: str = "the request") -> bytes:
    return encode_json(value, what=what).encode()


def new_key() -> str:
    """Build a key by which the server recognizes a repeated request."""
    return os.urandom(16).hex()


def given(**fields: Any) -> dict[str, Any]:
    """Return the given fields; None is a value."""
    return {name: value for name, value in fields.items() if value is not UNSET}


def _asked(terms: Mapping[str, Any]) -> dict[str, Any]:
    check_query_page(terms["limit"], terms["offset"])
    # The protocol has no empty page, so the request for a total asks for one item, which is dropped.
    return {**terms, "limit": terms["limit"] or 1}


def _page(answer: Answer, record: Callable[[Any], T], terms: Mapping[str, Any]) -> PaginatedResult[T]:
    page = answer.json()
    if not isinstance(page, dict) or not isinstance(page.get("items"), list):
        raise Unreachable("the answer is not from a perdure server: it is not a page")
    items = [record(item) for item in page["items"]] if terms["limit"] else []
    return PaginatedResult(items=items, limit=terms["limit"], offset=terms["offset"], total=page["total"])


def _parameter(name: str, value: Any) -> str:
    if not isinstance(value, str | int):
        raise InvalidInput(f"{name} cannot be a {type(value).__name__}")
    return str(value)
