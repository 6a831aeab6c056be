"""Vectors: embedding of texts, and exact search for the nearest vectors.

A vector is stored with length 1, as 32-bit floats, so that the nearness of two vectors is their dot product.
With numpy (extra `vectors`) many are compared at once, otherwise one by one.
"""

from __future__ import annotations

import asyncio
import heapq
import importlib
import importlib.util
import inspect
import math
import threading
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from operator import mul
from struct import Struct
from typing import Any
from zlib import crc32

from perdure.kernel.errors import InvalidInput

Vector = Sequence[float]

HASHED_DIMS = 384
BLOCK_NUMBERS = 1 << 18
"""Number of numbers in one matrix of vectors."""


class Embedder:
    """Embeds texts with a user's function.

    `embed` takes a list of texts and returns as many vectors, directly or awaited. An object with LangChain's
    `embed_documents` and `embed_query` works as well.
    """

    def __init__(self, embed: Any, *, dims: int | None = None) -> None:
        if not callable(embed) and not hasattr(embed, "embed_documents"):
            raise InvalidInput("embed must be a function that makes vectors of a list of texts")
        self._embed = embed
        self.dims = dims

    async def of_query(self, text: str) -> tuple[float, ...]:
        """Embed a query."""
        own = getattr(self._embed, "aembed_query", None)
        vector = await own(text) if own is not None else (await self._embed_all([text]))[0]
        return self._check(vector)

    async def of_texts(self, texts: Sequence[str]) -> list[bytes]:
        """Embed texts for storage."""
        return [packed(self._check(vector)) for vector in await self._embed_all(list(texts))] if texts else []

    async def _embed_all(self, texts: list[str]) -> list[Any]:
        own = getattr(self._embed, "aembed_documents", None)
        if own is not None:
            vectors = await own(texts)
        else:
            embed: Callable[..., Any] = getattr(self._embed, "embed_documents", self._embed)
            result = embed(texts) if _is_async(embed) else await asyncio.to_thread(embed, texts)
            vectors = await result if inspect.isawaitable(result) else result
        if len(vectors) != len(texts):
            raise InvalidInput(f"embed returned {len(vectors)} vectors for {len(texts)} texts")
        return list(vectors)

    def _check(self, vector: Any) -> tuple[float, ...]:
        numbers = tuple(map(float, vector))
        if self.dims is not None and len(numbers) != self.dims:
            raise InvalidInput(f"embed returned a vector of {len(numbers)} numbers, not {self.dims}")
        if not all(map(math.isfinite, numbers)):
            raise InvalidInput("embed returned a vector with NaN or Infinity")
        length = math.sqrt(math.fsum(map(mul, numbers, numbers)))
        return tuple(number / length for number in numbers) if length else numbers


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - whether its own call is a coroutine
    )


def hashed(texts: Sequence[str]) -> list[list[float]]:
    """Hash parts of words to vectors, which are near if texts share words or forms of words.

    They ignore meaning: a paraphrase in other words is not near.
    """
    return [_hash_text(text) for text in texts]


def _hash_text(text: str) -> list[float]:
    vector = [0.0] * HASHED_DIMS
    for word in text.lower().split():
        bare = "".join(filter(str.isalnum, word))
        if len(bare) < 2:
            continue
        parts = {bare, *(bare[at : at + 4] for at in range(max(1, len(bare) - 3)))}
        for part in parts:
            number = crc32(part.encode())
            vector[number % HASHED_DIMS] += (1.0 if number & 0x10000 else -1.0) / len(parts)
    return vector


@lru_cache(maxsize=16)
def _form(count: int) -> Struct:
    return Struct(f"<{count}f")


def packed(vector: Vector) -> bytes:
    """Encode a vector for storage."""
    return _form(len(vector)).pack(*vector)


@cache
def numpy() -> Any:
    """Return the module numpy, or None if it is not installed."""
    return None if importlib.util.find_spec("numpy") is None else importlib.import_module("numpy")


def nearness(query: Vector, vectors: Sequence[bytes]) -> list[float]:
    """Return the nearness of stored vectors to a query; vectors of another length have nearness 0."""
    size = 4 * len(query)
    np = numpy()
    if np is None or len(vectors) < 8 or any(len(data) != size for data in vectors):
        form = _form(len(query))
        return [_products(query, form.unpack(data)) if len(data) == size else 0.0 for data in vectors]
    matrix = np.frombuffer(b"".join(vectors), dtype="<f4").reshape(len(vectors), len(query))
    products: list[float] = (matrix @ np.asarray(query, dtype="float32")).tolist()
    return products


_products: Callable[[Vector, Vector], float] = getattr(
    math, "sumprod", lambda left, right: float(sum(map(mul, left, right)))
)
"""Python 3.12 has a faster function."""


