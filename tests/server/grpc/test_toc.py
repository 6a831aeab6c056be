"""The table of contents, searches in it, vectors and the scheduler, as clients of agent-memory call them."""

from __future__ import annotations

import time
import uuid
from typing import Any

import grpc
import pytest
from tests.kernel.support import until_true
from tests.memory.conftest import DAY, World
from tests.memory.test_toc import ABOVE, talk
from tests.server.grpc.original import kind
from tests.server.grpc.support import T0, Served, event, serving
from tests.server.grpc.test_memory import refused

from perdure.client.grpc import GrpcMemory
from perdure.errors import NotFound
from perdure.kernel.clock import from_iso, to_micros
from perdure.kernel.errors import JobNotFound
from perdure.memory import messages as m
from perdure.runtime.stores import open_store

Code = grpc.StatusCode


@pytest.fixture
async def built(served: Served) -> Served:
    """Start a server whose memory has a day, summarized up to its year."""
    world = World(served.app.services)
    await world.arrive(*talk(world), *talk(world, f"{DAY} 12:00", "t"))
    await world.build()
    return served


async def test_the_table_of_contents_is_walked_from_the_year_to_the_events(built: Served) -> None:
    stub = built.stub()
    (year,) = (await stub.call("GetTocRoot")).nodes
    assert (year.node_id, year.level, year.title) == ("toc:year:2024", 1, "2024")
    node, levels = year, [year.level]
    while node.level < 5:
        page = await stub.call("BrowseToc", parent_id=node.node_id)
        assert [child.node_id for child in page.children] == list(node.child_node_ids)
        node = page.children[0]
        levels.append(node.level)
    assert levels == [1, 2, 3, 4, 5]
    found = (await stub.call("GetNode", node_id=node.node_id)).node
    assert found == node
    assert (found.version, bool(found.summary), bool(found.keywords)) == (1, True, True)
    ours = m.TocNode.FromString(found.SerializeToString())
    assert (ours.status, ours.parent_id, list(ours.agents)) == ("complete", ABOVE[0], ["claude"])
    grips = [grip for bullet in found.bullets for grip in bullet.grip_ids]
    expanded = await stub.call("ExpandGrip", grip_id=grips[0], events_before=1, events_after=0)
    assert expanded.grip.grip_id == grips[0]
    assert expanded.excerpt_events
    assert not expanded.events_after


async def test_pages_of_children_go_on_by_their_token(built: Served) -> None:
    stub = built.stub()
    first = await stub.call("BrowseToc", parent_id=ABOVE[0], limit=1)
    assert (len(first.children), first.has_more) == (1, True)
    token = first.continuation_token
    last = await stub.call("BrowseToc", parent_id=ABOVE[0], limit=1, continuation_token=token)
    assert (len(last.children), last.has_more, last.HasField("continuation_token")) == (1, False, False)
    assert first.children[0].node_id != last.children[0].node_id
    for garbage in ("7", "garbage", ""):
        again = await stub.call("BrowseToc", parent_id=ABOVE[0], limit=1, continuation_token=garbage)
        assert again.children == first.children


async def test_searches_in_nodes(built: Served) -> None:
    stub = built.stub()
    found = await stub.call("SearchChildren", parent_id=ABOVE[0], query="login umlaut")
    assert len(found.results) == 2
    best = found.results[0]
    assert best.matches[0].score == pytest.approx(1.0)
    one = await stub.call("SearchNode", node_id=best.node_id, query="umlaut", fields=[4], limit=5)
    assert (one.matched, one.level, {match.field for match in one.matches}) == (True, 5, {4})
    nothing = await stub.call("SearchNode", node_id=best.node_id, query="kangaroo")
    assert (nothing.matched, list(nothing.matches)) == (False, [])
    years = await stub.call("SearchChildren", query="login", child_level=4, limit=1)
    assert [each.level for each in years.results] == [4]


async def test_what_is_missing_or_empty(served: Served) -> None:
    stub = served.stub()
    assert not (await stub.call("GetTocRoot")).nodes
    assert not (await stub.call("GetNode", node_id="toc:year:1999")).HasField("node")
    assert not (await stub.call("ExpandGrip", grip_id="grip:1:x")).HasField("grip")
    assert not (await stub.call("BrowseToc", parent_id="toc:year:1999")).children
    assert (await refused(stub, "SearchNode", node_id="toc:year:1999", query="a"))[0] is Code.NOT_FOUND
    for method, field in (("GetNode", "node_id"), ("BrowseToc", "parent_id"), ("ExpandGrip", "grip_id")):
        for empty in ("", " "):
            code, message = await refused(stub, method, **{field: empty})
            assert (code, message) == (Code.INVALID_ARGUMENT, f"{field} is required")
    for query in ("", " \t"):
        for method in ("SearchNode", "SearchChildren"):
            fields = {"node_id": "n"} if method == "SearchNode" else {}
            assert (await refused(stub, method, query=query, **fields))[0] is Code.INVALID_ARGUMENT
    assert (await refused(stub, "SearchChildren", query="abc", child_level=9))[0] is Code.INVALID_ARGUMENT
    assert (await refused(stub, "SearchChildren", query="abc", fields=[9]))[0] is Code.INVALID_ARGUMENT


async def test_without_an_embedder_vectors_are_unavailable(served: Served) -> None:
    stub = served.stub()
    assert (await refused(stub, "VectorTeleport", query="a"))[0] is Code.UNAVAILABLE
    status = await stub.call("GetVectorIndexStatus")
    assert (status.available, status.vector_count, status.dimension) == (False, 0, 0)
    assert status.last_indexed == ""


