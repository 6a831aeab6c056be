"""Memory: searches by words and by vectors, and the cost of remembering a run."""

import asyncio
import random
import time
from functools import partial
from statistics import median

from bench.host import Host
from bench.http_servers import ENGINES, Engine, new_url
from bench.measures import Figures, Measure, Row
from bench.sizes import Sizes
from bench.timing import milliseconds
from perdure import Agents, Perdure
from perdure.kernel.ids import RandomIds, ulid
from perdure.kernel.vectors import VectorTable, numpy
from perdure.memory.index import MemoryIndexer
from perdure.memory.records import NewMemoryEvent
from perdure.memory.service import Memory
from perdure.runtime.stores import open_store

DIMS = 384
WORDS = 30
VOCABULARY = 20_000
SEARCH_TARGETS: dict[Engine, float] = {"sqlite": 5.0, "postgres": 15.0}
CHUNK = 1000


def measures(sizes: Sizes) -> list[Measure]:
    count = sizes.memory_stored
    made = [
        Measure(
            (
                Row(
                    f"{engine}/memory_search",
                    f"full-text search of {count} events of {WORDS} words: two words of the text, p50",
                    "ms",
                    "lower",
                    target=SEARCH_TARGETS[engine],
                ),
            ),
            partial(_search, engine=engine, count=count, queries=sizes.memory_queries),
        )
        for engine in ENGINES
    ]
    vectors = Row(
        "memory/vectors",
        f"exact search of {sizes.memory_vectors} vectors of {DIMS} numbers, warm, p50",
        "ms",
        "lower",
        target=20.0,
    )
    feed = Row(
        "runs/memory_feed",
        "a run whose question and answer are remembered and indexed, CPU of the process; raw: not remembered",
        "ms",
        "lower",
    )
    return [
        *made,
        Measure((vectors,), partial(_vectors, count=sizes.memory_vectors, queries=sizes.memory_queries)),
        Measure((feed,), partial(_feed, count=sizes.fed_runs)),
    ]


def _texts(count: int) -> list[str]:
    """Build texts with a natural distribution of words: only a few are frequent."""
    chance = random.Random(7)
    words = [f"w{number}" for number in range(VOCABULARY)]
    weights = [1 / (number + 10) for number in range(VOCABULARY)]
    drawn = iter(chance.choices(words, weights, k=count * WORDS))
    return [" ".join(next(drawn) for _ in range(WORDS)) for _ in range(count)]


async def _search(host: Host, engine: Engine, count: int, queries: int) -> list[Figures]:
    texts = _texts(count)
    async with open_store(await new_url(host, engine), watchdog_interval=None) as store:
        memory, ids, now = Memory(store.storage), RandomIds(), int(time.time() * 1000)
        for start in range(0, count, CHUNK):
            some = enumerate(texts[start : start + CHUNK], start)
            await memory.ingest_many(
                [
                    NewMemoryEvent(event_id=ulid(now - count + at, ids), session_id="s", text=text)
                    for at, text in some
                ]
            )
        await MemoryIndexer(store.storage).index(await memory.ns())
        chance = random.Random(8)
        taken: list[float] = []
        for _ in range(queries + 3):
            query = " ".join(chance.sample(chance.choice(texts).split(), 2))
            taken.append(await milliseconds(partial(memory.search, query, mode="text")))
    return [{"ours": median(taken[3:])}]


async def _vectors(host: Host, count: int, queries: int) -> list[Figures]:
    np = numpy()
    made = np.random.default_rng(9).standard_normal((count, DIMS), dtype="float32")
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    table = VectorTable(DIMS)
    table.add((number, made[number].tobytes(), ("event",), number) for number in range(count))
    taken: list[float] = []
    for number in range(queries + 3):
        query = tuple(made[number * 31 % count].tolist())
        begun = time.perf_counter()
        ((_, found), *_) = table.nearest(query, 10)
        taken.append(1000 * (time.perf_counter() - begun))
        assert found == number * 31 % count
    return [{"ours": median(taken[3:])}]


async def _feed(host: Host, count: int) -> list[Figures]:
    async def answer(ctx: object, input: object) -> object:
        return {"answer": f"This is what was asked: {input}"}

    agents = Agents()
    agents.register("answer", answer)
    costs: dict[bool, float] = {}
    for remembered in (False, True):
        async with Perdure(f"sqlite:///{host.new_file()}", agents=agents, memory_feed=remembered) as perdure:
            await perdure.run("answer", "warm")
            before = time.process_time()
            for start in range(0, count, 20):
                await asyncio.gather(*(perdure.run("answer", f"number {start + at}") for at in range(20)))
            while remembered and (await perdure.memory.stats()).indexed < 2 * count:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            costs[remembered] = 1000 * (time.process_time() - before) / count
    return [{"ours": costs[True], "raw": costs[False]}]
