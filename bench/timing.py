"""Timing of all measures: fixed work, a warm-up, interleaved rounds, medians."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from statistics import median
from types import MappingProxyType

Side = Callable[[int], Awaitable[float]]
WHOLE: Mapping[str, int] = MappingProxyType({})
WARM_CALLS = 3


async def spread(callers: int, count: int, call: Callable[[int], Awaitable[object]]) -> float:
    """Make `count` calls from `callers` concurrent callers, and return calls per second."""
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            await call(number)

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return count / (time.perf_counter() - started)


async def milliseconds(call: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await call()
    return (time.perf_counter() - started) * 1000


async def growth(
    small: Callable[[], Awaitable[object]], large: Callable[[], Awaitable[object]], times: int
) -> float:
    """Return the ratio of a call's times with much and little data, by medians of alternating calls."""
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(WARM_CALLS + times):
        for call, found in zip((small, large), taken, strict=True):
            found.append(await milliseconds(call))
    few, many = (median(found[WARM_CALLS:]) for found in taken)
    return many / few


async def interleave(
    size: int,
    rounds: int,
    sides: dict[str, Side],
    once: Collection[str] = (),
    shares: Mapping[str, int] = WHOLE,
) -> dict[str, float]:
    """Run every side in turn, round after round, and return each side's median figure.

    Each side has the same warm-up and the same number of rounds. For a side that takes minutes, a round is
    divided by its share, or it runs `once`.
    """
    figures: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        await side(max(size // 10, 1))
    for number in range(rounds):
        for name, side in sides.items():
            if number and name in once:
                continue
            gc.collect()
            figures[name].append(await side(max(size // shares.get(name, 1), 1)))
    return {name: median(taken) for name, taken in figures.items()}
