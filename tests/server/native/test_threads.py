"""Threads, assistants, the outbox and why, over HTTP: every route and every error that it declares."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tests.client.flaky import LOST_AFTER, FlakyServer
from tests.server.native.support import API, QUICK, House, request
from tests.server.support import serving

from perdure import InMemoryLightningStore, LightningStore
from perdure.client.native import PerdureClient
from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.outbox.operations import NewEffect, put
from perdure.threads.records import Lifetime

WORK = "/work"


async def test_threads_are_made_changed_found_and_removed(house: House) -> None:
    client = house.client
    made = await client.create_thread("a/ä", metadata={"team": "x", "n": 1}, config={"c": 1})
    assert (made.thread_id, made.metadata, made.config) == ("a/ä", {"team": "x", "n": 1}, {"c": 1})
    with pytest.raises(Conflict):
        await client.create_thread("a/ä")
    assert await client.create_thread("a/ä", if_exists="do_nothing") == made
    other = await client.create_thread(values={"v": 1}, metadata={"team": "y"})
    assert other.values == {"v": 1}
    changed = await client.update_thread("a/ä", metadata={"n": 2})
    assert changed.metadata == {"team": "x", "n": 2}
    found = await client.search_threads(metadata={"team": "x", "n": 2})
    assert [thread.thread_id for thread in found] == ["a/ä"]
    assert (await client.search_threads(status="busy")).total == 0
    assert [each.thread_id for each in await client.search_threads(ids=[other.thread_id])] == [
        other.thread_id
    ]
    assert list(await client.search_threads(ids=[])) == []
    oldest = await client.search_threads(sort_order="asc", limit=1, values=False, total=True)
    assert (oldest.total, oldest[0].thread_id) == (2, "a/ä")
    copied = await client.copy_thread(other.thread_id)
    assert (copied.values, copied.thread_id != other.thread_id) == ({"v": 1}, True)
    await client.delete_thread("a/ä")
    for asking in (
        client.get_thread("a/ä"),
        client.update_thread("a/ä", metadata={}),
        client.delete_thread("a/ä"),
        client.copy_thread("a/ä"),
        client.get_state("a/ä"),
        client.history("a/ä"),
        client.update_state("a/ä", {}),
    ):
        with pytest.raises(NotFound):
            await asking


async def test_threads_live_for_a_while_and_are_pruned(house: House) -> None:
    client = house.client
    made = await client.create_thread(lifetime=Lifetime(minutes=5))
    told = await client.get_lifetime(made.thread_id)
    assert told is not None
    assert (told.minutes, told.strategy) == (5, "delete")
    await client.update_thread(made.thread_id, lifetime=Lifetime(minutes=9, strategy="keep_latest"))
    told = await client.get_lifetime(made.thread_id)
    assert told is not None
    assert (told.minutes, told.strategy) == (9, "keep_latest")
    other = await client.create_thread()
    assert await client.get_lifetime(other.thread_id) is None
    for number in range(3):
        await client.update_state(other.thread_id, {"n": number})
    assert await client.prune_threads([other.thread_id, "nowhere"], "keep_latest") == 1
    assert [state.values for state in await client.history(other.thread_id)] == [{"n": 2}]
    assert await client.prune_threads([other.thread_id, made.thread_id]) == 2
    with pytest.raises(NotFound):
        await client.get_lifetime(made.thread_id)
    with pytest.raises(InvalidInput):
        await client.create_thread(lifetime=Lifetime(minutes=0))


async def test_metadata_is_asked_for_in_words(quick: House) -> None:
    await quick.client.create_thread("a", metadata={"team": "x:y", "n": 1})
    for terms, total in (
        (["team:x:y"], 1),
        (["team:x"], 0),
        (["n:1"], 0),
        (['{"n":1}'], 1),
        (["team:x:y", '{"n":1}'], 1),
    ):
        answer = await quick.visitor.get(API + "/threads", params=[("metadata", term) for term in terms])
        assert answer.body["total"] == total, terms
        assert answer.headers["x-pagination-total"] == str(total)
    for term in ("team", ":x", "{", '{"a":NaN'):
        answer = await quick.visitor.get(API + "/threads", params={"metadata": term})
        assert (answer.status, answer.body["code"]) == (422, InvalidInput.code), term
    many = '{"' + '":1,"'.join(map(str, range(30))) + '":1}'
    assert (await quick.visitor.get(API + "/threads", params={"metadata": many})).status == 422


async def test_the_states_of_a_thread(house: House) -> None:
    client = house.client
    await client.create_thread("t")
    assert await client.get_state("t") is None
    first = await client.update_state("t", {"n": 1}, metadata={"by": "me"}, next=["step"])
    second = await client.update_state("t", {"n": 2})
    assert (await client.get_state("t"), await client.get_state("t", first.checkpoint_id)) == (second, first)
    assert second.parent_id == first.checkpoint_id
    assert await client.history("t") == [second, first]
    assert await client.history("t", before=second.checkpoint_id) == [first]
    assert await client.history("t", limit=1) == [second]
    assert await client.history("t", metadata={"by": "me"}) == [first]
    with pytest.raises(NotFound):
        await client.get_state("t", "nothing")
    await house.run(thread_id="t")
    with pytest.raises(Conflict):
        await client.update_state("t", {"n": 3})
    runs = await house.visitor.get(API + "/threads/t/runs", params={"status": "pending"})
    assert (runs.status, runs.body["total"]) == (200, 1)
    assert (await house.visitor.get(API + "/threads/nowhere/runs")).status == 404


async def test_bad_words_about_threads(quick: House) -> None:
    for method, path, body, status in (
        ("POST", "/threads", {"thread_id": ""}, 422),
        ("POST", "/threads", {"thread_id": "x" * 256}, 422),
        ("POST", "/threads", {"metadata": []}, 422),
        ("POST", "/threads", {"nonsense": 1}, 422),
        ("POST", "/threads", {"if_exists": "perhaps"}, 422),
        ("POST", "/threads/t/state", {}, 422),
        ("GET", "/threads?status=asleep", None, 422),
        ("GET", "/threads?limit=-1", None, 422),
        ("GET", "/threads?limit=1001", None, 422),
        ("GET", "/threads/t/history?limit=x", None, 422),
        ("GET", "/runs?status=asleep", None, 422),
        ("GET", "/runs?thread_id=nowhere", None, 404),
    ):
        options: Any = {} if body is None else {"json": body}
        answer = await quick.visitor.ask(method, API + path, **options)
        assert answer.status == status, (path, answer)


async def test_a_thread_whose_answer_was_lost_is_made_once(quick: House) -> None:
    async with FlakyServer(quick.visitor.url) as proxy, PerdureClient(proxy.url, **QUICK) as client:
        proxy.faults.append(LOST_AFTER)
        await client.create_thread(metadata={"a": 1})
        assert (await quick.client.search_threads()).total == 1
        proxy.faults.append(LOST_AFTER)
        assert (await client.create_thread("mine")).thread_id == "mine"
        with pytest.raises(Conflict):
            await client.create_thread("mine")
        proxy.faults.append(LOST_AFTER)
        copied = await client.copy_thread("mine")
        assert {thread.thread_id for thread in await quick.client.search_threads(ids=["mine"])} == {"mine"}
        assert await quick.client.get_thread(copied.thread_id) == copied
        assert (await quick.client.search_threads()).total == 3
        assert (await quick.client.search_threads(ids=[])).total == 0
        proxy.faults.append(LOST_AFTER)
        run = await client.create_run(request())
        assert (await quick.client.list_runs()).total == 1
        assert (await quick.client.get_run(run.run_id)) == run


# --- assistants -------------------------------------------------------------------------------------------


async def test_assistants_and_their_versions(house: House) -> None:
    assistants = house.client.assistants
    made = await assistants.create("echo", name="first", config={"a": 1}, metadata={"k": "v"})
    assert (made.agent, made.version, made.config) == ("echo", 1, {"a": 1})
    assert await assistants.get(made.assistant_id) == made
    changed = await assistants.update(made.assistant_id, config={"a": 2})
    assert (changed.version, changed.config, changed.name) == (2, {"a": 2}, "first")
    versions = await assistants.versions(made.assistant_id)
    assert [each.version for each in versions] == [2, 1]
    back = await assistants.set_latest(made.assistant_id, 1)
    assert (back.version, back.config) == (1, {"a": 1})
    found = await assistants.search(agent="echo", metadata={"k": "v"})
    assert [each.assistant_id for each in found] == [made.assistant_id]
    assert (await assistants.search(agent="echo", limit=0)).total == 2
    run = await house.run(assistant_id=made.assistant_id)
    assert (run.assistant_id, run.agent) == (made.assistant_id, "echo")
    await assistants.delete(made.assistant_id)
    for asking in (
        assistants.get(made.assistant_id),
        assistants.update(made.assistant_id, name="x"),
        assistants.set_latest(made.assistant_id, 1),
        assistants.versions(made.assistant_id),
        assistants.delete(made.assistant_id),
        assistants.create("nobody"),
    ):
        with pytest.raises(NotFound):
            await asking
    own = (await assistants.search(agent="echo"))[0]
    with pytest.raises(Conflict):
        await assistants.delete(own.assistant_id)
    with pytest.raises(Conflict):
        await assistants.create("echo", assistant_id=own.assistant_id)
    with pytest.raises(InvalidInput):
        await assistants.search(sort_by=cast(Any, "config"))


# --- the outbox, and why ----------------------------------------------------------------------------------


async def test_the_outbox_is_shown(house: House) -> None:
    store, outbox = house.visitor.app.store, house.client.outbox
    threads = house.visitor.app.services.threads
    assert threads is not None
    body = '{"url":"https://user:secret@example.com/x","payload":{}}'
    effects = [NewEffect("webhook", f"run-{number}", body) for number in range(3)]
    ids = await store.storage.run(put, effects, ns=await threads.ns())  # type: ignore[attr-defined]
    page = await outbox.list(limit=2, total=True)
    assert (page.total, len(page)) == (3, 2)
    assert [each.id for each in await outbox.list(subject="run-1", consumer="webhook")] == [ids[1]]
    assert (await outbox.list(status=["dead", "delivered"])).total == 0
    shown = await outbox.get(ids[0])
    assert shown.body is not None
    assert "secret" not in shown.body
    assert (await outbox.retry(ids[0])).status == "pending"
    for asking in (outbox.get("nothing"), outbox.retry("nothing")):
        with pytest.raises(NotFound):
            await asking
    assert (await house.visitor.get(API + "/outbox?status=lost")).status == 422


async def test_why_a_run_waits(house: House) -> None:
    await house.client.create_thread("t")
    first = await house.run(thread_id="t")
    second = await house.run(thread_id="t", multitask_strategy="enqueue")
    told = await house.client.why(second.run_id)
    assert (told.id, told.kind, told.status) == (second.run_id, "run", "pending")
    assert first.run_id in told.sentence
    assert (await house.client.why("t")).kind == "thread"
    with pytest.raises(NotFound):
        await house.client.why("nothing")
    stats = await house.client.stats()
    assert (stats["n_pending"], stats["n_running"]) == (2, 0)
    assert stats["min_age_secs"] is not None
    assert stats["med_age_secs"] is not None


async def test_a_store_of_another_make_has_none_of_this() -> None:
    class Other(LightningStore):
        pass

    async with serving(Other()) as visitor:
        for method, path, body in (
            ("GET", "/threads", None),
            ("GET", "/runs/r", None),
            ("GET", "/runs/r/stream", None),
            ("POST", "/runs", {"assistant_id": "a"}),
            ("POST", f"{WORK}/claim", {"worker_id": "w"}),
            ("GET", "/assistants", None),
            ("GET", "/outbox", None),
            ("GET", "/why/x", None),
            ("GET", "/stats", None),
        ):
            options: Any = {} if body is None else {"json": body}
            answer = await visitor.ask(method, API + path, **options)
            assert (answer.status, answer.body["code"]) == (404, "unknown_route"), path


async def test_namespaces_are_apart() -> None:
    async with (
        InMemoryLightningStore() as store,
        serving(store) as visitor,
        PerdureClient(visitor.url, namespace="a", **QUICK) as a,
        PerdureClient(visitor.url, namespace="b", **QUICK) as b,
    ):
        await a.create_thread("t")
        assert (await b.search_threads()).total == 0
        with pytest.raises(NotFound):
            await b.get_thread("t")
        await b.create_thread("t")
