"""The contract of both kinds of log: in files, and in a table on each engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.kernel.support import open_database

from perdure.eventlog.file_log import FileEventLog
from perdure.eventlog.port import (
    CHAT_PROJECT,
    MAX_LINES,
    EventLog,
    Lines,
    LogName,
    build_project_name,
    encode_line,
)
from perdure.eventlog.table_log import TableEventLog
from perdure.eventlog.tables import TABLES
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import InvalidInput

NAME = LogName("-home-agent-workspace", "session-1")
NS = 1


def line(number: int) -> bytes:
    return encode_line({"type": "user", "n": number})


def numbers(page: Lines | None) -> list[int]:
    assert page is not None
    return [decode_json(line.body)["n"] for line in page.lines]


class Contract:
    """The tests of a log of either kind."""

    async def test_lines_come_back_in_order_and_in_pages(self, log: EventLog) -> None:
        assert await log.read(NS, NAME) is None
        reached = 0
        for start in range(0, 100, 20):
            end = await log.append(NS, NAME, [line(number) for number in range(start, start + 20)])
            assert end > reached
            reached = end
        seen: list[int] = []
        after = 0
        while page := await log.read(NS, NAME, after=after, limit=7):
            if not page.lines:
                break
            seen += numbers(page)
            assert page.lines[-1].after == page.reached > after
            after = page.reached
        assert seen == list(range(100))
        assert after == reached == page.end if page else False

    async def test_a_batch_that_is_sent_twice_is_written_once(self, log: EventLog) -> None:
        batch = [line(number) for number in range(1, 6)]
        await log.append(NS, NAME, batch, attempt_id="at-1")
        await log.append(NS, NAME, batch, attempt_id="at-1")
        await log.append(NS, NAME, [*batch[3:], line(6)], attempt_id="at-1", first=4)
        assert numbers(await log.read(NS, NAME)) == [1, 2, 3, 4, 5, 6]
        await log.append(NS, NAME, [line(7)], attempt_id="at-2")
        assert numbers(await log.read(NS, NAME)) == [1, 2, 3, 4, 5, 6, 7]
        once = LogName("-app", "once")
        await log.append(NS, once, batch, attempt_id="at-1")
        (before,) = await log.find(NS, "once")
        await log.append(NS, once, [*batch[3:], line(6)], attempt_id="at-1", first=4)
        (after,) = await log.find(NS, "once")
        assert after.size == before.size * 6 // 5, "a line that was there before does not count again"

    async def test_appends_of_many_callers_keep_every_line_whole(self, log: EventLog) -> None:
        async def write(attempt: int) -> None:
            for batch in range(5):
                bodies = [line(attempt * 1000 + batch * 10 + number) for number in range(10)]
                await log.append(NS, NAME, bodies, attempt_id=f"at-{attempt}", first=batch * 10 + 1)

        await asyncio.gather(*map(write, range(4)))
        seen = numbers(await log.read(NS, NAME, limit=1000))
        assert sorted(seen) == sorted(a * 1000 + n for a in range(4) for n in range(50))
        for attempt in range(4):
            own = [number for number in seen if number // 1000 == attempt]
            assert own == sorted(own)

    async def test_a_page_ends_with_the_line_that_makes_it_too_large(self, log: EventLog) -> None:
        await log.append(NS, NAME, [encode_line({"n": n, "text": "é" * 1000}) for n in range(10)])
        page = await log.read(NS, NAME, max_bytes=3000)
        assert numbers(page) == [0, 1]
        assert numbers(await log.read(NS, NAME, after=page.reached if page else 0, max_bytes=1)) == [2]

    async def test_edges_show_the_beginning_and_the_end_alone(self, log: EventLog) -> None:
        small = LogName("-app", "small")
        await log.append(NS, small, [line(1), line(2)])
        for batch in range(10):
            bodies = [encode_line({"n": batch * 100 + n, "text": "x" * 2000}) for n in range(100)]
            await log.append(NS, NAME, bodies)
        missing = LogName("-app", "missing")
        large, few, none = await log.edges(NS, [NAME, small, missing])
        assert large is not None
        assert few is not None
        assert none is None
        assert decode_json(large.first[0].body)["n"] == 0
        assert decode_json(large.last[-1].body)["n"] == 999
        assert not large.whole
        assert len(large.first) + len(large.last) < 500
        assert few.whole
        assert [decode_json(line.body)["n"] for line in (*few.first, *few.last)] == [1, 2]

    async def test_sessions_are_listed_and_no_sub_agent(self, log: EventLog) -> None:
        assert await log.logs(NS) == []
        other = LogName(CHAT_PROJECT, "session-2")
        sub_agent = LogName(NAME.project, NAME.session_id, "subagents/agent-7")
        for name in (NAME, other, sub_agent):
            await log.append(NS, name, [line(1)])
        await log.append(NS, NAME, [line(2)])
        assert {info.name for info in await log.logs(NS)} == {NAME, other}
        assert [info.name for info in await log.logs(NS, project=CHAT_PROJECT)] == [other]
        assert [info.name for info in await log.sub_agents(NS, NAME)] == [sub_agent]
        assert [info.name for info in await log.find(NS, "session-2")] == [other]
        assert await log.find(NS, "session-3") == []
        assert await log.logs(2) == []
        assert await log.read(2, NAME) is None
        named = NAME._replace(session_id="agent-9")
        await log.append(NS, named, [line(1)])
        assert {info.name for info in await log.logs(NS)} == {NAME, other, named}

    async def test_content_is_stored_once_under_its_hash(self, log: EventLog) -> None:
        content = bytes(range(256)) * 1000
        digest = await log.put_blob(NS, content)
        assert await log.put_blob(NS, content) == digest
        assert await log.get_blob(NS, digest) == content
        assert await log.get_blob(2, digest) is None
        assert await log.get_blob(NS, "0" * 64) is None

    async def test_names_that_lead_elsewhere_and_lines_that_are_none_are_refused(self, log: EventLog) -> None:
        names = [
            LogName("..", "s"),
            LogName("a/b", "s"),
            LogName("", "s"),
            LogName("-app", ""),
            LogName("-app", "../s"),
            LogName("-app", "a.b"),
            LogName("-app", "s", "../x"),
            LogName("-app", "s", "/x"),
            LogName("-app", "s", "a//b"),
            LogName("-app", "s", ".hidden"),
            LogName("-a\0b", "s"),
        ]
        for name in names:
            with pytest.raises(InvalidInput):
                await log.append(NS, name, [line(1)])
            with pytest.raises(InvalidInput):
                await log.read(NS, name)
        for bodies in ([b"[1]"], [b"{}"], [b'{"a":\n1}'], [b'{"a":"\0"}'], [line(1)] * (MAX_LINES + 1)):
            with pytest.raises(InvalidInput):
                await log.append(NS, NAME, bodies)
        for attempt_id, first in (('a"b', 1), ("a b", 1), ("at-1", 0)):
            with pytest.raises(InvalidInput):
                await log.append(NS, NAME, [line(1)], attempt_id=attempt_id, first=first)
        with pytest.raises(InvalidInput):
            await log.get_blob(NS, "../../etc/passwd")
        assert await log.logs(NS) == []

    async def test_sessions_that_have_not_changed_for_long_are_found_and_deleted(self, log: EventLog) -> None:
        names = [LogName("-app", f"s{number}") for number in range(3)]
        for name in names:
            await log.append(NS, name, [line(1), line(2)], attempt_id="at-1")
        await log.append(NS, names[0]._replace(subpath="subagents/agent-1"), [line(3)])
        assert await log.idle(NS, 1000.0, None, 10) == []
        first, *_ = idle = await log.idle(NS, 0.0, None, 10)
        assert {info.name for info in idle} == set(names)
        assert await log.idle(NS, 0.0, first, 10) == idle[1:]
        assert await log.idle(NS, 0.0, None, 2) == idle[:2]
        assert not await log.remove(NS, names[0], 1000.0), "it has changed since"
        assert await log.remove(NS, names[0], 0.0)
        assert await log.read(NS, names[0]) is None
        assert await log.sub_agents(NS, names[0]) == []
        assert {info.name for info in await log.logs(NS)} == set(names[1:])
        # The same attempt may start it again.
        await log.append(NS, names[0], [line(4)], attempt_id="at-1")
        assert numbers(await log.read(NS, names[0])) == [4]

    async def test_a_long_log_is_deleted_whole(self, log: EventLog) -> None:
        for start in range(0, 1300, 100):
            await log.append(NS, NAME, [line(start + number) for number in range(100)])
        assert await log.remove(NS, NAME, 0.0)
        assert await log.find(NS, NAME.session_id) == []
        await log.append(NS, NAME, [line(7)])
        assert numbers(await log.read(NS, NAME)) == [7]

    async def test_what_is_appended_while_a_log_is_deleted_is_there_whole_or_gone_whole(
        self, log: EventLog
    ) -> None:
        async def write() -> None:
            for number in range(40):
                await log.append(NS, NAME, [line(2 * number), line(2 * number + 1)])

        async def remove() -> None:
            for _ in range(20):
                await log.remove(NS, NAME, 0.0)

        await asyncio.gather(write(), remove(), remove())
        await log.append(NS, NAME, [line(80)])
        seen = numbers(await log.read(NS, NAME))
        assert seen[-1] == 80
        assert seen == list(range(seen[0], 81)), "nothing is missing in between"
        assert seen[0] % 2 == 0

    async def test_content_goes_once_no_line_names_it(self, log: EventLog) -> None:
        shared, alone = await log.put_blob(NS, b"shared"), await log.put_blob(NS, b"alone")
        other = NAME._replace(session_id="other")
        await log.append(NS, NAME, [encode_line({"blob": shared}), encode_line({"blob": alone})])
        await log.append(NS, other, [encode_line({"message": {"content": [{"blob": shared}]}})])
        assert await log.drop_blobs(NS, 0.0) == 0
        assert await log.remove(NS, NAME, 0.0)
        assert await log.drop_blobs(NS, 1000.0) == 0
        assert await log.drop_blobs(NS, 0.0) == 1
        assert await log.get_blob(NS, shared) == b"shared"
        assert await log.get_blob(NS, alone) is None
        assert await log.remove(NS, other, 0.0)
        # A blob that is stored again before its deletion stays.
        await log.put_blob(NS, b"shared")
        assert await log.drop_blobs(NS, 1000.0) == 0
        assert await log.drop_blobs(NS, 0.0) == 1


class TestFiles(Contract):
    @pytest.fixture
    async def log(self, tmp_path: Path) -> AsyncIterator[EventLog]:
        files = FileEventLog(tmp_path / "agent-sessions", sync=False)
        yield files
        await files.close()


class TestTable(Contract):
    @pytest.fixture
    async def log(self, engine_url: str) -> AsyncIterator[EventLog]:
        storage = open_database(engine_url, TABLES)
        yield TableEventLog(storage)
        await storage.close()

    async def test_the_latest_comes_first(self, log: EventLog) -> None:
        others = [LogName("-app", f"s{number}") for number in range(3)]
        for name in (*others, others[0]):
            await log.append(NS, name, [line(1)])
        assert [info.name.session_id for info in await log.logs(NS)] == ["s0", "s2", "s1"]


def test_the_project_of_a_directory_is_its_path_with_dashes() -> None:
    assert build_project_name("/app") == CHAT_PROJECT
    assert build_project_name("/srv/agent/workspace") == "-srv-agent-workspace"
    assert build_project_name("..") == "-.."
    long = build_project_name("/" + "é" * 300)
    assert len(long.encode()) <= 200
    assert long != build_project_name("/" + "é" * 301)
