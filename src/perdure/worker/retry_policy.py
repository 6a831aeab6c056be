"""Rules for retrying and showing errors. Pure functions only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from perdure.agents.context import AgentError, Retriable
from perdure.kernel.errors import PerdureError, StorageError
from perdure.threads.records import Failure

LONGEST_MESSAGE = 10_000

RETRIABLE: Final = (
    "aiohttp.ClientConnectionError",
    "aiohttp.ClientPayloadError",
    "aiohttp.ServerTimeoutError",
    "anthropic.APIConnectionError",
    "anthropic.InternalServerError",
    "anthropic.RateLimitError",
    "asyncpg.InterfaceError",
    "asyncpg.PostgresConnectionError",
    "botocore.ConnectionError",
    "botocore.HTTPClientError",
    "coredis.ConnectionError",
    "coredis.TimeoutError",
    "httpcore.NetworkError",
    "httpcore.TimeoutException",
    "httpx.NetworkError",
    "httpx.RemoteProtocolError",
    "httpx.TimeoutException",
    "openai.APIConnectionError",
    "openai.InternalServerError",
    "openai.RateLimitError",
    "psycopg.InterfaceError",
    "psycopg.OperationalError",
    "psycopg2.InterfaceError",
    "psycopg2.OperationalError",
    "pymongo.AutoReconnect",
    "redis.ConnectionError",
    "redis.TimeoutError",
    "requests.ConnectionError",
    "requests.Timeout",
    "sqlalchemy.InterfaceError",
    "sqlalchemy.OperationalError",
    "urllib3.NewConnectionError",
    "urllib3.ProtocolError",
    "urllib3.TimeoutError",
)
"""Temporary errors of networks and databases, as package and class.

They are matched by name, so that these packages need not be installed.
"""

_ALWAYS: Final = (Retriable, ConnectionError, StorageError, asyncio.CancelledError)


class RetryPolicy:
    """Decides which errors are retried: standard errors, and additional names.

    A name is a class, with or without its package: `MyError`, `httpx.ReadError`, `my.own.MyError`. Subclasses
    are included.
    """

    def __init__(self, more: Iterable[str] = ()) -> None:
        self._names = frozenset((*RETRIABLE, *(name.strip() for name in more if name.strip())))

    def is_retriable(self, error: BaseException) -> bool:
        """Return whether an error is retried; a group of errors only if all of its errors are."""
        if isinstance(error, BaseExceptionGroup):
            return all(map(self.is_retriable, error.exceptions))
        if isinstance(error, AgentError):
            return error.retriable
        if isinstance(error, _ALWAYS):
            return True
        return any(not self._names.isdisjoint(_list_names(kind)) for kind in type(error).__mro__)


def _list_names(kind: type) -> Iterator[str]:
    yield kind.__name__
    yield f"{kind.__module__}.{kind.__qualname__}"
    yield f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def build_failure(error: BaseException) -> Failure:
    """Build the failure that callers see: class and message, without a traceback."""
    name = error.error if isinstance(error, AgentError) else type(error).__name__
    return Failure(error=name, message=_message(error))


def _message(error: BaseException) -> str:
    try:
        text = error.public if isinstance(error, PerdureError) else str(error)
    except Exception as broken:  # noqa: BLE001 - the agent's code builds the message
        text = f"its message cannot be read: {type(broken).__name__}"
    text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…"
