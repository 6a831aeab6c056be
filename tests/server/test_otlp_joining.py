"""Spans without a rollout: the attempts that they join, and traces without an attempt."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from tests.kernel.support import until_true
from tests.server.otlp_support import ENGINES, START, Batch, Home, begun, opened
from tests.server.support import Visitor, serving
from tests.server.test_otlp_http import partial, send

from perdure import Agents, Retriable, Span
from perdure.embedding.perdure import Perdure
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.threads.records import RunRequest

SECOND = 10**9
CALL = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}


class Held:
    """A program whose runs last until they are released, and a server on its database."""

    def __init__(self, perdure: Perdure, visitor: Visitor) -> None:
        self.perdure, self.visitor = perdure, visitor
        self.store: Any = perdure.store
        self.started: set[str] = set()
        self.release = asyncio.Event()

    async def start(self, **more: Any) -> str:
        """Start a run, and wait until it executes."""
        run = await self.perdure.threads.create_run(
            RunRequest(assistant_id="holder", input={}, if_not_exists="create", **more)
        )

        async def begun() -> bool:
            return run.run_id in self.started

        await until_true(begun)
        return run.run_id

    async def finish(self, *run_ids: str) -> None:
        self.release.set()
        for run_id in run_ids:
            end = await self.perdure.threads.join_run(run_id, 60)
            assert end.run.status == "success", end.run.error

            async def stored(run_id: str = run_id) -> bool:
                return "invoke_agent holder" in await self.names(run_id)

            await until_true(stored)

    async def names(self, rollout_id: str) -> set[str]:
        return {span.name for span in await self.store.query_spans(rollout_id)}

    async def root_of(self, run_id: str) -> bytes:
        (span,) = await self.store.query_spans(run_id, name="invoke_agent holder")
        return bytes.fromhex(span.span_id)

    async def home(self, run_id: str) -> Home:
        rollout: Any = await self.store.get_rollout_by_id(run_id)
        assert rollout is not None
        return Home(run_id, rollout.attempt.attempt_id)

    async def tokens(self, rollout_id: str) -> tuple[int, int]:
        found = await self.store.rollouts.figures(rollout_id=[rollout_id])
        return (found[0].input_tokens, found[0].output_tokens) if found else (0, 0)

    async def send(self, batch: Batch) -> tuple[int, str]:
        return partial(await send(self.visitor, batch.bytes()))


@asynccontextmanager
async def holding(url: str, trace_sample: float = 1.0, **settings: Any) -> AsyncIterator[Held]:
    agents = Agents()

    @agents.agent("holder")
    async def holder(ctx: Any, _: Any) -> str:
        program.started.add(ctx.run_id)
        await program.release.wait()
        return "done"

    async with (
        Perdure(url, agents=agents, jobs_per_worker=4, trace_sample=trace_sample) as perdure,
        serving(perdure.store, **settings) as visitor,
    ):
        program = Held(perdure, visitor)
        try:
            yield program
        finally:
            program.release.set()


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/runs.db"
    return str(request.getfixturevalue("database_url"))


@pytest_asyncio.fixture
async def held(url: str) -> AsyncIterator[Held]:
    """Start a server that keeps traces."""
    async with holding(url, keep_traces=True) as held:
        yield held


def batch_of(run_id: str) -> Batch:
    """Build a batch of spans of a run's trace."""
    batch = Batch()
    batch.trace_id = bytes.fromhex(run_id.replace("-", ""))
    return batch


def child(batch: Batch, name: str, parent: bytes, start: int = START, end: int = START + 1000) -> bytes:
    """Add a span below another, and return its id."""
    span = batch.add(name)
    span.parent_span_id, span.start_time_unix_nano, span.end_time_unix_nano = parent, start, end
    return span.span_id


def call(batch: Batch, parent: bytes, tokens: int, response_id: str = "", name: str = "chat m") -> Message:
    """Add a model call."""
    span = batch.add(name)
    span.parent_span_id = parent
    for key, value in {**CALL, "gen_ai.response.id": response_id}.items():
        if value:
            span.attributes.add(key=key).value.string_value = value
    span.attributes.add(key="gen_ai.usage.input_tokens").value.int_value = tokens
    span.attributes.add(key="gen_ai.usage.output_tokens").value.int_value = 1
    return span


