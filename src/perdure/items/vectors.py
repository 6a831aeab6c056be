"""Search by meaning: what items are compared by, and how near they are to a query.

Vectors are made by a function of the user's. They are kept with the length 1, so that how near two of them
are is the sum of the products of their numbers.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import mul
from struct import Struct
from typing import Any

from perdure.items.model import ValuedVectorRow, VectorRow
from perdure.kernel import jsonpath
from perdure.kernel.errors import InvalidInput

Vector = Sequence[float]
Name = tuple[str, str]

SLACK = 256


WHOLE = "$"
"""The path of a whole value."""


def texts_at(value: Any, path: str) -> list[str]:
    """The texts at a path, in order: objects and lists as JSON, everything else as Python writes it."""
    if path in ("", WHOLE):
        return [_json(value)]
    found = jsonpath.find(value, jsonpath.parse(path))
    return [_json(each) if isinstance(each, dict | list) else str(each) for each in found if each is not None]


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


class ItemIndex:
    """How items are made comparable: a function that makes vectors of texts, and the fields they are of.

    `embed` takes a list of texts and gives as many vectors, at once or awaited; an object with
    `embed_documents` and `embed_query`, as LangChain has them, does as well.
    """

    def __init__(self, embed: Any, *, dims: int | None = None, fields: Sequence[str] | None = None) -> None:
        if not callable(embed) and not hasattr(embed, "embed_documents"):
            raise InvalidInput("embed must be a function that makes vectors of a list of texts")
        self._embed = embed
        self.dims = dims
        self.fields = tuple(fields or (WHOLE,))

    async def of_query(self, text: str) -> tuple[float, ...]:
        """The vector that a query is compared by."""
        own = getattr(self._embed, "aembed_query", None)
        vector = await own(text) if own is not None else (await self._embedded([text]))[0]
        return self._checked(vector)

    async def of_items(
        self, items: Sequence[tuple[Mapping[str, Any], Sequence[str] | bool | None]]
    ) -> list[tuple[tuple[str, bytes], ...]]:
        """For each value, and what is said of its fields, its vectors by field."""
        wanted = [self._texts(value, index) for value, index in items]
        texts = list(dict.fromkeys(text for each in wanted for text in each.values()))
        found = dict(zip(texts, await self._embedded(texts), strict=True)) if texts else {}
        packed = {text: _packed(self._checked(vector)) for text, vector in found.items()}
        return [tuple((field, packed[text]) for field, text in each.items()) for each in wanted]

    def _texts(self, value: Mapping[str, Any], index: Sequence[str] | bool | None) -> dict[str, str]:
        if index is False:
            return {}
        found: dict[str, str] = {}
        for path in self.fields if index is None or index is True else index:
            texts = texts_at(value, path)
            names = [path] if len(texts) == 1 else [f"{path}.{number}" for number in range(len(texts))]
            found.update(zip(names, texts, strict=True))
        return found

    async def _embedded(self, texts: list[str]) -> list[Any]:
        own = getattr(self._embed, "aembed_documents", None)
        if own is not None:
            vectors = await own(texts)
        else:
            embed: Callable[..., Any] = getattr(self._embed, "embed_documents", self._embed)
            made = embed(texts) if _is_async(embed) else await asyncio.to_thread(embed, texts)
            vectors = await made if inspect.isawaitable(made) else made
        if len(vectors) != len(texts):
            raise InvalidInput(f"embed gave {len(vectors)} vectors for {len(texts)} texts")
        return list(vectors)

    def _checked(self, vector: Any) -> tuple[float, ...]:
        numbers = tuple(map(float, vector))
        if self.dims is not None and len(numbers) != self.dims:
            raise InvalidInput(f"embed gave a vector of {len(numbers)} numbers, and not of {self.dims}")
        if not all(map(math.isfinite, numbers)):
            raise InvalidInput("embed gave a vector with something that is no number")
        length = math.sqrt(math.fsum(map(mul, numbers, numbers)))
        return tuple(number / length for number in numbers) if length else numbers


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - whether its own call is a coroutine
    )


@lru_cache(maxsize=16)
def _form(count: int) -> Struct:
    return Struct(f"<{count}f")


def _packed(vector: Vector) -> bytes:
    return _form(len(vector)).pack(*vector)


class Ranking:
    """The items that are nearest to a query, of all that it was shown; so many are kept."""

    def __init__(self, query: Vector, most: int) -> None:
        self._query = query
        self._most = most
        self._best: dict[Name, float] = {}
        self._last: Name | None = None
        self.count = 0
        """How many items it was shown."""

    def add(self, rows: Sequence[VectorRow | ValuedVectorRow]) -> None:
        """Look at more vectors, in their order; an item's nearest field counts."""
        for row in rows:
            name = (row.path, row.key)
            self.count += name != self._last
            self._last = name
            near = _nearness(self._query, row.vector)
            self._best[name] = max(near, self._best.get(name, near))
        if len(self._best) > 2 * self._most + SLACK:
            self._best = {name: near for near, name in self.nearest()}

    def nearest(self) -> list[tuple[float, Name]]:
        """How near each of the nearest is, and its name; the nearest first."""
        return heapq.nlargest(self._most, ((near, name) for name, near in self._best.items()))


def _nearness(query: Vector, data: bytes) -> float:
    if len(data) != 4 * len(query):
        # One that was made by another function cannot be compared.
        return 0.0
    return float(_sum_of_products(query, _form(len(query)).unpack(data)))


def _summed(left: Vector, right: Vector) -> float:
    return float(sum(map(mul, left, right)))


_sum_of_products: Callable[[Vector, Vector], float] = getattr(math, "sumprod", _summed)
"""Python 3.12 has one of its own, which is quicker."""
