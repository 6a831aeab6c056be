"""Requests of the Agent-lightning protocol: from arguments to bodies, from answers to records."""

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
    """An answer as its type."""
    try:
        return decoder.decode(answer.body)
    except (MsgspecError, UnicodeDecodeError) as error:
        raise Unreachable(f"the answer is not from a perdure server: {error}") from error


def rollout_from(found: Any) -> Rollout:
    """A rollout, with its attempt if it has one."""
    attempted = isinstance(found, dict) and found.get("attempt") is not None
    return AttemptedRollout.model_validate(found) if attempted else Rollout.model_validate(found)


class Exchange:
    """Sends single requests to a server."""

    def __init__(self, session: HttpSession) -> None:
        self._session = session

    async def get(self, path: str, query: Iterable[tuple[str, str]] = ()) -> Answer:
        return await self._session.request("GET", PREFIX + path, query=query)

    async def post(
        self, path: str, body: Any, *, key: str | None = None, effect: Effect = "repeatable"
    ) -> Answer:
        """Send a write; the server answers a second one with the same `key` as it did the first."""
        headers = {} if key is None else {"Idempotency-Key": in_header(key, "idempotency_key")}
        data = encode(body)
        return await self._session.request("POST", PREFIX + path, body=data, headers=headers, effect=effect)

    async def post_keyed(self, path: str, body: Any, key: str | None) -> Answer:
        """Send a write with a key; one is made if none is given."""
        return await self.post(path, body, key=key or new_key())

    async def search(
        self, path: str, terms: Mapping[str, Any], record: Callable[[Any], T]
    ) -> PaginatedResult[T]:
        answer = await self.post(path, _asked(terms), effect="none")
        return _page(answer, record, terms)

    async def listing(
        self, path: str, terms: Mapping[str, Any], record: Callable[[Any], T]
    ) -> PaginatedResult[T]:
        """A search whose terms stand in the query string."""
        query = [
            (name, _parameter(name, value)) for name, value in _asked(terms).items() if value is not None
        ]
        return _page(await self.get(path, query), record, terms)

    async def wait(self, rollout_ids: list[str], seconds: float) -> list[Rollout]:
        """Those of the rollouts that have ended, as soon as all have or the time is up."""
        answer = await self._session.request(
            "POST",
            PREFIX + "/waits/rollouts",
            body=encode({"rollout_ids": rollout_ids, "timeout": seconds}),
            timeout=seconds + self._session.request_timeout,
            effect="none",
            long_poll=True,
        )
        return [rollout_from(found) for found in answer.json()]


def encode(value: Any, what: str = "the request") -> bytes:
    return encode_json(value, what=what).encode()


def new_key() -> str:
    """A key by which the server knows a repeated request."""
    return os.urandom(16).hex()


def given(**fields: Any) -> dict[str, Any]:
    """The fields that were given; None is a value."""
    return {name: value for name, value in fields.items() if value is not UNSET}


def _asked(terms: Mapping[str, Any]) -> dict[str, Any]:
    check_query_page(terms["limit"], terms["offset"])
    # The protocol knows no empty page, so its total comes with an item that is left out.
    return {**terms, "limit": terms["limit"] or 1}


def _page(answer: Answer, record: Callable[[Any], T], terms: Mapping[str, Any]) -> PaginatedResult[T]:
    found = answer.json()
    if not isinstance(found, dict) or not isinstance(found.get("items"), list):
        raise Unreachable("the answer is not from a perdure server: it is no page")
    items = [record(item) for item in found["items"]] if terms["limit"] else []
    return PaginatedResult(items=items, limit=terms["limit"], offset=terms["offset"], total=found["total"])


def _parameter(name: str, value: Any) -> str:
    if not isinstance(value, str | int):
        raise InvalidInput(f"{name} cannot be a {type(value).__name__}")
    return str(value)
