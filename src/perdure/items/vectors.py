"""Search by meaning: vectors of items, and their similarity to a query."""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.items.model import ItemVectorRow, ValuedVectorRow
from perdure.kernel import json_values
from perdure.kernel.vectors import Embedder, Vector, nearness

Name = tuple[str, str]

SLACK = 256


WHOLE = "$"
"""The path of a whole value."""


def texts_at(value: Any, path: str) -> list[str]:
    """Return the texts at a path in order: objects and lists as JSON, other values by `str`."""
    if path in ("", WHOLE):
        return [_encode(value)]
    parts = json_values.find(value, json_values.parse(path))
    return [
        _encode(part) if isinstance(part, dict | list) else str(part) for part in parts if part is not None
    ]


def _encode(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


class ItemIndex:
    """Index of items: a function that computes vectors of texts, and the indexed fields.

    `embed` has the form that `Embedder` accepts.
    """

    def __init__(self, embed: Any, *, dims: int | None = None, fields: Sequence[str] | None = None) -> None:
        self._embedder = Embedder(embed, dims=dims)
        self.dims = dims
        self.fields = tuple(fields or (WHOLE,))

    async def of_query(self, text: str) -> tuple[float, ...]:
        """Return the vector of a query."""
        return await self._embedder.of_query(text)

    async def of_items(
        self, items: Sequence[tuple[Mapping[str, Any], Sequence[str] | bool | None]]
    ) -> list[tuple[tuple[str, bytes], ...]]:
        """Return the vectors of each value by field; each value comes with its `index` option."""
        wanted = [self._list_texts(value, index) for value, index in items]
        texts = list(dict.fromkeys(text for item_texts in wanted for text in item_texts.values()))
        vectors = dict(zip(texts, await self._embedder.of_texts(texts), strict=True))
        return [tuple((field, vectors[text]) for field, text in item_texts.items()) for item_texts in wanted]

    def _list_texts(self, value: Mapping[str, Any], index: Sequence[str] | bool | None) -> dict[str, str]:
        if index is False:
            return {}
        texts_by_field: dict[str, str] = {}
        for path in self.fields if index is None or index is True else index:
            texts = texts_at(value, path)
            names = [path] if len(texts) == 1 else [f"{path}.{number}" for number in range(len(texts))]
            texts_by_field.update(zip(names, texts, strict=True))
        return texts_by_field


class Ranking:
    """The `limit` items nearest to a query among all that were added."""

    def __init__(self, query: Vector, most: int) -> None:
        self._query = query
        self._most = most
        self._best: dict[Name, float] = {}
        self._last: Name | None = None
        self.count = 0
        """Number of added items."""

    def add(self, rows: Sequence[ItemVectorRow | ValuedVectorRow]) -> None:
        """Add vectors in their order; the nearest field of an item counts."""
        for row, near in zip(rows, nearness(self._query, [row.vector for row in rows]), strict=True):
            name = (row.path, row.key)
            self.count += name != self._last
            self._last = name
            self._best[name] = max(near, self._best.get(name, near))
        if len(self._best) > 2 * self._most + SLACK:
            self._best = {name: near for near, name in self.nearest()}

    def nearest(self) -> list[tuple[float, Name]]:
        """Return similarity and name of the nearest items, nearest first."""
        return heapq.nlargest(self._most, ((near, name) for name, near in self._best.items()))
