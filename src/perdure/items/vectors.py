"""Search by meaning: what items are compared by, and how near they are to a query."""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.items.model import ItemVectorRow, ValuedVectorRow
from perdure.kernel import jsonpath
from perdure.kernel.vectors import Embedder, Vector, nearness

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

    `embed` is what `Embedder` takes.
    """

    def __init__(self, embed: Any, *, dims: int | None = None, fields: Sequence[str] | None = None) -> None:
        self._embedder = Embedder(embed, dims=dims)
        self.dims = dims
        self.fields = tuple(fields or (WHOLE,))

    async def of_query(self, text: str) -> tuple[float, ...]:
        """The vector that a query is compared by."""
        return await self._embedder.of_query(text)

    async def of_items(
        self, items: Sequence[tuple[Mapping[str, Any], Sequence[str] | bool | None]]
    ) -> list[tuple[tuple[str, bytes], ...]]:
        """For each value, and what is said of its fields, its vectors by field."""
        wanted = [self._texts(value, index) for value, index in items]
        texts = list(dict.fromkeys(text for each in wanted for text in each.values()))
        found = dict(zip(texts, await self._embedder.of_texts(texts), strict=True))
        return [tuple((field, found[text]) for field, text in each.items()) for each in wanted]

    def _texts(self, value: Mapping[str, Any], index: Sequence[str] | bool | None) -> dict[str, str]:
        if index is False:
            return {}
        found: dict[str, str] = {}
        for path in self.fields if index is None or index is True else index:
            texts = texts_at(value, path)
            names = [path] if len(texts) == 1 else [f"{path}.{number}" for number in range(len(texts))]
            found.update(zip(names, texts, strict=True))
        return found


class Ranking:
    """The items that are nearest to a query, of all that it was shown; so many are kept."""

    def __init__(self, query: Vector, most: int) -> None:
        self._query = query
        self._most = most
        self._best: dict[Name, float] = {}
        self._last: Name | None = None
        self.count = 0
        """How many items it was shown."""

    def add(self, rows: Sequence[ItemVectorRow | ValuedVectorRow]) -> None:
        """Look at more vectors, in their order; an item's nearest field counts."""
        for row, near in zip(rows, nearness(self._query, [row.vector for row in rows]), strict=True):
            name = (row.path, row.key)
            self.count += name != self._last
            self._last = name
            self._best[name] = max(near, self._best.get(name, near))
        if len(self._best) > 2 * self._most + SLACK:
            self._best = {name: near for near, name in self.nearest()}

    def nearest(self) -> list[tuple[float, Name]]:
        """How near each of the nearest is, and its name; the nearest first."""
        return heapq.nlargest(self._most, ((near, name) for name, near in self._best.items()))