class VectorTable:
    """Vectors of one length in memory, numbered in ascending order; a search compares all of them.

    Each has tags and a time, which narrow a search. The table is thread-safe.
    """

    def __init__(self, dims: int) -> None:
        self.dims = dims
        self.last = -1
        """Largest number added so far."""
        self._numbers = array("q")
        self._times = array("q")
        self._by_tag: dict[str, array[int]] = {}
        self._gone: list[int] = []
        """Positions of vectors that searches leave out."""
        self._rows = _Blocks(dims) if numpy() is not None else _Rows(dims)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def size(self) -> int:
        """Approximate memory use in bytes."""
        return (4 * self.dims + 64) * len(self._numbers)

    def add(self, rows: Iterable[tuple[int, bytes, Sequence[str], int]]) -> None:
        """Add vectors: the number, the vector, the tags and the time of each, in the order of the numbers.

        Known numbers and vectors of another length are left out.
        """
        with self._lock:
            new: list[bytes] = []
            for number, vector, tags, time in rows:
                if number <= self.last:
                    continue
                self.last = number
                if len(vector) != 4 * self.dims:
                    continue
                place = len(self._numbers)
                self._numbers.append(number)
                self._times.append(time)
                new.append(vector)
                for tag in tags:
                    self._by_tag.setdefault(tag, array("q")).append(place)
            if new:
                self._rows.add(new)

    def remove(self, numbers: Iterable[int]) -> None:
        """Leave vectors out of searches from now on."""
        with self._lock:
            for number in numbers:
                place = bisect_left(self._numbers, number)
                if place < len(self._numbers) and self._numbers[place] == number:
                    self._gone.append(place)

    def nearest(
        self,
        query: Vector,
        most: int,
        tags: Sequence[str] = (),
        since: int | None = None,
        until: int | None = None,
    ) -> list[tuple[float, int]]:
        """Return the nearest vectors as (nearness, number), the nearest first."""
        with self._lock:
            if not self._numbers or len(query) != self.dims or most <= 0:
                return []
            scores = self._rows.scores(query)
            for place in self._gone:
                scores[place] = -math.inf
            groups = [self._by_tag.get(tag, array("q")) for tag in tags]
            span = (
                None if since is None and until is None else (since or 0, 2**62 if until is None else until)
            )
            best = self._rows.best(scores, groups, self._times, span, most)
            return [
                (float(scores[place]), self._numbers[place]) for place in best if scores[place] > -math.inf
            ]


Span = tuple[int, int] | None


class _Rows:
    """A list of vectors, compared one by one."""

    def __init__(self, dims: int) -> None:
        self._vectors: list[bytes] = []

    def add(self, vectors: Sequence[bytes]) -> None:
        self._vectors += vectors

    def scores(self, query: Vector) -> Any:
        return nearness(query, self._vectors)

    def best(
        self, scores: Any, groups: Sequence[array[int]], times: array[int], span: Span, most: int
    ) -> Any:
        """Return the positions of the best scores in all groups and in the time span, the best first."""
        places: Iterable[int] = range(len(scores))
        if groups:
            smallest, *others = sorted(groups, key=len)
            wanted = [set(other) for other in others]
            places = [place for place in smallest if all(place in other for other in wanted)]
        if span is not None:
            low, high = span
            places = [place for place in places if low <= times[place] <= high]
        return heapq.nlargest(most, places, key=lambda place: float(scores[place]))


class _Blocks:
    """Vectors as the columns of matrices, compared by numpy.

    A product with columns reads memory once, in order. A block is small enough that BLAS uses no further
    threads, which would wait for one another on a busy machine.
    """

    def __init__(self, dims: int) -> None:
        self._dims = dims
        self._width = max(64, BLOCK_NUMBERS // dims)
        self._blocks: list[Any] = []
        self._count = 0

    def add(self, vectors: Sequence[bytes]) -> None:
        np = numpy()
        new = np.frombuffer(b"".join(vectors), dtype="<f4").reshape(len(vectors), self._dims)
        while len(new):
            used = self._count % self._width
            if not used:
                self._blocks.append(np.zeros((self._dims, self._width), dtype="float32"))
            some = new[: self._width - used]
            self._blocks[-1][:, used : used + len(some)] = some.T
            self._count += len(some)
            new = new[len(some) :]

    def scores(self, query: Vector) -> Any:
        np = numpy()
        wanted = np.asarray(query, dtype="float32")
        scores = np.empty(len(self._blocks) * self._width, dtype="float32")
        for number, block in enumerate(self._blocks):
            np.dot(wanted, block, out=scores[number * self._width : (number + 1) * self._width])
        return scores[: self._count]

    def best(
        self, scores: Any, groups: Sequence[array[int]], times: array[int], span: Span, most: int
    ) -> Any:
        """Return the positions of the best scores in all groups and in the time span, the best first."""
        np = numpy()
        places: Any = None
        for group in groups:
            members = np.array(group, dtype="int64")
            places = members if places is None else np.intersect1d(places, members, assume_unique=True)
        if span is not None:
            low, high = span
            moments = np.array(times, dtype="int64")
            if places is not None:
                moments = moments[places]
            within = np.flatnonzero((moments >= low) & (moments <= high))
            places = within if places is None else places[within]
        chosen = scores if places is None else scores[places]
        if most < len(chosen):
            part = np.argpartition(chosen, -most)[-most:]
            chosen, places = chosen[part], part if places is None else places[part]
        order = np.argsort(-chosen, kind="stable")
        return (order if places is None else places[order]).tolist()
