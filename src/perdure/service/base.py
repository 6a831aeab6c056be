"""Base of every service: a namespace of a database, and the caller that changes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from copy import copy
from functools import cache, partial, wraps
from inspect import signature
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypeVar

from perdure.kernel.checks import check_text
from perdure.kernel.errors import NotSupported
from perdure.kernel.merge import Merger
from perdure.kernel.storage.port import Check, Operation, Storage, Tx
from perdure.service.callers import Caller, format_actor
from perdure.service.conditions import Condition, Unmet
from perdure.service.endpoints import Endpoint, endpoints
from perdure.service.idempotency import answer_type, decode_answers, get_action, once
from perdure.service.namespaces import ensure_namespace, find_namespace

T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S", bound="Service")
Access = Literal["read", "write"]
Transact = Callable[..., Awaitable[Any]]
"""Runs a call of an operation, as `Service._transact` does."""

NO_NAMESPACE = -1
"""Number of a namespace that does not exist; no row has this number."""
POSTGRES_BATCHES = 3
"""Maximum number of concurrent batches of the same call where several connections write."""


class Transport(Protocol):
    """Sender of a service's calls over HTTP."""

    def send(self, endpoint: Endpoint, arguments: dict[str, Any]) -> Any:
        """Send a call; the caller awaits or iterates the result."""
        ...


class Service:
    """The object that callers of a domain use, in one namespace.

    `acting_as` binds the service to a caller: to its namespace, and to its name in the audit. `over` returns
    the service over HTTP. Methods access the database in operations, through `read` and `write`.
    """

    gather_seconds = 0.0
    """Seconds for which frequent calls of `write_once` gather; see `Merger.call`."""

    def __init__(self, storage: Storage, *, namespace: str = "default", caller: Caller | None = None) -> None:
        self.storage = storage
        self.namespace = namespace
        self.caller = caller
        self._number: int | None = None
        self._merger = self._build_merger()

    def _build_merger(self) -> Merger:
        return Merger(POSTGRES_BATCHES if self.storage.engine == "postgres" else 1)

    @property
    def actor(self) -> str | None:
        """Actor recorded in the audit; None leaves no entry."""
        return None if self.caller is None else str(self.caller.actor)

    @property
    def actor_name(self) -> str | None:
        """Name of the caller for display."""
        return None if self.caller is None else format_actor(self.caller.actor)

    def acting_as(self, caller: Caller) -> Self:
        """Return the service bound to the caller's namespace and name."""
        sibling = self.in_namespace(caller.namespace)
        sibling.caller = caller
        return sibling

    def in_namespace(self, namespace: str) -> Self:
        """Return the service in another namespace of the database."""
        sibling = copy(self)
        if namespace != self.namespace:
            sibling.namespace, sibling._number = namespace, None
        # Calls merge only within one namespace and one caller.
        sibling._merger = sibling._build_merger()
        return sibling

    async def ns(self, access: Access = "read") -> int:
        """Return the number of the namespace. A write creates a missing one; a read finds nothing in it."""
        if self._number is not None:
            return self._number
        if access == "write":
            self._number = await self.storage.run(ensure_namespace, self.namespace)
            return self._number
        number = await self.storage.read(find_namespace, self.namespace)
        if number is None:
            return NO_NAMESPACE
        self._number = number
        return number

    def read(
        self,
        operation: Callable[Concatenate[Tx, P], Coroutine[Any, Any, T]],
        *args: P.args,
        **_: P.kwargs,
    ) -> Coroutine[Any, Any, T]:
        """Run a reading operation in this namespace."""
        return self._transact("read", (operation, *args))

    def write(
        self,
        operation: Callable[Concatenate[Tx, P], Coroutine[Any, Any, T]],
        *args: P.args,
        **_: P.kwargs,
    ) -> Coroutine[Any, Any, T]:
        """Run a writing operation in this namespace, in the caller's name."""
        return self._transact("write", (operation, *args))

    async def _transact(
        self, access: Access, call: tuple[Any, ...], *, keys: Sequence[str] | None = None
    ) -> Any:
        """Run one operation, `call` with its arguments, in one transaction; with `keys`, run each item once.

        The conditions of the operation are checked in the transaction, before the operation. If one does not
        hold, it is met and the operation runs again.
        """
        ns = self._number or await self.ns(access)
        conditions: Sequence[Condition] = getattr(call[0], "conditions", ())
        met: tuple[Condition, ...] = ()
        while True:
            before: list[Check] = []
            arguments = call
            for condition in conditions:
                if condition.is_parameter:
                    arguments = (*arguments, condition in met)
                elif condition not in met and (check := condition.get_check(self)):
                    before.append(check)
            try:
                if access == "read":
                    return await self.storage.read(*arguments, ns=ns, before=before)
                actor = None if self.caller is None else self.caller.actor
                return await self.storage.run(*keyed(arguments, keys), ns=ns, actor=actor, before=before)
            except Unmet as unmet:
                if unmet.condition in met:
                    raise
                await unmet.condition.meet(self)
                met = (*met, unmet.condition)

    def read_one(
        self, operation: Operation[..., Sequence[T | Exception]], item: Any, *rest: Any
    ) -> Awaitable[T]:
        """Run a reading operation on a list for one item, merged with concurrent calls."""
        batch = partial(self._read_batch, operation, rest)
        return self._merger.call((operation, *rest), batch, item)

    async def _read_batch(
        self, operation: Operation[..., Sequence[Any]], rest: tuple[Any, ...], items: Sequence[Any]
    ) -> Sequence[Any]:
        results: Sequence[Any] = await self._transact("read", (operation, items, *rest))
        return results

    def write_once(
        self,
        key: str | None,
        operation: Operation[..., Sequence[T | Exception]],
        item: Any,
        *rest: Any,
        rows: int = 1,
        size: int = 0,
        undelivered: Callable[[T], None] | None = None,
        transact: Transact | None = None,
    ) -> Awaitable[T]:
        """Run an operation on a list for one item, merged with concurrent calls.

        A key that was used before returns its first answer. The operation must answer item by item; the
        arguments after the item are equal in all merged calls. `rows` and `size` (bytes) bound a batch.
        `undelivered` receives the answer if the caller was cancelled meanwhile. `transact` runs the batch if
        more than the operation belongs to its transaction.
        """
        if key is not None:
            check_text(key, "idempotency_key")
        batch = partial(self._write_batch, transact or self._transact, operation, rest, key is not None)
        future = self._merger.call(
            (operation, key is not None, *rest),
            batch,
            (key, item),
            rows=rows,
            size=size,
            gather=self.gather_seconds,
            undelivered=undelivered,
        )
        return future if undelivered is None else _await_delivery(future, undelivered)

    async def _write_batch(
        self,
        transact: Transact,
        operation: Operation[..., Sequence[Any]],
        rest: tuple[Any, ...],
        keyed: bool,
        calls: Sequence[tuple[Any, Any]],
    ) -> Sequence[Any]:
        keys = [key for key, _ in calls] if keyed else None
        items = [item for _, item in calls]
        answers: Sequence[Any] = await transact("write", (operation, items, *rest), keys=keys)
        return decode_answers(answers, answer_type(operation)) if keyed else answers

    @classmethod
    def over(cls, transport: Transport) -> Self:
        """Return the service as a client of a server."""
        service: Self = object.__new__(remote_class(cls))  # type: ignore[arg-type]
        vars(service)["transport"] = transport
        return service