def own_call(
    home: Home, batch: Batch, span_id: bytes, parent: bytes, tokens: int, response_id: str = ""
) -> Span:
    """Build a model call as a worker records it."""
    attributes: dict[str, Any] = {
        **CALL,
        "gen_ai.usage.input_tokens": tokens,
        "gen_ai.usage.output_tokens": 1,
    }
    if response_id:
        attributes["gen_ai.response.id"] = response_id
    return Span.from_attributes(
        rollout_id=home.rollout_id,
        attempt_id=home.attempt_id,
        sequence_id=77,
        trace_id=batch.trace_id.hex(),
        span_id=span_id.hex(),
        parent_id=parent.hex(),
        name="chat m",
        attributes=attributes,
        start_time=START / SECOND,
        end_time=START / SECOND + 1,
    )


# --- which attempt a span joins ---------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [False, True])
async def test_a_span_joins_the_only_live_attempt_of_its_trace(url: str, keep: bool) -> None:
    async with holding(url, keep_traces=keep) as held:
        run_id = await held.start()
        before = await held.store.get_rollout_by_id(run_id)
        batch = batch_of(run_id)
        below = child(batch, "framework", b"\x02" * 8)
        child(batch, "inner", below)
        assert await held.send(batch) == (0, "")
        assert await held.names(run_id) == {"framework", "inner"}
        assert await held.store.get_rollout_by_id("ro-" + batch.trace_id.hex()) is None
        after = await held.store.get_rollout_by_id(run_id)
        assert before is not None
        assert after is not None
        assert (after.status, after.attempt.status) == (before.status, before.attempt.status)
        await held.finish(run_id)
        assert await held.send(batch) == (0, "")
        assert len(await held.store.query_spans(run_id, name="inner")) == 1


@pytest.mark.parametrize("keep", [False, True])
async def test_a_late_span_joins_the_attempt_that_has_its_parent(url: str, keep: bool) -> None:
    async with holding(url, keep_traces=keep) as held:
        run_id = await held.start()
        await held.finish(run_id)
        batch = batch_of(run_id)
        above = secrets.token_bytes(8)
        child(batch, "inner", above)
        batch.add("framework").parent_span_id = await held.root_of(run_id)
        batch.scoped.spans[-1].span_id = above
        assert await held.send(batch) == (0, "")
        assert {"framework", "inner"} <= await held.names(run_id)
        rollout = await held.store.get_rollout_by_id(run_id)
        assert rollout is not None
        assert (rollout.status, rollout.attempt.status) == ("succeeded", "succeeded")
        assert (await held.store.rollouts.search(kept_traces=True)).items == []


@pytest.mark.parametrize("keep", [False, True])
async def test_a_span_may_come_before_the_spans_of_its_worker(url: str, keep: bool) -> None:
    """An exporter sends at any time, also between the end of a run and its worker's first spans."""
    async with holding(url, keep_traces=keep, trace_sample=0.0) as held:
        run_id = await held.start()
        held.release.set()
        await held.perdure.threads.join_run(run_id, 60)
        batch = batch_of(run_id)
        above = child(batch, "framework", secrets.token_bytes(8))
        call(batch, above, 10)
        assert await held.send(batch) == (0, "")
        assert await held.names(run_id) == {"framework", "chat m"}
        assert await held.tokens(run_id) == (10, 1)
        rollout = await held.store.get_rollout_by_id(run_id)
        assert (rollout.status, rollout.attempt.status) == ("succeeded", "succeeded")
        assert (await held.store.rollouts.search(kept_traces=True)).items == []


