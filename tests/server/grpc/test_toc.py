"""The table of contents, searches in it, vectors and the scheduler, as clients of agent-memory call them."""

from __future__ import annotations

import grpc
import pytest
from tests.memory.conftest import DAY, World
from tests.memory.test_toc import ABOVE, talk
from tests.server.grpc.support import Served
from tests.server.grpc.test_memory import refused

from perdure.client.grpc import GrpcMemory
from perdure.errors import NotFound
from perdure.kernel.errors import JobNotFound
from perdure.memory import messages as m

Code = grpc.StatusCode


@pytest.fixture
async def built(served: Served) -> Served:
    """A server whose memory has a day, built up to its year."""
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
        assert await memory.toc_root() == await local.toc_root()
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
        assert isinstance((await memory.scheduler_status()).scheduler_running, bool)
        for missing in (memory.get_node("toc:year:1"), memory.expand_grip("grip:1:x")):
            with pytest.raises(NotFound):
                await missing
        for missing_job in (memory.pause_job("nobody"), memory.resume_job("nobody")):
            with pytest.raises(JobNotFound, match="Job not found: nobody"):
                await missing_job
