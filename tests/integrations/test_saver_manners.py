"""How the saver is opened and closed, what it gives back, and what it never does."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import ormsgpack
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from pydantic import BaseModel
from tests.integrations import programs
from tests.integrations.support import config_for, new_thread, put, rows_of

from perdure import InMemoryLightningStore, Perdure, open_store
from perdure.checkpoints.records import GraphChanges, GraphPut, Piece
from perdure.integrations.langgraph import PerdureSaver
from perdure.kernel.errors import InvalidInput, StorageClosed
from perdure.kernel.storage.sqlite import SqliteStorage
from perdure.langgraph.revival import strict_serializer
from perdure.runtime.stores import TABLES


class Place(BaseModel):
    name: str


@dataclasses.dataclass
class Thing:
    place: Place


def test_a_file_is_opened_and_closed(tmp_path: Path) -> None:
    thread_id = new_thread()
    with PerdureSaver(tmp_path / "agents.db") as saver:
        put(saver, thread_id, None, {"a": 1})
    with pytest.raises(StorageClosed):
        saver.get_tuple(config_for(thread_id))
    with PerdureSaver.from_url(f"sqlite:///{tmp_path}/agents.db") as again:
        assert again.get_tuple(config_for(thread_id)) is not None


async def test_what_is_given_stays_open() -> None:
    thread_id = new_thread()
    store = InMemoryLightningStore()
    async with PerdureSaver(store) as saver:
        await saver.aput(config_for(thread_id), empty_checkpoint(), {}, {})
    async with PerdureSaver(store.storage, namespace="elsewhere") as other:
        assert await other.aget_tuple(config_for(thread_id)) is None
    async with PerdureSaver(store.storage) as same:
        assert await same.aget_tuple(config_for(thread_id)) is not None
    await store.close()


async def test_beside_threads_and_runs(tmp_path: Path) -> None:
    async with Perdure(f"sqlite:///{tmp_path}/agents.db") as perdure, PerdureSaver(perdure) as saver:
        graph = programs.talk().compile(checkpointer=saver)
        await graph.ainvoke(programs.hello(), config_for(new_thread()))
        assert (await perdure.threads.search_threads()).items == []


async def test_a_storage_of_its_own() -> None:
    storage = SqliteStorage(":memory:", TABLES)
    async with PerdureSaver(storage) as saver:
        assert [each async for each in saver.alist(None)] == []
    await storage.close()


def _values(saver: PerdureSaver, value: Any) -> Any:
    thread_id = new_thread()
    put(saver, thread_id, None, {"value": value})
    found = saver.get_tuple(config_for(thread_id))
    assert found is not None
    return found.checkpoint["channel_values"]["value"]


def test_only_allowed_types_come_back(caplog: pytest.LogCaptureFixture) -> None:
    ours, foreign = Thing(Place(name="here")), urlsplit("http://host/path")
    plain = {"scheme": "http", "netloc": "host", "path": "/path", "query": "", "fragment": ""}
    with PerdureSaver("memory:") as saver, caplog.at_level(logging.WARNING):
        assert _values(saver, [ours, foreign]) == [ours, plain]
        more = saver.with_allowlist([("urllib.parse", "SplitResult")])
        assert isinstance(more, PerdureSaver)
        assert _values(more, [ours, foreign]) == [ours, foreign]
    with PerdureSaver("memory:", allowed=[SplitResult, (__name__, "Place")]) as allowing:
        assert _values(allowing, [ours, foreign]) == [ours, foreign]


def test_bytes_from_elsewhere_are_never_executed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mark = tmp_path / "executed"
    call = ormsgpack.packb(("os", "system", f"touch {mark}"))
    method = ormsgpack.packb(("os", "os", str(mark), "mkdir"))
    evil = [ormsgpack.Ext(0, call), ormsgpack.Ext(1, ormsgpack.packb(("os", "mkdir", [str(mark)])))]
    body = ormsgpack.packb([*evil, ormsgpack.Ext(3, method), ormsgpack.Ext(5, call)])
    with PerdureSaver("memory:") as saver, caplog.at_level(logging.WARNING):
        piece = Piece(channel="value", version="1", value=("msgpack", body))
        checkpoint = saver.serde.dumps_typed({"v": 1, "id": "c", "ts": "", "versions_seen": {}})
        made = GraphPut(
            thread_id="t", checkpoint_id="c", checkpoint=checkpoint, versions={"value": 1}, pieces=[piece]
        )
        saver._opened.wait(lambda: saver._graphs.put(GraphChanges(puts=[made])))
        found = saver.get_tuple(config_for("t"))
        assert found is not None
        assert found.checkpoint["channel_values"]["value"][1] == [str(mark)]
    assert not mark.exists()


@pytest.mark.parametrize("form", ["pickle", "unknown"])
def test_forms_that_are_not_known_are_refused(form: str) -> None:
    with PerdureSaver("memory:") as saver, pytest.raises(NotImplementedError, match=form):
        saver.serde.loads_typed((form, b"cos\nsystem\n."))


class Mirror(CipherProtocol):
    """Turns bytes around: enough to be unreadable to anybody else."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "mirror", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "mirror"
        return ciphertext[::-1]