async def test_a_span_of_a_run_with_several_attempts_joins_the_one_of_its_time(url: str) -> None:
    agents = Agents()

    @agents.agent("twice")
    async def twice(ctx: Any, _: Any) -> str:
        if ctx.attempt == 1:
            raise Retriable("once more", after=0.01)
        return "done"

    async with (
        Perdure(url, agents=agents, trace_sample=0.0) as perdure,
        serving(perdure.store) as visitor,
    ):
        held = Held(perdure, visitor)
        run = await perdure.threads.create_run(RunRequest(assistant_id="twice"))
        assert (await perdure.threads.join_run(run.run_id, 60)).run.status == "success"
        first, second = await held.store.query_attempts(run.run_id)
        for attempt, name in ((first, "early"), (second, "late")):
            batch = batch_of(run.run_id)
            middle = int((attempt.start_time + attempt.end_time) / 2 * SECOND)
            child(batch, name, secrets.token_bytes(8), middle, middle)
            assert await held.send(batch) == (0, "")
            (span,) = await held.store.query_spans(run.run_id, name=name)
            assert span.attempt_id == attempt.attempt_id
        batch = batch_of(run.run_id)
        child(batch, "before both", secrets.token_bytes(8), int((first.start_time - 60) * SECOND))
        assert (await held.send(batch))[0] == 1


async def test_a_late_span_without_a_known_parent_is_kept(held: Held) -> None:
    run_id = await held.start()
    await held.finish(run_id)
    batch = batch_of(run_id)
    batch.add("stray")
    assert await held.send(batch) == (0, "")
    kept = await held.store.get_rollout_by_id("ro-" + batch.trace_id.hex())
    assert kept is not None
    assert kept.metadata is not None
    assert kept.metadata["linked"] == [run_id]
    assert "stray" not in await held.names(run_id)


async def test_spans_that_are_refused_name_the_setting(url: str) -> None:
    async with holding(url) as held:
        run_id = await held.start()
        await held.finish(run_id)
        batch = batch_of(run_id)
        batch.add("stray")
        rejected, message = await held.send(batch)
        assert rejected == 1
        assert "keep_traces" in message


async def test_with_several_live_attempts_a_trace_is_kept_and_linked(held: Held) -> None:
    trace_id = secrets.token_bytes(16)
    traceparent = f"00-{trace_id.hex()}-{'cd' * 8}-01"
    first = await held.start(traceparent=traceparent)
    batch = Batch()
    batch.trace_id = trace_id
    batch.add("one")
    await held.send(batch)
    assert await held.names(first) == {"one"}
    second = await held.start(traceparent=traceparent)
    again = Batch()
    again.trace_id = trace_id
    again.add("either")
    assert await held.send(again) == (0, "")
    kept = await held.store.get_rollout_by_id("ro-" + trace_id.hex())
    assert kept is not None
    assert kept.metadata is not None
    assert set(kept.metadata["linked"]) == {first, second}
    assert await held.names(kept.rollout_id) == {"either"}
    await held.finish(first, second)
    last = Batch()
    last.trace_id = trace_id
    child(last, "below the second", await held.root_of(second))
    await held.send(last)
    assert "below the second" in await held.names(second)


async def test_a_span_of_another_namespace_joins_nothing(held: Held) -> None:
    run_id = await held.start()
    batch = batch_of(run_id)
    batch.add("theirs")
    answer = await send(held.visitor, batch.bytes(), X_Perdure_Namespace="theirs")
    assert partial(answer)[0] == 0
    assert await held.names(run_id) == set()
    theirs = held.store.in_namespace("theirs")
    assert await theirs.get_rollout_by_id("ro-" + batch.trace_id.hex()) is not None


async def test_a_span_that_joins_renews_no_lease_and_starts_nothing(held: Held) -> None:
    home = await begun(held.store)
    batch = Batch()
    batch.add("named", rollout_id=home.rollout_id, attempt_id=home.attempt_id)
    await held.send(batch)
    before = await held.store.get_latest_attempt(home.rollout_id)
    joining = Batch()
    joining.trace_id = batch.trace_id
    joining.add("unnamed")
    assert await held.send(joining) == (0, "")
    assert await held.names(home.rollout_id) == {"named", "unnamed"}
    assert await held.store.get_latest_attempt(home.rollout_id) == before


