"""Sums of spans at the time of their storage: tokens, rewards, and the list of traces."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData
from tests.rollouts.attributes import CHAT, REWARD, put

from perdure import AttemptedRollout, Perdure, Span, open_store
from perdure.kernel.config import load_settings
from perdure.kernel.errors import InvalidInput, NotFound
from perdure.runtime.services import Services
from perdure.spans import otlp
from perdure.spans.records import OtelResource, TraceStatus
from perdure.statistics.model import UsageHistory
from perdure.statistics.operations import USAGE_ROWS
from perdure.traces import operations, service
from perdure.traces.service import WINDOW

FAILED = TraceStatus(status_code="ERROR")


@pytest.fixture
async def perdure(shared_engine_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Perdure]:
    namespace = f"traces-{random.randrange(10**12)}"
    async with Perdure(shared_engine_url, namespace=namespace) as opened:
        yield opened


async def started(perdure: Perdure) -> AttemptedRollout:
    return await perdure.store.start_rollout({"a": 1})


def span(rollout: AttemptedRollout, number: int, name: str = "chat", **more: Any) -> Span:
    fields: dict[str, Any] = {
        "rollout_id": rollout.rollout_id,
        "attempt_id": rollout.attempt.attempt_id,
        "sequence_id": number,
        "trace_id": rollout.rollout_id.removeprefix("ro-").ljust(32, "0"),
        "span_id": f"{number:016x}",
        "parent_id": None,
        "name": name,
        "status": TraceStatus(status_code="OK"),
        "attributes": {},
        "events": [],
        "links": [],
        "start_time": 1_700_000_000.0 + number,
        "end_time": 1_700_000_000.5 + number,
        "context": None,
        "parent": None,
        "resource": OtelResource(attributes={"service.name": "shop"}, schema_url=""),
    }
    return Span(**{**fields, **more})


async def test_cost_of_a_rollout_and_a_trace_and_what_was_used_by_the_hour(perdure: Perdure) -> None:
    rollout = await started(perdure)
    now = time.time()
    model = {**CHAT, "gen_ai.request.model": "gpt-4o", "user.id": "anna"}
    spans = [
        span(rollout, 1, attributes=model, start_time=now, end_time=now + 2),
        span(rollout, 2, attributes={**model, "gen_ai.agent.name": "trivia"}),
        span(rollout, 3, "tool", attributes={"gen_ai.operation.name": "execute_tool"}, status=FAILED),
        span(rollout, 4, attributes={**CHAT, "gen_ai.request.model": "unpriced"}),
    ]
    await perdure.store.add_many_spans(spans)
    await perdure.store.add_many_spans(spans)
    (found,) = await perdure.services.rollouts.figures(rollout_id=[rollout.rollout_id])
    cost = 2 * (10 * 2.5 + 4 * 10) / 1e6
    assert found.input_tokens == 30
    assert found.cost == pytest.approx(cost)
    assert (await perdure.services.traces.get(spans[0].trace_id)).cost == pytest.approx(cost)
    # Other tests may share the database, and their processes add usage too.
    await asyncio.gather(*(perdure.services.recorder.add_usage() for _ in range(3)))
    diagnostics = perdure.services.diagnostics
    models = _by_name(await diagnostics.usage())
    assert models == {"gpt-4o": (2, 0, 20, pytest.approx(cost)), "unpriced": (1, 0, 10, None)}
    assert _by_name(await diagnostics.usage(by="user"))["anna"][0] == 2
    assert _by_name(await diagnostics.usage(by="agent"))["trivia"][0] == 1
    kinds = _by_name(await diagnostics.usage(by="kind"))
    assert kinds["tool"] == (1, 1, 0, None)
    assert kinds["llm"][0] == 3
    assert (await diagnostics.usage(since=now - 9 * 86_400, until=now - 8 * 86_400)).items == []
    with pytest.raises(InvalidInput):
        await diagnostics.usage(by="weather")  # type: ignore[arg-type]


def _by_name(found: UsageHistory) -> dict[str, tuple[int, int, int, float | None]]:
    assert len({point.time for point in found.items}) <= 2, "an hour, and the next if it began meanwhile"
    sums: dict[str, list[Any]] = {}
    for point in found.items:
        sums.setdefault(point.name, []).append(point)
    return {
        name: (
            sum(point.steps for point in points),
            sum(point.errors for point in points),
            sum(point.input_tokens for point in points),
            sum(point.cost or 0 for point in points) or None,
        )
        for name, points in sums.items()
    }


async def test_tokens_and_the_last_reward_of_a_rollout(perdure: Perdure) -> None:
    rollout, other = await started(perdure), await started(perdure)
    spans = [
        span(rollout, 1, attributes=CHAT),
        span(rollout, 2, "agentlightning.annotation", attributes=REWARD),
        span(rollout, 3, attributes={"llm.token_count.prompt": 5}),
        span(rollout, 4, "agentlightning.annotation", attributes={"agentlightning.reward.0.value": 0.75}),
        span(other, 1, "plain"),
    ]
    await perdure.store.add_many_spans(spans)
    (found,) = await perdure.services.rollouts.figures(rollout_id=[rollout.rollout_id, other.rollout_id])
    assert (found.rollout_id, found.input_tokens, found.output_tokens) == (rollout.rollout_id, 15, 4)
    assert found.reward == 0.75


async def test_repeated_late_and_disordered_spans_count_once(perdure: Perdure) -> None:
    rollout = await started(perdure)
    spans = [span(rollout, number, attributes=CHAT) for number in range(1, 21)]
    rewards = [
        span(rollout, 20 + n, "agentlightning.annotation", attributes={"agentlightning.reward.0.value": n})
        for n in (1, 2, 3)
    ]
    everything = [*spans, *rewards]
    shuffled = random.Random(7)

    async def send() -> None:
        for _ in range(6):
            batch = shuffled.sample(everything, 8)
            await perdure.store.add_many_spans([*batch, *batch[:2]])

    await asyncio.gather(send(), send(), send())
    await perdure.store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
    await perdure.store.add_many_spans(list(reversed(everything)))
    (found,) = await perdure.services.rollouts.figures(rollout_id=[rollout.rollout_id])
    assert (found.input_tokens, found.output_tokens, found.reward) == (200, 80, 3.0)
    trace = await perdure.services.traces.get(spans[0].trace_id)
    assert (trace.spans, trace.input_tokens, trace.reward) == (23, 200, 3.0)


async def test_batches_of_the_same_traces_at_once_count_all_their_spans(perdure: Perdure) -> None:
    rollouts = [await started(perdure) for _ in range(4)]
    traces = [f"{n:032x}" for n in range(1, 9)]

    async def send(rollout: AttemptedRollout, order: Sequence[str]) -> None:
        # Calls to the same service would be merged into one transaction.
        alone = perdure.services.rollouts.in_namespace(perdure.store.namespace)
        for start in range(0, 40, 8):
            spans = [
                span(rollout, start + n, trace_id=each, attributes=CHAT) for n, each in enumerate(order, 1)
            ]
            await alone.store_spans(spans)

    await asyncio.gather(*(send(each, traces[n:] + traces[:n]) for n, each in enumerate(rollouts)))
    for trace_id in traces:
        trace = await perdure.services.traces.get(trace_id)
        assert (trace.spans, trace.input_tokens, trace.output_tokens) == (20, 200, 80)
    found = await perdure.services.rollouts.figures(rollout_id=[each.rollout_id for each in rollouts])
    assert [each.input_tokens for each in found] == [400] * 4


async def test_spans_that_are_not_stored_count_nothing(perdure: Perdure) -> None:
    rollout = await started(perdure)
    stranger = span(rollout, 2, attempt_id="at-elsewhere", attributes=CHAT)
    with pytest.raises(NotFound):
        await perdure.store.add_many_spans([span(rollout, 1, attributes=CHAT), stranger])
    assert await perdure.services.rollouts.figures(rollout_id=[rollout.rollout_id]) == []
    with pytest.raises(NotFound):
        await perdure.services.traces.get(stranger.trace_id)


async def test_spans_of_otlp_have_figures_too(perdure: Perdure) -> None:
    rollout = await started(perdure)
    resource = ResourceSpans()
    for key, value in (
        ("service.name", "till"),
        ("agentlightning.rollout_id", rollout.rollout_id),
        ("agentlightning.attempt_id", rollout.attempt.attempt_id),
    ):
        resource.resource.attributes.add(key=key).value.string_value = value
    made = resource.scope_spans.add().spans.add(
        name="chat", trace_id=b"\x01" * 16, span_id=b"\x02" * 8, start_time_unix_nano=10**18
    )
    made.attributes.add(key="gen_ai.usage.input_tokens").value.int_value = 6
    received = otlp.receive(otlp.parse(TracesData(resource_spans=[resource]).SerializeToString()))
    await perdure.services.rollouts.store_new_spans(received.spans, received.parts)
    (found,) = await perdure.services.rollouts.figures(rollout_id=[rollout.rollout_id])
    assert found.input_tokens == 6
    trace = await perdure.services.traces.get("01" * 16)
    assert (trace.name, trace.service, trace.start_time) == ("chat", "till", 1e9)


async def test_a_batch_of_several_traces_models_and_hours_adds_up(perdure: Perdure) -> None:
    rollout = await started(perdure)
    spans = [
        span(
            rollout,
            number,
            trace_id=f"{number % 2 + 1:032x}",
            attributes={**CHAT, "gen_ai.request.model": ("gpt-4o", "gpt-4o-mini")[number % 3 % 2]},
            start_time=time.time() - 3600 * (number % 2),
        )
        for number in range(1, 13)
    ]
    await perdure.store.add_many_spans(spans)
    (found,) = await perdure.services.rollouts.figures(rollout_id=[rollout.rollout_id])
    assert (found.input_tokens, found.output_tokens) == (120, 48)
    traces = [await perdure.services.traces.get(f"{number:032x}") for number in (1, 2)]
    assert [(each.input_tokens, each.output_tokens) for each in traces] == [(60, 24), (60, 24)]
    assert sum(each.cost or 0 for each in traces) == pytest.approx(found.cost)
    await perdure.services.recorder.add_usage()
    used = await perdure.services.diagnostics.usage()
    assert sum(point.input_tokens for point in used.items) == 120
    assert sum(point.cost or 0 for point in used.items) == pytest.approx(found.cost)
    assert len({point.time for point in used.items}) == 2


async def test_spans_of_unbelievable_times_count_as_of_now_in_any_order(perdure: Perdure) -> None:
    rollout = await started(perdure)
    now, day = time.time(), 24 * 3600
    ago = [40 * day, 40 * day, -2 * day, -2 * day, 3 * 3600, 50 * day, 3 * 3600, 0]
    await perdure.store.add_many_spans(
        [
            span(rollout, number, attributes=CHAT, start_time=now - seconds)
            for number, seconds in enumerate(ago, 1)
        ]
    )
    await perdure.services.recorder.add_usage()
    used = await perdure.services.diagnostics.usage()
    then = [point.input_tokens for point in used.items if point.time < now - 2 * 3600]
    assert (sum(then), sum(point.input_tokens for point in used.items)) == (20, 80)


async def test_more_usage_than_one_transaction_takes_is_added_at_once(perdure: Perdure) -> None:
    rollout = await started(perdure)
    users = USAGE_ROWS + 1
    await perdure.store.add_many_spans(
        [
            span(rollout, number, attributes={**CHAT, "user.id": f"u{number}"}, start_time=time.time())
            for number in range(1, users + 1)
        ]
    )
    await perdure.services.recorder.add_usage()
    used = await perdure.services.diagnostics.usage()
    assert sum(point.input_tokens for point in used.items) == 10 * users


async def test_the_root_names_a_trace_however_late_it_comes(perdure: Perdure) -> None:
    rollout = await started(perdure)
    below = span(rollout, 2, "below", parent_id=f"{1:016x}", status=TraceStatus(status_code="ERROR"))
    root = span(
        rollout, 3, "root", resource=OtelResource(attributes={"service.name": "front"}, schema_url="")
    )
    root.end_time = 1_700_000_100.0
    for batch in ([below], [root], [span(rollout, 1, "earlier, below", parent_id=root.span_id)]):
        await perdure.store.add_many_spans(batch)
    trace = await perdure.services.traces.get(root.trace_id)
    assert (trace.name, trace.service, trace.rollout_id) == ("root", "front", rollout.rollout_id)
    assert (trace.spans, trace.errors) == (3, 1)
    assert (trace.start_time, trace.end_time) == (1_700_000_001.0, 1_700_000_100.0)


async def many(perdure: Perdure, count: int) -> list[str]:
    """Store traces of one span each, the newest last; every third has failed, every second is of `till`."""
    rollout = await started(perdure)
    spans = []
    for number in range(1, count + 1):
        services = OtelResource(
            attributes={"service.name": "till" if number % 2 == 0 else "shop"}, schema_url=""
        )
        spans.append(
            span(
                rollout,
                number,
                "even" if number % 2 == 0 else "odd",
                trace_id=f"{number:032x}",
                status=TraceStatus(status_code="ERROR" if number % 3 == 0 else "OK"),
                attributes={"order": number, "big": number > 5},
                resource=services,
            )
        )
    await perdure.store.add_many_spans(spans)
    return [each.trace_id for each in spans]


async def pages(perdure: Perdure, **wanted: Any) -> list[list[str]]:
    found, cursor = [], None
    while True:
        page = await perdure.services.traces.list(cursor=cursor, **wanted)
        found.append([trace.trace_id for trace in page.items])
        cursor = page.next
        if cursor is None:
            return found


async def test_traces_are_listed_by_pages_and_filters(perdure: Perdure) -> None:
    ids = await many(perdure, 12)
    newest = list(reversed(ids))

    def numbers(found: Sequence[Sequence[str]]) -> list[int]:
        return [int(each, 16) for page in found for each in page]

    assert await pages(perdure, limit=5) == [newest[:5], newest[5:10], newest[10:]]
    assert numbers(await pages(perdure, service="till", limit=4)) == [12, 10, 8, 6, 4, 2]
    assert numbers(await pages(perdure, error=True)) == [12, 9, 6, 3]
    assert numbers(await pages(perdure, name="odd", error=True)) == [9, 3]
    assert numbers(await pages(perdure, name="odd", service="till")) == []
    assert numbers(await pages(perdure, error=True, service="till", limit=1)) == [12, 6]
    assert numbers(await pages(perdure, name_contains="VE", limit=2)) == [12, 10, 8, 6, 4, 2]
    assert numbers(await pages(perdure, name_contains="d", error=True)) == [9, 3]
    assert numbers(await pages(perdure, name_contains="e_en")) == []
    base = 1_700_000_000.0
    assert numbers(await pages(perdure, since=base + 4, until=base + 8)) == [7, 6, 5, 4]
    assert numbers(await pages(perdure, name="even", since=base + 9)) == [12, 10]
    assert numbers(await pages(perdure, attribute=["order=7"], limit=5)) == [7]
    assert numbers(await pages(perdure, attribute=["big=true", "order=8"], service="till")) == [8]
    searched = await perdure.services.traces.list(attribute=["order=1"], limit=5)
    assert (searched.items, searched.searched, searched.next is None) == ([], 5, False)
    assert (await perdure.services.traces.list(limit=0)).items == []


async def test_bad_filters_are_refused(perdure: Perdure) -> None:
    traces = perdure.services.traces
    for wanted in (
        {"attribute": ["no value"]},
        {"attribute": ["=x"]},
        {"attribute": ["a=b"] * 11},
        {"cursor": "elsewhere"},
        {"cursor": "9" * 30 + "-a"},
        {"limit": 1001},
        {"since": float("nan")},
        {"name": "\0"},
        {"name_contains": "\0"},
        {"name": "a", "name_contains": "a"},
    ):
        with pytest.raises(InvalidInput):
            await traces.list(**wanted)
    unknown = "ff" * 16
    for missing in (
        traces.get(unknown),
        traces.spans(unknown),
        traces.outline(unknown),
        traces.steps(unknown),
    ):
        with pytest.raises(NotFound, match="Trace ff"):
            await missing
    assert WINDOW >= 1000


@pytest.mark.parametrize("names", [3, 40])
async def test_a_part_of_a_name_finds_each_trace_once_however_many_names(
    perdure: Perdure, monkeypatch: pytest.MonkeyPatch, names: int
) -> None:
    """Search by the index of names, and by the names of the next traces if there are many names."""
    monkeypatch.setattr(operations, "MOST_LOOKED_THROUGH", 2)
    rollout = await started(perdure)
    spans = [
        span(
            rollout,
            trace * 100 + number,
            f"call {number}" if trace % 2 else "other",
            trace_id=f"{trace:032x}",
        )
        for trace in range(1, 7)
        for number in range(names)
    ]
    await perdure.store.add_many_spans(spans)
    for limit in (1, 2, 100):
        found = await pages(perdure, name_contains="Call", limit=limit)
        assert [int(each, 16) for page in found for each in page] == [5, 3, 1], limit


async def test_pages_by_a_name_and_errors_leave_no_trace_out(perdure: Perdure) -> None:
    """Check that a list by name is ordered by the starts of spans with the name, not of the traces."""
    rollout = await started(perdure)
    spans = [
        span(rollout, number, name, trace_id=trace * 32, status=FAILED)
        for number, name, trace in ((1, "first", "a"), (3, "first", "b"), (4, "tool", "b"), (5, "tool", "a"))
    ]
    await perdure.store.add_many_spans(spans)
    for wanted in ({"name": "tool"}, {"name_contains": "tool"}):
        found = await pages(perdure, error=True, limit=1, **wanted)
        assert [each[:1] for page in found for each in page] == ["a", "b"], wanted


async def test_the_spans_of_a_trace_come_from_all_its_rollouts(perdure: Perdure) -> None:
    one, two = await started(perdure), await started(perdure)
    trace_id = "ee" * 16
    await perdure.store.add_many_spans(
        [span(two, 2, "later", trace_id=trace_id), span(one, 1, "first", trace_id=trace_id)]
    )
    page = await perdure.services.traces.spans(trace_id)
    assert ([each.name for each in page], page.total) == (["first", "later"], 2)
    (found,) = await perdure.services.traces.spans(trace_id, span_id=f"{2:016x}")
    assert (found.name, found.rollout_id) == ("later", two.rollout_id)
    assert (await perdure.services.traces.get(trace_id)).spans == 2
    outline = await perdure.services.traces.outline(trace_id, limit=1, offset=1)
    (last,) = outline.items
    assert (last.name, last.span_id, last.rollout_id, outline.total) == (
        "later",
        f"{2:016x}",
        two.rollout_id,
        2,
    )
    assert (last.start_time, last.end_time, last.parent_id) == (
        found.start_time,
        found.end_time,
        found.parent_id,
    )
    assert not last.failed


async def test_the_steps_of_a_trace_tell_what_is_counted_of_each_span(perdure: Perdure) -> None:
    rollout = await started(perdure)
    call = {**CHAT, "gen_ai.request.model": "gpt-4o"}
    spans = [
        span(rollout, 1, "agent", attributes={"gen_ai.operation.name": "invoke_agent"}),
        span(rollout, 2, attributes=call),
        span(rollout, 3, "plain", attributes={"llm.note": 1}),
        span(rollout, 4, "agentlightning.annotation", attributes=REWARD),
    ]
    await perdure.store.add_many_spans(spans)
    trace_id = spans[0].trace_id
    message = TracesData()
    made = (
        message.resource_spans.add()
        .scope_spans.add()
        .spans.add(
            name="tool",
            trace_id=bytes.fromhex(trace_id),
            span_id=b"\x09" * 8,
            start_time_unix_nano=2 * 10**18,
        )
    )
    home = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    for key, value in home.items():
        put(made.attributes.add(key=f"agentlightning.{key}").value, value)
    put(made.attributes.add(key="gen_ai.operation.name").value, "execute_tool")
    received = otlp.receive(otlp.parse(message.SerializeToString()))
    await perdure.services.rollouts.store_new_spans(received.spans, received.parts)
    found = await perdure.services.traces.steps(trace_id)
    told = [(each.span_id[-1], each.kind, each.model, each.input_tokens, each.reward) for each in found.items]
    assert told == [
        ("1", "agent", "", 0, None),
        ("2", "llm", "gpt-4o", 10, None),
        ("4", "reward", "", 0, 0.5),
        ("9", "tool", "", 0, None),
    ]
    assert [each.cost for each in found.items] == [None, pytest.approx((10 * 2.5 + 4 * 10) / 1e6), None, None]
    assert found.total == 5
    (last,) = (await perdure.services.traces.steps(trace_id, limit=2, offset=4)).items
    assert last.kind == "tool"


async def test_a_span_has_the_agent_and_model_of_those_above_it_on_another_page(perdure: Perdure) -> None:
    rollout = await started(perdure)
    agent = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "guide"}
    chat = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-4o"}
    await perdure.store.add_many_spans(
        [
            span(rollout, 1, "agent", attributes=agent),
            span(rollout, 2, attributes=chat, parent_id=f"{1:016x}"),
            span(rollout, 3, "http", parent_id=f"{2:016x}"),
            span(rollout, 4, attributes={"gen_ai.operation.name": "chat"}, parent_id=f"{3:016x}"),
        ]
    )
    trace_id = span(rollout, 1).trace_id
    whole = (await perdure.services.traces.steps(trace_id)).items
    assert [(each.agent, each.model) for each in whole] == [
        ("guide", ""),
        ("guide", "gpt-4o"),
        ("guide", "gpt-4o"),
    ]
    pages = [await perdure.services.traces.steps(trace_id, limit=1, offset=place) for place in range(4)]
    assert [step for page in pages for step in page.items] == whole


async def test_spans_of_a_program_with_a_store_alone_are_listed_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/alone.db"
    store = open_store(url)
    rollout = await store.start_rollout({})
    await store.add_span(span(rollout, 1, attributes=CHAT))
    await store.close()
    services = Services.open(load_settings({"database_url": url}))
    assert (await services.traces.get(span(rollout, 1).trace_id)).input_tokens == 10
    assert (await services.outbox.list(limit=0)).total == 0
    await services.close()


async def test_a_search_by_attributes_that_runs_out_of_time_goes_on(
    perdure: Perdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that each call searches at least one trace, and that the cursor skips none."""
    rollout = await started(perdure)
    wanted = [f"{number:032x}" for number in range(1, 8)]
    now = time.time()
    await perdure.store.add_many_spans(
        [
            span(
                rollout,
                number,
                trace_id=trace_id,
                start_time=now + number,
                attributes={"shop": "a" if number % 2 else "b", "path/with": 'a "quote"', "n": 7},
            )
            for number, trace_id in enumerate(wanted, 1)
        ]
    )
    monkeypatch.setattr(service, "SEARCH_SECONDS", 0.0)
    for filters, numbers in (
        (["shop=a"], [7, 5, 3, 1]),
        (["shop=b", "n=7"], [6, 4, 2]),
        (['path/with=a "quote"'], [7, 6, 5, 4, 3, 2, 1]),
        (["other=a"], []),
    ):
        found: list[int] = []
        searched: list[int | None] = []
        cursor = None
        while True:
            page = await perdure.services.traces.list(attribute=filters, cursor=cursor)
            found += [int(trace.trace_id, 16) for trace in page.items]
            searched.append(page.searched)
            cursor = page.next
            if cursor is None:
                break
        assert found == numbers
        assert searched == [1] * 7