def test_values_can_be_encrypted() -> None:
    serde = EncryptedSerializer(Mirror(), strict_serializer())
    with PerdureSaver("memory:", serde=serde) as saver:
        checkpoint = None
        items: list[str] = []
        for number in range(8):
            items = [*items, f"secret {number}"]
            checkpoint = put(saver, "t", checkpoint, {"items": items})
        found = saver.get_tuple(config_for("t"))
        assert found is not None
        assert found.checkpoint["channel_values"]["items"] == items
        assert any(log for _, _, log, _ in rows_of(saver, "t")["pieces"])


@pytest.mark.parametrize("config", [{}, {"configurable": {}}, {"configurable": {"checkpoint_ns": ""}}])
def test_a_config_without_a_thread(config: Any) -> None:
    with PerdureSaver("memory:") as saver, pytest.raises(InvalidInput, match="thread_id"):
        saver.get_tuple(config)


def test_writes_without_a_checkpoint() -> None:
    with PerdureSaver("memory:") as saver, pytest.raises(InvalidInput, match="checkpoint_id"):
        saver.put_writes(config_for("t"), [("a", 1)], "task")


def test_versions_only_grow_and_are_never_the_same() -> None:
    with PerdureSaver("memory:") as saver:
        version: Any = None
        for _ in range(300):
            following = {saver.get_next_version(version, None) for _ in range(3)}
            assert len(following) == 3
            assert all(version is None or each > version for each in following)
            version = min(following)
        assert saver.get_next_version(7, None).startswith("00000008.")  # type: ignore[arg-type]


def test_a_listing_in_many_parts() -> None:
    with PerdureSaver("memory:") as saver:
        made: list[str] = []
        for ns in ("", "a", "b"):
            checkpoint = None
            for number in range(70):
                checkpoint = put(saver, "t", checkpoint, {"n": number}, ns=ns)
                made.append(checkpoint["id"])
        saver.copy_thread("t", "copy")
        whole = [
            each.checkpoint["id"]
            for each in saver.list(config_for("t") | {"configurable": {"thread_id": "t"}})
        ]
        assert whole == sorted(made, reverse=True)
        # Each id twice now, and each time both.
        everything = [each.checkpoint["id"] for each in saver.list(None)]
        assert everything == sorted([*made, *made], reverse=True)
        assert [each.checkpoint["id"] for each in saver.list(None, limit=131)] == everything[:131]
        listing = saver.list(None)
        next(listing)
        listing.close()  # type: ignore[attr-defined]


async def test_one_saver_in_a_loop_and_in_threads() -> None:
    async with PerdureSaver(open_store("memory:")) as saver:
        graph = programs.talk().compile(checkpointer=saver)
        config = config_for(new_thread())
        await graph.ainvoke(programs.hello(1), config)
        graph.invoke(programs.hello(2), config)
        assert (await graph.aget_state(config)).values["count"] == 2
        assert graph.get_state(config).values["count"] == 2
        await saver._opened.storage.close()
