"""The soak finds what grows; its load is answered by a real server."""

import asyncio
import math
from pathlib import Path
from random import Random

import pytest
from tests.chaos.scenario import Run
from tests.chaos.soak import SAMPLE_SECONDS, Sample, Soak, check_samples, draw_curve, take_sample
from tests.chaos.soak_load import SoakLoad

MINUTES = 90
PATIENCE = 120.0


def make_samples(rate_mb: float = 0.0, **rates: float) -> list[Sample]:
    """Samples of a soak whose caches fill for 30 minutes, and which then grows by these figures an hour."""
    random, samples = Random(7), []
    for number in range(1, round(MINUTES * 60 / SAMPLE_SECONDS) + 1):
        hours = number * SAMPLE_SECONDS / 3600
        memory = 130 + 40 * (1 - math.exp(-8 * hours)) + rate_mb * hours + random.uniform(-0.5, 0.5)
        grown = {name: round(rate * hours) for name, rate in rates.items()}
        samples.append(
            Sample(
                seconds=number * SAMPLE_SECONDS,
                rss_mb=memory,
                pss_mb=memory,
                anonymous_mb=memory,
                descriptors=200 + grown.get("descriptors", 0),
                threads=14 + grown.get("threads", 0),
                wal_mb=16.0 + grown.get("wal_mb", 0),
                database_mb=100 * hours,
                cpu_seconds=hours,
                calls=number,
                failed=0,
            )
        )
    return samples


def test_a_server_that_levels_off_passes() -> None:
    assert check_samples(make_samples(), MINUTES) == []
    assert check_samples(make_samples(rate_mb=2.0), MINUTES) == []


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (make_samples(rate_mb=8.0), "resident memory"),
        (make_samples(descriptors=20), "descriptors"),
        (make_samples(threads=6), "threads"),
        (make_samples(wal_mb=20), "write-ahead log"),
        (make_samples()[:60], "too few"),
    ],
)
def test_what_grows_is_found(samples: list[Sample], words: str) -> None:
    (violation,) = check_samples(samples, MINUTES)
    assert words in violation


def test_the_curve_shows_every_part_of_the_soak() -> None:
    lines = draw_curve(make_samples(rate_mb=8.0)).splitlines()
    assert 30 <= len(lines) <= 32
    assert lines[-1].split()[0] == "90.0"
    assert lines[-1].count("#") > lines[len(lines) // 2].count("#") > lines[1].count("#")


def test_every_activity_of_the_load_succeeds_on_a_server(tmp_path: Path) -> None:
    async def check(soak: Soak) -> None:
        load, stop = SoakLoad(soak.server.url, seed=3, rate=4.0), asyncio.Event()
        try:
            async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
                group.create_task(load.run(stop))
                while not (load.failed or load.activities <= set(load.done)):  # noqa: ASYNC110 - by two tasks
                    await asyncio.sleep(0.05)
                stop.set()
            assert not load.failed, load.errors
            sample = take_sample(soak.server.pid, soak.database, 1.0, load)
            assert sample.calls >= len(load.activities)
            assert sample.rss_mb > sample.anonymous_mb > 10
            assert sample.descriptors > 10
            assert sample.threads > 1
            assert sample.wal_mb > 0
        finally:
            await load.close()

    soak = Soak(Run(1, 3, tmp_path))
    with soak.server:
        asyncio.run(check(soak))
