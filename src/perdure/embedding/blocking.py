"""perdure without `await`: a thread's event loop executes every call, and the caller waits for it.

Methods are looked up by name on the async object, so the blocking object has all of them without copies.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial, wraps
from types import TracebackType
from typing import Any, Self, cast

from perdure.client.native import PerdureClient as AsyncPerdureClient
from perdure.embedding.perdure import Perdure as AsyncPerdure
from perdure.kernel.background import Background
from perdure.rollouts.contract import LightningStore
from perdure.runtime.services import Services
from perdure.service.base import Service

_END = object()


class Blocking:
    """An object whose async methods block, and whose async iterators are iterators."""

    def __init__(self, target: Any, portal: Background) -> None:
        self._target = target
        self._portal = portal

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return _blocking(getattr(self._target, name), self._portal)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for name in dir(self._target) if name[:1] != "_")})

    def __repr__(self) -> str:
        return f"blocking {self._target!r}"


def _blocking(value: Any, portal: Background) -> Any:
    if inspect.isroutine(value):
        return _calling(value, portal)
    return Blocking(value, portal) if isinstance(value, Service | Services | LightningStore) else value


def _calling(function: Callable[..., Any], portal: Background) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        answer = portal.wait(partial(_called, function, args, kwargs))
        return _iterated(answer, portal) if hasattr(answer, "__anext__") else _blocking(answer, portal)

    return call


async def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    answer = function(*args, **kwargs)
    return await answer if inspect.isawaitable(answer) else answer


def _iterated(items: AsyncIterator[Any], portal: Background) -> Iterator[Any]:
    try:
        while (item := portal.wait(partial(_next, items))) is not _END:
            yield item
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            portal.wait(close)


async def _next(items: AsyncIterator[Any]) -> Any:
    return await anext(items, _END)


class _Opened(Blocking):
    """A blocking object for `with`."""

    def __enter__(self) -> Self:
        try:
            self._portal.wait(self._target.__aenter__)
        except BaseException:
            self._portal.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the object and end its thread; further calls do nothing."""
        portal, self._portal = self._portal, Background("perdure-closed")
        self._portal.close()
        try:
            portal.wait(partial(self._target.__aexit__, None, None, None))
        finally:
            portal.close()


class Perdure(_Opened):
    """`perdure.Perdure` without `await`, for `with`: the same arguments and the same methods.

    ```python
    with Perdure("memory:", agents=agents) as perdure:
        end = perdure.run("greet", {"name": "Ada"})
        for event in perdure.stream("greet", {"name": "Ada"}):
            print(event.event, event.data)
    ```
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(AsyncPerdure(*args, **options), Background("perdure-blocking"))


class PerdureClient(_Opened):
    """`perdure.PerdureClient` without `await`: the same arguments and the same methods.

    Use it with `with`, or close it with `close`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        portal = Background("perdure-blocking")
        client = portal.wait(partial(_called, AsyncPerdureClient, args, options))
        super().__init__(cast(AsyncPerdureClient, client), portal)
