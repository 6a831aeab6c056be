"""Vectors: how texts become them, and which of many are nearest to one, compared exactly.

A vector is kept with the length 1, as 32-bit floats, so that how near two of them are is the sum of the
products of their numbers. With numpy (extra `vectors`) many are compared at once; without it one by one.
"""

from __future__ import annotations

import asyncio
import heapq
import importlib
import importlib.util
import inspect
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from operator import mul
from struct import Struct
from typing import Any
from zlib import crc32

from perdure.kernel.errors import InvalidInput

Vector = Sequence[float]

HASHED_DIMS = 384


class Embedder:
    """Makes vectors of texts with a function of the user's.

    `embed` takes a list of texts and gives as many vectors, at once or awaited; an object with
    `embed_documents` and `embed_query`, as LangChain has them, does as well.
    """

    def __init__(self, embed: Any, *, dims: int | None = None) -> None:
        if not callable(embed) and not hasattr(embed, "embed_documents"):
            raise InvalidInput("embed must be a function that makes vectors of a list of texts")
        self._embed = embed
        self.dims = dims

    async def of_query(self, text: str) -> tuple[float, ...]:
        """The vector that a query is compared by."""
        own = getattr(self._embed, "aembed_query", None)
        vector = await own(text) if own is not None else (await self._embedded([text]))[0]
        return self._checked(vector)

    async def of_texts(self, texts: Sequence[str]) -> list[bytes]:
        """The vectors of texts as they are stored."""
        return (
            [packed(self._checked(vector)) for vector in await self._embedded(list(texts))] if texts else []
        )

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


def hashed(texts: Sequence[str]) -> list[list[float]]:
    """Vectors of the parts of words: they are near where texts share words or forms of them.

    They know no meaning: a paraphrase in other words is not near.
    """
    return [_hashed(text) for text in texts]


def _hashed(text: str) -> list[float]:
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
    """A vector as it is stored."""
    return _form(len(vector)).pack(*vector)


@cache
def numpy() -> Any:
    """The module numpy, or None where it is not installed."""
    return None if importlib.util.find_spec("numpy") is None else importlib.import_module("numpy")


def nearness(query: Vector, vectors: Sequence[bytes]) -> list[float]:
    """How near each of some stored vectors is to a query; one of another length is not near."""
    size = 4 * len(query)
    np = numpy()
    if np is None or len(vectors) < 8 or any(len(data) != size for data in vectors):
        form = _form(len(query))
        return [_products(query, form.unpack(data)) if len(data) == size else 0.0 for data in vectors]
    matrix = np.frombuffer(b"".join(vectors), dtype="<f4").reshape(len(vectors), len(query))
    found: list[float] = (matrix @ np.asarray(query, dtype="float32")).tolist()
    return found


def _summed(left: Vector, right: Vector) -> float:
    return float(sum(map(mul, left, right)))


_products: Callable[[Vector, Vector], float] = getattr(math, "sumprod", _summed)
"""Python 3.12 has one of its own, which is quicker."""


class VectorTable:
    """Vectors of one length in memory, by whole numbers that grow; the nearest are found by looking at all.

    Each has some tags and a time, by which a search is narrowed. It is safe from many threads.
    """

    def __init__(self, dims: int) -> None:
        self.dims = dims
        self.last = -1
        """The greatest number that it has seen."""
        self._numbers: list[int] = []
        self._times: list[int] = []
        self._by_tag: dict[str, list[int]] = {}
        self._gone: set[int] = set()
        self._data = bytearray()
        self._matrix: Any = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def size(self) -> int:
        """How much memory it takes, about, in bytes."""
        return len(self._data) + 200 * len(self._numbers)

    def add(self, rows: Iterable[tuple[int, bytes, Sequence[str], int]]) -> None:
        """Add vectors: the number, the vector, the tags and the time of each, in the order of the numbers.

        Those that are known, and those of another length, are left out.
        """
        with self._lock:
            # What numpy looks at must not move.
            self._matrix = None
            for number, vector, tags, time in rows:
                if number <= self.last:
                    continue
                self.last = number
                if len(vector) != 4 * self.dims:
                    continue
                place = len(self._numbers)
                self._numbers.append(number)
                self._times.append(time)
                self._data += vector
                for tag in tags:
                    self._by_tag.setdefault(tag, []).append(place)

    def remove(self, numbers: Iterable[int]) -> None:
        """Leave vectors out of searches from now on."""
        with self._lock:
            self._gone.update(numbers)

    def nearest(
        self,
        query: Vector,
        most: int,
        tags: Sequence[str] = (),
        since: int | None = None,
        until: int | None = None,
    ) -> list[tuple[float, int]]:
        """How near the nearest are, and their numbers, the nearest first."""
        with self._lock:
            if not self._numbers or len(query) != self.dims or most <= 0:
                return []
            scores = self._scores(query)
            places = self._narrowed(tags, since, until)
            best = _best(scores, places, most + len(self._gone))
            found = [(float(scores[place]), self._numbers[place]) for place in best]
            return [each for each in found if each[1] not in self._gone][:most]

    def _scores(self, query: Vector) -> Any:
        np = numpy()
        if np is None:
            size = 4 * self.dims
            view = bytes(self._data)
            return nearness(query, [view[at : at + size] for at in range(0, len(view), size)])
        if self._matrix is None:
            flat = np.frombuffer(bytes(self._data), dtype="<f4")
            self._matrix = flat.reshape(len(self._numbers), self.dims)
        return self._matrix @ np.asarray(query, dtype="float32")

    def _narrowed(self, tags: Sequence[str], since: int | None, until: int | None) -> list[int] | None:
        """The places that a search may find; None for all."""
        if not tags and since is None and until is None:
            return None
        groups = [self._by_tag.get(tag, []) for tag in tags]
        places: Iterable[int] = range(len(self._numbers))
        if groups:
            smallest, *others = sorted(groups, key=len)
            wanted = [set(other) for other in others]
            places = [place for place in smallest if all(place in other for other in wanted)]
        low = -math.inf if since is None else since
        high = math.inf if until is None else until
        return [place for place in places if low <= self._times[place] <= high]


def _best(scores: Any, places: list[int] | None, most: int) -> list[int]:
    """The places with the best scores, the best first."""
    np = numpy()
    if np is None or (places is not None and len(places) < 1000):
        wanted: Iterable[int] = range(len(scores)) if places is None else places
        return heapq.nlargest(most, wanted, key=lambda place: float(scores[place]))
    candidates = np.arange(len(scores)) if places is None else np.asarray(places)
    chosen = scores if places is None else scores[candidates]
    if most < len(candidates):
        part = np.argpartition(chosen, -most)[-most:]
        candidates, chosen = candidates[part], chosen[part]
    found: list[int] = candidates[np.argsort(-chosen, kind="stable")].tolist()
    return found
