"""Bad input: a clear error, and no change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import (
    EnqueueRolloutRequest,
    LightningStore,
    Rollout,
    RolloutConfig,
    Span,
    errors,
)
from perdure.testing.grids import every

from .support import ATTEMPT_STATUSES, ROLLOUT_STATUSES, Contract, list_attempts, make_span, new_rollout

__all__ = ["TestBadPages", "TestBadRecords", "TestBadReports", "TestBadText", "TestBadValues"]

QUERIES: dict[str, Callable[..., Awaitable[Any]]] = {
    "rollouts": lambda store, rollout_id, **options: store.query_rollouts(**options),
    "attempts": lambda store, rollout_id, **options: store.query_attempts(rollout_id, **options),
    "spans": lambda store, rollout_id, **options: store.query_spans(rollout_id, **options),
    "latest spans": lambda store, rollout_id, **options: store.query_spans(rollout_id, "latest", **options),
    "resources": lambda store, rollout_id, **options: store.query_resources(**options),
    "workers": lambda store, rollout_id, **options: store.query_workers(**options),
}
FILTERED = ["rollouts", "spans", "workers"]
BAD_OPTIONS: list[dict[str, Any]] = [
    {"sort_by": "bogus"},
    {"sort_by": "id; DROP TABLE rollouts"},
    {"sort_by": "start_time DESC, id"},
    {"sort_order": "up"},
    {"sort_order": "DESC"},
    {"limit": -2},
    {"limit": -100},
    {"offset": -1},
    {"limit": "ten"},
    {"limit": 1.5},
    {"offset": None},
]


class Loop(dict[str, Any]):
    """A dictionary that contains itself."""

    def __init__(self) -> None:
        super().__init__(me=self)


UNSERIALISABLE: dict[str, Any] = {
    "object": object(),
    "function": len,
    "nested object": {"a": [1, {"b": object()}]},
    "circle": Loop(),
}
NUL, SURROGATE = "a\x00b", "a\ud800b"


async def totals(store: LightningStore) -> dict[str, Any]:
    """Count everything in the store."""
    return {k: v for k, v in (await store.statistics()).items() if k.startswith("total_")}


class TestBadPages(Contract):
    """Invalid queries."""

    @every("options", BAD_OPTIONS)
    @every("query", QUERIES)
    async def test_is_refused(self, store: LightningStore, query: str, options: dict[str, Any]) -> None:
        started = await new_rollout(store)
        with pytest.raises(errors.InvalidInput):
            await QUERIES[query](store, started.rollout_id, **options)

    @every("logic", ["xor", "AND", "", None])
    @every("query", FILTERED)
    async def test_unknown_filter_logic(self, store: LightningStore, query: str, logic: Any) -> None:
        started = await new_rollout(store)
        with pytest.raises(errors.InvalidInput):
            await QUERIES[query](store, started.rollout_id, filter_logic=logic)

    @every("statuses", [["bogus"], ["queuing", "Failed"], [None], [1]])
    @every("query", ["rollouts", "workers"])
    async def test_unknown_status(self, store: LightningStore, query: str, statuses: list[Any]) -> None:
        with pytest.raises(errors.InvalidInput):
            await QUERIES[query](store, "", status_in=statuses)

    @every("query", QUERIES)
    async def test_huge_numbers_are_answered_or_refused(self, store: LightningStore, query: str) -> None:
        started = await new_rollout(store)
        for options in ({"limit": 2**63}, {"limit": 2**62}, {"offset": 2**62}, {"offset": 2**80}):
            try:
                result = await QUERIES[query](store, started.rollout_id, **options)
            except errors.InvalidInput:
                continue
            assert result.total in (0, 1)


class TestBadReports(Contract):
    """Statuses and ids that do not exist."""

    @every("status", ["queuing", "requeuing", "cancelled", "bogus", "", None, 1])
    async def test_attempt_status(self, store: LightningStore, status: Any) -> None:
        assert status not in ATTEMPT_STATUSES
        started = await new_rollout(store, worker_id="w")
        with pytest.raises(ValueError, match=r".+"):
            await store.update_attempt(started.rollout_id, "latest", status=status, metadata={"k": 1})
        assert await list_attempts(store, started.rollout_id) == [started.attempt]
        assert await store.get_rollout_by_id(started.rollout_id) == started

    @every("status", ["timeout", "unresponsive", "bogus", "", None, 1])
    async def test_rollout_status(self, store: LightningStore, status: Any) -> None:
        assert status not in ROLLOUT_STATUSES
        started = await new_rollout(store)
        with pytest.raises(ValueError, match=r".+"):
            await store.update_rollout(started.rollout_id, status=status, metadata={"k": 1})
        assert await store.get_rollout_by_id(started.rollout_id) == started

    @every(
        "fields",
        [{"mode": "bogus"}, {"config": None}, {"config": {"max_attempts": 0}}, {"metadata": 3}],
    )
    async def test_rollout_fields(self, store: LightningStore, fields: dict[str, Any]) -> None:
        started = await new_rollout(store)
        with pytest.raises(errors.InvalidInput):
            await store.update_rollout(started.rollout_id, **fields)
        assert await store.get_rollout_by_id(started.rollout_id) == started

    @every("fields", [{"last_heartbeat_time": "now"}, {"metadata": 3}, {"worker_id": 3}])
    async def test_attempt_fields(self, store: LightningStore, fields: dict[str, Any]) -> None:
        started = await new_rollout(store)
        with pytest.raises(errors.InvalidInput):
            await store.update_attempt(started.rollout_id, "latest", **fields)
        assert await list_attempts(store, started.rollout_id) == [started.attempt]

    async def test_unknown_ids_say_which(self, store: LightningStore) -> None:
        calls = [
            store.start_attempt("ro-missing"),
            store.update_rollout("ro-missing", metadata={}),
            store.update_attempt("ro-missing", "latest", metadata={}),
        ]
        for call in calls:
            with pytest.raises(errors.NotFound, match="ro-missing"):
                await call

    async def test_worker_stats_must_be_given_or_not(self, store: LightningStore) -> None:
        nothing: Any = None
        with pytest.raises((TypeError, ValueError)):
            await store.update_worker("w", nothing)
        assert await store.get_worker_by_id("w") is None


class TestBadValues(Contract):
    """Values that no store can keep."""

    @every("creator", ["start_rollout", "enqueue_rollout"])
    @every("value", UNSERIALISABLE)
    async def test_unserialisable_input(self, store: LightningStore, creator: str, value: str) -> None:
        with pytest.raises(errors.InvalidInput):
            await getattr(store, creator)(UNSERIALISABLE[value])
        assert (await totals(store))["total_rollouts"] == 0

    async def test_one_bad_item_refuses_the_batch(self, store: LightningStore) -> None:
        requests = [EnqueueRolloutRequest(input=value) for value in ("fine", object())]
        with pytest.raises(errors.InvalidInput):
            await store.enqueue_many_rollouts(requests)
        assert (await totals(store))["total_rollouts"] == 0
        assert await store.dequeue_rollout() is None

    async def test_a_bad_neighbour_does_not_harm_the_others(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        await store.add_span(make_span(started))
        with pytest.raises(errors.InvalidInput):
            await store.update_rollout(started.rollout_id, input=object())
        with pytest.raises(errors.InvalidInput):
            await store.update_attempt(started.rollout_id, "latest", metadata={"o": object()})
        with pytest.raises(errors.InvalidInput):
            await store.update_worker("w", {"o": object()})
        with pytest.raises(errors.InvalidInput):
            await store.add_span(make_span(started, extra=object()))
        assert (await totals(store))["total_spans"] == 1
        assert (await store.get_rollout_by_id(started.rollout_id) or started).input == started.input

    @every("creator", ["start_rollout", "enqueue_rollout"])
    @every("fields", [{"mode": "bogus"}, {"config": 3}, {"metadata": [1]}])
    async def test_bad_fields(self, store: LightningStore, creator: str, fields: dict[str, Any]) -> None:
        with pytest.raises(errors.InvalidInput):
            await getattr(store, creator)("task", **fields)
        assert (await totals(store))["total_rollouts"] == 0

    @every(
        "fields",
        [
            {"priority": "high"},
            {"priority": 2**70},
            {"not_before": "soon"},
            {"not_before": float("nan")},
            {"queue": 3},
        ],
    )
    async def test_bad_extras(self, store: LightningStore, fields: dict[str, Any]) -> None:
        with pytest.raises(errors.InvalidInput):
            await store.enqueue_rollout("task", **fields)
        assert (await totals(store))["total_rollouts"] == 0

    @every("resources", [{"x": 42}, {"x": None}, {"x": {"resource_type": "bogus"}}, 3])
    async def test_bad_resources(self, store: LightningStore, resources: Any) -> None:
        with pytest.raises(errors.InvalidInput):
            await store.add_resources(resources)
        with pytest.raises(errors.InvalidInput):
            await store.update_resources("mine", resources)
        assert await store.get_latest_resources() is None


class TestBadText(Contract):
    """NUL characters and lone surrogates, which not every engine can keep in a column."""

    async def test_in_user_json_nul_stays_and_a_surrogate_is_replaced(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout({NUL: [NUL], "s": SURROGATE}, metadata={"m": NUL})
        stored = await store.get_rollout_by_id(queued.rollout_id)
        assert stored is not None
        assert stored.input == {NUL: [NUL], "s": "a\ufffdb"}
        assert stored.metadata == {"m": NUL}

    async def test_in_an_id_asked_for(self, store: LightningStore) -> None:
        for text in (NUL, SURROGATE, "", "'; DROP TABLE rollouts; --", "x" * 10_000, "Ünïcødé 👋"):
            for call in (store.get_rollout_by_id, store.get_worker_by_id, store.get_resources_by_id):
                try:
                    assert await call(text) is None
                except errors.InvalidInput:
                    continue

    async def test_in_a_filter(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        for text in (NUL, SURROGATE):
            try:
                assert len(await store.query_spans(started.rollout_id, name_contains=text)) == 0
            except errors.InvalidInput:
                continue

    @every("text", [NUL, SURROGATE])
    async def test_in_a_name_it_is_refused(self, store: LightningStore, text: str) -> None:
        started = await new_rollout(store)
        before = await totals(store)
        calls = [
            store.update_worker(text),
            store.start_rollout("task", worker_id=text),
            store.enqueue_rollout("task", queue=text),
            store.enqueue_rollout("task", resources_id=text),
            store.enqueue_rollout("task", idempotency_key=text),
            store.update_attempt(started.rollout_id, "latest", worker_id=text),
            store.update_resources(text, {}),
        ]
        for call in calls:
            with pytest.raises(errors.InvalidInput):
                await call
        assert await totals(store) == before


class TestBadRecords(Contract):
    """Records refuse the same values as the contract's."""

    @every(
        "fields",
        [
            {"max_attempts": 0},
            {"max_attempts": -1},
            {"max_attempts": "many"},
            {"retry_condition": ["bogus"]},
            {"retry_condition": ["cancelled"]},
            {"timeout_seconds": "soon"},
        ],
    )
    async def test_config(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r".+"):
            RolloutConfig(**fields)

    @every("field", ["parent_id", "start_time", "end_time", "context", "parent", "name", "status"])
    async def test_span_without_a_required_key(self, store: LightningStore, field: str) -> None:
        values = make_span(await new_rollout(store)).model_dump()
        del values[field]
        with pytest.raises(ValueError, match=field):
            Span.model_validate(values)

    async def test_rollout_with_a_status_that_does_not_exist(self, store: LightningStore) -> None:
        values = {**(await store.enqueue_rollout("task")).model_dump(), "status": "bogus"}
        with pytest.raises(ValueError, match="status"):
            Rollout.model_validate(values)