# --- model calls ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["worker", "framework"])
@pytest.mark.parametrize("relation", ["below", "above", "far below", "response"])
async def test_a_model_call_that_both_report_counts_once(held: Held, first: str, relation: str) -> None:
    run_id = await held.start()
    home, batch = await held.home(run_id), batch_of(run_id)
    own_id, node = secrets.token_bytes(8), b"\x03" * 8
    if relation == "below":
        call(batch, own_id, 10)
        own = own_call(home, batch, own_id, node, 10)
    elif relation == "far below":
        call(batch, child(batch, "http", child(batch, "client", own_id)), 10)
        own = own_call(home, batch, own_id, node, 10)
    elif relation == "above":
        span = call(batch, node, 10)
        own = own_call(home, batch, own_id, span.span_id, 10)
    else:
        call(batch, node, 10, "answer-1")
        own = own_call(home, batch, own_id, b"\x04" * 8, 10, "answer-1")
    if first == "worker":
        await held.store.add_span(own)
        await held.send(batch)
    else:
        await held.send(batch)
        await held.store.add_span(own)
    assert await held.tokens(run_id) == (10, 1)
    trace = await held.perdure.services.traces.get(batch.trace_id.hex())
    assert (trace.input_tokens, trace.output_tokens) == (10, 1)
    assert len(await held.store.query_spans(run_id, name="chat m")) == 2


async def test_other_model_calls_all_count(held: Held) -> None:
    run_id = await held.start()
    home, batch = await held.home(run_id), batch_of(run_id)
    node = b"\x03" * 8
    await held.store.add_span(own_call(home, batch, secrets.token_bytes(8), node, 10, "a"))
    call(batch, node, 100, "b")
    call(batch, node, 1000)
    await held.send(batch)
    await held.store.add_span(own_call(home, batch, secrets.token_bytes(8), node, 10_000, "c"))
    assert await held.tokens(run_id) == (11_110, 4)


# --- kept traces ------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(params=ENGINES)
async def keeper(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Visitor]:
    """Start a server that keeps traces, and return a client."""
    async with (
        opened(request.param, request, tmp_path) as store,
        serving(store, keep_traces=True) as visitor,
    ):
        yield visitor


SILENCE = statement(
    """
    UPDATE attempts SET check_at = check_at - :micros, start_time = start_time - :micros,
      last_heartbeat_time = last_heartbeat_time - :micros
    WHERE ns = :ns AND check_at IS NOT NULL
    """
)


async def let_pass(tx: Tx, seconds: int) -> None:
    await tx.execute(SILENCE, micros=seconds * 10**6)


async def test_a_trace_whose_root_never_comes_succeeds_and_is_incomplete(keeper: Visitor) -> None:
    store: Any = keeper.app.store
    batch = Batch()
    child(batch, "early", b"\x01" * 8, START, START + 2 * SECOND)
    child(batch, "late", b"\x01" * 8, START + SECOND, START + 5 * SECOND)
    await send(keeper, batch.bytes())
    rollout_id = "ro-" + batch.trace_id.hex()
    running = await store.get_rollout_by_id(rollout_id)
    assert (running.status, running.start_time, running.end_time) == ("running", START / SECOND, None)
    await store.rollouts.write(let_pass, 601)
    await store.watchdog.sweep()
    ended = await store.get_rollout_by_id(rollout_id)
    assert (ended.status, ended.attempt.status) == ("succeeded", "succeeded")
    assert ended.metadata["incomplete"] is True
    assert (ended.start_time, ended.end_time) == (START / SECOND, START / SECOND + 5)
    (attempt,) = await store.query_attempts(rollout_id)
    assert (attempt.start_time, attempt.end_time) == (ended.start_time, ended.end_time)
    root = Batch()
    root.trace_id = batch.trace_id
    span = root.add("root")
    span.parent_span_id, span.status.code = b"", 2  # type: ignore[assignment]
    await send(keeper, root.bytes())
    failed = await store.get_rollout_by_id(rollout_id)
    assert (failed.status, "incomplete" in failed.metadata) == ("failed", False)


async def test_a_kept_trace_takes_as_long_as_its_spans(keeper: Visitor) -> None:
    store: Any = keeper.app.store
    batch = Batch()
    child(batch, "root", b"", START, START + 3 * SECOND)
    await send(keeper, batch.bytes())
    (kept,) = (await store.rollouts.search(kept_traces=True)).items
    assert (kept.status, kept.start_time, kept.end_time) == (
        "succeeded",
        START / SECOND,
        START / SECOND + 3,
    )


