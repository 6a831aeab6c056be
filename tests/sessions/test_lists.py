"""Lists of sessions read a small part of both ends of a log, and again only after a change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perdure import Perdure
from perdure.eventlog.file_log import FileEventLog
from perdure.eventlog.port import LogInfo, LogName
from perdure.kernel.checks import MAX_PAGE
from perdure.sessions.described import MAX_DESCRIBED, DescribedSessions
from perdure.sessions.model import Session


def said(role: str, text: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": role, "content": [{"type": "text", "text": text}]}
    if role == "assistant":
        message["model"] = "m-1"
    return {"type": role, "message": message}


def replace(folder: Path, before: bytes, after: bytes) -> None:
    (path,) = folder.rglob("small.jsonl")
    text = path.read_bytes().replace(before, after)
    path.unlink()
    path.write_bytes(text)


async def test_a_session_is_described_by_its_ends_and_read_again_only_after_a_change(
    tmp_path: Path, monkeypatch: Any
) -> None:
    reads: list[tuple[str, int]] = []
    edges = FileEventLog._edges

    def counted(self: FileEventLog, ns: int, name: Any, wanted: int) -> Any:
        reads.append((name.session_id, wanted))
        return edges(self, ns, name, wanted)

    monkeypatch.setattr(FileEventLog, "_edges", counted)
    async with Perdure(f"sqlite:///{tmp_path}/perdure.db") as perdure:
        sessions = perdure.sessions
        filling = [said("assistant", "x" * 500) for _ in range(300)]
        await sessions.append("usual", [said("user", "Review it."), *filling, said("assistant", "Done.")])
        # Its first and its last message are longer than the part that is read first.
        await sessions.append("long", [said("user", "y" * 9000), *filling, said("assistant", "z" * 9000)])
        await sessions.append("small", [said("user", "Hello."), said("assistant", "Hi.")])

        async def shown() -> dict[str, tuple[str | None, str | None, str | None]]:
            page = await sessions.list()
            listed = {session.session_id: session for session in page.items}
            return {
                name: (listed[name].first_message, listed[name].last_message, listed[name].model)
                for name in ("usual", "long", "small")
            }

        first = await shown()
        assert first["usual"] == ("Review it.", "Done.", "m-1")
        assert first["small"] == ("Hello.", "Hi.", "m-1")
        assert [(text or "")[:2] for text in first["long"]] == ["yy", "zz", "m-"]
        assert len({size for name, size in reads if name == "long"}) == 2
        assert len({size for name, size in reads if name == "usual"}) == 1
        reads.clear()
        assert await shown() == first
        assert reads == []
        await sessions.append("usual", [said("assistant", "One more thing.")])
        assert (await shown())["usual"] == ("Review it.", "One more thing.", "m-1")
        assert [name for name, _ in reads] == ["usual"]
        # Another file with the same name and the same length.
        replace(tmp_path, b"Hello.", b"Adieu.")
        assert (await shown())["small"] == ("Adieu.", "Hi.", "m-1")


async def test_every_page_of_a_list_has_the_total_of_the_whole_list(tmp_path: Path) -> None:
    async with Perdure(f"sqlite:///{tmp_path}/perdure.db") as perdure:
        for number in range(5):
            await perdure.sessions.append(f"s-{number}", [said("user", "Hello.")])
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page = await perdure.sessions.list(limit=2, cursor=cursor)
            assert page.total == 5
            seen += [each.session_id for each in page.items]
            cursor = page.next
            if cursor is None:
                break
        assert seen == [f"s-{number}" for number in (4, 3, 2, 1, 0)]


def test_as_many_sessions_are_remembered_as_the_largest_page_has() -> None:
    described = DescribedSessions()
    infos = [LogInfo(LogName("-app", f"s-{number}"), 10, 1, 2) for number in range(MAX_DESCRIBED + 5)]
    session = Session(session_id="s", project="-app", kind="chat", size=10, started_at=1.0, updated_at=2.0)
    for info in infos:
        described.put(1, info, session)
    remembered = [described.get(1, info) is not None for info in infos]
    assert remembered == [False] * 5 + [True] * MAX_PAGE
