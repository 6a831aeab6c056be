"""Behaviour of stores and their records: snapshots, copies, counts, capabilities."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from perdure import (
    UNSET,
    AttemptedRollout,
    LightningStore,
    PaginatedResult,
    PromptTemplate,
    Rollout,
    is_finished,
    is_queuing,
    is_running,
)
from perdure.testing.grids import every

from .support import (
    QUEUED,
    ROLLOUT_STATUSES,
    TERMINAL,
    Contract,
    RolloutStatus,
    finish,
    get_rollout,
    get_worker,
    latest,
    make_span,
    new_rollout,
)

__all__ = ["TestPages", "TestRecords", "TestStore"]


async def one_of_each(store: LightningStore) -> dict[str, Any]:
    """Return a record of every kind from the store."""
    started = await new_rollout(store, worker_id="w")
    await store.add_span(make_span(started, attributes={"k": [1, 2]}))
    resources = await store.add_resources({"p": PromptTemplate(template="x", engine="poml")})
    return {
        "rollout": await store.enqueue_rollout({"a": [1]}, metadata={"k": {"deep": 1}}),
        "attempted rollout": await get_rollout(store, started.rollout_id),
        "attempt": await latest(store, started.rollout_id),
        "worker": await get_worker(store, "w"),
        "resources": resources,
        "span": (await store.query_spans(started.rollout_id))[0],
    }


KINDS = ["rollout", "attempted rollout", "attempt", "worker", "resources", "span"]


class TestRecords(Contract):
    """Records as users of the contract know them."""

    @every("kind", KINDS)
    async def test_dump_and_validate_are_inverse(self, store: LightningStore, kind: str) -> None:
        record = (await one_of_each(store))[kind]
        dumped = record.model_dump()
        assert isinstance(dumped, dict)
        assert type(record).model_validate(dumped) == record

    @every("kind", KINDS)
    async def test_json_and_back(self, store: LightningStore, kind: str) -> None:
        record = (await one_of_each(store))[kind]
        assert type(record).model_validate_json(record.model_dump_json()) == record

    @every("kind", KINDS)
    async def test_copy_is_equal_and_another(self, store: LightningStore, kind: str) -> None:
        record = (await one_of_each(store))[kind]
        copied = record.model_copy(deep=True)
        assert copied == record
        assert copied is not record

    async def test_copy_takes_an_update(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        copied = started.model_copy(update={"status": "failed"})
        assert (copied.status, started.status) == ("failed", "preparing")

    async def test_attempted_rollout_is_a_rollout(self, store: LightningStore) -> None:
        started, queued = await new_rollout(store), await store.enqueue_rollout("task")
        assert isinstance(started, Rollout)
        assert set(started.model_dump()) == {*queued.model_dump(), "attempt"}

    async def test_attempt_must_belong_to_its_rollout(self, store: LightningStore) -> None:
        one, two = await new_rollout(store), await new_rollout(store)
        values = {**one.model_dump(), "attempt": two.attempt.model_dump()}
        with pytest.raises(ValueError, match="rollout"):
            AttemptedRollout.model_validate(values)

    async def test_changing_an_answer_changes_nothing_stored(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout({"list": [1]}, metadata={"k": 1})
        before = await get_rollout(store, queued.rollout_id)
        for answer in (
            queued,
            await get_rollout(store, queued.rollout_id),
            (await store.query_rollouts())[0],
        ):
            answer.input["list"].append(2)
            assert answer.metadata is not None
            answer.metadata["k"] = 2
            answer.config.retry_condition.append("failed")
        assert await get_rollout(store, queued.rollout_id) == before

    async def test_changing_what_was_given_changes_nothing_stored(self, store: LightningStore) -> None:
        given: dict[str, Any] = {"list": [1]}
        queued = await store.enqueue_rollout(given, metadata=given)
        given["list"].append(2)
        stored = await get_rollout(store, queued.rollout_id)
        assert (stored.input, stored.metadata) == ({"list": [1]}, {"list": [1]})

    async def test_changing_a_span_changes_nothing_stored(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        span = make_span(started, attributes={"k": 1})
        await store.add_span(span)
        span.attributes["k"] = 2
        assert (await store.query_spans(started.rollout_id))[0].attributes == {"k": 1}

    @every("status", ROLLOUT_STATUSES)
    async def test_predicates(self, store: LightningStore, status: RolloutStatus) -> None:
        started = await new_rollout(store)
        rollout = await store.update_rollout(started.rollout_id, status=status)
        assert is_queuing(rollout) == (status in QUEUED)
        assert is_finished(rollout) == (status in TERMINAL)
        assert is_running(rollout) == (status in ("preparing", "running"))

    async def test_unset_is_one_of_its_kind(self) -> None:
        assert copy.copy(UNSET) is copy.deepcopy(UNSET) is UNSET


class TestPages(Contract):
    """The result of a query is a sequence with the parameters of its page."""

    async def page(self, store: LightningStore) -> PaginatedResult[Any]:
        for i in range(4):
            await store.enqueue_rollout(i)
        return await store.query_rollouts(limit=3, offset=1)

    async def test_is_a_sequence(self, store: LightningStore) -> None:
        page = await self.page(store)
        assert len(page) == 3
        assert [rollout.input for rollout in page] == [1, 2, 3]
        assert (page[0].input, page[-1].input) == (1, 3)
        assert [rollout.input for rollout in page[1:]] == [2, 3]
        assert page[1] in page
        with pytest.raises(IndexError):
            page[3]

    async def test_knows_what_was_asked(self, store: LightningStore) -> None:
        page = await self.page(store)
        assert (page.limit, page.offset, page.total) == (3, 1, 4)
        assert list(page.items) == list(page)

    async def test_is_no_list(self, store: LightningStore) -> None:
        empty: Any = await store.query_rollouts()
        assert len(empty) == 0
        assert empty != []


class TestStore(Contract):
    """A store's description of itself."""

    async def test_is_a_lightning_store(self, store: LightningStore) -> None:
        assert isinstance(store, LightningStore)

    async def test_capabilities_are_flags(self, store: LightningStore) -> None:
        capabilities: Any = store.capabilities
        assert set(capabilities) <= {"thread_safe", "async_safe", "zero_copy", "otlp_traces"}
        assert all(isinstance(value, bool) for value in capabilities.values())
        assert capabilities["async_safe"] is True

    async def test_endpoint_only_with_the_capability(self, store: LightningStore) -> None:
        if store.capabilities.get("otlp_traces"):
            assert store.otlp_traces_endpoint().endswith("/v1/traces")
        else:
            with pytest.raises(NotImplementedError):
                store.otlp_traces_endpoint()

    async def test_statistics_name_the_class(self, store: LightningStore) -> None:
        inner = getattr(store, "store", store)
        assert (await store.statistics())["name"] in (type(store).__name__, type(inner).__name__)

    async def test_statistics_of_an_empty_store(self, store: LightningStore) -> None:
        statistics = await store.statistics()
        assert {
            k: v for k, v in statistics.items() if k.startswith("total_") and k != "total_span_bytes"
        } == {
            "total_rollouts": 0,
            "total_attempts": 0,
            "total_spans": 0,
            "total_resources": 0,
            "total_workers": 0,
        }
        assert statistics["uptime"] >= 0

    async def test_statistics_count(self, store: LightningStore) -> None:
        await one_of_each(store)
        started = await new_rollout(store)
        await store.start_attempt(started.rollout_id)
        await store.add_many_spans([make_span(started), make_span(started)])
        statistics: Any = await store.statistics()
        counted = {
            name: statistics[f"total_{name}"] for name in ("rollouts", "attempts", "spans", "resources")
        }
        assert counted == {"rollouts": 3, "attempts": 3, "spans": 3, "resources": 1}
        assert statistics["total_workers"] == 1

    async def test_many_calls_of_every_kind_at_once(self, store: LightningStore) -> None:
        started = [await new_rollout(store) for _ in range(5)]
        calls: list[Any] = []
        for one in started:
            calls += [
                store.add_span(make_span(one)),
                store.query_rollouts(),
                store.query_spans(one.rollout_id),
                store.update_worker("w", {"n": 1}),
                store.get_latest_resources(),
                store.enqueue_rollout("more"),
                store.dequeue_rollout("w"),
                finish(store, one),
            ]
        await asyncio.gather(*calls)
        for one in started:
            assert (await get_rollout(store, one.rollout_id)).status == "succeeded"