async def test_jobs_are_listed_paused_and_resumed(served: Served) -> None:
    stub, schedules = served.stub(), served.app.services.schedules
    await schedules.create_for("job", "0 3 * * *", name="tidy", payload={"job": "nothing"})
    (job,) = [job for job in (await stub.call("GetSchedulerStatus")).jobs if job.job_name == "tidy"]
    assert (job.cron_expr, job.last_run_ms, job.is_paused, job.run_count) == ("0 3 * * *", 0, False, 0)
    assert job.next_run_ms > 0
    for method in ("PauseJob", "ResumeJob"):
        answer = await stub.call(method, job_name="tidy")
        assert (answer.success, answer.HasField("error")) == (True, False)
        (job,) = [job for job in (await stub.call("GetSchedulerStatus")).jobs if job.job_name == "tidy"]
        assert job.is_paused == (method == "PauseJob")
        for unknown in ("nobody", ""):
            answer = await stub.call(method, job_name=unknown)
            assert (answer.success, answer.error) == (False, f"Job not found: {unknown}")


async def test_the_python_client_has_the_same(built: Served) -> None:
    async with GrpcMemory(built.address) as memory:
        local = built.app.services.memory
        assert await memory.toc_root() == (await local.toc_root()).items
        assert await memory.get_node(ABOVE[0]) == await local.get_node(ABOVE[0])
        page = await memory.browse(ABOVE[0], limit=1)
        rest = await memory.browse(ABOVE[0], limit=1, after=page.after)
        assert [*page.items, *rest.items] == (await local.browse(ABOVE[0])).items
        grip = page.items[0].bullets[0].grip_ids[0]
        assert await memory.expand_grip(grip) == await local.expand_grip(grip)
        found = await memory.search_children("umlaut", parent_id=ABOVE[0])
        assert [each.node_id for each in found.items] == [
            each.node_id for each in (await local.search_children("umlaut", parent_id=ABOVE[0])).items
        ]
        within = {"fields": ["keywords"], "limit": 5, "token_budget": 3}
        (near, *_) = found.items
        over = await memory.search_node(near.node_id, "umlaut login", **within)  # type: ignore[arg-type]
        here = await local.search_node(near.node_id, "umlaut login", **within)  # type: ignore[arg-type]
        assert over.matches
        assert [match.text for match in over.matches] == [match.text for match in here.matches]
        assert isinstance((await memory.scheduler_status()).scheduler_running, bool)
        for missing in (memory.get_node("toc:year:1"), memory.expand_grip("grip:1:x")):
            with pytest.raises(NotFound):
                await missing
        for missing_job in (memory.pause_job("nobody"), memory.resume_job("nobody")):
            with pytest.raises(JobNotFound, match="Job not found: nobody"):
                await missing_job


async def test_every_field_of_the_searches_by_vectors_counts(shared_engine_url: str) -> None:
    embedder = "tests.memory.test_vectors:by_topic"
    async with (
        open_store(shared_engine_url, namespace=f"test {uuid.uuid4().hex}") as store,
        serving(store, memory_embedder=embedder) as served,
    ):
        stub = served.stub()
        report, feline = event(1, text="the sleeping report", agent="codex"), event(2, text="a feline")
        for each in (report, feline):
            await stub.call("IngestEvent", event=each)

        async def embedded() -> bool:
            return bool((await stub.call("GetVectorIndexStatus")).vector_count == 2)

        await until_true(embedded)
        status = await stub.call("GetVectorIndexStatus")
        assert 0 <= to_micros(time.time()) - from_iso(status.last_indexed) < to_micros(600.0)
        assert (status.available, status.dimension, bool(status.index_path)) == (True, 4, True)

        async def found(method: str, **fields: Any) -> list[str]:
            answer = await stub.call(method, query="cat sleeping", **{"target": 1000, **fields})
            return ["feline" if each.doc_id == feline.event_id else "report" for each in answer.matches]

        times = kind("TimeRange")
        for method in ("VectorTeleport", "HybridSearch"):
            # Without a type, and for agent-memory's "all", the results are nodes and grips.
            for target in (0, 1, 2, 3):
                assert await found(method, target=target) == []
            assert sorted(await found(method)) == ["feline", "report"]
            assert await found(method, target=1001) == await found(method)
            assert len(await found(method, top_k=1)) == 1
            assert await found(method, agent_filter="Codex") == ["report"]
            assert await found(method, time_filter=times(start_ms=T0 + 2000)) == ["feline"]
            assert await found(method, time_filter=times(end_ms=T0 + 2000)) == ["report"]
        assert await found("VectorTeleport", min_score=0.9) == ["feline"]
        assert (await refused(stub, "VectorTeleport", query="a", min_score=7))[0] is Code.INVALID_ARGUMENT
        assert await found("HybridSearch") == ["report", "feline"]
        assert await found("HybridSearch", bm25_weight=0.001, vector_weight=1) == ["feline", "report"]
        assert await found("HybridSearch", bm25_weight=-1, vector_weight=0) == ["report", "feline"]
        assert await found("HybridSearch", mode=1) == ["feline", "report"]
        assert await found("HybridSearch", mode=2) == ["report"]
        for weight in (float("inf"), float("nan"), 2000):
            code, _ = await refused(stub, "HybridSearch", query="a", bm25_weight=weight)
            assert code is Code.INVALID_ARGUMENT
        async with GrpcMemory(served.address) as memory:
            local, weights = served.app.services.memory, {"text_weight": 0.001, "vector_weight": 1.0}
            for options in (weights, {"since_ms": T0 + 2000}, {"until_ms": T0 + 1999}, {"mode": "vector"}):
                over = await memory.search("cat sleeping", **options)
                here = await local.search("cat sleeping", **options)
                assert [hit.id for hit in over.items] == [hit.id for hit in here.items]