async def test_lists_of_rollouts_leave_kept_traces_out_unless_asked(keeper: Visitor) -> None:
    store: Any = keeper.app.store
    home = await begun(store)
    batch = Batch()
    batch.add("one")
    await send(keeper, batch.bytes())
    listed = await keeper.get("/api/v1/rollouts?total=true")
    assert [each["rollout_id"] for each in listed.body["items"]] == [home.rollout_id]
    assert listed.body["total"] == 1
    kept = await keeper.get("/api/v1/rollouts?kept_traces=true&total=true")
    assert [each["rollout_id"] for each in kept.body["items"]] == ["ro-" + batch.trace_id.hex()]
    assert kept.body["total"] == 1
    assert [each.rollout_id for each in await store.query_rollouts()] == [home.rollout_id]


async def test_one_batch_with_anything_in_it_is_one_transaction(keeper: Visitor) -> None:
    store: Any = keeper.app.store
    home = await begun(store)
    batch = Batch()
    for number in range(50):
        batch.trace_id = secrets.token_bytes(16)
        child(batch, f"root {number}", b"")
        child(batch, f"child {number}", batch.scoped.spans[-1].span_id)
    batch.add("named", rollout_id=home.rollout_id, attempt_id=home.attempt_id)
    batch.add("lost", rollout_id="ro-nobody", attempt_id="at-nobody")
    # A clock that ticks with each transaction shows the transactions: all rows of one have the same time.
    rejected, message = partial(await send(keeper, batch.bytes()))
    assert (rejected, "ro-nobody" in message) == (1, True)
    kept = (await store.rollouts.search(kept_traces=True, limit=100)).items
    assert len(kept) == 50
    assert {each.status for each in kept} == {"succeeded"}
    assert await store.rollouts.read(heartbeats) == 1
    assert [span.name for span in await store.query_spans(home.rollout_id)] == ["named"]


HEARTBEATS = statement(
    "SELECT count(DISTINCT last_heartbeat_time) FROM attempts WHERE ns = :ns AND last_heartbeat_time > 0",
    row=int,
)


async def heartbeats(tx: Tx) -> int | None:
    return await tx.one(HEARTBEATS)


async def test_many_batches_of_one_new_trace_at_once(keeper: Visitor) -> None:
    batches = [Batch() for _ in range(8)]
    for batch in batches:
        batch.trace_id = batches[0].trace_id
        batch.add()
    answers = await asyncio.gather(*(send(keeper, batch.bytes()) for batch in batches))
    assert [partial(answer)[0] for answer in answers] == [0] * 8
    store: Any = keeper.app.store
    found = await store.query_spans("ro-" + batches[0].trace_id.hex())
    assert [span.sequence_id for span in found.items] == list(range(1, 9))


# --- a program inside a run -------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [False, True])
async def test_spans_of_opentelemetrys_sdk_inside_a_run_are_the_runs(url: str, keep: bool) -> None:
    agents = Agents()
    exporters: list[str] = []

    @agents.agent("framed")
    async def framed(ctx: Any, _: Any) -> str:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=exporters[0])))
        tracer = provider.get_tracer("framework")
        with (
            tracer.start_as_current_span("crew.kickoff"),
            tracer.start_as_current_span("openai.chat") as span,
        ):
            span.set_attributes({**CALL, "gen_ai.usage.input_tokens": 11, "gen_ai.usage.output_tokens": 3})
        await asyncio.to_thread(provider.shutdown)
        return "done"

    async with (
        Perdure(url, agents=agents) as perdure,
        serving(perdure.store, keep_traces=keep) as visitor,
    ):
        exporters.append(visitor.url + "/v1/traces")
        end = await perdure.run("framed", {}, if_not_exists="create")
        assert end.run.status == "success", end.run.error
        run_id = end.run.run_id
        store: Any = perdure.store

        async def complete() -> bool:
            return len(await store.query_spans(run_id)) == 3

        await until_true(complete)
        spans = {span.name: span for span in await store.query_spans(run_id)}
        assert spans["crew.kickoff"].parent_id == spans["invoke_agent framed"].span_id
        assert spans["openai.chat"].parent_id == spans["crew.kickoff"].span_id
        (figures,) = await store.rollouts.figures(rollout_id=[run_id])
        assert (figures.input_tokens, figures.output_tokens) == (11, 3)
        assert (await store.rollouts.search(kept_traces=True)).items == []