async def _await_delivery(future: asyncio.Future[T], undelivered: Callable[[T], None]) -> T:
    """Return the answer; pass it to `undelivered` if the caller is cancelled before it receives it."""
    try:
        return await future
    except asyncio.CancelledError:
        if not future.cancelled() and future.exception() is None:
            undelivered(future.result())
        raise


def keyed(call: tuple[Any, ...], keys: Sequence[str] | None) -> tuple[Any, ...]:
    """Wrap the call of an operation on a list so that each item runs under its idempotency key."""
    if keys is None:
        return call
    operation, *args = call
    return (once, keys, get_action(operation), (operation,), *args)


@cache
def remote_class(service: type[S]) -> type[S]:
    """Build a subclass whose methods with an endpoint send their calls; one for each service."""
    return remote(type(service.__name__, (service,), {"__repr__": _repr}))


def remote(service: type[S]) -> type[S]:
    """Make the methods of a class that have an endpoint send their calls through its `transport`."""
    for name, endpoint in endpoints(service).items():
        setattr(service, name, _sender(endpoint))
    service.__getattr__ = _refuse_remote  # type: ignore[attr-defined]
    return service


def _sender(endpoint: Endpoint) -> Callable[..., Any]:
    described = signature(endpoint.function)

    @wraps(endpoint.function)
    def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(described.bind(self, *args, **kwargs).arguments)
        given.pop("self")
        return self.transport.send(endpoint, given)

    return send


def _refuse_remote(self: Any, name: str) -> Any:
    raise NotSupported(f"{type(self).__name__}.{name} needs the database; it is not available over HTTP")


def _repr(self: Any) -> str:
    return f"{type(self).__name__}.over({vars(self)['transport']!r})"
