"""Opening stores, and what only the store in memory does: evicting spans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure import InMemoryLightningStore, LightningStore, Span, SqliteLightningStore, errors, open_store


async def traced(store: LightningStore, size: int) -> str:
    """A rollout with one span of about that many bytes."""
    rollout = await store.start_rollout({"size": size})
    await store.add_span(
        Span.from_attributes(
            attributes={"text": "x" * size},
            rollout_id=rollout.rollout_id,
            attempt_id=rollout.attempt.attempt_id,
            sequence_id=1,
        )
    )
    return rollout.rollout_id


async def test_the_oldest_spans_go_when_there_are_too_many() -> None:
    async with InMemoryLightningStore(eviction_memory_threshold=10_000, safe_memory_threshold=5_000) as store:
        rollouts = [await traced(store, 2_000) for _ in range(6)]
        with pytest.raises(errors.SpansEvicted, match=rollouts[0]):
            await store.query_spans(rollouts[0])
        assert len(await store.query_spans(rollouts[-1])) == 1
        statistics = await store.statistics()
        assert statistics["total_span_bytes"] <= 10_000
        assert statistics["eviction_threshold_bytes"] == 10_000
        assert statistics["safe_threshold_bytes"] == 5_000


async def test_an_estimator_says_what_a_span_weighs() -> None:
    store = InMemoryLightningStore(
        eviction_memory_threshold=100, safe_memory_threshold=0, span_size_estimator=lambda _: 60
    )
    async with store:
        first, second = await traced(store, 1), await traced(store, 1)
        for rollout_id in (first, second):
            with pytest.raises(RuntimeError):
                await store.query_spans(rollout_id)


async def test_a_ratio_is_a_share_of_the_memory() -> None:
    async with InMemoryLightningStore(eviction_memory_threshold=0.5, safe_memory_threshold=0.0) as store:
        statistics = await store.statistics()
        assert statistics["eviction_threshold_bytes"] == statistics["memory_capacity_bytes"] // 2
        assert statistics["safe_threshold_bytes"] == 0


@pytest.mark.parametrize(
    "options",
    [
        {"eviction_memory_threshold": 0},
        {"eviction_memory_threshold": 1.5},
        {"eviction_memory_threshold": "much"},
        {"eviction_memory_threshold": 10, "safe_memory_threshold": 10},
        {"safe_memory_threshold": -1},
    ],
)
def test_thresholds_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="threshold"):
        InMemoryLightningStore(**options)


async def test_a_url_names_the_store(tmp_path: Path) -> None:
    for url in (str(tmp_path / "plain.db"), f"sqlite:///{tmp_path / 'url.db'}"):
        async with open_store(url) as store:
            assert isinstance(store, SqliteLightningStore)
    async with open_store("memory:") as memory:
        assert isinstance(memory, InMemoryLightningStore)


@pytest.mark.parametrize("url", ["mysql://host/db", "sqlite://", "sqlite://[x"])
def test_a_url_that_names_no_store(url: str) -> None:
    with pytest.raises(errors.InvalidInput):
        open_store(url)


async def test_without_a_url_the_settings_name_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERDURE_NAMESPACE", "team-a")
    (tmp_path / "perdure.toml").write_text('[perdure]\ndatabase_url = "sqlite:///mine.db"\n')
    async with open_store() as store:
        assert store.namespace == "team-a"
        await store.enqueue_rollout({"task": 1})
    assert (tmp_path / "mine.db").exists()
