"""Crons: runs started at their times, with the real clients."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import aiohttp
import pytest
from langgraph_sdk.client import LangGraphClient, SyncLangGraphClient
from langgraph_sdk.errors import BadRequestError, NotFoundError, UnprocessableEntityError
from tests.kernel.support import until_true

from perdure.testing.serving import ServerProcess

YEARLY = "0 0 1 1 *"
EVERY_SECOND = "* * * * * *"
FIELDS = {
    "cron_id",
    "assistant_id",
    "thread_id",
    "on_run_completed",
    "end_time",
    "schedule",
    "timezone",
    "created_at",
    "updated_at",
    "user_id",
    "payload",
    "next_run_date",
    "metadata",
    "enabled",
}

Cron = Any
"""`create` returns a cron, although the clients call it a run."""


def time_of(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    assert found.tzinfo is not None
    return found


async def one(client: LangGraphClient, cron: Cron) -> Cron:
    """Return a cron as a search shows it now."""
    found = await client.crons.search(metadata=cron["metadata"])
    (same,) = [each for each in found if each["cron_id"] == cron["cron_id"]]
    return same


async def post(server: ServerProcess, path: str, body: Any, method: str = "POST") -> tuple[int, Any, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, server.url + path, json=body) as answer,
    ):
        content = await answer.json() if answer.content_type == "application/json" else None
        return answer.status, content, answer.headers


# --- making -----------------------------------------------------------------------------------------------


async def test_a_cron_has_the_shape_that_clients_read(client: LangGraphClient, mark: dict[str, str]) -> None:
    end = datetime(2099, 1, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    made: Cron = await client.crons.create(
        "steps",
        schedule="30 9 * * MON-FRI",
        timezone="Europe/Berlin",
        end_time=end,
        input={"n": 1},
        metadata=mark,
        config={"tags": ["a"], "recursion_limit": 9},
        context={"name": "ada"},
        interrupt_before=["two"],
        interrupt_after="*",
        on_run_completed="keep",
        multitask_strategy="interrupt",
        stream_mode=["values", "updates"],
        stream_subgraphs=True,
        stream_resumable=True,
        durability="sync",
    )
    assert set(made) == FIELDS
    (assistant,) = await client.assistants.search(graph_id="steps", metadata={"created_by": "system"})
    assert made["assistant_id"] == assistant["assistant_id"]
    assert (made["thread_id"], made["on_run_completed"]) == (None, "keep")
    assert (made["schedule"], made["timezone"]) == ("30 9 * * MON-FRI", "Europe/Berlin")
    assert time_of(made["end_time"]) == end
    assert (made["enabled"], made["metadata"], made["user_id"]) == (True, mark, None)
    local = time_of(made["next_run_date"]).astimezone(ZoneInfo("Europe/Berlin"))
    assert (local.hour, local.minute, local.weekday() < 5) == (9, 30, True)
    assert local > datetime.now(UTC)
    assert time_of(made["created_at"]) == time_of(made["updated_at"])
    payload = made["payload"]
    assert payload["assistant_id"] == made["assistant_id"]
    assert (payload["schedule"], payload["input"]) == ("30 9 * * MON-FRI", {"n": 1})
    assert (payload["metadata"], payload["context"]) == (mark, {"name": "ada"})
    assert payload["config"] == {"tags": ["a"], "recursion_limit": 9}
    assert (payload["interrupt_before"], payload["interrupt_after"]) == (["two"], "*")
    assert (payload["durability"], payload["stream_mode"]) == ("sync", ["values", "updates"])
    uuid.UUID(made["cron_id"])
    assert await one(client, made) == made


async def test_a_cron_of_a_thread_has_no_say_in_what_becomes_of_it(
    client: LangGraphClient, mark: dict[str, str]
) -> None:
    thread = await client.threads.create()
    made: Cron = await client.crons.create_for_thread(
        thread["thread_id"], "noop", schedule=YEARLY, metadata=mark, enabled=False
    )
    assert (made["thread_id"], made["on_run_completed"]) == (thread["thread_id"], None)
    assert (made["enabled"], made["next_run_date"]) == (False, None)


async def test_an_assistant_can_be_named_by_its_id(client: LangGraphClient, mark: dict[str, str]) -> None:
    assistant = await client.assistants.create("noop", metadata=mark)
    made: Cron = await client.crons.create(assistant["assistant_id"], schedule=YEARLY, metadata=mark)
    assert made["assistant_id"] == assistant["assistant_id"]
    assert made["on_run_completed"] == "delete"


@pytest.mark.parametrize("schedule", ["bad", "61 * * * *", "* * * *", "0 0 30 2 *", ""])
async def test_a_schedule_that_cannot_be_read_is_refused(client: LangGraphClient, schedule: str) -> None:
    with pytest.raises(UnprocessableEntityError, match="schedule"):
        await client.crons.create("noop", schedule=schedule)


async def test_bad_bodies_are_refused(client: LangGraphClient, server: ServerProcess) -> None:
    with pytest.raises(UnprocessableEntityError, match="Mars/Olympus"):
        await client.crons.create("noop", schedule=YEARLY, timezone="Mars/Olympus")
    with pytest.raises(NotFoundError):
        await client.crons.create("nobody", schedule=YEARLY)
    with pytest.raises(NotFoundError):
        await client.crons.create_for_thread(str(uuid.uuid4()), "noop", schedule=YEARLY)
    with pytest.raises(UnprocessableEntityError):
        await client.crons.create_for_thread("t", "noop", schedule=YEARLY)
    with pytest.raises(BadRequestError):
        await client.crons.create(
            "noop", schedule=YEARLY, context={"a": 1}, config={"configurable": {"a": 1}}
        )
    bad: tuple[Any, ...] = (
        {"assistant_id": "noop"},
        {"schedule": YEARLY},
        {"assistant_id": "noop", "schedule": YEARLY, "end_time": "soon"},
        {"assistant_id": "noop", "schedule": YEARLY, "enabled": "yes"},
        {"assistant_id": "noop", "schedule": YEARLY, "multitask_strategy": "shove"},
        {"assistant_id": "noop", "schedule": YEARLY, "on_run_completed": "burn"},
        {"assistant_id": "noop", "schedule": YEARLY, "stream_mode": "all"},
        {"assistant_id": "noop", "schedule": YEARLY, "durability": "never"},
        {"assistant_id": "noop", "schedule": YEARLY, "webhook": "file:///etc/passwd"},
        [],
    )
    for body in bad:
        status, content, _ = await post(server, "/runs/crons", body)
        assert (status, type(content["detail"])) == (422, str), body


# --- changing ---------------------------------------------------------------------------------------------


async def test_an_update_changes_what_it_names(client: LangGraphClient, mark: dict[str, str]) -> None:
    made: Cron = await client.crons.create("noop", schedule=YEARLY, metadata=mark, input={"n": 1})
    changed: Cron = await client.crons.update(
        made["cron_id"],
        schedule="0 12 2 1 *",
        timezone="Asia/Tokyo",
        input={"n": 2},
        metadata={"more": "b"},
        interrupt_before=["x"],
        on_run_completed="keep",
        durability="exit",
    )
    assert (changed["schedule"], changed["timezone"]) == ("0 12 2 1 *", "Asia/Tokyo")
    assert changed["metadata"] == {**mark, "more": "b"}
    assert (changed["payload"]["input"], changed["payload"]["durability"]) == ({"n": 2}, "exit")
    assert (changed["payload"]["interrupt_before"], changed["on_run_completed"]) == (["x"], "keep")
    due = time_of(changed["next_run_date"]).astimezone(UTC)
    assert (due.month, due.day, due.hour) == (1, 2, 3)
    assert time_of(changed["updated_at"]) > time_of(changed["created_at"])
    assert await one(client, changed) == changed


async def test_an_end_is_set_left_and_taken_away(client: LangGraphClient, mark: dict[str, str]) -> None:
    made: Cron = await client.crons.create("noop", schedule=YEARLY, metadata=mark)
    past = datetime.now(UTC) - timedelta(days=1)
    ended: Cron = await client.crons.update(made["cron_id"], end_time=past)
    assert (time_of(ended["end_time"]), ended["next_run_date"]) == (past, None)
    left: Cron = await client.crons.update(made["cron_id"], input={"n": 1})
    assert time_of(left["end_time"]) == past
    freed: Cron = await client.crons.update(made["cron_id"], end_time=None)
    assert (freed["end_time"], freed["next_run_date"]) == (None, made["next_run_date"])


async def test_a_cron_is_paused_and_goes_on(client: LangGraphClient, mark: dict[str, str]) -> None:
    made: Cron = await client.crons.create("noop", schedule=YEARLY, metadata=mark)
    paused: Cron = await client.crons.update(made["cron_id"], enabled=False)
    assert (paused["enabled"], paused["next_run_date"]) == (False, None)
    resumed: Cron = await client.crons.update(made["cron_id"], enabled=True)
    assert (resumed["enabled"], resumed["next_run_date"]) == (True, made["next_run_date"])


async def test_a_bad_update_is_refused(
    client: LangGraphClient, server: ServerProcess, mark: dict[str, str]
) -> None:
    made: Cron = await client.crons.create("noop", schedule=YEARLY, metadata=mark)
    wrong: tuple[dict[str, Any], ...] = (
        {"schedule": "bad"},
        {"timezone": "Mars/Olympus"},
        {"webhook": "ftp://x.example"},
    )
    for bad in wrong:
        with pytest.raises(UnprocessableEntityError):
            await client.crons.update(made["cron_id"], **bad)
    with pytest.raises(BadRequestError):
        await client.crons.update(made["cron_id"])
    with pytest.raises(NotFoundError):
        await client.crons.update(str(uuid.uuid4()), enabled=False)
    with pytest.raises(UnprocessableEntityError):
        await client.crons.update("no-uuid", enabled=False)
    assert await one(client, made) == made


async def test_a_cron_is_read_and_deleted(
    client: LangGraphClient, server: ServerProcess, mark: dict[str, str]
) -> None:
    made: Cron = await client.crons.create("noop", schedule=YEARLY, metadata=mark)
    path = f"/runs/crons/{made['cron_id']}"
    assert (await post(server, path, None, "GET"))[:2] == (200, made)
    await client.crons.delete(made["cron_id"])
    status, content, _ = await post(server, path, None, "GET")
    assert (status, set(content)) == (404, {"detail", "code"})
    with pytest.raises(NotFoundError):
        await client.crons.delete(made["cron_id"])
    assert (await post(server, "/runs/crons/no-uuid", None, "GET"))[0] == 422


# --- searching --------------------------------------------------------------------------------------------


async def test_crons_are_found_and_counted(
    client: LangGraphClient, server: ServerProcess, mark: dict[str, str]
) -> None:
    thread = await client.threads.create()
    first: Cron = await client.crons.create("noop", schedule=YEARLY, metadata={**mark, "size": 1})
    second: Cron = await client.crons.create_for_thread(
        thread["thread_id"], "steps", schedule="0 0 2 1 *", metadata=mark
    )
    third: Cron = await client.crons.create("noop", schedule="0 0 3 1 *", metadata=mark, enabled=False)

    async def found(**wanted: Any) -> list[str]:
        return [each["cron_id"] for each in await client.crons.search(metadata=mark, **wanted)]

    every = [third["cron_id"], second["cron_id"], first["cron_id"]]
    assert await found() == every
    assert await found(sort_by="next_run_date", sort_order="asc") == every[::-1]
    assert await found(assistant_id="noop") == [every[0], every[2]]
    assert await found(assistant_id=second["assistant_id"], thread_id=thread["thread_id"]) == [every[1]]
    assert await found(assistant_id="nobody") == []
    assert await found(enabled=False) == [every[0]]
    assert await found(enabled=True, limit=1) == [every[1]]
    assert await found(limit=2, offset=2) == [every[2]]
    narrow = await client.crons.search(metadata=mark, limit=1, select=["cron_id", "schedule"])
    assert narrow == [{"cron_id": every[0], "schedule": "0 0 3 1 *"}]
    assert await client.crons.count(metadata=mark) == 3
    assert await client.crons.count(metadata=mark, assistant_id="noop") == 2
    assert await client.crons.count(metadata=mark, thread_id=thread["thread_id"]) == 1
    _, _, headers = await post(server, "/runs/crons/search", {"metadata": mark, "limit": 2})
    assert (headers["X-Pagination-Total"], headers["X-Pagination-Next"]) == ("3", "2")


@pytest.mark.parametrize(
    "body",
    [
        {"sort_by": "payload"},
        {"limit": 0},
        {"limit": 1001},
        {"offset": -1},
        {"thread_id": "t"},
        {"select": ["x"]},
    ],
)
async def test_bad_searches_are_refused(server: ServerProcess, body: dict[str, Any]) -> None:
    status, content, _ = await post(server, "/runs/crons/search", body)
    assert (status, type(content["detail"])) == (422, str)


# --- firing -----------------------------------------------------------------------------------------------


async def test_a_cron_runs_on_its_thread(client: LangGraphClient, mark: dict[str, str]) -> None:
    thread = await client.threads.create()
    made: Cron = await client.crons.create_for_thread(
        thread["thread_id"], "steps", schedule=EVERY_SECOND, input={"n": 5}, metadata=mark
    )

    async def ran() -> bool:
        runs = await client.runs.list(thread["thread_id"])
        return any(run["status"] == "success" for run in runs)

    await until_true(ran)
    await client.crons.delete(made["cron_id"])
    run: Any = (await client.runs.list(thread["thread_id"]))[-1]
    assert run["assistant_id"] == made["assistant_id"]
    assert mark.items() <= run["metadata"].items()
    values: Any = await client.runs.join(thread["thread_id"], run["run_id"])
    assert values["n"] == 8


async def test_without_a_thread_each_firing_makes_one_and_keeps_it_if_told_to(
    client: LangGraphClient, mark: dict[str, str]
) -> None:
    kept: Cron = await client.crons.create(
        "noop", schedule=EVERY_SECOND, metadata=mark, on_run_completed="keep"
    )
    gone: Cron = await client.crons.create("steps", schedule=EVERY_SECOND, metadata=mark)

    async def both_fired() -> bool:
        found = [await one(client, each) for each in (kept, gone)]
        return all(time_of(each["next_run_date"]) > _later(gone, 2) for each in found)

    await until_true(both_fired)
    await client.crons.delete(kept["cron_id"])
    await client.crons.delete(gone["cron_id"])


def _later(cron: Cron, seconds: float) -> datetime:
    return time_of(cron["next_run_date"]) + timedelta(seconds=seconds)


async def test_an_end_that_comes_ends_it(client: LangGraphClient, mark: dict[str, str]) -> None:
    end = datetime.now(UTC) + timedelta(seconds=2.5)
    made: Cron = await client.crons.create("noop", schedule=EVERY_SECOND, metadata=mark, end_time=end)

    async def over() -> bool:
        return (await one(client, made))["next_run_date"] is None

    await until_true(over)
    assert (await one(client, made))["enabled"]


# --- the synchronous client -------------------------------------------------------------------------------


def test_the_synchronous_client_does_the_same(sync_client: SyncLangGraphClient, mark: dict[str, str]) -> None:
    thread = sync_client.threads.create()
    made: Cron = sync_client.crons.create("noop", schedule=YEARLY, metadata=mark)
    other: Cron = sync_client.crons.create_for_thread(
        thread["thread_id"], "noop", schedule=YEARLY, metadata=mark
    )
    assert set(made) == set(other) == FIELDS
    changed: Cron = sync_client.crons.update(made["cron_id"], enabled=False, end_time=None)
    assert (changed["enabled"], changed["end_time"]) == (False, None)
    found = sync_client.crons.search(metadata=mark)
    assert [each["cron_id"] for each in found] == [other["cron_id"], made["cron_id"]]
    assert sync_client.crons.count(metadata=mark) == 2
    sync_client.crons.delete(made["cron_id"])
    with pytest.raises(NotFoundError):
        sync_client.crons.delete(made["cron_id"])
